//! Rows of `DefaultPreemption`: the victims on each node, the chosen node, and the message if there is none.
//! The victims of every candidate are captured by an extender.

use super::*;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use koord_scheduler::engine::{
    ExtenderCall, ExtenderPreemptResult, ExtenderRequest, ExtenderResult, Output,
};
use std::collections::BTreeSet;

const NAME: &str = "DefaultPreemption";

/// Builds an engine with filters and preemption, and an extender that receives victims.
fn engine(args: &Value, seed: u64, asks: bool) -> Engine {
    let names = [
        "NodeUnschedulable",
        "NodeName",
        "TaintToleration",
        "NodePorts",
        "NodeResourcesFit",
        "PodTopologySpread",
        "InterPodAffinity",
        NAME,
        "DefaultBinder",
    ];
    let enabled: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
    let extender = json!({"urlPrefix": "http://extender", "preemptVerb": "preempt"});
    let config = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{
            "plugins": {"multiPoint": {"disabled": [{"name": "*"}], "enabled": enabled}},
            "pluginConfig": [{"name": NAME, "args": args}]
        }],
        "extenders": if asks { json!([extender]) } else { json!([]) }
    });
    let config = Configuration::parse(&config.to_string()).unwrap();
    let context = BuildContext::default();
    let profiles = Profiles::build(&config, &koord_plugins::registry(), &context, false).unwrap();
    let options = EngineOptions {
        seed,
        ..EngineOptions::default()
    };
    Engine::new(&config, profiles, options)
}

fn priority(token: &str) -> Option<i32> {
    Some(match token {
        "neg" => -100,
        "low" => 0,
        "mid" => 100,
        "high" => 1000,
        "top" => 10_000,
        _ => return None,
    })
}

/// Returns the milli-cores of a size, which are also its bytes.
fn size(token: &str) -> Option<u32> {
    Some(match token {
        "s" => 100,
        "m" => 200,
        "l" => 300,
        "xl" => 500,
        _ => return None,
    })
}

fn pod(text: &str) -> Value {
    let mut tokens = text.split_whitespace();
    let first = tokens.next().unwrap();
    let (name, node) = first
        .split_once('@')
        .map_or((first, None), |(n, on)| (n, Some(on)));
    let mut labels = json!({});
    let mut spec = json!({"priority": 0, "containers": [{"name": "c"}]});
    let mut status = json!({});
    let mut deleted = Value::Null;
    if let Some(node) = node {
        spec["nodeName"] = json!(node);
    }
    for token in tokens {
        if let Some(priority) = priority(token) {
            spec["priority"] = json!(priority);
        } else if let Some(size) = size(token) {
            let requests = json!({"cpu": format!("{size}m"), "memory": size.to_string()});
            spec["containers"][0]["resources"] = json!({"requests": requests});
        } else if let Some(seconds) = token.strip_prefix("start=") {
            let seconds: i64 = seconds.parse().unwrap();
            let start = Timestamp::from_second(seconds).unwrap();
            status["startTime"] = json!(start.to_string());
        } else if let Some(node) = token.strip_prefix("nominated=") {
            status["nominatedNodeName"] = json!(node);
        } else if let Some(app) = token.strip_prefix("app=") {
            labels["app"] = json!(app);
        } else {
            match token {
                "foo" => labels["foo"] = json!(""),
                "never" => spec["preemptionPolicy"] = json!("Never"),
                "port" => {
                    spec["containers"][0]["ports"] = json!([{"containerPort": 1, "hostPort": 80}])
                }
                "deleting" | "victim" => deleted = json!(now().to_string()),
                "anti" => {
                    let term = json!({"topologyKey": "hostname",
                        "labelSelector": {"matchExpressions": [{"key": "foo", "operator": "Exists"}]}});
                    spec["affinity"] = json!({"podAntiAffinity":
                        {"requiredDuringSchedulingIgnoredDuringExecution": [term]}});
                }
                "spread" => {
                    let by = |key: &str| {
                        json!({"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule",
                            "labelSelector": {"matchExpressions": [{"key": "foo", "operator": "Exists"}]}})
                    };
                    spec["topologySpreadConstraints"] = json!([by("zone"), by("hostname")]);
                }
                other => panic!("{other} in {text}"),
            }
            if token == "victim" {
                status["conditions"] = json!([{"type": "DisruptionTarget", "status": "True",
                    "reason": "PreemptionByScheduler"}]);
            }
        }
    }
    json!({
        "metadata": {"name": name, "uid": name, "namespace": "default", "labels": labels,
            "deletionTimestamp": deleted},
        "spec": spec,
        "status": status
    })
}

