//! Disruption budgets and quotas over several nodes.

use super::*;

/// Builds a budget that allows this many disruptions of pods with this app.
fn budget(app: &str, allowed: i32) -> ObjectChange {
    let budget: k8s_openapi::api::policy::v1::PodDisruptionBudget = serde_json::from_value(json!({
        "metadata": {"name": app, "namespace": "ns", "uid": app},
        "spec": {"selector": {"matchLabels": {"app": app}}},
        "status": {"disruptionsAllowed": allowed, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2}
    }))
    .unwrap();
    ObjectChange {
        kind: budgets::BUDGETS,
        action: Action::ADD,
        old: None,
        new: Arc::new(budget),
    }
}

#[test]
fn budgets_are_respected_across_nodes() {
    let mut world = evicting();
    for node in ["n1", "n2"] {
        world.node(node, 2);
        for app in ["db", "web"] {
            let name = format!("{app}-{node}");
            // Without the budget, the database would be evicted.
            let priority = if app == "db" { 1 } else { 2 };
            world.apply(labelled(plain(&name, node, 1, priority), "app", app));
        }
    }
    world.engine.object_changed(&budget("db", 1), at(0));
    // One per node: members cannot share a node.
    let mut pods = members(2, 2, 1, &json!({}));
    for pod in &mut pods {
        let ports = json!([{"containerPort": 80, "hostPort": 80}]);
        let containers = &mut pod.spec.as_mut().unwrap().containers;
        containers[0].ports = serde_json::from_value(ports).unwrap();
    }
    for pod in pods {
        world.apply(pod);
    }
    world.run();
    let dbs = world
        .victims()
        .iter()
        .filter(|name| name.starts_with("db"))
        .count();
    assert_eq!(
        (world.victims().len(), dbs),
        (2, 1),
        "{:?}",
        world.victims()
    );
}

#[test]
fn budget_is_violated_once_for_several_members() {
    let mut world = evicting();
    world.node("n1", 6);
    world.node("n2", 2);
    world.apply(labelled(plain("p", "n1", 6, 1), "app", "db"));
    world.apply(plain("v", "n2", 2, 1));
    world.engine.object_changed(&budget("db", 0), at(0));
    // The larger one is tried first.
    let mut pods = members(2, 2, 2, &json!({}));
    pods[1] = sized(pods[1].clone(), 4, 1000);
    for pod in pods {
        world.apply(pod);
    }
    world.run();
    assert_eq!(world.victims(), ["p"]);
}

fn quota(name: &str, cpu: usize) -> ObjectChange {
    quota_below("", name, cpu)
}

fn quota_below(parent: &str, name: &str, cpu: usize) -> ObjectChange {
    let quota: koord_api::scheduling::ElasticQuota = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name, "labels": {
            "quota.scheduling.koordinator.sh/parent": parent,
            "quota.scheduling.koordinator.sh/is-parent": if name == "p" { "true" } else { "false" },
        }},
        "spec": {"max": {"cpu": cpu.to_string()}, "min": {"cpu": cpu.to_string()}}
    }))
    .unwrap();
    ObjectChange {
        kind: "elasticquotas.v1alpha1.scheduling.sigs.k8s.io",
        action: Action::ADD,
        old: None,
        new: Arc::new(quota),
    }
}

#[test]
fn gang_preempts_within_its_quota() {
    struct Row {
        name: &'static str,
        /// Number of members, of two cores each, and the minimum.
        gang: (usize, usize),
        /// Cores of the only node. It has two pods of two cores of the gang's quota, and one of another
        /// quota.
        cores: usize,
        change: fn(Pod) -> Pod,
        victims: &'static [&'static str],
        bound: usize,
    }
    let rows = [
        Row {
            name: "only pods of the quota, however unimportant others are",
            gang: (2, 2),
            cores: 20,
            change: |pod| pod,
            victims: &["q1", "q2"],
            bound: 2,
        },
        Row {
            name: "one member has room in the quota, both have not",
            gang: (2, 2),
            cores: 20,
            change: |pod| {
                if pod.metadata.name.as_deref() == Some("q2") {
                    sized(pod, 0, 1)
                } else {
                    pod
                }
            },
            victims: &["q1"],
            bound: 2,
        },
        Row {
            name: "the quota is too small for them all",
            gang: (3, 3),
            cores: 20,
            change: |pod| pod,
            victims: &[],
            bound: 0,
        },
        Row {
            name: "but not for those that are needed",
            gang: (3, 2),
            cores: 20,
            change: |pod| pod,
            victims: &["q1", "q2"],
            bound: 2,
        },
        Row {
            name: "nor for those, though many come behind them",
            gang: (7, 2),
            cores: 20,
            change: |pod| pod,
            victims: &["q1", "q2"],
            bound: 2,
        },
        Row {
            name: "one of them may not go",
            gang: (2, 2),
            cores: 20,
            change: |pod| match pod.metadata.name.as_deref() {
                Some("q1") => labelled(pod, "quota.scheduling.koordinator.sh/preemptible", "false"),
                _ => pod,
            },
            victims: &[],
            bound: 0,
        },
        Row {
            name: "the node is full besides",
            gang: (2, 2),
            cores: 6,
            change: |pod| pod,
            victims: &["q1", "q2"],
            bound: 2,
        },
    ];
    for row in rows {
        let name = row.name;
        let mut world = evicting();
        world.node("n1", row.cores);
        for (quota_name, cpu) in [("q", 4), ("r", 20)] {
            world.engine.object_changed(&quota(quota_name, cpu), at(0));
        }
        let in_quota = |pod, quota| labelled(pod, "quota.scheduling.koordinator.sh/name", quota);
        for (pod, quota, priority) in [("q1", "q", 1), ("q2", "q", 1), ("r1", "r", 0)] {
            world.apply((row.change)(in_quota(plain(pod, "n1", 2, priority), quota)));
        }
        for pod in members(row.gang.0, row.gang.1, 2, &json!({})) {
            world.apply(in_quota(pod, "q"));
        }
        world.run();
        let victims = world.victims();
        assert_eq!(victims, row.victims, "{name}: {:?}", world.conditions);
        world.all_leave();
        world.later(60);
        assert_eq!(
            world.bound().len(),
            row.bound,
            "{name}: {:?}",
            world.conditions
        );
    }
}

