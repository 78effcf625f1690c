//! Filter results of NodeAffinity, PodTopologySpread and InterPodAffinity.

use super::*;
use k8s_openapi::api::core::v1::Namespace;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";

/// Parses labels such as `key=value other=`.
fn labels(text: &str) -> Value {
    let pairs = text.split_whitespace().filter_map(|w| w.split_once('='));
    pairs.map(|(k, v)| (k.to_owned(), json!(v))).collect()
}

/// Parses expressions `key operator value,value`, separated by `&`.
fn expressions<'a>(parts: impl Iterator<Item = &'a str>) -> Value {
    let parse_one = |text: &str| {
        let mut tokens = text.split_whitespace();
        let (key, operator) = (tokens.next().unwrap(), tokens.next().unwrap());
        let values: Vec<&str> = tokens
            .next()
            .into_iter()
            .flat_map(|w| w.split(','))
            .collect();
        match &values[..] {
            [] => json!({"key": key, "operator": operator}),
            values => json!({"key": key, "operator": operator, "values": values}),
        }
    };
    parts.map(parse_one).collect()
}

/// Parses terms separated by `|`, with expressions separated by `&`; `metadata.name` is a field.
fn node_terms(text: &str) -> Value {
    let term = |text: &str| {
        let parts: Vec<&str> = text.split('&').filter(|p| !p.trim().is_empty()).collect();
        let (fields, labels): (Vec<&str>, Vec<&str>) = parts
            .into_iter()
            .partition(|part| part.contains("metadata.name"));
        json!({"matchFields": expressions(fields.into_iter()),
            "matchExpressions": expressions(labels.into_iter())})
    };
    let terms: Value = text.split('|').map(term).collect();
    json!({REQUIRED: {"nodeSelectorTerms": terms}})
}

#[test]
fn nodes_are_selected() {
    let no = "!node(s) didn't match Pod's node affinity/selector";
    let enforced = "!node(s) didn't match scheduler-enforced node affinity";
    let (first, second) = ("metadata.name In node1", "metadata.name In node2");
    let two = |a: &str, b: &str| format!("{a} | {b}");
    let join = |a: &str, b: &str| format!("{a} & {b}");
    let bar = "foo In bar";
    let added = |terms: &str| json!({"addedAffinity": node_terms(terms)});
    let none = || json!({});
    let gpu = "GPU=NVIDIA-GRID-K1";
    // Columns: arguments, selector, terms, node name and labels.
    #[rustfmt::skip]
    let rows = [
        ("no label", none(), "foo=bar", String::new(), "n", "", no),
        ("the label", none(), "foo=bar", String::new(), "n", "foo=bar", "fits"),
        ("more labels", none(), "foo=bar", String::new(), "n", "foo=bar baz=blah", "fits"),
        ("fewer labels", none(), "foo=bar baz=blah", String::new(), "n", "foo=bar", no),
        ("In", none(), "", "foo In bar,value2".into(), "n", "foo=bar", "fits"),
        ("Gt", none(), "", "kernel-version Gt 0204".into(), "n", "kernel-version=0206", "fits"),
        ("NotIn", none(), "", "mem-type NotIn DDR,DDR2".into(), "n", "mem-type=DDR3", "fits"),
        ("Exists", none(), "", "GPU Exists".into(), "n", gpu, "fits"),
        ("not In", none(), "", "foo In value1,value2".into(), "n", "foo=bar", no),
        ("an empty term", none(), "", " ".into(), "n", "foo=bar", no),
        ("nothing wanted", none(), "", String::new(), "n", "foo=bar", "fits"),
        ("all of a term", none(), "", "GPU Exists & GPU NotIn AMD,INTER".into(), "n", gpu, "fits"),
        ("one of a term", none(), "", "GPU Exists & GPU In AMD,INTER".into(), "n", gpu, no),
        ("one of the terms", none(), "", two("foo In bar,value2", "diffkey In wrong,value2"), "n", "foo=bar", "fits"),
        ("selector and affinity", none(), "foo=bar", "foo Exists".into(), "n", "foo=bar", "fits"),
        ("affinity alone", none(), "foo=bar", "foo Exists".into(), "n", "foo=barrrrrr", no),
        ("its name", none(), "", first.into(), "node1", "", "fits"),
        ("another name", none(), "", first.into(), "node2", "", no),
        ("labels of the other term", none(), "", two(&join(first, second), bar), "node2", "foo=bar", "fits"),
        ("labels without the name", none(), "", join(first, bar), "node2", "foo=bar", no),
        ("labels and the name", none(), "", join(first, bar), "node1", "foo=bar", "fits"),
        ("neither", none(), "", two(first, "foo In not-match-to-bar"), "node2", "foo=bar", no),
        ("one of two names", none(), "", two(first, second), "node2", "", "fits"),
        ("two names at once", none(), "", join(first, second), "node2", "foo=bar", "!pod affinity terms conflict"),
        ("added and own", added(second), "", "zone In foo".into(), "node2", "zone=foo", "fits"),
        ("added, not own", added(second), "", "zone In bar".into(), "node2", "zone=foo", no),
        ("not added", added("zone In bar"), "", String::new(), "node2", "zone=foo", enforced),
    ];
    for (name, args, selector, terms, node, own, expected) in rows {
        let mut alone = Alone::new("NodeAffinity", args);
        alone.node(node, labels(own), json!({}));
        let mut pod = json!({"metadata": {}, "spec": {"nodeSelector": labels(selector)}});
        if !terms.is_empty() {
            pod["spec"]["affinity"] = json!({"nodeAffinity": node_terms(&terms)});
        }
        assert_eq!(alone.judge(pod, node), expected, "{name}");
    }
}