/// Parses a node such as `node-a/zone1`, with space for five small pods; `:one` has space for one pod without
/// requests, `:half` for 200 milli-cores; `!` is cordoned.
fn node(text: &str) -> Value {
    let (text, cordoned) = text.strip_prefix('!').map_or((text, false), |t| (t, true));
    let (text, capacity) = text
        .split_once(':')
        .map_or((text, ""), |(t, capacity)| (t, capacity));
    let (name, zone) = text.split_once('/').map_or((text, ""), |(n, z)| (n, z));
    let mut labels = json!({"hostname": name});
    if !zone.is_empty() {
        labels["zone"] = json!(zone);
    }
    let capacity = match capacity {
        "one" => json!({"pods": "1"}),
        "half" => json!({"cpu": "200m", "memory": "400", "pods": "32"}),
        _ => json!({"cpu": "500m", "memory": "500", "pods": "32"}),
    };
    json!({"metadata": {"name": name, "uid": name, "labels": labels},
        "spec": {"unschedulable": cordoned}, "status": {"allocatable": capacity}})
}

/// Parses a budget: `app=1` allows one disruption of the app's pods; `app=1:gone` counts one disruption that
/// already happened.
fn budget(text: &str) -> ObjectChange {
    let (app, allowed) = text.split_once('=').unwrap();
    let (allowed, gone) = allowed
        .split_once(':')
        .map_or((allowed, ""), |(a, g)| (a, g));
    let disrupted = match gone {
        "" => json!({}),
        pod => json!({pod: now().to_string()}),
    };
    let object: PodDisruptionBudget = serde_json::from_value(json!({
        "metadata": {"name": app, "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": app}}},
        "status": {"disruptionsAllowed": allowed.parse::<i64>().unwrap(), "currentHealthy": 1,
            "desiredHealthy": 1, "expectedPods": 1, "disruptedPods": disrupted}
    }))
    .unwrap();
    ObjectChange {
        kind: "poddisruptionbudgets.v1.policy",
        action: Action::ADD,
        old: None,
        new: Arc::new(object),
    }
}

/// Result of one scheduling attempt.
#[derive(Debug, Default)]
struct AttemptResult {
    /// Victims on each candidate node; `!1` is the number of budget violations.
    proposals: Vec<String>,
    /// Node whose victims are evicted.
    node: Option<String>,
    /// Message about preemption in the pod's condition.
    message: String,
}

#[derive(Debug, Clone, Copy)]
struct Case<'a> {
    nodes: &'a str,
    pods: &'a [&'a str],
    budgets: &'a [&'a str],
    pod: &'a str,
}

impl Case<'_> {
    fn fill(&self, engine: &mut Engine) {
        for text in self.nodes.split_whitespace() {
            engine.node_applied(Arc::new(serde_json::from_value(node(text)).unwrap()), now());
        }
        for text in self.budgets {
            engine.object_changed(&budget(text), now());
        }
        for text in self.pods {
            engine.pod_applied(Arc::new(serde_json::from_value(pod(text)).unwrap()), now());
        }
    }

    /// Runs without an extender.
    fn alone(&self) -> AttemptResult {
        let mut engine = engine(&json!({}), 0, false);
        self.fill(&mut engine);
        tried(&mut engine, self.pod, |_| true)
    }

    /// Runs with an extender that agrees for some nodes.
    fn shown(&self, agrees: impl Fn(&str) -> bool) -> AttemptResult {
        let mut engine = engine(&json!({}), 0, true);
        self.fill(&mut engine);
        tried(&mut engine, self.pod, agrees)
    }
}

fn tried(engine: &mut Engine, text: &str, agrees: impl Fn(&str) -> bool) -> AttemptResult {
    engine.take_outputs();
    engine.pod_applied(Arc::new(serde_json::from_value(pod(text)).unwrap()), now());
    let mut result = AttemptResult::default();
    for _ in 0..2 {
        engine.schedule_one(now());
        for output in engine.take_outputs() {
            match output {
                Output::Consult(call) => {
                    let (advice, proposals) = answer(&call, &agrees);
                    result.proposals = proposals;
                    engine.apply_extender_result(&call.pod.uid, call.ticket, advice);
                }
                Output::Evict { node, .. } => result.node = Some(node.to_string()),
                Output::Failed(failure) => {
                    let message = failure.message.split_once("preemption: ");
                    result.message = message.map_or("", |(_, message)| message).to_owned();
                }
                Output::Write(_) => {}
                other => panic!("{text}: {other:?}"),
            }
        }
    }
    result
}

