//! Preemption within a quota.

use super::*;
use crate::common::budgets::BUDGETS;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;

fn with(mut pod: Value, priority: i64) -> Value {
    pod["spec"]["priority"] = json!(priority);
    pod
}

/// Returns the pods that are evicted for `pod`, and its condition message.
fn evicted(engine: &mut Engine, pod: &Value) -> (Vec<String>, String) {
    add(engine, pod, 0);
    engine.take_outputs();
    while engine.schedule_one(at(0)).is_some() {}
    let (mut out, mut message) = (Vec::new(), String::new());
    for output in engine.take_outputs() {
        match output {
            Output::Evict { victims, .. } => {
                out.extend(victims.iter().map(|victim| victim.name.to_string()));
            }
            Output::Failed(failure) => message = failure.message.to_string(),
            Output::Bind(bind) => message = bind.node.to_string(),
            _ => {}
        }
    }
    out.sort();
    (out, message)
}

/// Builds a cluster of 100 cores in which quotas `a` and `b` may use 10 each.
fn cluster(args: &Value) -> Engine {
    let mut engine = engine(args, 100, 100);
    for name in ["a", "b"] {
        apply(&mut engine, &quota(name, "", (10, 100), (5, 5)), 0);
    }
    engine
}

#[test]
fn full_quota_preempts_own_pods_of_lower_priority() {
    struct Row {
        name: &'static str,
        args: Value,
        /// Name, quota, cores, priority and whether non-preemptible.
        pods: &'static [(&'static str, &'static str, i64, i64, bool)],
        /// Quota and cores; the priority is 10.
        pod: (&'static str, i64),
        victims: &'static [&'static str],
    }
    let off = || json!({});
    let rows = [
        Row {
            name: "the less important one, and no more than needed",
            args: off(),
            pods: &[("x", "a", 4, 5, false), ("y", "a", 6, 3, false)],
            pod: ("a", 4),
            victims: &["y"],
        },
        Row {
            name: "as many as the quota needs, though the node has room",
            args: off(),
            pods: &[("x", "a", 4, 5, false), ("y", "a", 6, 3, false)],
            pod: ("a", 10),
            victims: &["x", "y"],
        },
        Row {
            name: "never those of equal priority",
            args: off(),
            pods: &[("x", "a", 10, 10, false)],
            pod: ("a", 1),
            victims: &[],
        },
        Row {
            name: "never another quota's",
            args: off(),
            pods: &[("x", "b", 10, 1, false), ("y", "a", 10, 10, false)],
            pod: ("a", 1),
            victims: &[],
        },
        Row {
            name: "never those that must not be preempted",
            args: off(),
            pods: &[("x", "a", 5, 1, true), ("y", "a", 5, 1, false)],
            pod: ("a", 3),
            victims: &["y"],
        },
        Row {
            name: "no eviction without effect",
            args: off(),
            pods: &[("x", "a", 5, 1, true), ("y", "a", 5, 1, false)],
            pod: ("a", 6),
            victims: &[],
        },
        Row {
            name: "no pod of the default quota",
            args: off(),
            pods: &[("x", "", 98, 1, false)],
            pod: ("", 5),
            victims: &[],
        },
        Row {
            name: "unless that is allowed",
            args: json!({"disableDefaultQuotaPreemption": false}),
            pods: &[("x", "", 98, 1, false)],
            pod: ("", 5),
            victims: &["x"],
        },
    ];
    for row in rows {
        let mut engine = cluster(&row.args);
        for (name, quota, cpu, priority, is_firm) in row.pods {
            let pod = bound(with(pod(name, quota, *cpu, 1), *priority));
            add(&mut engine, &if *is_firm { firm(pod) } else { pod }, 0);
        }
        let (victims, message) = evicted(&mut engine, &with(pod("p", row.pod.0, row.pod.1, 1), 10));
        assert_eq!(victims, row.victims, "{}: {message}", row.name);
    }
}

#[test]
fn pod_is_admitted_after_its_victims_are_deleted() {
    let mut engine = cluster(&json!({}));
    let victim = bound(with(pod("x", "a", 10, 1), 1));
    add(&mut engine, &victim, 0);
    let (victims, message) = evicted(&mut engine, &with(pod("p", "a", 10, 1), 10));
    assert_eq!(victims, ["x"]);
    assert!(
        message.contains("Insufficient quotas, quotaName: a,"),
        "{message}"
    );
    delete(&mut engine, &victim, 5);
    assert_eq!(schedule(&mut engine, 5), [("p".to_owned(), "n".to_owned())]);
}

