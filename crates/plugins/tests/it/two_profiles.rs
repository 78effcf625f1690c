//! Two profiles in one scheduler, with different arguments for every plugin that allocates exclusive
//! resources. Decisions are made before the informers show the previous decision.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use koord_api::extension::DeviceAllocations;
use koord_api::scheduling::{Device, ElasticQuota, PodGroup, Reservation};
use koord_api::topology::v1alpha2::NodeResourceTopology;
use koord_scheduler::config::Configuration;
use koord_scheduler::engine::{BindRequest, Engine, EngineOptions, Output};
use koord_scheduler::framework::{Action, BuildContext, ObjectChange, Profiles, Verb};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const STATUS: &str = "scheduling.koordinator.sh/resource-status";
const DEVICES: &str = "scheduling.koordinator.sh/device-allocated";
const RESERVED: &str = "scheduling.koordinator.sh/reservation-allocated";

fn now() -> Timestamp {
    Timestamp::from_second(1_700_000_000).unwrap()
}

/// Builds profiles `a` and `b`; the second has arguments for all stateful plugins. `divide` sets for each
/// profile whether the runtime quota limits its pods.
fn profiles(divide: [bool; 2]) -> (Configuration, Profiles) {
    let args = |plugin: &str, args: Value| json!({"name": plugin, "args": args});
    let quota = divide.map(|on| args("ElasticQuota", json!({"enableRuntimeQuota": on})));
    let config = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "profiles": [{"schedulerName": "a", "pluginConfig": [quota[0]]}, {"schedulerName": "b", "pluginConfig": [
            args("NodeNUMAResource", json!({"scoringStrategy": {"type": "MostAllocated"}})),
            args("DeviceShare", json!({"disableDeviceNUMATopologyAlignment": true})),
            quota[1],
            args("Reservation", json!({"ignoredResources": ["example.com/x"]})),
            args("Coscheduling", json!({"defaultTimeout": "300s"})),
            args("VolumeBinding", json!({"bindTimeoutSeconds": 300})),
        ]}]
    });
    let config = Configuration::parse(&config.to_string()).unwrap();
    let registry = koord_plugins::registry();
    let context = BuildContext::default();
    let profiles = Profiles::build(&config, &registry, &context, true).unwrap();
    (config, profiles)
}

struct TwoProfileEngine(Engine);

impl TwoProfileEngine {
    /// Builds a scene with one node of 8 CPUs and two GPUs.
    fn new() -> Self {
        Self::with([true, false])
    }

    fn with(divide: [bool; 2]) -> Self {
        let (config, profiles) = profiles(divide);
        let mut scene = Self(Engine::new(&config, profiles, EngineOptions::default()));
        let amounts = json!({"cpu": "8", "memory": "32Gi", "pods": "110", "koordinator.sh/gpu": "200",
            "koordinator.sh/gpu-core": "200", "koordinator.sh/gpu-memory-ratio": "200"});
        let node: Node = read(json!({
            "metadata": {"name": "n", "uid": "n", "labels": {"kubernetes.io/hostname": "n"}},
            "status": {"allocatable": amounts}
        }));
        scene.0.node_applied(Arc::new(node), now());
        scene
    }

    fn object<K: DeserializeOwned + Send + Sync + 'static>(
        &mut self,
        kind: &'static str,
        value: Value,
    ) {
        let change = ObjectChange {
            kind,
            action: Action::ADD,
            old: None,
            new: Arc::new(read::<K>(value)),
        };
        let change = self.0.plugins().as_delivered(change);
        self.0.object_changed(&change, now());
    }

    /// Creates and schedules a pod of a profile. Returns all resulting bindings.
    fn pod(&mut self, profile: &str, name: &str, requests: Value, more: Value) -> Vec<BindRequest> {
        let limits = requests.clone();
        let resources = json!({"requests": requests, "limits": limits});
        let mut pod = json!({
            "metadata": {"name": name, "namespace": "default", "uid": name},
            "spec": {"schedulerName": profile,
                "containers": [{"name": "c", "image": "i", "resources": resources}]}
        });
        for (section, fields) in more.as_object().unwrap() {
            for (field, value) in fields.as_object().unwrap() {
                pod[section][field] = value.clone();
            }
        }
        self.0.pod_applied(Arc::new(read::<Pod>(pod)), now());
        while self.0.schedule_one(now()).is_some() {}
        let bound = self
            .0
            .take_outputs()
            .into_iter()
            .filter_map(|output| match output {
                Output::Bind(request) => Some(request),
                _ => None,
            });
        bound.collect()
    }

    /// Schedules a pod that needs no other pod, like [`Self::pod`]. Returns its annotations if it was placed.
    fn one(
        &mut self,
        profile: &str,
        name: &str,
        requests: Value,
        more: Value,
    ) -> Option<AnnotationMap> {
        let mut bound = self.pod(profile, name, requests, more);
        assert!(bound.len() <= 1);
        bound.pop().map(|request| request.patch.annotations)
    }
}

