//! The table of hooks, and a fake node to run them on.

use super::*;
use crate::settings::Settings;
use crate::states::topology::TopologyInfo;
use crate::states::{Driver, Layout, NodeInfo, Slo};
use k8s_openapi::api::core::v1::{Node as ApiNode, Pod};
use koord_api::topology::v1alpha1::NodeResourceTopology;
use koord_host::CgroupPath;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Returns a pod from its object.
pub(crate) fn pod(object: Value) -> PodInfo {
    let pod: Pod = serde_json::from_value(object).unwrap();
    let layout = Layout::new(Driver::Cgroupfs, CgroupPath::root());
    PodInfo::from_pod(&pod, &layout).unwrap()
}

/// Sources of a node's rules, as API values.
#[derive(Debug)]
pub(crate) struct Node {
    settings: Settings,
    slo: Value,
    ratio: Option<String>,
    topology: Option<Value>,
    quotas_lifted: bool,
    batch_idle: bool,
    group_identity: bool,
    cpu_idle: bool,
}

impl Default for Node {
    fn default() -> Self {
        Self {
            settings: Settings::default(),
            slo: json!({}),
            ratio: None,
            topology: None,
            quotas_lifted: false,
            batch_idle: false,
            group_identity: false,
            cpu_idle: true,
        }
    }
}

impl Node {
    pub(crate) fn open(mut self, gate: Gate) -> Self {
        self.settings.gates.set(gate, true);
        self
    }

    pub(crate) fn gates(&self) -> crate::gates::Gates {
        self.settings.gates.clone()
    }

    pub(crate) fn close(mut self, gate: Gate) -> Self {
        self.settings.gates.set(gate, false);
        self
    }

    pub(crate) fn keep_quotas(mut self) -> Self {
        self.settings.unset_cpu_quota = false;
        self
    }

    pub(crate) fn ratio(mut self, text: &str) -> Self {
        self.ratio = Some(text.to_owned());
        self
    }

    pub(crate) fn quotas_lifted(mut self) -> Self {
        self.quotas_lifted = true;
        self
    }

    pub(crate) fn batch_idle(mut self) -> Self {
        self.batch_idle = true;
        self
    }

    pub(crate) fn without_cpu_idle(mut self) -> Self {
        self.cpu_idle = false;
        self
    }

    pub(crate) fn group_identity(mut self) -> Self {
        self.group_identity = true;
        self
    }

    /// Enables every class with upstream's figures, BE idle, with this CPU policy.
    pub(crate) fn cpu_qos(mut self, policy: &str) -> Self {
        let class = |identity: i64, idle: i64, expeller: bool| {
            json!({"cpuQOS": {"enable": true, "groupIdentity": identity,
                "schedIdle": idle, "coreExpeller": expeller}})
        };
        self.slo = json!({"resourceQOSStrategy": {
            "policies": {"cpuPolicy": policy},
            "lsrClass": class(2, 0, true),
            "lsClass": class(2, 0, true),
            "beClass": class(-1, 1, false)}});
        self
    }

    /// Sets the CPU pools of NUMA nodes 0, 1, …
    pub(crate) fn pools(mut self, shared: &[&str], batch: &[&str]) -> Self {
        let pools = |lists: &[&str]| {
            let pool = |(node, cpus): (usize, &&str)| json!({"socket": node, "node": node, "cpuset": cpus});
            let pools: Vec<Value> = lists.iter().enumerate().map(pool).collect();
            Value::from(pools).to_string()
        };
        self.topology = Some(json!({
            "node.koordinator.sh/cpu-shared-pools": pools(shared),
            "node.koordinator.sh/be-cpu-shared-pools": pools(batch)}));
        self
    }

    pub(crate) fn rules(&self) -> Rules {
        self.rules_after(None)
    }

    fn rules_after(&self, last: Option<&Rules>) -> Rules {
        let ratio = self.ratio.as_ref();
        let notes =
            ratio.map(|ratio| json!({"node.koordinator.sh/cpu-normalization-ratio": ratio}));
        let node: ApiNode =
            serde_json::from_value(json!({"metadata": {"name": "n", "annotations": notes}}))
                .unwrap();
        let topology = self.topology.as_ref().map(|notes| {
            let object: NodeResourceTopology = serde_json::from_value(json!({
                "metadata": {"name": "n", "annotations": notes},
                "topologyPolicies": [], "zones": []}))
            .unwrap();
            TopologyInfo::read(&object, None).0
        });
        let (slo, malformed) = Slo::read(&self.slo, None);
        assert_eq!(malformed, []);
        let sources = Sources {
            slo: &slo,
            node: Some(&NodeInfo::from_node(&node)),
            topology: topology.as_ref(),
            settings: &self.settings,
            batch_quotas_lifted: self.quotas_lifted,
            batch_idle: self.batch_idle,
            group_identity: self.group_identity,
            cpu_idle: self.cpu_idle,
        };
        Rules::from_sources(sources, last)
    }
}

#[test]
fn hooks_are_sorted_and_values_have_one_owner() {
    let names: Vec<_> = HOOKS.iter().map(|hook| hook.name).collect();
    let sorted: BTreeSet<_> = names.iter().copied().collect();
    assert!(sorted.iter().eq(&names), "{names:?}");
    for (at, hook) in HOOKS.iter().enumerate() {
        assert!(!hook.gates.is_empty() && !hook.stages.is_empty() && !hook.claims.is_empty());
        for other in &HOOKS[at + 1..] {
            for (claim, two) in hook
                .claims
                .iter()
                .flat_map(|claim| other.claims.iter().map(move |two| (claim, two)))
            {
                let levels = claim.levels.iter().any(|level| two.levels.contains(level));
                let clash =
                    claim.resource == two.resource && levels && claim.classes.overlaps(two.classes);
                assert!(
                    !clash,
                    "{} and {} both say {:?}",
                    hook.name, other.name, claim.resource
                );
            }
        }
    }
}

