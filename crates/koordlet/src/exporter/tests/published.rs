//! The exporter and the node's NodeResourceTopology, in the embedded API server with the permissions of the
//! manifests.

use super::*;
use k8s_openapi::api::core::v1::Event;
use koord_api::topology::v1alpha2::NodeResourceTopology;
use koord_apiserver::authz::User;
use koord_apiserver::{ApiServer, Config};
use koord_app::Clock;
use koord_kube::api::{
    ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams,
};
use koord_kube::events::Recorder;
use koord_kube::{Api, Client, Informer, Scope};
use prometheus::Registry;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::PathBuf;

const NODE: &str = "n1";

/// A machine, a kubelet and an API server.
pub(super) struct Fixture {
    client: Client,
    limited: Client,
    refused: Arc<Mutex<BTreeSet<String>>>,
    used: Arc<Mutex<BTreeSet<String>>>,
    dir: tempfile::TempDir,
    /// Root of the kernel's files, below `dir`.
    pub(super) root: Root,
    pub(super) kubelet: SharedKubelet,
    registry: Registry,
    stop: CancellationToken,
    _server: Arc<ApiServer>,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.stop.cancel();
        if !std::thread::panicking() {
            let refused = std::mem::take(&mut *self.refused.lock());
            assert_eq!(refused, BTreeSet::new(), "asked for, and no rule allows it");
        }
    }
}

/// Returns the objects of the manifests.
fn manifests() -> Vec<Value> {
    let file = "../../charts/koord/files/topology-exporter/rbac.yaml";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let text = std::fs::read_to_string(path).unwrap();
    let documents = text.split("\n---\n");
    documents
        .map(|text| serde_saphyr::from_str(text).unwrap())
        .collect()
}

impl Fixture {
    pub(super) async fn new() -> Self {
        Self::with(koord_api::crd_values()).await
    }