type AnnotationMap = std::collections::BTreeMap<String, String>;

fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

#[test]
fn cpus_are_allocated_once_across_profiles() {
    let mut scene = TwoProfileEngine::new();
    let cpu = |id: u32| json!({"id": id, "core": id / 2, "socket": id / 4, "node": id / 4});
    let detail: Vec<Value> = (0..8).map(cpu).collect();
    let amount =
        |name: &str| json!({"name": name, "capacity": "4", "allocatable": "4", "available": "4"});
    let zone = |id: u32| json!({"name": format!("node-{id}"), "type": "Node", "resources": [amount("cpu")]});
    scene.object::<NodeResourceTopology>(
        "noderesourcetopologies.v1alpha2.topology.node.k8s.io",
        json!({
            "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology",
            "metadata": {"name": "n", "annotations":
                {"node.koordinator.sh/cpu-topology": json!({"detail": detail}).to_string()}},
            "zones": [zone(0), zone(1)]
        }),
    );
    let exclusive = json!({"metadata": {"labels":
        {"koordinator.sh/qosClass": "LSR", "koordinator.sh/priority-class": "koord-prod"}}});
    let mut allocated = BTreeSet::new();
    for (profile, name) in [("a", "a0"), ("b", "b0"), ("a", "a1"), ("b", "b1")] {
        let notes = scene.one(profile, name, json!({"cpu": "2"}), exclusive.clone());
        let status: Value = serde_json::from_str(&notes.unwrap()[STATUS]).unwrap();
        let cpus: koord_model::cpuset::CpuSet = status["cpuset"].as_str().unwrap().parse().unwrap();
        for cpu in cpus.iter() {
            assert!(
                allocated.insert(cpu),
                "{name}: CPU {cpu} is allocated twice"
            );
        }
    }
    assert_eq!(allocated.len(), 8);
}

#[test]
fn gpus_are_allocated_once_across_profiles() {
    let mut scene = TwoProfileEngine::new();
    let gpu = |minor: u8| {
        json!({"type": "gpu", "id": format!("GPU-{minor}"), "minor": minor, "health": true,
            "resources": {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100",
                "koordinator.sh/gpu-memory": "80Gi"},
            "topology": {"socketID": 0, "nodeID": 0, "pcieID": "pci0000:00"}})
    };
    scene.object::<Device>(
        "devices.v1alpha1.scheduling.koordinator.sh",
        json!({
            "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device",
            "metadata": {"name": "n"}, "spec": {"devices": [gpu(0), gpu(1)]}
        }),
    );
    let whole_gpu =
        json!({"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100"});
    let mut allocated = Vec::new();
    for (profile, name) in [("a", "a0"), ("b", "b0")] {
        let notes = scene
            .one(profile, name, whole_gpu.clone(), json!({}))
            .unwrap();
        let allocations: DeviceAllocations = serde_json::from_str(&notes[DEVICES]).unwrap();
        allocated.extend(allocations["gpu"].iter().map(|grant| grant.minor));
    }
    allocated.sort_unstable();
    assert_eq!(allocated, [0, 1]);
    assert_eq!(scene.one("a", "a1", whole_gpu, json!({})), None);
}

#[test]
fn quota_counts_pods_of_all_profiles() {
    let mut scene = TwoProfileEngine::new();
    let most = json!({"cpu": "4", "memory": "8Gi"});
    scene.object::<ElasticQuota>(
        "elasticquotas.v1alpha1.scheduling.sigs.k8s.io",
        json!({
            "apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota",
            "metadata": {"name": "q", "namespace": "default", "labels":
                {"quota.scheduling.koordinator.sh/parent": "koordinator-root-quota"}},
            "spec": {"min": most, "max": most}
        }),
    );
    let of_quota = json!({"metadata": {"labels": {"quota.scheduling.koordinator.sh/name": "q"}}});
    let two = json!({"cpu": "2"});
    for (profile, name, fits) in [
        ("a", "a0", true),
        ("b", "b0", true),
        ("a", "a1", false),
        ("b", "b1", false),
    ] {
        let placed = scene.one(profile, name, two.clone(), of_quota.clone());
        assert_eq!(placed.is_some(), fits, "{name}");
    }
}

/// Runtime quotas are shown correctly, whichever profile needs them divided.
#[test]
fn runtime_is_shown_if_any_profile_uses_it() {
    let shown = |divide| {
        let mut scene = TwoProfileEngine::with(divide);
        scene.object::<ElasticQuota>(
            "elasticquotas.v1alpha1.scheduling.sigs.k8s.io",
            json!({
                "apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota",
                "metadata": {"name": "q", "namespace": "default", "labels":
                    {"quota.scheduling.koordinator.sh/parent": "koordinator-root-quota"}},
                "spec": {"min": {"cpu": "2"}, "max": {"cpu": "6"}}
            }),
        );
        // More than there is: it stays pending, and its request counts.
        let of_quota =
            json!({"metadata": {"labels": {"quota.scheduling.koordinator.sh/name": "q"}}});
        for name in ["p0", "p1"] {
            scene.one("a", name, json!({"cpu": "5"}), of_quota.clone());
        }
        let query = BTreeMap::new();
        let path = ["quotas", "q"];
        let shown = scene
            .0
            .inspector()
            .inspect("ElasticQuota", &path, &query, now());
        shown.unwrap()["runtime"]["cpu"].clone()
    };
    // The minimum of its request, its max and the total.
    assert_eq!(shown([true, false]), "6");
    assert_eq!(shown([false, true]), "6");
    assert_ne!(shown([false, false]), "6");
}