/// Members belong to two quotas with a common parent: what one of them uses is not available to the other.
#[test]
fn gang_of_several_quotas_preempts_in_the_parent() {
    struct Row {
        name: &'static str,
        /// Cores of the parent quota, of its two children, and of the node.
        cores: [usize; 3],
        /// Names and quotas of pods of two cores.
        pods: &'static [(&'static str, &'static str)],
        victims: &'static [&'static str],
    }
    let rows = [
        Row {
            name: "what goes from one quota is room for the other",
            cores: [4, 4, 20],
            pods: &[("v1", "a"), ("v2", "a")],
            victims: &["v1", "v2"],
        },
        Row {
            name: "one has to go, though there is room for each of them",
            cores: [4, 4, 20],
            pods: &[("v1", "a")],
            victims: &["v1"],
        },
        Row {
            name: "the one above is too small for both, so no pod is evicted",
            cores: [2, 4, 4],
            pods: &[("v1", ""), ("v2", "")],
            victims: &[],
        },
        Row {
            name: "there is room for both",
            cores: [6, 4, 4],
            pods: &[("v1", "a"), ("v2", "")],
            victims: &["v1", "v2"],
        },
    ];
    for row in rows {
        let [above, below, node] = row.cores;
        let config = json!({"enableCheckParentQuota": true, "enableRuntimeQuota": false});
        let mut world = world_given(
            &["ElasticQuota", "DefaultPreemption"],
            &[
                (NAME, json!({"enablePreemption": true})),
                ("ElasticQuota", config),
            ],
            &BuildContext::default(),
        );
        world.node("n1", node);
        let quotas = [
            quota("p", above),
            quota_below("p", "a", below),
            quota_below("p", "b", below),
        ];
        for quota in quotas {
            world.engine.object_changed(&quota, at(0));
        }
        let in_quota = |pod, quota| labelled(pod, "quota.scheduling.koordinator.sh/name", quota);
        for (name, quota) in row.pods {
            world.apply(in_quota(plain(name, "n1", 2, 1), quota));
        }
        for (pod, quota) in members(2, 2, 2, &json!({})).into_iter().zip(["a", "b"]) {
            world.apply(in_quota(pod, quota));
        }
        world.run();
        let victims = world.victims();
        assert_eq!(victims, row.victims, "{}: {:?}", row.name, world.conditions);
        let bound = if victims.is_empty() { 0 } else { 2 };
        world.all_leave();
        world.later(60);
        let conditions = &world.conditions;
        assert_eq!(world.bound().len(), bound, "{}: {conditions:?}", row.name);
    }
}

#[test]
fn gang_waits_for_terminating_pods_of_its_quota() {
    let mut world = evicting();
    world.engine.object_changed(&quota("q", 4), at(0));
    world.engine.object_changed(&budget("q2", 1), at(0));
    let in_quota = |pod| labelled(pod, "quota.scheduling.koordinator.sh/name", "q");
    world.node("n1", 2);
    for (name, node, priority) in [("q2", "n2", 1), ("q3", "n3", 2)] {
        world.node(node, 2);
        let pod = labelled(in_quota(plain(name, node, 2, priority)), "app", name);
        world.apply(pod);
    }
    for pod in members(1, 1, 2, &json!({})) {
        world.apply(in_quota(pod));
    }
    world.run();
    assert_eq!(world.victims(), ["q2"]);
    assert_eq!(world.nominated["m1"], "n1");
    // It is terminating and its budget is exhausted: evicting the other pod would do less harm.
    world.engine.object_changed(&budget("q2", 0), at(0));
    let mut going = world.evicted[0].named_object();
    let since = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(0));
    going.metadata.deletion_timestamp = Some(since);
    world.apply(going);
    world.node("n4", 1);
    world.later(600);
    assert_eq!(world.victims(), ["q2"], "{:?}", world.conditions);
    assert_eq!(world.nominated["m1"], "n1");
    world.all_leave();
    world.later(60);
    assert_eq!(world.bound["m1"], "n1");
}