fn answer(call: &ExtenderCall, agrees: impl Fn(&str) -> bool) -> (ExtenderResult, Vec<String>) {
    let ExtenderRequest::Victims(proposals) = &call.request else {
        panic!("{call:?}");
    };
    let (mut agreed, mut shown) = (Vec::new(), Vec::new());
    for proposal in proposals {
        let uids = proposal.victims.iter().map(|pod| pod.uid.to_string());
        let mut uids: Vec<String> = uids.collect();
        if agrees(&proposal.node) {
            agreed.push(ExtenderPreemptResult {
                extender: "e".to_owned(),
                node: proposal.node.clone(),
                victims: uids.clone(),
                violations: proposal.violations,
            });
        }
        uids.sort();
        let mut text = format!("{}: {}", proposal.node, uids.join(" "));
        if proposal.violations > 0 {
            text += &format!(" !{}", proposal.violations);
        }
        shown.push(text);
    }
    shown.sort();
    (ExtenderResult::Victims(Ok(agreed)), shown)
}

#[test]
fn victims_of_every_candidate() {
    let two = "node1 node2";
    let foo_two: &[&str] = &["p1.1@node1 app=foo mid m", "p1.2@node1 app=foo mid m"];
    type Row<'a> = (
        &'a str,
        &'a str,
        &'a [&'a str],
        &'a [&'a str],
        &'a str,
        &'a [&'a str],
    );
    #[rustfmt::skip]
    let rows: &[Row<'_>] = &[
        ("another filter refuses in any case", two,
            &["p1@node1 top port", "p2@node2 top port", "p3@node1 mid", "p4@node2 mid"], &[], "p high port", &[]),
        ("both nodes", two, &["p1@node1 mid l", "p2@node2 mid l"], &[], "p high l", &["node1: p1", "node2: p2"]),
        ("running pods are more important", two, &["p1@node1 mid l", "p2@node2 mid l"], &[], "p low l", &[]),
        ("the less important one is small and stays", two,
            &["p1.1@node1 low s", "p1.2@node1 mid l", "p2@node2 mid l"], &[], "p high l", &["node1: p1.2", "node2: p2"]),
        ("mixed priorities", two,
            &["p1.1@node1 mid s", "p1.2@node1 low s", "p1.3@node1 mid m", "p1.4@node1 high s", "p2@node2 high l"], &[],
            "p high l", &["node1: p1.2 p1.3"]),
        ("of equals the one that started later", two,
            &["p1.1@node1 low s start=5", "p1.2@node1 low s start=4", "p1.3@node1 mid m start=3",
              "p1.4@node1 high s start=2", "p2@node2 high l start=1"], &[],
            "p high l", &["node1: p1.1 p1.3"]),
        // Upstream gives node2 no matching pod: here it is rejected because of its size.
        ("required anti-affinity of the victim", two,
            &["p1.1@node1 low s foo anti", "p1.2@node1 mid s", "p1.3@node1 high s", "p2@node2 high xl"], &[],
            "p high s foo", &["node1: p1.1"]),
        ("a spread is mended", "node-a/zone1 node-b/zone1 node-x/zone2",
            &["pod-a1@node-a foo mid", "pod-a2@node-a foo low", "pod-b1@node-b foo low", "pod-x1@node-x foo high",
              "pod-x2@node-x foo high"], &[],
            "p foo high spread", &["node-a: pod-a2", "node-b: pod-b1"]),
        ("two of one budget", "node1", foo_two, &["foo=1"], "p high xl", &["node1: p1.1 p1.2 !1"]),
        ("another pod went already", "node1", foo_two, &["foo=1:p2"], "p high xl", &["node1: p1.1 p1.2 !1"]),
        ("one of them is counted already", "node1", foo_two, &["foo=1:p1.2"], "p high xl", &["node1: p1.1 p1.2"]),
        ("one of three is counted already", "node1",
            &["p1.1@node1 app=foo mid m", "p1.2@node1 app=foo mid m", "p1.3@node1 app=foo mid m"], &["foo=1:p1.3"],
            "p high xl", &["node1: p1.1 p1.2 p1.3 !1"]),
    ];
    for (name, nodes, pods, budgets, pod, expected) in rows.iter().copied() {
        let case = Case {
            nodes,
            pods,
            budgets,
            pod,
        };
        let result = case.shown(|_| true);
        assert_eq!(result.proposals, expected, "{name}");
        assert_eq!(result.node.is_some(), !expected.is_empty(), "{name}");
    }
}