#[test]
fn gang_spans_all_profiles() {
    let mut scene = TwoProfileEngine::new();
    scene.object::<PodGroup>(
        "podgroups.v1alpha1.scheduling.sigs.k8s.io",
        json!({
            "apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup",
            "metadata": {"name": "g", "namespace": "default"}, "spec": {"minMember": 2}
        }),
    );
    let member = json!({"metadata": {"labels": {"pod-group.scheduling.sigs.k8s.io": "g"}}});
    let one_core = json!({"cpu": "1"});
    assert_eq!(
        scene.pod("a", "a0", one_core.clone(), member.clone()).len(),
        0
    );
    let bound = scene.pod("b", "b0", one_core, member);
    let names: BTreeSet<&str> = bound.iter().map(|request| &*request.pod.name).collect();
    assert_eq!(names, BTreeSet::from(["a0", "b0"]));
}

#[test]
fn allocate_once_reservation_has_one_owner() {
    let mut scene = TwoProfileEngine::new();
    let two = json!({"cpu": "2"});
    let container = json!({"name": "c", "image": "i", "resources": {"requests": two}});
    scene.object::<Reservation>(
        "reservations.v1alpha1.scheduling.koordinator.sh",
        json!({
            "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Reservation",
            "metadata": {"name": "r", "uid": "r"},
            "spec": {"allocateOnce": true, "ttl": "0s",
                "owners": [{"labelSelector": {"matchLabels": {"app": "web"}}}],
                "template": {"spec": {"containers": [container]}}},
            "status": {"phase": "Available", "nodeName": "n", "allocatable": two}
        }),
    );
    let owner = json!({"metadata": {"labels": {"app": "web"}}});
    let mut users = Vec::new();
    for (profile, name) in [("b", "b0"), ("a", "a0"), ("b", "b1")] {
        let notes = scene.one(profile, name, two.clone(), owner.clone());
        if notes.unwrap().contains_key(RESERVED) {
            users.push(name);
        }
    }
    assert_eq!(users, ["b0"]);
}

#[test]
fn volume_is_assigned_to_one_claim() {
    let mut scene = TwoProfileEngine::new();
    scene.object::<StorageClass>(
        "storageclasses.v1.storage.k8s.io",
        json!({"metadata": {"name": "local"}, "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer"}),
    );
    for name in ["v0", "v1"] {
        scene.object::<PersistentVolume>(
            "persistentvolumes.v1.",
            json!({"metadata": {"name": name}, "spec": {"storageClassName": "local",
                "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}},
                "status": {"phase": "Available"}}),
        );
    }
    let mut allocated = BTreeSet::new();
    for (profile, name) in [("a", "a0"), ("b", "b0")] {
        scene.object::<PersistentVolumeClaim>(
            "persistentvolumeclaims.v1.",
            json!({"metadata": {"name": name, "namespace": "default", "uid": name},
                "spec": {"storageClassName": "local", "accessModes": ["ReadWriteOnce"],
                    "resources": {"requests": {"storage": "1Gi"}}},
                "status": {"phase": "Pending"}}),
        );
        let volume = json!({"name": "v", "persistentVolumeClaim": {"claimName": name}});
        let pod: Pod = read(json!({
            "metadata": {"name": name, "namespace": "default", "uid": name},
            "spec": {"schedulerName": profile, "volumes": [volume],
                "containers": [{"name": "c", "image": "i"}]}
        }));
        scene.0.pod_applied(Arc::new(pod), now());
        while scene.0.schedule_one(now()).is_some() {}
        for output in scene.0.take_outputs() {
            if let Output::Write(write) = output
                && let Verb::Patch(_) = &write.verb
            {
                assert_eq!(write.plural, "persistentvolumes");
                assert!(
                    allocated.insert(write.name.clone()),
                    "{}: given twice",
                    write.name
                );
            }
        }
    }
    assert_eq!(allocated.len(), 2);
}

/// Stateless plugins are built once per set of arguments, stateful ones once.
#[test]
fn stateful_plugins_are_built_once() {
    let (_, profiles) = profiles([true, false]);
    for plugin in [
        "NodeNUMAResource",
        "DeviceShare",
        "ElasticQuota",
        "Reservation",
        "Coscheduling",
        "VolumeBinding",
    ] {
        let all = profiles.instances.iter();
        let count = all.filter(|instance| instance.name() == plugin).count();
        assert_eq!(count, 1, "{plugin}");
    }
}
