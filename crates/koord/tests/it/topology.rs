//! The community's whole chain: a kubelet with NUMA nodes serves PodResources, the exporter of real nodes
//! queries it and writes a NodeResourceTopology, NodeResourceTopologyMatch places by that, and the kubelet
//! admits.

use k8s_openapi::api::core::v1::{Binding, Pod};
use koord_api::topology::v1alpha2::NodeResourceTopology;
use koord_apiserver::{ApiServer, Config};
use koord_app::{Clock, Context};
use koord_host::Root;
use koord_kube::api::{DeleteParams, PostParams};
use koord_kube::events::Recorder;
use koord_kube::kube_core::Resource;
use koord_kube::{Api, Client, Informer, Scope};
use koord_scheduler::config::Configuration;
use koord_sim::{Kubelets, Layout, NodeTemplate};
use koordlet::exporter::{ConfigSource, Exporter, ExporterSettings, Metrics, TakeOver};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

const NODE: &str = "sim-0";

/// A simulated node with a pod resources API, and a scheduler.
struct TopologyCluster {
    client: Client,
    dir: tempfile::TempDir,
    stop: CancellationToken,
    _server: Arc<ApiServer>,
}

impl Drop for TopologyCluster {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl TopologyCluster {
    /// Starts a node of two NUMA nodes with eight CPUs each.
    async fn set_up(arguments: Value) -> Self {
        let server = ApiServer::open(Config::memory(Clock::system()))
            .await
            .unwrap();
        server.install_crds(koord_api::crd_values()).await.unwrap();
        let client = koord_kube::client::in_process(server.service());
        let stage = Self {
            client: client.clone(),
            dir: tempfile::tempdir().unwrap(),
            stop: CancellationToken::new(),
            _server: server,
        };
        let layout: Layout = "2x8".parse().unwrap();
        let options = koord_sim::Options {
            nodes: 1,
            template: NodeTemplate::with_numa(layout),
            kubelets: Kubelets {
                dir: stage.dir.path().to_owned(),
                nodes: BTreeSet::from([NODE.to_owned()]),
            },
            ..koord_sim::Options::default()
        };
        drop(tokio::spawn(koord_sim::run(
            options,
            client.clone(),
            stage.context(),
        )));
        let profile = json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "profiles": [{
                "schedulerName": "koord-scheduler",
                "plugins": {"multiPoint": {"enabled": [{"name": "NodeResourceTopologyMatch"}]}},
                "pluginConfig": [{"name": "NodeResourceTopologyMatch", "args": arguments}],
            }]
        });
        let mut options = koord_scheduler::Options::new(koord_plugins::registry());
        options.leader_elect = false;
        options.config = Some(Configuration::parse(&profile.to_string()).unwrap());
        drop(tokio::spawn(koord_scheduler::run(
            options,
            client,
            stage.context(),
        )));
        stage
    }

    fn context(&self) -> Context {
        Context {
            shutdown: self.stop.child_token(),
            ..Context::new()
        }
    }

    fn kubelet(&self) -> PathBuf {
        self.dir.path().join(NODE)
    }

    /// Starts the exporter; it ends with the token.
    async fn export(&self) -> CancellationToken {
        let dir = self.kubelet();
        let socket = Kubelets::socket(&dir);
        while !socket.exists() {
            tokio::task::yield_now().await;
        }
        let settings = ExporterSettings {
            node: NODE.to_owned(),
            socket,
            // Only the kubelet's writes trigger a report.
            interval: Duration::ZERO,
            kubelet: ConfigSource::File(dir.join("config.yaml")),
            state_dir: Some(dir.clone()),
            fingerprint: true,
            exclude: BTreeSet::new(),
            publish: true,
            take_over: TakeOver::Never,
        };
        let root = Root::below(&dir).unwrap();
        let metrics = Metrics::new(&Context::new().metrics).unwrap();
        let exporter = Exporter::new(
            settings,
            root,
            self.client.clone(),
            Recorder::silent(),
            metrics,
        );
        let stop = self.stop.child_token();
        drop(tokio::spawn(exporter.run(stop.clone())));
        stop
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "default")
    }

    /// Creates a Guaranteed pod of so many CPUs.
    async fn pod(&self, name: &str, cpu: &str, scheduler: &str) {
        let amounts = json!({"cpu": cpu, "memory": "1Gi"});
        let pod = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"schedulerName": scheduler, "containers": [{
                "name": "c", "image": "c",
                "resources": {"requests": amounts, "limits": amounts}}]},
        }));
        let pods = self.pods();
        pods.create(&PostParams::default(), &pod.unwrap())
            .await
            .unwrap();
    }

    /// Binds the pod like another scheduler.
    async fn bind(&self, name: &str) {
        let binding: Binding = serde_json::from_value(json!({
            "metadata": {"name": name}, "target": {"kind": "Node", "name": NODE}}))
        .unwrap();
        let pods = self.pods();
        pods.create_subresource::<Binding, Value>(
            "binding",
            name,
            &PostParams::default(),
            &binding,
        )
        .await
        .unwrap();
    }

    async fn until<K, T>(&self, what: &str, mut found: impl FnMut(&K) -> Option<T>) -> T
    where
        K: Resource<DynamicType = ()>
            + koord_kube::Decode
            + std::fmt::Debug
            + Send
            + Sync
            + 'static,
    {
        let stop = self.stop.child_token();
        let mut objects = Informer::<K>::start(self.client.clone(), Scope::default(), stop);
        let wait = async {
            loop {
                if let Some(found) = objects.store.list().iter().find_map(|it| found(it)) {
                    return found;
                }
                assert!(objects.changes.recv().await.is_some());
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(90), wait).await;
        waited.unwrap_or_else(|_| panic!("{what}: {:#?}", objects.store.list()))
    }

    /// Waits until the pod runs; a pod that its kubelet refuses never does.
    async fn runs(&self, name: &str) {
        let phase = self
            .until(name, |pod: &Pod| {
                let matches = pod.metadata.name.as_deref() == Some(name);
                let phase = pod.status.as_ref()?.phase.clone()?;
                (matches && phase != "Pending").then_some(phase)
            })
            .await;
        assert_eq!(phase, "Running", "{name}");
    }

    /// Waits until the pod is unschedulable, and returns the message.
    async fn waits(&self, name: &str) -> String {
        self.until(name, |pod: &Pod| {
            let matches = pod.metadata.name.as_deref() == Some(name);
            let conditions = pod.status.as_ref()?.conditions.as_ref()?;
            let waits = |it: &&_| {
                let it: &k8s_openapi::api::core::v1::PodCondition = it;
                it.type_ == "PodScheduled" && it.status == "False"
            };
            let condition = conditions.iter().find(waits)?;
            matches.then(|| condition.message.clone())?
        })
        .await
    }

    /// Waits until the report lists so many free CPUs in the NUMA nodes, in any order.
    async fn free(&self, want: [i64; 2]) -> NodeResourceTopology {
        self.until("a report", |report: &NodeResourceTopology| {
            let zones = report.spec.zones.iter();
            let cpus = zones.filter_map(|zone| zone.resources.iter().find(|it| it.name == "cpu"));
            let mut free: Vec<i64> = cpus.map(|it| it.available.value()).collect();
            free.sort_unstable();
            (free == want).then(|| report.clone())
        })
        .await
    }
}

