//! Tests of preemption with compact descriptions of nodes, pods and budgets.

use super::*;
use crate::common::budgets::BUDGETS;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use koord_scheduler::config::Configuration;
use koord_scheduler::engine::{BindError, Engine, EngineOptions, Failure, Output};
use koord_scheduler::framework::{ObjectChange, Profiles, Verb};
use serde_json::json;
use std::sync::Arc;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).unwrap()
}

/// Builds an engine with resource fit, taints and preemption.
fn engine(args: Value, gates: &[(&str, bool)]) -> Engine {
    engine_with(&[], args, gates)
}

/// Builds an engine like [`engine`], with other plugins before them.
fn engine_with(first: &[&str], args: Value, gates: &[(&str, bool)]) -> Engine {
    let names = [
        "NodeUnschedulable",
        "TaintToleration",
        "NodeResourcesFit",
        NAME,
        "DefaultBinder",
    ];
    let names = first.iter().chain(&names);
    let enabled: Vec<Value> = names.map(|name| json!({"name": name})).collect();
    let config = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{
            "schedulerName": "koord-scheduler",
            "plugins": {"multiPoint": {"disabled": [{"name": "*"}], "enabled": enabled}},
            "pluginConfig": [{"name": NAME, "args": args}]
        }]
    });
    let config = Configuration::parse(&config.to_string()).unwrap();
    let mut context = BuildContext::default();
    for (gate, on) in gates {
        context.gates.insert((*gate).to_owned(), *on);
    }
    let profiles = Profiles::build(&config, &crate::registry(), &context, false).unwrap();
    Engine::new(&config, profiles, EngineOptions::default())
}

fn field<'a>(tokens: &[&'a str], key: &str) -> Option<&'a str> {
    tokens
        .iter()
        .find_map(|token| token.strip_prefix(key)?.strip_prefix('='))
}

/// Parses a node, such as `name cpu=4 [cordoned]`.
fn node(text: &str) -> Arc<Node> {
    let tokens: Vec<&str> = text.split_whitespace().collect();
    let value = json!({
        "metadata": {"name": tokens[0], "uid": tokens[0]},
        "spec": {"unschedulable": tokens.contains(&"cordoned")},
        "status": {"allocatable": {"cpu": field(&tokens, "cpu").unwrap(), "memory": "8Gi", "pods": "10"}}
    });
    Arc::new(serde_json::from_value(value).unwrap())
}

/// Parses a pod, such as `name [on=NODE] cpu=1 [prio=5] [start=60] [app=A] [never] [deleting] [keep]
/// [nominated=NODE]`.
fn pod(text: &str) -> Arc<Pod> {
    let tokens: Vec<&str> = text.split_whitespace().collect();
    let number = |key| field(&tokens, key).map_or(0, |text| text.parse::<i64>().unwrap());
    let has = |token| tokens.contains(&token);
    let mut value = json!({
        "metadata": {"name": tokens[0], "namespace": "ns", "uid": tokens[0], "labels": {}},
        "spec": {
            "schedulerName": "koord-scheduler",
            "priority": number("prio"),
            "containers": [{"name": "c", "resources": {"requests": {
                "cpu": field(&tokens, "cpu").unwrap_or("1")
            }}}]
        },
        "status": {"startTime": at(number("start")).to_string()}
    });
    if let Some(node) = field(&tokens, "on") {
        value["spec"]["nodeName"] = json!(node);
    }
    if let Some(app) = field(&tokens, "app") {
        value["metadata"]["labels"]["app"] = json!(app);
    }
    if let Some(node) = field(&tokens, "nominated") {
        value["status"]["nominatedNodeName"] = json!(node);
    }
    if has("never") {
        value["spec"]["preemptionPolicy"] = json!("Never");
    }
    if has("keep") {
        value["metadata"]["labels"]["scheduling.koordinator.sh/disable-preemptible"] =
            json!("true");
    }
    if has("deleting") {
        value["metadata"]["deletionTimestamp"] = json!(at(0).to_string());
        value["status"]["conditions"] = json!([{"type": "DisruptionTarget", "status": "True",
            "reason": "PreemptionByScheduler"}]);
    }
    Arc::new(serde_json::from_value(value).unwrap())
}