    async fn with(definitions: Vec<Value>) -> Self {
        let clock = Clock::system();
        let server = ApiServer::open(Config::memory(clock)).await.unwrap();
        server.install_crds(definitions).await.unwrap();
        let client = koord_kube::client::in_process(server.service());
        let (refused, used) = (Arc::<Mutex<BTreeSet<String>>>::default(), Arc::default());
        let (to, ok): (_, Arc<Mutex<BTreeSet<String>>>) = (refused.clone(), Arc::clone(&used));
        let user = User::service_account("koordinator-system", "koord-topology-exporter");
        let service = server.service_as(user, move |right, allowed| {
            let list = if allowed { &ok } else { &to };
            list.lock().insert(right.to_owned());
        });
        let limited = koord_kube::client::in_process(service);
        create(
            &client,
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}),
        )
        .await;
        for object in manifests() {
            if object["kind"] != "ServiceAccount" {
                create(&client, object).await;
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let fixture = Self {
            client,
            limited,
            refused,
            used,
            root: Root::below(dir.path()).unwrap(),
            dir,
            kubelet: SharedKubelet::default(),
            registry: Registry::new(),
            stop: CancellationToken::new(),
            _server: server,
        };
        fixture.machine("0-1", &[(0, "0-3", 8, "10 21"), (1, "4-7", 8, "21 10")]);
        fixture.put(
            "kubelet/config.yaml",
            "kind: KubeletConfiguration\ntopologyManagerPolicy: single-numa-node\n\
             cpuManagerPolicy: static\nmemoryManagerPolicy: Static\n",
        );
        fixture.give(&[("pod1", &[1, 2])]);
        // Lives as long as the fixture.
        drop(serve(
            fixture.kubelet.clone(),
            &fixture.path("kubelet.sock"),
            &fixture.stop,
        ));
        fixture
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    pub(super) fn put(&self, path: &str, text: &str) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// Writes the kernel's files of these NUMA nodes, each with number, CPUs, GiB of memory and distances.
    pub(super) fn machine(&self, online: &str, nodes: &[(u32, &str, u64, &str)]) {
        self.put("sys/devices/system/node/online", &format!("{online}\n"));
        for (node, cpus, gib, distances) in nodes {
            let dir = format!("sys/devices/system/node/node{node}");
            self.put(&format!("{dir}/cpulist"), &format!("{cpus}\n"));
            let kib = gib << 20;
            let memory = format!("Node {node} MemTotal: {kib} kB\nNode {node} MemFree: 1 kB\n");
            self.put(&format!("{dir}/meminfo"), &memory);
            self.put(&format!("{dir}/distance"), &format!("{distances}\n"));
        }
    }

    /// Sets the listed pods and their CPUs.
    fn give(&self, pods: &[(&str, &[i64])]) {
        let pods = pods.iter().map(|(name, cpus)| {
            let container = ContainerResources {
                cpu_ids: cpus.to_vec(),
                ..ContainerResources::default()
            };
            pod(name, container)
        });
        *self.kubelet.0.lock() = Kubelet {
            allocatable: AllocatableResourcesResponse {
                cpu_ids: (0..8).collect(),
                memory: vec![memory(8 * GI, &[0]), memory(8 * GI, &[1])],
                ..AllocatableResourcesResponse::default()
            },
            pods: pods.collect(),
        };
    }

    fn settings(&self) -> ExporterSettings {
        ExporterSettings {
            node: NODE.to_owned(),
            socket: self.path("kubelet.sock"),
            interval: Duration::from_secs(3600),
            state_dir: Some(self.path("kubelet")),
            kubelet: ConfigSource::File(self.path("kubelet/config.yaml")),
            fingerprint: true,
            exclude: BTreeSet::new(),
            publish: true,
            take_over: TakeOver::Never,
        }
    }

    fn exporter(&self, settings: ExporterSettings) -> Exporter {
        let root = self.root.clone();
        let metrics = Metrics::new(&self.registry);
        let metrics = metrics.unwrap_or_else(|_| Metrics::new(&Registry::new()).unwrap());
        let (client, stop) = (self.limited.clone(), self.stop.clone());
        let recorder = Recorder::start(client.clone(), "test", NODE, Clock::system(), stop);
        Exporter::new(settings, root, client, recorder, metrics)
    }

    /// Scans and writes once.
    pub(super) async fn once(&self) -> Result<PublishOutcome, String> {
        let exporter = self.exporter(self.settings());
        exporter.once().await.map_err(|error| error.to_string())
    }

    fn api(&self) -> Api<NodeResourceTopology> {
        Api::all(self.client.clone())
    }

    pub(super) async fn object(&self) -> NodeResourceTopology {
        self.api().get(NODE).await.unwrap()
    }

    /// Runs `cause`, and waits for the scan with this result.
    async fn trigger_scan(&self, cause: impl Fn(), result: &str) {
        let scans = "koord_topology_exporter_scans_total";
        let before = self.counted(scans, result);
        cause();
        let look = async {
            while self.counted(scans, result) == before {
                tokio::task::yield_now().await;
            }
        };
        let looked = tokio::time::timeout(Duration::from_secs(60), look).await;
        assert!(looked.is_ok(), "no scan");
    }

    fn counted(&self, name: &str, result: &str) -> u64 {
        let families = self.registry.gather();
        let family = families.iter().find(|family| family.name() == name);
        let metrics = family.into_iter().flat_map(|family| family.get_metric());
        let mut of_result = metrics.filter(|it| it.get_label()[0].value() == result);
        let count = of_result
            .next()
            .map_or(0.0, |it| it.get_counter().get_value());
        format!("{count}").parse().unwrap()
    }
}

async fn create(client: &Client, object: Value) {
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    let types = object.types.clone().unwrap();
    let (group, version) = types
        .api_version
        .split_once('/')
        .unwrap_or(("", &types.api_version));
    let kind = koord_kube::api::GroupVersionKind::gvk(group, version, &types.kind);
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::from_gvk(&kind));
    api.create(&PostParams::default(), &object).await.unwrap();
}

#[test]
fn the_manifests_flags_are_flags() {
    let file = "../../deploy/topology-exporter/topology-exporter.yaml";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let text = std::fs::read_to_string(path).unwrap();
    let documents = text.split("\n---\n");
    let mut documents = documents.map(|text| serde_saphyr::from_str::<Value>(text).unwrap());
    let object = documents.find(|it| it["kind"] == "DaemonSet").unwrap();
    let flags = &object["spec"]["template"]["spec"]["containers"][0]["args"];
    let flags: Vec<String> = serde_json::from_value(flags.clone()).unwrap();
    let argv = ["koord", "--node-name=n"].map(str::to_owned).into_iter();
    let argv = argv.chain(flags).map(Into::into);
    let args = koord_app::flags::parse::<args::Args>(argv).unwrap().args;
    let (settings, _) = args.settings().unwrap();
    assert_eq!(settings.state_dir, None);
    assert_eq!(
        settings.kubelet,
        ConfigSource::File("/host-kubelet-config.yaml".into())
    );
    let mounts = object["spec"]["template"]["spec"]["containers"][0]["volumeMounts"].clone();
    let mounts: Vec<Value> = serde_json::from_value(mounts).unwrap();
    let is_mounted = |path: &Path| {
        mounts
            .iter()
            .any(|it| it["mountPath"] == path.to_str().unwrap())
    };
    assert!(is_mounted(settings.socket.parent().unwrap()));
    assert!(is_mounted(Path::new("/host-kubelet-config.yaml")));
}