/// The kubelet admits what the exporter reports as free: two pods of five CPUs run, the third waits though
/// six CPUs are free, and runs after one of them was deleted. No pod is refused.
#[tokio::test]
async fn what_is_placed_by_the_exporters_report_is_admitted() {
    let stage = TopologyCluster::set_up(json!({})).await;
    stage.export().await;
    let report = stage.free([8, 8]).await;
    assert_eq!(
        report.spec.topology_policies,
        ["SingleNUMANodeContainerLevel"]
    );
    stage.pod("a", "5", "koord-scheduler").await;
    stage.runs("a").await;
    stage.free([3, 8]).await;
    stage.pod("b", "5", "koord-scheduler").await;
    stage.runs("b").await;
    stage.free([3, 3]).await;
    stage.pod("c", "5", "koord-scheduler").await;
    let message = stage.waits("c").await;
    assert!(message.contains("cannot align container"), "{message}");
    let now = DeleteParams::default().grace_period(0);
    stage.pods().delete("a", &now).await.unwrap();
    stage.runs("c").await;
    stage.free([3, 3]).await;
}

/// AC-2, and the foreign pod of C.8: another scheduler has put a pod on the node. While the report's
/// fingerprint differs from that of the node's pods, the scheduler skips the node; once the exporter has
/// counted the pod, the node takes pods.
#[tokio::test]
async fn foreign_pod_blocks_node_until_fingerprint_has_it() {
    let stage = TopologyCluster::set_up(json!({"cacheResyncPeriodSeconds": 30})).await;
    let exporter = stage.export().await;
    stage.free([8, 8]).await;
    stage.pod("a", "5", "koord-scheduler").await;
    stage.runs("a").await;
    stage.free([3, 8]).await;
    // Without an exporter, a foreign pod takes CPUs that the report lists as free.
    exporter.cancel();
    stage.pod("foreign", "6", "another-scheduler").await;
    stage.bind("foreign").await;
    stage.runs("foreign").await;
    stage.pod("b", "5", "koord-scheduler").await;
    let message = stage.waits("b").await;
    assert!(message.contains("invalid node topology data"), "{message}");
    stage.export().await;
    stage.free([2, 3]).await;
    // Counted, it leaves no room for five CPUs, and some for three. `b` is not retried, as the event cannot
    // help it, so another pod gets the new reason.
    stage.pod("b-2", "5", "koord-scheduler").await;
    let message = stage.waits("b-2").await;
    assert!(message.contains("cannot align container"), "{message}");
    assert!(!message.contains("invalid"), "{message}");
    stage.pod("c", "3", "koord-scheduler").await;
    stage.runs("c").await;
    stage.free([0, 2]).await;
}