/// Parses a budget, such as `app=A allowed=1`.
fn budget(text: &str) -> ObjectChange {
    let tokens: Vec<&str> = text.split_whitespace().collect();
    let disrupted =
        field(&tokens, "disrupted").map_or(json!({}), |pod| json!({pod: at(0).to_string()}));
    let budget: PodDisruptionBudget = serde_json::from_value(json!({
        "metadata": {"name": text, "namespace": "ns"},
        "spec": {"selector": {"matchLabels": {"app": field(&tokens, "app").unwrap()}}},
        "status": {
            "disruptionsAllowed": field(&tokens, "allowed").unwrap().parse::<i64>().unwrap(),
            "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1,
            "disruptedPods": disrupted
        }
    }))
    .unwrap();
    ObjectChange {
        kind: BUDGETS,
        action: Action::ADD,
        old: None,
        new: Arc::new(budget),
    }
}

fn setup(nodes: &[&str], pods: &[&str], budgets: &[&str]) -> Engine {
    let mut engine = engine(json!({}), &[]);
    for text in nodes {
        engine.node_applied(node(text), at(0));
    }
    for text in budgets {
        engine.object_changed(&budget(text), at(0));
    }
    for text in pods {
        engine.pod_applied(pod(text), at(0));
    }
    engine
}

/// Schedules ready pods. Returns the outputs as lines: `bind P N`, `evict N: V V`, `nominated N`, or
/// messages.
fn run(engine: &mut Engine, seconds: i64) -> Vec<String> {
    let mut out = Vec::new();
    for _ in 0..20 {
        if engine.schedule_one(at(seconds)).is_none() {
            break;
        }
        for output in engine.take_outputs() {
            match output {
                Output::Bind(bind) => out.push(format!("bind {} {}", bind.pod.name, bind.node)),
                Output::Expect { pod, node } if node.is_empty() => {
                    out.push(format!("unexpect {}", pod.name));
                }
                Output::Evict { node, victims, .. } => {
                    let names: Vec<&str> = victims.iter().map(|pod| &*pod.name).collect();
                    out.push(format!("evict {node}: {}", names.join(" ")));
                }
                Output::Failed(failure) => match failure.nominated.as_deref() {
                    // A pod that keeps its nomination reports why it waits.
                    Some(node)
                        if !node.is_empty() && !failure.message.contains("preemption: not") =>
                    {
                        out.push(format!("nominated {node}"));
                    }
                    _ => out.push(failure.message.to_string()),
                },
                Output::Write(write) if matches!(write.verb, Verb::PatchStatus(_)) => {
                    out.push(format!("clear {}", write.name));
                }
                other => out.push(format!("{other:?}")),
            }
        }
    }
    out
}

const TWO: &[&str] = &["n1 cpu=4", "n2 cpu=4"];

/// Name, nodes, pods, budgets, preemptor, first output.
type Case<'a> = (
    &'a str,
    &'a [&'a str],
    &'a [&'a str],
    &'a [&'a str],
    &'a str,
    &'a str,
);

