//! RuntimeHooks: CPU lists, group identity, processes.

use super::*;
use crate::states::TopologyInfo;
use koord_api::topology::v1alpha1::NodeResourceTopology;
use koord_host::target::{Attribute, Sysctl};
use koord_host::{CpuSet, Target};

impl Rig {
    fn open(gates: &[Gate]) -> Self {
        let mut settings = Settings::default();
        for gate in gates {
            settings.gates.set(*gate, true);
        }
        Self::with(settings)
    }

    fn pools(&self, shared: &[&str]) {
        let pool = |(node, cpus): (usize, &&str)| json!({"node": node, "cpuset": cpus});
        let pools: Vec<_> = shared.iter().enumerate().map(pool).collect();
        let object: NodeResourceTopology = serde_json::from_value(json!({
            "metadata": {"name": "n", "annotations":
                {"node.koordinator.sh/cpu-shared-pools": json!(pools).to_string()}},
            "topologyPolicies": [], "zones": []}))
        .unwrap();
        let info = TopologyInfo::read(&object, None).0;
        self.states.topology.store(Some(Arc::new(info)));
    }

    fn cpus(&self, path: &str) -> String {
        let group = CgroupPath::new(path).unwrap();
        let cpus = self.tree.root().cgroup(&group).cpuset().unwrap().unwrap();
        cpus.to_string()
    }

    fn bvt(&self, path: &str) -> String {
        let group = CgroupPath::new(path).unwrap();
        self.tree.raw(&group, Resource::CpuBvtWarp).unwrap()
    }

    /// Creates a process with these attributes in a group.
    fn process(&self, group: &str, pid: u32) {
        let group = CgroupPath::new(group).unwrap();
        let procs = self.tree.root().cgroup(&group).procs().unwrap();
        let all: Vec<String> = procs.iter().chain([&pid]).map(u32::to_string).collect();
        self.tree
            .feed(&group, Resource::Procs, &(all.join("\n") + "\n"))
            .unwrap();
        let file = |name: &str| format!("proc/{pid}/{name}");
        self.tree.put(&file("oom_score_adj"), "0\n").unwrap();
    }

    fn attribute(&self, pid: u32, attribute: Attribute) -> String {
        let target = Target::Process { pid, attribute };
        self.tree.root().read_target(&target).unwrap().unwrap()
    }

    fn assert_no_refusals(&self) {
        let writes = self.tree.writes();
        let refused: Vec<_> = writes
            .iter()
            .filter(|write| write.refused.is_some())
            .collect();
        assert!(refused.is_empty(), "{refused:?}");
    }
}

/// Returns a pod of `qos` with one container and these annotations.
fn noted(name: &str, qos: &str, resources: serde_json::Value, notes: serde_json::Value) -> Pod {
    let mut pod = pod(name, qos, resources);
    pod.metadata.annotations = serde_json::from_value(notes).unwrap();
    pod
}

fn pinned(cpus: &str) -> serde_json::Value {
    let status = json!({"cpuset": cpus}).to_string();
    json!({"scheduling.koordinator.sh/resource-status": status})
}

#[test]
fn reconciles_are_counted_by_level_and_file() {
    let mut rig = Rig::new();
    rig.step(BUSY);
    let counted = |rig: &Rig| -> u64 {
        let families = rig.registry.gather();
        let name = "koordlet_runtime_hook_reconciler_invoked_duration_milliseconds";
        let family = families.iter().find(|family| family.name() == name);
        let rows = family.map_or(&[][..], |family| family.get_metric()).iter();
        let label_value = |row: &&prometheus::proto::Metric| {
            let labels = row.get_label().iter().map(|label| label.value());
            let mut labels: Vec<_> = labels.collect();
            labels.sort_unstable();
            labels == ["cpu.shares", "n", "pod", "succeeded"]
        };
        rows.filter(label_value)
            .map(|row| row.get_histogram().get_sample_count())
            .sum()
    };
    let first = counted(&rig);
    assert_eq!(first, 1, "that of the batch pod");
    // Checked again after the reconcile interval, changed or not.
    for _ in 0..10 {
        rig.step(BUSY);
    }
    assert_eq!(counted(&rig), 2);
}