/// Parses constraints `skew key label`, then `min=2`, `affinity=Ignore` or `taints=Honor`; separated by
/// commas. The label `-` stands for no selector.
fn constraints(text: &str) -> Value {
    let parse_one = |text: &str| {
        let tokens: Vec<&str> = text.split_whitespace().collect();
        let mut out = json!({"maxSkew": tokens[0].parse::<i32>().unwrap(), "topologyKey": tokens[1],
            "whenUnsatisfiable": "DoNotSchedule"});
        if tokens[2] != "-" {
            let expression = json!({"key": tokens[2], "operator": "Exists"});
            out["labelSelector"] = json!({"matchExpressions": [expression]});
        }
        for (key, value) in tokens[3..].iter().filter_map(|token| token.split_once('=')) {
            match key {
                "min" => out["minDomains"] = json!(value.parse::<i32>().unwrap()),
                "affinity" => out["nodeAffinityPolicy"] = json!(value),
                _ => out["nodeTaintsPolicy"] = json!(value),
            }
        }
        out
    };
    text.split(',').map(parse_one).collect()
}

/// Parses labels without values, such as `foo,bar`.
fn bare(text: &str) -> Value {
    let names = text.split(',');
    names.map(|name| (name.to_owned(), json!(""))).collect()
}

/// Adds pods such as `a:foo b:foo,bar`; `other/` is a namespace, `!` marks a terminating pod.
fn crowd(alone: &mut Alone, text: &str) {
    for token in text.split_whitespace() {
        let (space, rest) = token.split_once('/').unwrap_or(("", token));
        let (rest, going) = rest.strip_prefix('!').map_or((rest, false), |r| (r, true));
        let (node, names) = rest.split_once(':').unwrap();
        let going = going.then_some("2024-01-01T00:00:00Z");
        let own = bare(names);
        let metadata = json!({"namespace": space, "labels": own, "deletionTimestamp": going});
        alone.add_pod(node, json!({"metadata": metadata, "spec": {}}));
    }
}