#[test]
fn best_candidate_node_rows() {
    let three = "node1 node2 node3";
    type Row<'a> = (&'a str, &'a str, &'a [&'a str], &'a str, &'a [&'a str]);
    #[rustfmt::skip]
    let rows: &[Row<'_>] = &[
        ("either", "node1 node2", &["p1@node1 mid l start=0", "p2@node2 mid l start=0"], "p high l", &["node1", "node2"]),
        ("the lowest of the highest priorities", three,
            &["p1.1@node1 mid m start=0", "p1.2@node1 mid l start=0", "p2.1@node2 mid m start=0",
              "p2.2@node2 low m start=0", "p3.1@node3 low m start=0", "p3.2@node3 low m start=0"],
            "p high xl", &["node3"]),
        ("the smallest sum", three,
            &["p1.1@node1 mid m start=0", "p1.2@node1 mid l start=0", "p2.1@node2 mid l start=0",
              "p2.2@node2 low m start=0", "p3.1@node3 mid m start=0", "p3.2@node3 mid m start=0"],
            "p high xl", &["node2"]),
        ("the fewest", three,
            &["p1.1@node1 mid s start=0", "p1.2@node1 neg s start=0", "p1.3@node1 mid s start=0",
              "p1.4@node1 neg s start=0", "p2.1@node2 mid l start=0", "p2.2@node2 neg m start=0",
              "p3.1@node3 mid m start=0", "p3.2@node3 neg s start=0", "p3.3@node3 low s start=0"],
            "p high xl", &["node2"]),
        ("negative priorities do not make more victims cheaper", three,
            &["p1.1@node1 mid s start=0", "p1.2@node1 neg s start=0", "p1.3@node1 neg s start=0",
              "p2.1@node2 mid l start=0", "p2.2@node2 neg m start=0", "p3.1@node3 mid m start=0",
              "p3.2@node3 neg s start=0", "p3.3@node3 low s start=0"],
            "p high xl", &["node2"]),
        ("priority before sum before number", "node1 node2 node3 node4",
            &["p1.1@node1 mid s start=0", "p1.2@node1 low s start=0", "p1.3@node1 low s start=0",
              "p2.1@node2 high l start=0", "p3.1@node3 mid m start=0", "p3.2@node3 low s start=0",
              "p3.3@node3 low s start=0", "p3.4@node3 low m start=0", "p4.1@node4 mid m start=0",
              "p4.2@node4 mid s start=0", "p4.3@node4 mid s start=0", "p4.4@node4 neg s start=0"],
            "p top xl", &["node1"]),
        ("the latest start", three,
            &["p1.1@node1 mid m start=2", "p1.2@node1 mid m start=2", "p2.1@node2 mid m start=3",
              "p2.2@node2 mid m start=3", "p3.1@node3 mid m start=1", "p3.2@node3 mid m start=1"],
            "p high xl", &["node2"]),
        ("the latest of the earliest starts", three,
            &["p1.1@node1 mid m start=4", "p1.2@node1 mid m start=2", "p2.1@node2 mid m start=5",
              "p2.2@node2 mid m start=1", "p3.1@node3 mid m start=3", "p3.2@node3 mid m start=6"],
            "p high xl", &["node3"]),
        ("the start of the most important one", three,
            &["p1.1@node1 low m start=4", "p1.2@node1 mid m start=2", "p2.1@node2 mid m start=6",
              "p2.2@node2 low m start=1", "p3.1@node3 low m start=3", "p3.2@node3 mid m start=5"],
            "p high xl", &["node2"]),
    ];
    for (name, nodes, pods, pod, expected) in rows.iter().copied() {
        let case = Case {
            nodes,
            pods,
            budgets: &[],
            pod,
        };
        let (alone, shown) = (case.alone().node.unwrap(), case.shown(|_| true));
        assert!(expected.contains(&&*alone), "{name}: {alone}");
        assert_eq!(shown.node.as_ref(), Some(&alone), "{name}");
        assert_eq!(shown.proposals.len(), nodes.split(' ').count(), "{name}");
    }
}