#[test]
fn victims_are_chosen_as_kube_scheduler_does() {
    let table: &[Case<'_>] = &[
        (
            "one victim is enough",
            &["n1 cpu=4"],
            &["a on=n1 cpu=2 prio=1", "b on=n1 cpu=2 prio=2"],
            &[],
            "x cpu=2 prio=10",
            "evict n1: a",
        ),
        (
            "equal priority is no reason",
            &["n1 cpu=4"],
            &["a on=n1 cpu=4 prio=10"],
            &[],
            "x cpu=2 prio=10",
            "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: \
             1 No preemption victims found for incoming pod.",
        ),
        (
            "pods that are not in the way stay",
            &["n1 cpu=4"],
            &["a on=n1 cpu=3 prio=1", "b on=n1 cpu=1 prio=1"],
            &[],
            "x cpu=3 prio=10",
            "evict n1: a",
        ),
        (
            "the more important ones are spared",
            &["n1 cpu=4"],
            &[
                "a on=n1 cpu=2 prio=1",
                "b on=n1 cpu=1 prio=3",
                "c on=n1 cpu=1 prio=2",
            ],
            &[],
            "x cpu=2 prio=10",
            "evict n1: a",
        ),
        (
            "of equal ones the older are spared",
            &["n1 cpu=4"],
            &["a on=n1 cpu=2 start=50", "b on=n1 cpu=2 start=10"],
            &[],
            "x cpu=2 prio=10",
            "evict n1: a",
        ),
        (
            "lowest highest priority",
            TWO,
            &["a on=n1 cpu=4 prio=5", "b on=n2 cpu=4 prio=4"],
            &[],
            "x cpu=4 prio=10",
            "evict n2: b",
        ),
        (
            "smallest sum of priorities",
            TWO,
            &[
                "a on=n1 cpu=2 prio=5",
                "b on=n1 cpu=2 prio=4",
                "c on=n2 cpu=2 prio=5",
                "d on=n2 cpu=2 prio=3",
            ],
            &[],
            "x cpu=4 prio=10",
            "evict n2: c d",
        ),
        (
            "fewer victims, also with negative priorities",
            TWO,
            &[
                "a on=n1 cpu=2 prio=-1",
                "b on=n1 cpu=2 prio=-1",
                "c on=n2 cpu=4 prio=-1",
            ],
            &[],
            "x cpu=4 prio=10",
            "evict n2: c",
        ),
        (
            "the latest start of the most important victim",
            TWO,
            &[
                "a on=n1 cpu=4 prio=1 start=10",
                "b on=n2 cpu=4 prio=1 start=20",
            ],
            &[],
            "x cpu=4 prio=10",
            "evict n2: b",
        ),
        (
            "a node that evictions cannot help is none",
            &["n1 cpu=2", "n2 cpu=4 cordoned", "n3 cpu=4"],
            &["a on=n3 cpu=4 prio=1", "b on=n2 cpu=4 prio=0"],
            &[],
            "x cpu=4 prio=10",
            "evict n3: a",
        ),
        (
            "budgets come first",
            TWO,
            &["a on=n1 cpu=4 prio=1 app=db", "b on=n2 cpu=4 prio=5"],
            &["app=db allowed=0"],
            "x cpu=4 prio=10",
            "evict n2: b",
        ),
        (
            "a budget with room left is no obstacle",
            TWO,
            &["a on=n1 cpu=4 prio=1 app=db", "b on=n2 cpu=4 prio=5"],
            &["app=db allowed=1"],
            "x cpu=4 prio=10",
            "evict n1: a",
        ),
        (
            "on one node too, protected pods are spared first",
            &["n1 cpu=4"],
            &["a on=n1 cpu=2 prio=1 app=db", "b on=n1 cpu=2 prio=5"],
            &["app=db allowed=0"],
            "x cpu=2 prio=10",
            "evict n1: b",
        ),
        (
            "a budget is broken when nothing else helps",
            &["n1 cpu=4"],
            &["a on=n1 cpu=4 prio=1 app=db"],
            &["app=db allowed=0"],
            "x cpu=4 prio=10",
            "evict n1: a",
        ),
        (
            "what the budget counted already is free",
            TWO,
            &["a on=n1 cpu=4 prio=1 app=db", "b on=n2 cpu=4 prio=5"],
            &["app=db allowed=0 disrupted=a"],
            "x cpu=4 prio=10",
            "evict n1: a",
        ),
        (
            "the policy forbids it",
            &["n1 cpu=4"],
            &["a on=n1 cpu=4 prio=1"],
            &[],
            "x cpu=4 prio=10 never",
            "0/1 nodes are available: 1 Insufficient cpu. preemption: not eligible due to \
             preemptionPolicy=Never.",
        ),
        (
            "a label forbids it",
            &["n1 cpu=4"],
            &["a on=n1 cpu=4 prio=1 keep"],
            &[],
            "x cpu=4 prio=10",
            "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: \
             1 No preemption victims found for incoming pod.",
        ),
        (
            "room elsewhere",
            &["n1 cpu=4", "n2 cpu=4"],
            &["a on=n1 cpu=2 prio=1", "b on=n1 cpu=2 prio=20"],
            &[],
            "x cpu=3 prio=10",
            "bind x n2",
        ),
        (
            "why it is hopeless, per node",
            &["n1 cpu=4", "n2 cpu=2", "n3 cpu=4 cordoned", "n4 cpu=4"],
            &[
                "a on=n1 cpu=2 prio=1",
                "b on=n1 cpu=2 prio=20",
                "c on=n4 cpu=4 prio=30",
            ],
            &[],
            "x cpu=4 prio=10",
            "0/4 nodes are available: 1 node(s) were unschedulable, 3 Insufficient cpu. \
             preemption: 0/4 nodes are available: 1 Insufficient cpu, \
             1 No preemption victims found for incoming pod, \
             2 Preemption is not helpful for scheduling.",
        ),
        (
            "no pod of lower priority",
            &["n1 cpu=1"],
            &["a on=n1 cpu=1 prio=3"],
            &[],
            "x cpu=1",
            "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: \
             1 No preemption victims found for incoming pod.",
        ),
        (
            "nothing to gain",
            &["n1 cpu=1"],
            &["a on=n1 cpu=1"],
            &[],
            "x cpu=2 prio=5",
            "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: \
             1 Preemption is not helpful for scheduling.",
        ),
    ];
    for (name, nodes, pods, budgets, preemptor, expected) in table {
        let mut engine = setup(nodes, pods, budgets);
        engine.pod_applied(pod(preemptor), at(1));
        let out = run(&mut engine, 1);
        assert_eq!(out.first().map(String::as_str), Some(*expected), "{name}");
        if let Some(node) = expected.strip_prefix("evict ") {
            let node = node.split(':').next().unwrap();
            assert_eq!(out[1..], [format!("nominated {node}")], "{name}");
            assert_eq!(
                engine.preemptor().nominated_node("x").map(|n| &**n),
                Some(node),
                "{name}"
            );
        }
    }
}