#[test]
fn spread_filter_rows() {
    let zones = "a/1 b/1 x/2 y/2";
    let hosts = "a b c";
    let uneven = "a:foo a:foo b:foo y:foo y:foo y:foo";
    let more_pods = "a:foo a:foo b:foo y:foo y:foo y:foo y:foo";
    let (here, last) = ("a:foo b:foo y:foo", "a+ b+ x+ y");
    let pairs = "a:foo a:foo b:foo b:foo c:foo";
    let mixed = "a:foo,bar a:foo b:foo,bar y:foo y:foo,bar y:foo";
    let selector = "selector foo=";
    let term = "foo Exists";
    // Columns: the pod's labels and node requirements, constraints, nodes (with their zones; `+`: label foo,
    // `~`: no label node, `!`: a taint), pods, and the result per node: fits, no, or missing label.
    #[rustfmt::skip]
    let rows = [
        ("no pods", "foo", "", "1 zone foo", zones, "", "...."),
        ("no pods, not itself", "foo", "", "1 zone bar", zones, "", "...."),
        ("other namespaces", "foo", "", "1 zone foo", zones, "ns1/a:foo ns2/a:foo x:foo y:foo", "..NN"),
        ("no selector", "foo", "", "1 zone -", zones, "x:foo y:foo", "...."),
        ("3/3", "foo", "", "1 zone foo", zones, uneven, "...."),
        ("1/2, a label is missing", "foo", "", "1 zone foo", "a/1 b x/2 y/2", "a:foo b:foo x:foo y:foo", ".LNN"),
        ("no node has the label", "foo", "", "1 rack foo", "a/1 x/2", "", "LL"),
        ("2/1/0/3", "foo", "", "1 node foo", zones, uneven, "NN.N"),
        ("2/1/0/3, a skew of two", "foo", "", "2 node foo", zones, uneven, "N..N"),
        ("2/1/0/3, not itself", "bar", "", "1 node foo", zones, uneven, "N..N"),
        ("affinity leaves 2/3", "foo", "node In a,y", "1 node foo", zones, uneven, "...N"),
        ("one that is going", "foo", "", "1 node foo", "a b", "!a:foo b:foo", ".N"),
        ("affinity leaves 0/1", "foo", "node NotIn b", "1 zone foo", zones, "b:foo b:foo y:foo", "..NN"),
        ("too few domains", "foo", "", "2 node foo min=4", hosts, pairs, "NN."),
        ("enough domains", "foo", "", "2 node foo min=2", hosts, pairs, "..."),
        ("too few zones", "foo", "", "2 zone foo min=3", zones, here, "NN.."),
        ("enough zones", "foo", "", "2 zone foo min=1", zones, here, "...."),
        ("selector honoured", "foo", selector, "1 node foo", last, here, "NN.."),
        ("selector ignored", "foo", selector, "1 node foo affinity=Ignore", last, here, "NN.N"),
        ("affinity honoured", "foo", term, "1 node foo", last, here, "NN.."),
        ("affinity ignored", "foo", term, "1 node foo affinity=Ignore", last, here, "NN.N"),
        ("taints honoured", "foo", "", "1 node foo taints=Honor", "a b x y!", here, "NN.."),
        ("taints ignored", "foo", "", "1 node foo", "a b x y!", here, "NN.N"),
        ("3/3 and 2/1/0/3", "foo", "", "1 zone foo, 1 node foo", zones, uneven, "NN.N"),
        ("3/4 and 2/1/0/4", "foo", "", "1 zone foo, 1 node foo", zones, more_pods, "NNNN"),
        ("1/0 and 0/0/0/1", "foo,bar", "", "1 zone foo, 1 node bar", zones, "a:foo y:bar", "NN.N"),
        ("1/0 and 0/0/1/1", "foo,bar", "", "1 zone foo, 1 node bar", zones, "a:foo x:bar y:bar", "NNNN"),
        ("2/3 and 1/0/0/1", "foo,bar", "", "1 zone foo, 1 node bar", zones,
            "a:foo a:foo,bar y:foo y:foo,bar y:foo", "N.NN"),
        ("not itself by zone", "bar", "", "1 zone foo, 1 node bar", zones, "a:foo x:bar y:bar", "..NN"),
        ("a label is missing", "foo", "", "1 zone foo, 1 node foo", "a/1 b/1 x/2~ y/2", "a:foo y:foo", "N.LN"),
        ("affinity: zone honours", "foo", selector, "1 zone foo, 1 node foo affinity=Ignore",
            "a/1+ b/1+ x/2+ y/2", here, "NN.N"),
        ("taints: zone honours", "foo", "", "1 zone foo taints=Honor, 1 node foo",
            "a/1 b/1 x/2 y/2!", here, "NN.N"),
        ("both honour affinity", "foo", selector, "1 zone foo, 1 node foo", "a/1+ b/1 x/2+ y/2+!", here, "N..N"),
        ("each honours another", "foo", "", "1 zone foo taints=Honor, 1 node foo affinity=Ignore",
            "a/1+ b/1 x/2+ y/2+!", here, "NN.N"),
        ("zones twice, 3/3 and 2/1", "foo,bar", "", "1 zone bar, 1 zone foo", zones, mixed, "NN.."),
        ("zones twice, 3/4 and 2/1", "foo,bar", "", "1 zone bar, 1 zone foo", zones,
            "a:foo,bar a:foo b:foo,bar y:foo y:foo,bar y:foo y:foo", "NNNN"),
    ];
    for (name, own, wants, spread, places, pods, expected) in rows {
        let mut alone = Alone::new("PodTopologySpread", json!({"defaultingType": "List"}));
        let mut names = Vec::new();
        for token in places.split_whitespace() {
            let node = &token[..1];
            let mut labels = json!({});
            if !token.contains('~') {
                labels["node"] = json!(node);
            }
            if token.contains('+') {
                labels["foo"] = json!("");
            }
            if let Some(zone) = token.split_once('/') {
                labels["zone"] = json!(zone.1[..1]);
            }
            let taint = json!([{"key": "k", "value": "v", "effect": "NoSchedule"}]);
            let taints = token.contains('!').then_some(taint);
            alone.node(node, labels, json!({"spec": {"taints": taints}}));
            names.push(node);
        }
        crowd(&mut alone, pods);
        let mut spec = json!({"topologySpreadConstraints": constraints(spread)});
        if let Some(selector) = wants.strip_prefix("selector ") {
            spec["nodeSelector"] = labels(selector);
        } else if !wants.is_empty() {
            spec["affinity"] = json!({"nodeAffinity": node_terms(wants)});
        }
        let pod = json!({"metadata": {"labels": bare(own)}, "spec": spec});
        let verdict = |node: &&str| match &*alone.judge(pod.clone(), node) {
            "fits" => '.',
            "node(s) didn't match pod topology spread constraints" => 'N',
            "!node(s) didn't match pod topology spread constraints (missing required label)" => 'L',
            other => panic!("{name}: {other}"),
        };
        assert_eq!(
            names.iter().map(verdict).collect::<String>(),
            expected,
            "{name}"
        );
    }
}

