//! Making room within a quota.

use super::*;
use crate::budgets::BUDGETS;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;

fn with(mut pod: Value, priority: i64) -> Value {
    pod["spec"]["priority"] = json!(priority);
    pod
}

/// Who is evicted for the pod, and what its condition says.
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
            Output::Failed(failure) => message = failure.message,
            Output::Bind(bind) => message = bind.node.to_string(),
            _ => {}
        }
    }
    out.sort();
    (out, message)
}

/// A cluster of 100 cores; quota `a` and `b` may use 10 each.
fn cluster(args: &Value) -> Engine {
    let mut engine = engine(args, 100, 100);
    for name in ["a", "b"] {
        apply(&mut engine, &quota(name, "", (10, 100), (5, 5)), 0);
    }
    engine
}

#[test]
fn a_full_quota_makes_room_from_its_own_pods_of_lower_priority() {
    struct Row {
        name: &'static str,
        args: Value,
        /// Name, quota, cores, priority, non-preemptible.
        pods: &'static [(&'static str, &'static str, i64, i64, bool)],
        /// Quota and cores; its priority is 10.
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
            name: "nobody goes in vain",
            args: off(),
            pods: &[("x", "a", 5, 1, true), ("y", "a", 5, 1, false)],
            pod: ("a", 6),
            victims: &[],
        },
        Row {
            name: "nobody of the default quota",
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
fn the_pod_comes_in_when_its_victims_are_gone() {
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
fn a_pod_that_may_not_preempt_does_not() {
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
fn pods_with_a_disruption_budget_are_spared_where_others_can_go() {
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