#[test]
fn preemption_policy_never_is_respected() {
    let mut engine = cluster(&json!({}));
    add(&mut engine, &bound(with(pod("x", "a", 10, 1), 1)), 0);
    let mut meek = with(pod("p", "a", 10, 1), 10);
    meek["spec"]["preemptionPolicy"] = json!("Never");
    let (victims, message) = evicted(&mut engine, &meek);
    assert_eq!(victims.len(), 0);
    assert!(
        message.ends_with("preemption: not eligible due to preemptionPolicy=Never."),
        "{message}"
    );
}

#[test]
fn pods_with_budget_are_evicted_last() {
    let mut engine = cluster(&json!({}));
    let budget: PodDisruptionBudget = serde_json::from_value(json!({
        "metadata": {"name": "b", "namespace": "team"},
        "spec": {"selector": {"matchLabels": {"app": "precious"}}},
        "status": {"disruptionsAllowed": 0, "expectedPods": 1, "currentHealthy": 1, "desiredHealthy": 1}
    }))
    .unwrap();
    let change = ObjectChange {
        kind: BUDGETS,
        action: Action::ADD,
        old: None,
        new: Arc::new(budget),
    };
    engine.object_changed(&change, at(0));
    let mut precious = bound(with(pod("x", "a", 5, 1), 1));
    precious["metadata"]["labels"]["app"] = json!("precious");
    add(&mut engine, &precious, 0);
    add(&mut engine, &bound(with(pod("y", "a", 5, 1), 2)), 0);
    let (victims, _) = evicted(&mut engine, &with(pod("p", "a", 5, 1), 10));
    assert_eq!(victims, ["y"], "although it is the more important one");
}