/// Parses `namespace; labels; terms`. A term is `+` (affinity) or `-` (anti-affinity), a key, `@` and a
/// namespace or `~` and a team (`~*` for all namespaces), a colon and expressions.
fn social(text: &str) -> Value {
    let parts: Vec<&str> = text.split(';').map(str::trim).collect();
    let mut spec = json!({});
    for sign in ["+", "-"] {
        let term = |text: &str| {
            let (head, wanted) = text.split_once(':').unwrap();
            let mut tokens = head.split_whitespace();
            let key = tokens.next().unwrap_or_default();
            let expressions = expressions(wanted.split('&'));
            let mut out =
                json!({"topologyKey": key, "labelSelector": {"matchExpressions": expressions}});
            match tokens.next().map(|token| token.split_at(1)) {
                Some(("@", space)) => out["namespaces"] = json!([space]),
                Some((_, "*")) => out["namespaceSelector"] = json!({}),
                Some((_, team)) => {
                    out["namespaceSelector"] = json!({"matchLabels": {"team": team}});
                }
                None => {}
            }
            out
        };
        let own = parts[2..].iter().filter_map(|part| part.strip_prefix(sign));
        let terms: Vec<Value> = own.map(term).collect();
        let kind = if sign == "+" {
            "podAffinity"
        } else {
            "podAntiAffinity"
        };
        if !terms.is_empty() {
            spec["affinity"][kind] = json!({REQUIRED: terms});
        }
    }
    json!({"metadata": {"namespace": parts[0], "labels": labels(parts[1])}, "spec": spec})
}