/// Returns the free CPUs of each zone.
fn free(object: &NodeResourceTopology) -> Vec<i64> {
    let zones = object.spec.zones.iter();
    let cpus = zones.filter_map(|zone| zone.resources.iter().find(|it| it.name == "cpu"));
    cpus.map(|cpus| cpus.available.value()).collect()
}

fn attribute<'a>(object: &'a NodeResourceTopology, name: &str) -> Option<&'a str> {
    let mut all = object.spec.attributes.iter();
    let entry = all.find(|it| it.name == name)?;
    Some(&entry.value)
}

#[tokio::test]
async fn report_is_written_once() {
    let fixture = Fixture::new().await;
    assert_eq!(fixture.once().await, Ok(PublishOutcome::Written));
    let object = fixture.object().await;
    assert_eq!(free(&object), [2, 4]);
    assert_eq!(
        object.spec.topology_policies,
        ["SingleNUMANodeContainerLevel"]
    );
    for (name, value) in [
        ("topologyManagerPolicy", "single-numa-node"),
        ("topologyManagerScope", "container"),
        // Of default/pod1, by an independent implementation.
        ("nodeTopologyPodsFingerprint", "pfp0v001a5e1c50c557adb9d"),
        ("nodeTopologyPodsFingerprintMethod", "all"),
    ] {
        assert_eq!(attribute(&object, name), Some(value));
    }
    let zone = serde_json::to_value(&object.spec.zones[1]).unwrap();
    assert_eq!(
        zone,
        json!({"name": "node-1", "type": "Node",
            "costs": [{"name": "node-0", "value": 21}, {"name": "node-1", "value": 10}],
            "resources": [
                {"name": "cpu", "capacity": "4", "allocatable": "4", "available": "4"},
                {"name": "memory", "capacity": "8Gi", "allocatable": "8Gi", "available": "8Gi"}]})
    );
    let owner = &object.metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!((&*owner.kind, &*owner.name), ("Node", NODE));
    assert_eq!(fixture.once().await, Ok(PublishOutcome::Unchanged));
    let version_after = fixture.object().await.metadata.resource_version;
    assert_eq!(version_after, object.metadata.resource_version);

    fixture.give(&[("pod1", &[1, 2]), ("pod2", &[4])]);
    assert_eq!(fixture.once().await, Ok(PublishOutcome::Written));
    assert_eq!(free(&fixture.object().await), [2, 3]);
}

#[tokio::test]
async fn publish_keeps_content_of_other_writers() {
    let fixture = Fixture::new().await;
    fixture.once().await.unwrap();
    let mut zones = serde_json::to_value(fixture.object().await.spec.zones).unwrap();
    let batch = json!({"name": "kubernetes.io/batch-cpu", "capacity": "500", "allocatable": "500",
        "available": "500"});
    zones[0]["resources"]
        .as_array_mut()
        .unwrap()
        .push(batch.clone());
    let manager = PatchParams {
        field_manager: Some("koordinator-manager".to_owned()),
        ..PatchParams::default()
    };
    let notes = json!({"metadata": {"annotations": {"node.koordinator.sh/cpu-topology": "{}"}}});
    let api = fixture.api();
    for change in [json!({ "zones": zones }), notes] {
        api.patch(NODE, &manager, &Patch::Merge(&change))
            .await
            .unwrap();
    }
    fixture.give(&[("pod1", &[1, 2, 3])]);
    assert_eq!(fixture.once().await, Ok(PublishOutcome::Written));
    let object = fixture.object().await;
    assert_eq!(free(&object), [1, 4]);
    let resources = serde_json::to_value(&object.spec.zones[0].resources).unwrap();
    assert_eq!(resources[1], batch);
    let notes = object.metadata.annotations.unwrap();
    assert_eq!(notes["node.koordinator.sh/cpu-topology"], "{}");
}