#[test]
fn containers_and_sandboxes_run_on_their_cpus() {
    let mut rig = Rig::new();
    for group in [
        "kubepods/podlsr/c1",
        "kubepods/podlsr/pause",
        "kubepods/burstable/podls/pause",
    ] {
        rig.tree.group(group).unwrap();
    }
    let all = json!({"cpu": "1", "memory": "1Gi"});
    let resources = json!({"limits": all, "requests": all});
    let list = |cpus| {
        vec![
            pod("ls", "LS", json!({"requests": {"cpu": "1"}})),
            noted("lsr", "LSR", resources.clone(), pinned(cpus)),
            batch_pod(),
        ]
    };
    rig.pods(list("3"));
    rig.pools(&["0-1", "2"]);
    rig.pass();
    for (path, want) in [
        ("kubepods/burstable/podls/c1", "0-2"),
        ("kubepods/burstable/podls/pause", "0-2"),
        ("kubepods/burstable/podls", "0-3"),
        ("kubepods/podlsr/c1", "3"),
        ("kubepods/podlsr/pause", "3"),
        ("kubepods/podlsr", "0-3"),
        ("kubepods/besteffort/podbe/c1", "0-3"),
    ] {
        assert_eq!(rig.cpus(path), want, "{path}");
    }
    // A foreign write stays until the interval is over …
    let foreign: CpuSet = "1".parse().unwrap();
    let group = CgroupPath::new("kubepods/podlsr/c1").unwrap();
    let container = rig.tree.root().cgroup(&group);
    container.set_cpuset(&foreign).unwrap();
    rig.pass();
    assert_eq!(rig.cpus("kubepods/podlsr/c1"), "1");
    for _ in 0..10 {
        rig.pass();
    }
    assert_eq!(rig.cpus("kubepods/podlsr/c1"), "3");
    // … or the pod changes.
    container.set_cpuset(&foreign).unwrap();
    let mut changed = list("3");
    changed[1]
        .metadata
        .labels
        .as_mut()
        .unwrap()
        .insert("a".into(), "b".into());
    changed[1].spec.as_mut().unwrap().priority = Some(9001);
    rig.pods(changed);
    rig.pass();
    assert_eq!(rig.cpus("kubepods/podlsr/c1"), "3");
    // New pools and new CPUs count at once.
    rig.pods(list("2-3"));
    rig.pools(&["0-1"]);
    rig.pass();
    assert_eq!(rig.cpus("kubepods/podlsr/pause"), "2-3");
    assert_eq!(rig.cpus("kubepods/burstable/podls/c1"), "0-1");
    rig.assert_no_refusals();
}

#[test]
fn host_applications_have_the_shared_cpus() {
    let mut rig = Rig::new();
    rig.tree.group("host-latency-sensitive/nginx").unwrap();
    rig.pools(&["0-1"]);
    rig.slo(json!({"hostApplications": [
        {"name": "nginx", "qos": "LS"}, {"name": "gone", "qos": "LS"}, {"name": "x", "qos": "LSR"}]}));
    rig.pass();
    assert_eq!(rig.cpus("host-latency-sensitive/nginx"), "0-1");
    rig.assert_no_refusals();
}