/// Returns the result per node: fits, `+` (affinity not met), `-` (own anti-affinity) or `^` (anti-affinity
/// of an existing pod).
fn company(comes: &str, existing: &[&str], nodes: &[&str]) -> String {
    let mut alone = Alone::new("InterPodAffinity", json!({}));
    for (name, team) in [
        ("subteam1.team1", "team1"),
        ("subteam2.team1", "team1"),
        ("subteam1.team2", "team2"),
        ("subteam2.team2", "team2"),
        ("NS1", ""),
    ] {
        let space: Namespace =
            serde_json::from_value(json!({"metadata": {"name": name, "labels": {"team": team}}}))
                .unwrap();
        alone.object("namespaces.v1.", Arc::new(space));
    }
    let names: Vec<String> = (1..=nodes.len()).map(|at| format!("n{at}")).collect();
    for (name, own) in names.iter().zip(nodes) {
        alone.node(name, labels(own), json!({}));
    }
    for text in existing {
        let (node, pod) = text.split_once('=').unwrap();
        alone.add_pod(node, social(pod));
    }
    let verdict = |node: &String| match &*alone.judge(social(comes), node) {
        "fits" => '.',
        "!node(s) didn't match pod affinity rules" => '+',
        "node(s) didn't match pod anti-affinity rules" => '-',
        "node(s) didn't satisfy existing pods anti-affinity rules" => '^',
        other => panic!("{comes}: {other}"),
    };
    names.iter().map(verdict).collect()
}

const SCAN: &str = "service=securityscan";

#[test]
fn pod_affinity_filter_on_one_node() {
    let scan = &*format!("n1=; {SCAN}");
    let away = |key: &str, wanted: &str| format!("n1=; {SCAN}; -{key}: {wanted}");
    let s1 = |terms: &str| format!("; security=S1; {terms}");
    let own = |terms: &str| format!("; {SCAN}; {terms}");
    let team = |space: &str| format!("n1={space}; {SCAN}");
    let of_team = |space: &str, term: &str| format!("{space}; security=S1; {term}");
    let to = "+region: service In securityscan,value2";
    let virus = "-node: service In antivirusscan,value2";
    let exists = |names: &[&str], key: &str| {
        let term_of = |name: &&str| format!("-{key}: {name} Exists");
        names.iter().map(term_of).collect::<Vec<_>>().join("; ")
    };
    let teams = "service In securityscan,value2";
    #[rustfmt::skip]
    let rows = [
        ("no pod", ";".to_owned() + ";", String::new(), "."),
        ("In", s1(to), scan.into(), "."),
        ("NotIn", s1("+region: service NotIn securityscan3,value3"), scan.into(), "."),
        ("another namespace", s1("+ @DiffNameSpace: service In securityscan,value2"), format!("n1=ns; {SCAN}"), "+"),
        ("no match", own("+: service In antivirusscan,value2"), scan.into(), "+"),
        ("all terms match", s1("+region: service Exists & wrongkey DoesNotExist; \
            +region: service In securityscan & service NotIn WrongValue"), scan.into(), "."),
        ("one expression does not", s1("+region: service Exists & wrongkey DoesNotExist; \
            +region: service In securityscan2 & service NotIn WrongValue"), scan.into(), "+"),
        ("to and away", s1(&format!("{to}; {virus}")), scan.into(), "."),
        ("to and away, both", s1(&format!("{to}; {virus}")), away("node", "service In antivirusscan,value2"), "."),
        ("to, but away", s1(&format!("{to}; -zone: {teams}")), scan.into(), "-"),
        ("to, but the other away", own(&format!("{to}; {virus}")), away("zone", teams), "^"),
        ("itself does not count", own("+region: service NotIn securityscan,value2"), format!("n2=; {SCAN}"), "+"),
        ("the other away", own(""), away("zone", teams), "^"),
        ("the other away from others", own(""), away("zone", "service NotIn securityscan,value2"), "."),
        ("away by one, and the other", own(&exists(&["service", "security"], "region")),
            s1(&exists(&["security"], "zone")), "-"),
        ("a1", own(&exists(&["service", "security"], "zone")), s1(&exists(&["security"], "zone")), "-"),
        ("a2", s1(&exists(&["security"], "zone")), own(&exists(&["service", "security"], "zone")), "^"),
        ("b1", format!("; abc= xyz=; {}", exists(&["abc", "def"], "zone")),
            format!("; def= xyz=; {}", exists(&["abc", "def"], "zone")), "-"),
        ("b2", format!("; def= xyz=; {}", exists(&["abc", "def"], "zone")),
            format!("; abc= xyz=; {}", exists(&["abc", "def"], "zone")), "-"),
        ("a team", of_team("", &format!("+region ~team1: {teams}")), team("subteam1.team1"), "."),
        ("another team", of_team("", &format!("+region ~team1: {teams}")), team("subteam1.team2"), "+"),
        ("away from a team", of_team("subteam1.team1", &format!("-zone ~team1: {teams}")), team("subteam2.team1"), "-"),
        ("away from all", of_team("subteam1.team1", &format!("-zone ~*: {teams}")), team("subteam2.team1"), "-"),
        ("away from no one here", of_team("subteam1.team1", &format!("-zone ~team1: {teams}")), team("subteam1.team2"), "."),
    ];
    for (name, comes, existing, expected) in rows {
        let existing = if existing.starts_with(';') {
            format!("n1={existing}")
        } else {
            existing
        };
        let pods: Vec<&str> = Some(&*existing)
            .filter(|pod| !pod.is_empty())
            .into_iter()
            .collect();
        let outcome = company(&comes, &pods, &["region=r1 zone=z11", ""]);
        assert_eq!(&outcome[..1], expected, "{name}");
    }
}

