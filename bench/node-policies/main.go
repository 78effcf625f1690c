// Compiles the CEL expressions of the node policies of the chart, and evaluates them for requests that they must
// allow or deny: `go run . ../../charts/koord/files`. Ends with 1 if a result is wrong.
package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/google/cel-go/cel"
	"sigs.k8s.io/yaml"
)

type m = map[string]any

type policy struct {
	Kind string
	Spec struct {
		MatchConditions []struct{ Expression string }
		Variables       []struct{ Name, Expression string }
		Validations     []struct{ Expression, MessageExpression, Message string }
	}
}

func load(path string) policy {
	text, err := os.ReadFile(path)
	if err != nil {
		panic(err)
	}
	var p policy
	if err := yaml.Unmarshal([]byte(strings.Split(string(text), "\n---\n")[0]), &p); err != nil {
		panic(err)
	}
	return p
}

func env() *cel.Env {
	e, err := cel.NewEnv(cel.OptionalTypes(), cel.Variable("request", cel.DynType), cel.Variable("object", cel.DynType),
		cel.Variable("variables", cel.DynType))
	if err != nil {
		panic(err)
	}
	return e
}

func eval(e *cel.Env, text string, in m) (any, error) {
	ast, issues := e.Compile(text)
	if issues.Err() != nil {
		panic(fmt.Sprintf("%s: %v", text, issues.Err()))
	}
	prg, err := e.Program(ast)
	if err != nil {
		panic(err)
	}
	out, _, err := prg.Eval(in)
	if err != nil {
		return nil, err
	}
	return out.Value(), nil
}

// judge returns whether the policy allows the request, and why not.
func judge(p policy, request, object m) string {
	e := env()
	in := m{"request": request, "object": object, "variables": m{}}
	for _, c := range p.Spec.MatchConditions {
		v, err := eval(e, c.Expression, in)
		if err != nil {
			return "error: " + err.Error()
		}
		if v != true {
			return "allowed (no match)"
		}
	}
	vars := m{}
	for _, v := range p.Spec.Variables {
		x, err := eval(e, v.Expression, in)
		if err != nil {
			return "error: " + err.Error()
		}
		vars[v.Name] = x
	}
	in["variables"] = vars
	for _, v := range p.Spec.Validations {
		x, err := eval(e, v.Expression, in)
		if err != nil {
			return "error: " + err.Error()
		}
		if x != true {
			if v.MessageExpression == "" {
				return "denied: " + v.Message
			}
			t, err := eval(e, v.MessageExpression, in)
			if err != nil {
				return "error: " + err.Error()
			}
			return "denied: " + t.(string)
		}
	}
	return "allowed"
}

func main() {
	root := os.Args[1]
	failed := false
	for _, c := range []struct{ dir, account string }{{"koordlet", "koordlet"}, {"topology-exporter", "koord-topology-exporter"}} {
		p := load(root + "/" + c.dir + "/node-policy.yaml")
		request := func(user, node, resource string) m {
			info := m{"username": "system:serviceaccount:koordinator-system:" + user}
			if node != "" {
				info["extra"] = m{"authentication.kubernetes.io/node-name": []string{node}, "authentication.kubernetes.io/pod-name": []string{"p"}}
			} else if resource != "noextra" {
				info["extra"] = m{"authentication.kubernetes.io/pod-name": []string{"p"}}
			}
			return m{"userInfo": info, "resource": m{"group": "g", "version": "v1", "resource": resource}}
		}
		named := func(name string) m { return m{"metadata": m{"name": name}} }
		event := func(host, kind, name string) m {
			return m{"metadata": m{"name": "e.1", "namespace": "default"}, "source": m{"component": "x", "host": host}, "involvedObject": m{"kind": kind, "name": name}}
		}
		for _, t := range []struct {
			what            string
			request, object m
			want            string
		}{
			{"own object", request(c.account, "n1", "noderesourcetopologies"), named("n1"), "allowed"},
			{"other node's object", request(c.account, "n1", "noderesourcetopologies"), named("n2"), "denied"},
			{"token without a node", request(c.account, "", "noderesourcetopologies"), named("n1"), "denied"},
			{"token without extra", request(c.account, "", "noextra"), named("n1"), "denied"},
			{"another user", request("koord-manager", "", "noderesourcetopologies"), named("n2"), "allowed"},
			{"event about its node", request(c.account, "n1", "events"), event("n1", "Node", "n1"), "allowed"},
			{"event about another node", request(c.account, "n1", "events"), event("n1", "Node", "n2"), "denied"},
		} {
			got := judge(p, t.request, t.object)
			ok := strings.HasPrefix(got, t.want)
			failed = failed || !ok
			fmt.Println(ok, c.dir, t.what, "->", got)
		}
		if c.account == "koordlet" {
			for _, t := range []struct {
				what            string
				request, object m
				want            string
			}{
				{"own status", request("koordlet", "n1", "nodemetrics"), named("n1"), "allowed"},
				{"event about a pod", request("koordlet", "n1", "events"), event("n1", "Pod", "p"), "allowed"},
				{"event of another source", request("koordlet", "n1", "events"), event("n2", "Pod", "p"), "denied"},
				{"event without a source", request("koordlet", "n1", "events"), m{"metadata": m{"name": "e"}}, "denied"},
			} {
				got := judge(p, t.request, t.object)
				ok := strings.HasPrefix(got, t.want)
				failed = failed || !ok
				fmt.Println(ok, c.dir, t.what, "->", got)
			}
		}
	}
	if failed {
		os.Exit(1)
	}
}