#[test]
fn nominated_pod_waits_for_victims_then_binds() {
    let mut engine = setup(&["n1 cpu=4"], &["a on=n1 cpu=4 prio=1"], &[]);
    engine.pod_applied(pod("x cpu=3 prio=10"), at(1));
    assert_eq!(run(&mut engine, 1), ["evict n1: a", "nominated n1"]);
    // Retried before the victim is deleted, and when the API shows it terminating.
    let terminating = "0/1 nodes are available: 1 Insufficient cpu. preemption: not eligible due to \
                       a terminating pod on the nominated node.";
    engine.pod_applied(pod("x cpu=3 prio=10 nominated=n1 app=changed"), at(10));
    assert_eq!(run(&mut engine, 20), [terminating]);
    engine.pod_applied(pod("a on=n1 cpu=4 prio=1 deleting"), at(30));
    engine.pod_applied(pod("x cpu=3 prio=10 nominated=n1"), at(30));
    assert_eq!(run(&mut engine, 40), [terminating]);
    // The released resources are not for pods of the same or lower priority.
    engine.pod_deleted(&pod("a on=n1 cpu=4 prio=1"), at(50));
    engine.pod_applied(pod("thief cpu=2 prio=10"), at(50));
    engine.pod_applied(pod("small cpu=1 prio=1"), at(50));
    let out = run(&mut engine, 60);
    assert!(out.contains(&"bind x n1".to_owned()), "{out:?}");
    assert!(out.contains(&"bind small n1".to_owned()), "{out:?}");
    assert!(
        out.iter()
            .any(|line| line.starts_with("0/1") && line.contains("1 Insufficient cpu"))
    );
    assert_eq!(engine.preemptor().nominated_node("x"), None);
}

#[test]
fn plugin_without_victims_keeps_other_nomination() {
    let mut engine = engine_with(&["ElasticQuota"], json!({}), &[]);
    for name in ["n1", "n2"] {
        engine.node_applied(node(&format!("{name} cpu=4")), at(0));
        engine.pod_applied(pod(&format!("on-{name} on={name} cpu=4 prio=1")), at(0));
    }
    engine.take_outputs();
    engine.pod_applied(pod("x cpu=3 prio=10"), at(1));
    let nominated = |engine: &Engine| engine.preemptor().nominated_node("x").cloned();
    let evictions = |out: &[String]| out.iter().filter(|line| line.starts_with("evict")).count();
    assert_eq!(evictions(&run(&mut engine, 1)), 1);
    let node = nominated(&engine);
    assert!(node.is_some());
    for round in 1..4 {
        let changed = format!("x cpu=3 prio=10 app=changed-{round}");
        engine.pod_applied(pod(&changed), at(20 * round));
        assert_eq!(evictions(&run(&mut engine, 20 * round)), 0, "round {round}");
        assert_eq!(nominated(&engine), node);
    }
}