#[test]
fn pod_affinity_filter_on_several_nodes() {
    let countries = &["region=China", "region=China az=az1", "region=India"][..];
    let same_domains = &["region=r1 zone=z1", "region=r1 zone=z1"][..];
    let zones = &["region=r1 zone=z1", "region=r1 zone=z2"][..];
    let three = &[
        "region=r1 zone=z1",
        "region=r1 zone=z2",
        "region=r1 zone=z3",
    ][..];
    let first = "; foo=bar service=securityscan; +zone: foo In bar; +zone: service In securityscan";
    let from_abc = "; ; -region: foo In abc";
    let two = "; foo= bar=; ";
    #[rustfmt::skip]
    let rows = [
        ("with it in its region", "; ; +region: foo In bar", &["n1=; foo=bar"][..], countries, "..+"),
        ("the first of its kind", first, &["n1=; foo=bar"], &["zone=az1", "zone=az2"], ".."),
        ("the first, but no label", first, &["n1=; foo=bar"], &["zoneLabel=az1", "zoneLabel=az2"], "++"),
        ("away from a region", from_abc, &["n1=; foo=abc"], same_domains, "--"),
        ("away by any term", "; ; -region: foo In abc; -zone: service In securityscan",
            &["n1=; foo=abc service=securityscan"], zones, "--"),
        ("away to another region", from_abc, &["n1=; foo=abc"], countries, "--."),
        ("kept away in another namespace", "NS1; foo=123; -region: foo In bar",
            &["n1=NS1; foo=bar", "n3=NS2; ; -region: foo In 123"], countries, "--."),
        ("kept away by no label", "; foo=; ", &["n1=; ; -invalid-node-label: foo Exists"], same_domains, ".."),
        ("away by no label", "; ; -invalid-node-label: foo Exists", &["n1=; foo="], same_domains, ".."),
        ("kept away by two", two, &["n1=; ; -zone: foo Exists", "n1=; ; -region: bar Exists"], zones, "^^"),
        ("away by two", "; ; -zone: foo Exists; -region: bar Exists", &["n1=; foo=", "n2=; bar="], zones, "--"),
        ("kept away by one of its terms", two,
            &["n1=; ; -invalid-node-label: foo Exists; -zone: bar Exists"], zones, "^."),
        ("away by one of its terms", "; ; -invalid-node-label: foo Exists; -zone: bar Exists",
            &["n1=; foo= bar="], zones, "-."),
        ("kept away by both terms", two, &["n1=; ; -region: foo Exists; -zone: bar Exists"], zones, "^^"),
        ("away by both terms", "; ; -region: foo Exists; -zone: bar Exists", &["n1=; foo= bar="], zones, "--"),
        ("kept away from two of three", two, &["n1=; ; -zone: foo Exists; -zone: labelA Exists",
            "n2=; ; -zone: bar Exists; -zone: labelB Exists"], three, "^^."),
        ("with one by both terms", "; ; +region: foo Exists; +zone: bar Exists", &["n1=; foo= bar="], same_domains, ".."),
        ("with two, each by a term", "; ; +region: foo Exists; +zone: bar Exists",
            &["n1=; foo=", "n2=; bar="], zones, "++"),
    ];
    for (name, comes, existing, nodes, expected) in rows {
        assert_eq!(company(comes, existing, nodes), expected, "{name}");
    }
}