/// Each hook sets only values that its row claims, with every gate open.
#[test]
fn hooks_set_only_claimed_values() {
    let mut node = Node::default()
        .ratio("1.5")
        .group_identity()
        .cpu_qos("coreSched")
        .pools(&["0-3"], &["0-3"]);
    for hook in HOOKS {
        for gate in hook.gates {
            node = node.open(*gate);
        }
    }
    let rules = node.rules();
    let notes = json!({
        "koordinator.sh/oom-score-adj": "5",
        "node.koordinator.sh/resctrl": r#"{"mb":{"schemata":{"percent":20}}}"#,
        "scheduling.koordinator.sh/device-allocated": 
            r#"{"gpu":[{"minor":0}],"rdma":[{"id":"0000:3b:00.0"}]}"#});
    let pinned = json!({"scheduling.koordinator.sh/resource-status": r#"{"cpuset":"0-1"}"#});
    let mut active = BTreeSet::new();
    for qos in ["LSE", "LSR", "LS", "BE", "SYSTEM", ""] {
        for status in [json!({}), pinned.clone()] {
            let mut all = notes.clone();
            all.as_object_mut()
                .unwrap()
                .extend(status.as_object().unwrap().clone());
            let pod = pod(json!({
                "metadata": {"uid": "u", "labels": {"koordinator.sh/qosClass": qos}, "annotations": all},
                "spec": {"containers": [{"name": "c", "resources": {"limits": {
                    "cpu": "1", "kubernetes.io/batch-cpu": "1000"}}}]}}));
            for (level, adjustment) in [
                (Level::Pod, desired(&pod, None, &rules)),
                (
                    Level::Container,
                    desired(&pod, pod.containers.first(), &rules),
                ),
                (Level::Container, desired_sandbox(&pod, &rules)),
            ] {
                for (resource, by) in parts(&adjustment) {
                    let hook = HOOKS.iter().find(|hook| hook.name == by).unwrap();
                    let claimed = hook.claims.iter().any(|claim| {
                        claim.resource == resource
                            && claim.levels.contains(&level)
                            && claim.classes.has(class_of(&pod))
                    });
                    assert!(claimed, "{by} says {resource:?} of {qos:?} at {level:?}");
                    active.insert(by);
                }
            }
        }
    }
    assert_eq!(active.len(), HOOKS.len(), "{active:?}");
}

fn parts(adjustment: &Adjustment) -> Vec<(HookResource, &'static str)> {
    let Adjustment {
        cpu_shares,
        cfs_quota,
        cpus,
        memory_limit,
        bvt,
        cpu_idle,
        oom_score_adj,
        core_sched,
        resctrl,
        env,
        mounts: _,
        devices,
        fresh_directory: _,
        problems: _,
    } = adjustment;
    let with_hook = |resource, name: Option<&'static str>| name.map(|name| (resource, name));
    [
        with_hook(HookResource::CpuShares, cpu_shares.as_ref().map(|it| it.by)),
        with_hook(HookResource::CfsQuota, cfs_quota.as_ref().map(|it| it.by)),
        with_hook(HookResource::Cpus, cpus.as_ref().map(|it| it.by)),
        with_hook(
            HookResource::MemoryLimit,
            memory_limit.as_ref().map(|it| it.by),
        ),
        with_hook(HookResource::Bvt, bvt.as_ref().map(|it| it.by)),
        with_hook(HookResource::CpuIdle, cpu_idle.as_ref().map(|it| it.by)),
        with_hook(
            HookResource::OomScoreAdj,
            oom_score_adj.as_ref().map(|it| it.by),
        ),
        with_hook(HookResource::CoreSched, core_sched.as_ref().map(|it| it.by)),
        with_hook(HookResource::Resctrl, resctrl.as_ref().map(|it| it.by)),
        with_hook(HookResource::Env, env.first().map(|it| it.by)),
        with_hook(HookResource::Devices, devices.first().map(|it| it.by)),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Upstream: `TestPlugin_parseRule` of cpunormalization and batchresource.
#[test]
fn a_ratio_that_hardly_changed_did_not() {
    let node = |ratio: &str| Node::default().open(Gate::CPUNormalization).ratio(ratio);
    let first = node("1.10").rules();
    assert_eq!(first.batch_ratio(), Some(1.1));
    assert_eq!(node("1.104").rules_after(Some(&first)), first);
    assert_eq!(
        node("1.20").rules_after(Some(&first)).batch_ratio(),
        Some(1.2)
    );
    assert_eq!(
        Node::default().rules_after(Some(&first)).batch_ratio(),
        None
    );
}

#[test]
fn closed_gates_set_no_values() {
    let mut node = Node::default()
        .ratio("1.5")
        .cpu_qos("groupIdentity")
        .group_identity();
    for gate in Gate::ALL {
        node = node.close(*gate);
    }
    let pod = pod(json!({
        "metadata": {"uid": "u", "labels": {"koordinator.sh/qosClass": "BE"}},
        "spec": {"containers": [{"name": "c", "resources": {"limits": {"kubernetes.io/batch-cpu": "1"}}}]}}));
    let rules = node.rules();
    assert!(desired(&pod, None, &rules).is_empty());
    assert!(desired(&pod, pod.containers.first(), &rules).is_empty());
    assert!(desired_class(KubeQos::BestEffort, &rules).is_empty());
}