#[test]
fn group_identity_reaches_every_group_and_goes_again() {
    let mut rig = Rig::new();
    let groups = [
        ("kubepods", 0),
        ("kubepods/burstable", 2),
        ("kubepods/burstable/podls", 2),
        ("kubepods/burstable/podls/c1", 2),
        // Not listed, such as a pod that is being removed.
        ("kubepods/burstable/podgone", 2),
        ("kubepods/burstable/podgone/c9", 2),
        ("kubepods/besteffort", -1),
        ("kubepods/besteffort/podbe", -1),
        ("kubepods/besteffort/podbe/c1", -1),
        ("host-best-effort/worker", -1),
    ];
    for (path, _) in groups {
        let group = rig.tree.group(path).unwrap();
        rig.tree.feed(&group, Resource::CpuBvtWarp, "0\n").unwrap();
    }
    for (file, value) in [("sched_group_identity_enabled", "0"), ("sched_core", "1")] {
        let file = format!("proc/sys/kernel/{file}");
        rig.tree.put(&file, value).unwrap();
    }
    let sysctl = |rig: &Rig, sysctl| {
        let target = Target::Sysctl(sysctl);
        rig.tree.root().read_target(&target).unwrap().unwrap()
    };
    let slo = |enable: bool| {
        let class =
            |identity: i64| json!({"cpuQOS": {"enable": enable, "groupIdentity": identity}});
        json!({
            "resourceQOSStrategy": {"lsClass": class(2), "beClass": class(-1)},
            "hostApplications": [{"name": "worker", "qos": "BE"}]})
    };
    // Nothing is configured and the switch is off, so nothing is changed.
    rig.slo(slo(false));
    rig.pass();
    assert_eq!(sysctl(&rig, Sysctl::SchedCore), "1");
    rig.slo(slo(true));
    drop(rig.tree.writes());
    rig.pass();
    let switches = rig.tree.writes().into_iter();
    let switches: Vec<_> = switches
        .filter(|write| write.file.starts_with("proc/sys/kernel/sched_"))
        .map(|write| (write.file.replace("proc/sys/kernel/", ""), write.value))
        .collect();
    let order = [("sched_core", "0"), ("sched_group_identity_enabled", "1")];
    let order = order.map(|(file, value)| (file.to_owned(), value.to_owned()));
    assert_eq!(switches, order, "the other one goes off first");
    for (path, want) in groups {
        assert_eq!(rig.bvt(path), want.to_string(), "{path}");
    }
    assert_eq!(
        sysctl(&rig, Sysctl::SchedCore),
        "0",
        "they exclude each other"
    );
    assert_eq!(sysctl(&rig, Sysctl::GroupIdentityEnabled), "1");
    rig.slo(slo(false));
    rig.pass();
    for (path, _) in groups {
        assert_eq!(rig.bvt(path), "0", "{path}");
    }
    rig.assert_no_refusals();
}

#[test]
fn processes_die_in_the_order_that_annotations_ask_for() {
    let mut rig = Rig::open(&[Gate::OOMScoreAdj]);
    rig.tree.group("kubepods/burstable/podls/pause").unwrap();
    rig.process("kubepods/burstable/podls/c1", 71);
    rig.process("kubepods/burstable/podls/c1", 72);
    rig.process("kubepods/burstable/podls/pause", 73);
    let notes = json!({"koordinator.sh/oom-score-adj": "-500"});
    let service = noted("ls", "LS", json!({"requests": {"cpu": "1"}}), notes);
    rig.pods(vec![service, batch_pod()]);
    rig.pass();
    let adj = |rig: &Rig, pid| rig.attribute(pid, Attribute::OomScoreAdj);
    assert_eq!(
        [71, 72, 73].map(|pid| adj(&rig, pid)),
        ["-500", "-500", "0"]
    );
    // A process that started later.
    rig.process("kubepods/burstable/podls/c1", 74);
    for _ in 0..11 {
        rig.pass();
    }
    assert_eq!(adj(&rig, 74), "-500");
    rig.assert_no_refusals();
}