/// Upstream starts at a random node, which its test fixes by a seed; here every offset is checked.
#[test]
fn candidate_search_is_limited() {
    let victim = |at: usize, token: &str| format!("p{at}@node{at} {token} l");
    let five = |tokens: [&str; 5]| {
        (1..)
            .zip(tokens)
            .map(|(at, token)| victim(at, token))
            .collect()
    };
    let pairs = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    type Row<'a> = (&'a str, i64, Vec<String>, BTreeSet<String>);
    let rows: [Row<'_>; 3] = [
        (
            "all are candidates, two are enough",
            1,
            five(["mid"; 5]),
            pairs(&["1 2", "2 3", "3 4", "4 5", "1 5"]),
        ),
        (
            "some are none, and do not count",
            1,
            five(["mid", "top", "mid", "mid", "top"]),
            pairs(&["1 3", "3 4", "1 4"]),
        ),
        (
            "on, until one breaks no budget",
            2,
            five(["app=foo mid", "app=foo mid", "mid", "mid", "app=foo mid"]),
            pairs(&["1! 2! 3", "2! 3", "3 4", "4 5!", "1! 2! 3 5!"]),
        ),
    ];
    for (name, least, pods, expected) in rows {
        let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
        let case = Case {
            nodes: "node1 node2 node3 node4 node5",
            pods: &pods,
            budgets: &["foo=0"],
            pod: "p high l",
        };
        let args = json!({"minCandidateNodesPercentage": 40, "minCandidateNodesAbsolute": least});
        let mut reached = BTreeSet::new();
        let short = |text: &String| {
            let (node, victims) = text.split_once(": ").unwrap();
            let broken = if victims.ends_with("!1") { "!" } else { "" };
            format!("{}{broken}", node.strip_prefix("node").unwrap())
        };
        for seed in 0..40 {
            let mut engine = engine(&args, seed, true);
            case.fill(&mut engine);
            let result = tried(&mut engine, case.pod, |_| true);
            let nodes: Vec<String> = result.proposals.iter().map(short).collect();
            reached.insert(nodes.join(" "));
            assert!(
                !result
                    .proposals
                    .iter()
                    .any(|it| it.starts_with(result.node.as_deref().unwrap()) && it.ends_with("!1")),
                "{name}: the one that breaks no budget is taken"
            );
        }
        assert_eq!(reached, expected, "{name}");
        // A single engine starts at another node with every attempt, round-robin.
        let mut engine = engine(&args, 0, true);
        case.fill(&mut engine);
        let mut reached = BTreeSet::new();
        for attempt in 0..40 {
            let pod = format!("p{attempt}-x high l");
            // The extender rejects all nodes, so that nothing changes.
            let result = tried(&mut engine, &pod, |_| false);
            let nodes: Vec<String> = result.proposals.iter().map(short).collect();
            reached.insert(nodes.join(" "));
        }
        assert_eq!(reached, expected, "{name}: one engine");
    }
}

#[test]
fn preemption_messages_and_nominations() {
    type Row<'a> = (
        &'a str,
        &'a str,
        &'a [&'a str],
        &'a [&'a str],
        &'a str,
        &'a str,
    );
    #[rustfmt::skip]
    let rows: &[Row<'_>] = &[
        ("more important", "node1:one", &["p1@node1 low"], &[], "p high", "node1"),
        ("a tie", "node1:one", &["p1@node1 low"], &[], "p low",
            "0/1 nodes are available: 1 No preemption victims found for incoming pod."),
        ("evictions cannot help", "!node1:one", &["p1@node1 low"], &[], "p high",
            "0/1 nodes are available: 1 Preemption is not helpful for scheduling."),
        ("one node", "node1:one node2:one", &["p1@node1 high", "p2@node2 low"], &[], "p mid", "node2"),
        ("the lowest of the highest priorities, budgets broken on both", "node1:one node2:one",
            &["p1@node1 high app=open", "p2@node1 low app=shut", "p3@node2 mid app=shut"], &["shut=0", "open=2147483647"],
            "p top", "node2"),
        // The same texts if a more important pod leaves too little: what no eviction can help is reported
        // separately by Filter.
        ("too little room without victims", "node1:half node2:half", &["p1@node1 low", "p2@node2 low",
            "a@node1 high s", "b@node2 high s"], &[], "p high m", "0/2 nodes are available: 2 Insufficient cpu."),
        ("mixed", "node1:one node2:half node3:one", &["p1@node1 high", "p2@node2 low", "a@node2 high s", "p3@node3 high"],
            &[], "p high m",
            "0/3 nodes are available: 1 Insufficient cpu, 2 Preemption is not helpful for scheduling."),
        ("two of four", "node1:half node2:half !node3:half !node4:half", &["p1@node1 low", "p2@node2 low",
            "a@node1 high s", "b@node2 high s"], &[], "p high m",
            "0/4 nodes are available: 2 Insufficient cpu, 2 Preemption is not helpful for scheduling."),
    ];
    for (name, nodes, pods, budgets, pod, expected) in rows.iter().copied() {
        let case = Case {
            nodes,
            pods,
            budgets,
            pod,
        };
        let result = case.alone();
        let message = result.node.as_deref().unwrap_or(&result.message);
        assert_eq!(message, expected, "{name}");
    }
}