/// Upstream's rows for a pod with a nominated node on which it does not fit yet.
#[test]
fn nominated_pod_waits_for_terminating_pods() {
    struct Row {
        name: &'static str,
        /// Nominated node with its cores.
        promised: (&'static str, i64),
        /// Terminating pod on it: quota, cores, priority.
        leaving: Option<(&'static str, i64, i64)>,
        never: bool,
        /// True if other pods may be evicted.
        eligible: bool,
    }
    let rows = [
        Row {
            name: "preemptionPolicy=Never",
            promised: ("", 20),
            leaving: None,
            never: true,
            eligible: false,
        },
        Row {
            name: "no node was promised",
            promised: ("", 20),
            leaving: Some(("a", 4, 5)),
            never: false,
            eligible: true,
        },
        Row {
            name: "the promised node can never take it",
            promised: ("m", 3),
            leaving: Some(("a", 1, 5)),
            never: false,
            eligible: true,
        },
        Row {
            name: "no pod is on the nominated node",
            promised: ("m", 20),
            leaving: None,
            never: false,
            eligible: true,
        },
        Row {
            name: "the promised node is gone",
            promised: ("gone", 20),
            leaving: None,
            never: false,
            eligible: true,
        },
        Row {
            name: "one of the same quota and lower priority is leaving",
            promised: ("m", 20),
            leaving: Some(("a", 4, 5)),
            never: false,
            eligible: false,
        },
        Row {
            name: "one of another quota is leaving",
            promised: ("m", 20),
            leaving: Some(("b", 4, 5)),
            never: false,
            eligible: true,
        },
        Row {
            name: "one of the same quota and higher priority is leaving",
            promised: ("m", 20),
            leaving: Some(("a", 4, 15)),
            never: false,
            eligible: true,
        },
    ];
    for row in rows {
        let mut engine = cluster(&json!({}));
        engine.node_applied(node("m", row.promised.1, 100), at(0));
        // Quota `a` is full, and `victim` may be evicted for the pod.
        let leaving = row.leaving.filter(|(quota, ..)| *quota == "a");
        let remaining = 10 - leaving.map_or(0, |(_, cpu, _)| cpu);
        add(
            &mut engine,
            &bound(with(pod("victim", "a", remaining, 1), 1)),
            0,
        );
        if let Some((quota, cpu, priority)) = row.leaving {
            let mut going = with(pod("going", quota, cpu, 1), priority);
            going["spec"]["nodeName"] = json!("m");
            going["metadata"]["deletionTimestamp"] = json!(at(30).to_string());
            add(&mut engine, &going, 0);
        }
        let mut pod = with(pod("p", "a", 5, 1), 10);
        if !row.promised.0.is_empty() {
            pod["status"]["nominatedNodeName"] = json!(row.promised.0);
        }
        if row.never {
            pod["spec"]["preemptionPolicy"] = json!("Never");
        }
        let (victims, message) = evicted(&mut engine, &pod);
        if row.eligible {
            assert_eq!(victims, ["victim"], "{}: {message}", row.name);
            continue;
        }
        assert_eq!(victims, [""; 0], "{}", row.name);
        let expected_message = match row.never {
            true => "preemption: not eligible due to preemptionPolicy=Never.",
            false => "preemption: not eligible due to a terminating pod on the nominated node.",
        };
        assert!(
            message.ends_with(expected_message),
            "{}: {message}",
            row.name
        );
    }
}

/// Upstream's rows of victims on one node: its pods, and those evicted for a pod of 2 cores and priority 10.
#[test]
fn only_necessary_victims_are_evicted() {
    let rows: [(&str, i64, bool, i64, &[&str]); 4] = [
        ("all have a higher priority", 20, false, 1, &[]),
        ("the quota has room, the node too", 5, false, 100, &[]),
        ("the quota has no room", 5, false, 2, &["v"]),
        ("it must not be preempted", 5, true, 2, &[]),
    ];
    for (name, priority, is_firm, max, expected) in rows {
        let mut engine = engine(&json!({}), 100, 100);
        apply(&mut engine, &quota("a", "", (max, 100), (1, 1)), 0);
        let victim = bound(with(pod("v", "a", 1, 1), priority));
        add(&mut engine, &if is_firm { firm(victim) } else { victim }, 0);
        let (victims, message) = evicted(&mut engine, &with(pod("p", "a", 2, 1), 10));
        assert_eq!(victims, expected, "{name}: {message}");
    }
}

/// Upstream's rows of budgets: pods whose eviction would violate one. `v` to `z` use one core each of a full
/// quota, with rising priority; the pod needs `cores`.
#[test]
fn pods_with_exhausted_budget_are_evicted_last() {
    let app = || json!({"matchLabels": {"app": "precious"}});
    struct Row {
        name: &'static str,
        namespace: &'static str,
        selector: Value,
        allowed: i64,
        /// Pods that are already disrupted.
        disrupted: &'static [&'static str],
        /// Pods with the label.
        precious: &'static [&'static str],
        cores: i64,
        victims: &'static [&'static str],
    }
    let covered = || Row {
        name: "covered",
        namespace: "team",
        selector: app(),
        allowed: 0,
        disrupted: &[],
        precious: &["v"],
        cores: 1,
        victims: &["w"],
    };
    let rows = [
        covered(),
        Row {
            name: "without labels",
            precious: &[],
            victims: &["v"],
            ..covered()
        },
        Row {
            name: "a budget of another namespace",
            namespace: "other",
            victims: &["v"],
            ..covered()
        },
        Row {
            name: "disrupted already",
            disrupted: &["v"],
            victims: &["v"],
            ..covered()
        },
        Row {
            name: "a selector that cannot be read",
            selector: json!({"matchExpressions": [{"key": "app", "operator": "InvalidOp"}]}),
            victims: &["v"],
            ..covered()
        },
        Row {
            name: "one may go, and it is the more important of two",
            allowed: 1,
            precious: &["v", "w"],
            cores: 2,
            victims: &["w", "x"],
            ..covered()
        },
        Row {
            name: "one of three may go",
            allowed: 1,
            precious: &["v", "w", "x"],
            cores: 3,
            victims: &["x", "y", "z"],
            ..covered()
        },
    ];
    for row in rows {
        let mut engine = engine(&json!({}), 100, 100);
        apply(&mut engine, &quota("a", "", (5, 100), (1, 1)), 0);
        let disrupted: BTreeMap<&str, String> = row
            .disrupted
            .iter()
            .map(|pod| (*pod, at(0).to_string()))
            .collect();
        let budget: PodDisruptionBudget = serde_json::from_value(json!({
            "metadata": {"name": "b", "namespace": row.namespace},
            "spec": {"selector": row.selector},
            "status": {
                "disruptionsAllowed": row.allowed, "disruptedPods": disrupted,
                "expectedPods": 3, "currentHealthy": 3, "desiredHealthy": 3
            }
        }))
        .unwrap();
        let change = ObjectChange {
            kind: BUDGETS,
            action: Action::ADD,
            old: None,
            new: Arc::new(budget),
        };
        engine.object_changed(&change, at(0));
        for (priority, name) in (1..).zip(["v", "w", "x", "y", "z"]) {
            let mut pod = bound(with(pod(name, "a", 1, 1), priority));
            if row.precious.contains(&name) {
                pod["metadata"]["labels"]["app"] = json!("precious");
            }
            add(&mut engine, &pod, 0);
        }
        let (victims, message) = evicted(&mut engine, &with(pod("p", "a", row.cores, 1), 10));
        assert_eq!(victims, row.victims, "{}: {message}", row.name);
    }
}