#[test]
fn groups_of_pods_share_cookies() {
    let mut rig = Rig::open(&[Gate::CoreSched]);
    for group in [
        "kubepods/burstable/podls/pause",
        "kubepods/burstable/podother/c1",
        "kubepods/burstable/podsystem/c1",
    ] {
        rig.tree.group(group).unwrap();
    }
    for (group, pid) in [
        ("kubepods/burstable/podls/c1", 81),
        ("kubepods/burstable/podls/c1", 82),
        ("kubepods/burstable/podls/pause", 83),
        ("kubepods/burstable/podother/c1", 84),
        ("kubepods/besteffort/podbe/c1", 85),
        ("kubepods/burstable/podsystem/c1", 86),
    ] {
        rig.process(group, pid);
        let file = format!("proc/{pid}/core_sched_cookie");
        rig.tree.put(&file, "0\n").unwrap();
    }
    let burstable = || json!({"requests": {"cpu": "1"}});
    let mut other = pod("other", "LS", burstable());
    let labels = other.metadata.labels.as_mut().unwrap();
    labels.insert(
        "koordinator.sh/core-sched-policy".into(),
        "exclusive".into(),
    );
    let list = vec![
        pod("ls", "LS", burstable()),
        other,
        pod("system", "SYSTEM", burstable()),
        batch_pod(),
    ];
    rig.pods(list);
    let slo = |policy: &str| {
        let class = |expeller: bool| json!({"cpuQOS": {"enable": true, "coreExpeller": expeller}});
        json!({"resourceQOSStrategy": {"policies": {"cpuPolicy": policy},
            "lsClass": class(true), "beClass": class(false)}})
    };
    rig.slo(slo("coreSched"));
    rig.pass();
    let cookies = |rig: &Rig| {
        [81, 82, 83, 84, 85, 86].map(|pid| rig.attribute(pid, Attribute::CoreSchedCookie))
    };
    let first = cookies(&rig);
    let [a, b, pause, exclusive, batch, system] = &first;
    assert!(a != "0" && a == b && a == pause, "{first:?}");
    assert!(exclusive != "0" && batch != "0", "{first:?}");
    assert!(
        exclusive != a && batch != a && batch != exclusive,
        "{first:?}"
    );
    assert_eq!(system, "0");
    for _ in 0..11 {
        rig.pass();
    }
    assert_eq!(cookies(&rig), first, "and they stay");
    rig.slo(slo("groupIdentity"));
    rig.pass();
    assert_eq!(cookies(&rig), ["0"; 6]);
    rig.assert_no_refusals();
}

#[test]
fn a_kernel_without_cookies_is_left_alone() {
    let mut rig = Rig::open(&[Gate::CoreSched]);
    rig.process("kubepods/burstable/podls/c1", 91);
    rig.slo(
        json!({"resourceQOSStrategy": {"policies": {"cpuPolicy": "coreSched"},
        "lsClass": {"cpuQOS": {"enable": true}}}}),
    );
    for _ in 0..12 {
        rig.pass();
    }
    rig.assert_no_refusals();
}

#[test]
fn groups_of_unknown_containers_keep_their_cpus() {
    let mut rig = Rig::new();
    let burstable = || json!({"requests": {"cpu": "1"}});
    // The groups of a container in a virtual machine, and two of which one is the sandbox.
    for group in ["podkata/c1", "podkata/pause", "podls/pause", "podls/late"] {
        rig.tree
            .group(&format!("kubepods/burstable/{group}"))
            .unwrap();
    }
    let mut kata = pod("kata", "LS", burstable());
    kata.spec.as_mut().unwrap().runtime_class_name = Some("kata".to_owned());
    let requests = json!({"requests": {"kubernetes.io/batch-cpu": "2000"}});
    let batch = noted("be", "BE", requests, pinned("3"));
    rig.pods(vec![pod("ls", "LS", burstable()), kata, batch]);
    rig.pools(&["0-1"]);
    rig.pass();
    for (path, want) in [
        ("kubepods/burstable/podls/c1", "0-1"),
        ("kubepods/burstable/podls/pause", "0-3"),
        ("kubepods/burstable/podls/late", "0-3"),
        ("kubepods/burstable/podkata/c1", "0-3"),
        ("kubepods/burstable/podkata/pause", "0-3"),
        // Set by CPU suppression.
        ("kubepods/besteffort/podbe/c1", "0-3"),
    ] {
        assert_eq!(rig.cpus(path), want, "{path}");
    }
    rig.assert_no_refusals();
}