/// The object as nfd-topology-updater writes it.
#[tokio::test]
async fn zones_of_another_exporter_are_not_overwritten() {
    let fixture = Fixture::new().await;
    let nfd = PatchParams::apply("node-feature-discovery-topology-updater").force();
    let object = json!({
        "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology",
        "metadata": {"name": NODE},
        "attributes": [{"name": "topologyManagerPolicy", "value": "none"}],
        "zones": [{"name": "node-0", "type": "Node"}]});
    let api = fixture.api();
    api.patch(NODE, &nfd, &Patch::Apply(&object)).await.unwrap();
    let before = fixture.object().await;
    let error = fixture.once().await.unwrap_err();
    assert!(
        error.contains("NodeResourceTopology n1 is written by")
            && error.contains("node-feature-discovery-topology-updater"),
        "{error}"
    );
    assert_eq!(fixture.object().await, before);
    let settings = ExporterSettings {
        take_over: TakeOver::Always,
        ..fixture.settings()
    };
    let written = fixture.exporter(settings).once().await.unwrap();
    assert_eq!(written, PublishOutcome::Written);
    assert_eq!(free(&fixture.object().await), [2, 4]);
}

/// Zones written by koordlet before its exporter was enabled.
#[tokio::test]
async fn agent_exporter_takes_over_the_agents_zones() {
    let fixture = Fixture::new().await;
    let before = PatchParams::apply(crate::node_topology::FIELD_MANAGER).force();
    let object = json!({
        "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology",
        "metadata": {"name": NODE, "annotations": {"node.koordinator.sh/cpu-topology": "{}"}},
        "attributes": [{"name": "topologyManagerPolicy", "value": "none"}],
        "topologyPolicies": ["None"],
        "zones": [{"name": "node-0", "type": "Node"}]});
    let api = fixture.api();
    let apply = Patch::Apply(&object);
    api.patch(NODE, &before, &apply).await.unwrap();
    // For a standalone exporter, the agent may still be running.
    assert!(fixture.once().await.is_err());
    let settings = ExporterSettings {
        take_over: TakeOver::From(crate::node_topology::FIELD_MANAGER),
        ..fixture.settings()
    };
    let written = fixture.exporter(settings).once().await.unwrap();
    assert_eq!(written, PublishOutcome::Written);
    let object = fixture.object().await;
    assert_eq!(free(&object), [2, 4]);
    let policy = attribute(&object, "topologyManagerPolicy");
    assert_eq!(policy, Some("single-numa-node"));
    let notes = object.metadata.annotations.unwrap();
    assert_eq!(notes["node.koordinator.sh/cpu-topology"], "{}");
}

#[tokio::test]
async fn contradictory_lists_are_not_published() {
    let fixture = Fixture::new().await;
    fixture.once().await.unwrap();
    let before = fixture.object().await;
    let refused = async |part: &str| {
        let error = fixture.once().await.unwrap_err();
        assert!(error.contains(part), "{error}");
        assert_eq!(fixture.object().await, before, "{part}");
    };
    fixture.give(&[("pod1", &[1, 2]), ("pod2", &[2])]);
    refused("PodResources: the lists contradict each other: two containers have CPUs 2").await;
    fixture.give(&[("pod1", &[9])]);
    refused("a container has CPUs 9, which are not allocatable").await;
    fixture.kubelet.0.lock().pods.clear();
    refused("PodResources: List at").await;
    fixture.give(&[("pod2", &[3])]);
    let config = "kubelet/config.yaml";
    fixture.put(
        config,
        "kind: KubeletConfiguration\ntopologyManagerPolicy: strict\n",
    );
    refused("topologyManagerPolicy: \"strict\"").await;
    fixture.put(
        config,
        "kind: KubeletConfiguration\ntopologyManagerPolicy: [1]\n",
    );
    refused("topologyManagerPolicy").await;
    fixture.put(config, "kind: KubeletConfiguration\n");
    fixture.put("sys/devices/system/node/node1/distance", "21 far\n");
    refused("NUMA nodes: ").await;
    refused("node1/distance").await;
    fixture.put("sys/devices/system/node/node1/distance", "21 10\n");
    assert_eq!(fixture.once().await, Ok(PublishOutcome::Written));
    assert_eq!(free(&fixture.object().await), [3, 4]);
}

#[tokio::test]
async fn missing_resource_definition_is_reported() {
    let fixture = Fixture::with(Vec::new()).await;
    let error = fixture.once().await.unwrap_err();
    assert!(
        error.contains("does not serve NodeResourceTopology as v1alpha2"),
        "{error}"
    );
}

#[tokio::test]
async fn excluded_resources_and_disabled_publication() {
    let fixture = Fixture::new().await;
    let dry = ExporterSettings {
        publish: false,
        ..fixture.settings()
    };
    fixture.exporter(dry).once().await.unwrap();
    assert!(fixture.api().get_opt(NODE).await.unwrap().is_none());
    let less = ExporterSettings {
        exclude: BTreeSet::from(["memory".to_owned()]),
        fingerprint: false,
        ..fixture.settings()
    };
    fixture.exporter(less).once().await.unwrap();
    let object = fixture.object().await;
    assert_eq!(object.spec.zones[0].resources.len(), 1);
    assert_eq!(attribute(&object, "nodeTopologyPodsFingerprint"), None);
}