#[test]
fn nomination_blocks_equal_but_not_higher_priority() {
    let nominated = "x cpu=3 prio=10 nominated=n1 never";
    let table = [
        ("lower", "y cpu=2 prio=1 never", false),
        ("equal", "y cpu=2 prio=10 never", false),
        ("higher", "y cpu=2 prio=11 never", true),
        ("in addition", "y cpu=1 prio=1 never", true),
    ];
    for (name, other, placed) in table {
        let mut engine = setup(&["n1 cpu=4"], &[], &[]);
        engine.pod_applied(pod("blocker on=n1 cpu=4 prio=99"), at(0));
        engine.pod_applied(pod(nominated), at(0));
        assert_eq!(run(&mut engine, 0).len(), 1, "{name}");
        // Released in two steps, so that the nominated pod does not fit before the other pod arrives.
        let blocker = pod("blocker on=n1 cpu=2 prio=99");
        engine.pod_applied(blocker, at(1));
        let out: Vec<String> = run(&mut engine, 1);
        assert!(
            !out.iter().any(|line| line.starts_with("bind")),
            "{name}: {out:?}"
        );
        engine.pod_applied(pod(other), at(2));
        let out = run(&mut engine, 2);
        let bound = out.iter().any(|line| line.starts_with("bind y"));
        // Two CPUs are free and three are nominated: no pod of lower priority fits in addition.
        let expected = placed && name != "in addition";
        assert_eq!(bound, expected, "{name}: {out:?}");
    }
}

#[test]
fn higher_priority_preemptor_takes_over_nomination() {
    let mut engine = setup(&["n1 cpu=4"], &["a on=n1 cpu=4 prio=1"], &[]);
    engine.pod_applied(pod("x cpu=4 prio=10"), at(1));
    assert_eq!(run(&mut engine, 1), ["evict n1: a", "nominated n1"]);
    engine.pod_applied(pod("y cpu=4 prio=20"), at(2));
    // The victim's eviction is pending, but it is evicted again for y, because the first eviction may not
    // happen.
    let out = run(&mut engine, 2);
    assert_eq!(
        out,
        ["clear x", "unexpect x", "evict n1: a", "nominated n1"]
    );
    assert_eq!(engine.preemptor().nominated_node("x"), None);
    engine.pod_deleted(&pod("a on=n1 cpu=4 prio=1"), at(3));
    let out = run(&mut engine, 20);
    assert_eq!(out[0], "bind y n1");
    assert!(engine.cluster().nodes().books_balance());
}

#[test]
fn nominations_survive_a_restart_and_end_with_the_pod() {
    let mut engine = setup(&["n1 cpu=4"], &[], &[]);
    engine.pod_applied(pod("x cpu=4 prio=10 nominated=n1"), at(0));
    assert!(engine.preemptor().nominated_node("x").is_some());
    engine.pod_applied(pod("x cpu=4 prio=10"), at(1));
    assert_eq!(
        engine.preemptor().nominated_node("x"),
        None,
        "cleared in the API"
    );
    engine.pod_applied(pod("x cpu=4 prio=10 nominated=n1"), at(2));
    engine.pod_deleted(&pod("x cpu=4 prio=10"), at(3));
    assert_eq!(engine.preemptor().nominated_node("x"), None);
    engine.pod_applied(pod("y cpu=4"), at(4));
    assert_eq!(run(&mut engine, 4), ["bind y n1"]);
}

#[test]
fn failed_eviction_retries_preemption() {
    let mut engine = setup(&["n1 cpu=4"], &["a on=n1 cpu=4 prio=1"], &[]);
    engine.pod_applied(pod("x cpu=4 prio=10"), at(1));
    assert_eq!(run(&mut engine, 1), ["evict n1: a", "nominated n1"]);
    engine.eviction_failed("a");
    assert_eq!(run(&mut engine, 2), ["evict n1: a", "nominated n1"]);
}