#[test]
fn whole_preemption_attempt_rows() {
    let basic: &[&str] = &[
        "p1.1@node1 low s",
        "p1.2@node1 low s",
        "p2.1@node2 high l",
        "p3.1@node3 mid m",
    ];
    let cheap: &[&str] = &["p1.1@node1 mid s", "p1.2@node1 low s", "p2.1@node3 mid l"];
    // Upstream's third node has no pods: here it is filled.
    let full = |pods: &[&'static str]| [pods, &["a@node2 high s"]].concat();
    type Agrees = fn(&str) -> bool;
    type Row<'a> = (
        &'a str,
        &'a str,
        Vec<&'a str>,
        &'a str,
        Option<Agrees>,
        Option<&'a str>,
    );
    let first: Agrees = |node| node == "node1";
    #[rustfmt::skip]
    let rows: Vec<Row<'_>> = vec![
        ("basic", "node1 node2 node3", basic.to_vec(), "p high xl", None, Some("node1")),
        ("never", "node1 node2 node3", basic.to_vec(), "p high xl never", None, None),
        ("a spread", "node-a/zone1 node-b/zone1 node-x/zone2",
            vec!["p-a1@node-a foo high", "p-a2@node-a foo high", "p-b1@node-b foo low", "p-x1@node-x foo high",
                 "p-x2@node-x foo high"], "p foo high spread", None, Some("node-b")),
        ("the cheapest, for comparison", "node1 node2 node3", full(cheap), "p high xl", None, Some("node3")),
        ("an extender agrees with node1 alone", "node1 node2 node3", full(cheap), "p high xl", Some(first), Some("node1")),
        ("an extender agrees with none", "node1 node2 node3", full(cheap), "p high xl", Some(|_| false), None),
    ];
    for (name, nodes, pods, pod, agrees, expected) in rows {
        let case = Case {
            nodes,
            pods: &pods,
            budgets: &[],
            pod,
        };
        let result = agrees.map_or_else(|| case.alone(), |agrees| case.shown(agrees));
        assert_eq!(result.node.as_deref(), expected, "{name}");
    }
}

/// A pod waits for victims on its nominated node. It does not wait for pods that terminate for other reasons,
/// nor on a node that it cannot use.
#[test]
fn preemption_eligibility() {
    let other = "p2@node2 low xl";
    let rows = [
        (
            "no nomination",
            "node1",
            "p1@node1 low xl",
            "p high xl",
            true,
        ),
        (
            "the node is unresolvable",
            "!node1",
            "p1@node1 low xl victim",
            "p high xl nominated=node1",
            true,
        ),
        (
            "the policy",
            "node1",
            "p1@node1 low xl",
            "p high xl never",
            false,
        ),
        (
            "its victim is terminating",
            "node1",
            "p1@node1 low xl victim",
            "p high xl nominated=node1",
            false,
        ),
        (
            "a pod terminates by itself",
            "node1",
            "p1@node1 low xl deleting",
            "p high xl nominated=node1",
            true,
        ),
    ];
    for (name, first, victim, pod, expected) in rows {
        let nodes = format!("{first} node2");
        let case = Case {
            nodes: &nodes,
            pods: &[victim, other],
            budgets: &[],
            pod,
        };
        let result = case.shown(|_| true);
        assert_eq!(!result.proposals.is_empty(), expected, "{name}: {result:?}");
    }
}