/// The interval of an hour does not pass: all scans are triggered.
#[tokio::test]
async fn changes_trigger_scans_and_a_deleted_report_is_recreated() {
    let fixture = Fixture::new().await;
    std::fs::create_dir_all(fixture.path("kubelet/device-plugins")).unwrap();
    let exporter = fixture.exporter(fixture.settings());
    let health = exporter.health();
    assert!(health().unwrap_err().contains("not asked yet"));
    let running = tokio::spawn(exporter.run(fixture.stop.clone()));
    let mut objects = Informer::<NodeResourceTopology>::start(
        fixture.client.clone(),
        Scope::default(),
        fixture.stop.clone(),
    );
    let mut until = async |what: &str, want: [i64; 2]| {
        let wait = async {
            loop {
                let listed = objects.store.list();
                if let Some(listed) = listed.iter().find(|object| free(object) == want) {
                    return listed.metadata.uid.clone();
                }
                assert!(objects.changes.recv().await.is_some());
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(60), wait).await;
        waited.unwrap_or_else(|_| panic!("{what}: {:?}", objects.store.list()))
    };
    until("the first look", [2, 4]).await;
    let places = [
        "cpu_manager_state",
        "memory_manager_state",
        "device-plugins/kubelet_internal_checkpoint",
    ];
    for (at, place) in places.into_iter().enumerate() {
        let used: Vec<i64> = (4..5 + i64::try_from(at).unwrap()).collect();
        fixture.give(&[("pod1", &[1, 2]), ("pod2", &used)]);
        // The kubelet replaces files in this way.
        fixture.put(&format!("kubelet/{place}.new"), "{}");
        std::fs::rename(
            fixture.path(&format!("kubelet/{place}.new")),
            fixture.path(&format!("kubelet/{place}")),
        )
        .unwrap();
        until(place, [2, 4 - i64::try_from(used.len()).unwrap()]).await;
    }
    health().unwrap();
    let writes = "koord_topology_exporter_writes_total";
    assert_eq!(fixture.counted(writes, "ok"), 4);

    // Scanned again without changes: nothing is written.
    fixture
        .trigger_scan(|| fixture.put("kubelet/cpu_manager_state", "{}"), "ok")
        .await;
    assert_eq!(fixture.counted(writes, "ok"), 4);

    let first = fixture.object().await.metadata.uid;
    fixture
        .api()
        .delete(NODE, &DeleteParams::default())
        .await
        .unwrap();
    while fixture.counted(writes, "ok") == 4 {
        tokio::task::yield_now().await;
    }
    let second = fixture.object().await;
    assert_eq!(free(&second), [2, 1]);
    assert_ne!(second.metadata.uid, first);

    // Contradictory lists are reported once.
    fixture.give(&[("pod1", &[1, 2]), ("pod2", &[2])]);
    for _ in 0..2 {
        fixture
            .trigger_scan(|| fixture.put("kubelet/cpu_manager_state", "{}"), "error")
            .await;
    }
    assert!(health().unwrap_err().contains("two containers have CPUs 2"));
    assert_eq!(fixture.object().await, second);
    let events: Api<Event> = Api::all(fixture.client.clone());
    let node_events = loop {
        let listed = events.list(&ListParams::default()).await.unwrap().items;
        let listed: Vec<Event> = listed
            .into_iter()
            .filter(|event| {
                event
                    .message
                    .as_ref()
                    .is_some_and(|it| it.contains("CPUs 2"))
            })
            .collect();
        if !listed.is_empty() {
            break listed;
        }
        tokio::task::yield_now().await;
    };
    let node_events: Vec<_> = node_events
        .iter()
        .map(|event| (event.reason.as_deref(), event.count))
        .collect();
    assert_eq!(node_events, [(Some("TopologyNotPublished"), Some(1))]);
    fixture.stop.cancel();
    running.await.unwrap();
    // Every permission of the manifests is used.
    let granted: BTreeSet<String> = [
        "create events",
        "create noderesourcetopologies.topology.node.k8s.io",
        "get noderesourcetopologies.topology.node.k8s.io",
        "get nodes",
        "list noderesourcetopologies.topology.node.k8s.io",
        "patch noderesourcetopologies.topology.node.k8s.io",
        "watch noderesourcetopologies.topology.node.k8s.io",
    ]
    .map(str::to_owned)
    .into();
    assert_eq!(*fixture.used.lock(), granted);
}