#[test]
fn hopeless_attempt_clears_nomination() {
    let mut engine = setup(
        &["n1 cpu=4", "n2 cpu=4"],
        &["a on=n1 cpu=4 prio=30", "b on=n2 cpu=4 prio=30"],
        &[],
    );
    engine.pod_applied(pod("x cpu=4 prio=10 nominated=n1"), at(1));
    let out = run(&mut engine, 1);
    assert!(
        out[0].ends_with("2 No preemption victims found for incoming pod."),
        "{out:?}"
    );
    assert_eq!(engine.preemptor().nominated_node("x"), None);
}

#[test]
fn ended_nomination_queues_waiting_pods() {
    // The nomination ends because the pod is deleted, or because the API withdraws it.
    for withdrawn in [false, true] {
        let mut engine = setup(&["n1 cpu=4"], &["a on=n1 cpu=2 prio=99"], &[]);
        engine.pod_applied(pod("x cpu=4 prio=10 nominated=n1 never"), at(0));
        engine.pod_applied(pod("y cpu=1 prio=10 never"), at(0));
        engine.pod_applied(pod("z cpu=1 prio=1 never"), at(0));
        assert_eq!(run(&mut engine, 1).len(), 3, "no pod is placed there");
        assert_eq!(run(&mut engine, 20), [""; 0]);
        if withdrawn {
            engine.pod_applied(pod("x cpu=4 prio=10 never"), at(30));
        } else {
            engine.pod_deleted(&pod("x cpu=4 prio=10"), at(30));
        }
        let out = run(&mut engine, 30);
        let bound = |name: &str| out.contains(&format!("bind {name} n1"));
        assert!(bound("y") && bound("z"), "{withdrawn}: {out:?}");
    }
}

#[test]
fn pod_rejected_before_post_filter_loses_nomination() {
    let fits = "x cpu=4 prio=10 nominated=n1";
    let mut engine = setup(&["n1 cpu=4"], &[fits], &[]);
    assert_eq!(run(&mut engine, 1), ["bind x n1"]);
    let error = BindError {
        message: "conflict".to_owned(),
        gone: false,
    };
    engine.bind_finished("x", Err(error), at(2));
    assert_eq!(engine.preemptor().nominated_node("x"), None);
    let cleared = |engine: &mut Engine| {
        engine.take_outputs().into_iter().any(|output| {
            matches!(output, Output::Failed(Failure { nominated: Some(node), .. }) if node.is_empty())
        })
    };
    assert!(cleared(&mut engine), "when its binding fails");

    let mut engine = setup(&[], &[fits], &[]);
    assert!(engine.schedule_one(at(1)).is_some());
    assert!(cleared(&mut engine), "without any node");
    assert_eq!(engine.preemptor().nominated_node("x"), None);
}

#[test]
fn arguments_are_checked() {
    for (args, expected) in [
        (
            json!({"minCandidateNodesPercentage": 101}),
            "minCandidateNodesPercentage: 101",
        ),
        (
            json!({"minCandidateNodesAbsolute": -1}),
            "minCandidateNodesAbsolute: -1",
        ),
        (
            json!({"minCandidateNodesPercentage": 0, "minCandidateNodesAbsolute": 0}),
            "both be 0",
        ),
        (json!({"minCandidates": 1}), "minCandidates"),
    ] {
        let error = build(Some(&args), &BuildContext::default()).err().unwrap();
        assert!(error.to_string().contains(expected), "{error}");
    }
    let watches = |context: &BuildContext| {
        let plugin = build(None, context).unwrap();
        plugin.inputs().map_or(0, |inputs| inputs.watches().len())
    };
    let mut context = BuildContext::default();
    context
        .gates
        .insert("DisablePodDisruptionBudgetInformer".to_owned(), true);
    assert_eq!(watches(&context), 0);
    assert_eq!(watches(&BuildContext::default()), 1);
    let mut context = BuildContext::default();
    context
        .gates
        .insert("PodDisruptionBudget".to_owned(), false);
    assert_eq!(watches(&context), 0);
}
