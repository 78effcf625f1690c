//! Koordinator's whole chain: koordlet reports a machine's CPUs and NUMA nodes, NodeNUMAResource chooses CPUs
//! by the report, koordlet binds the containers to them and reports the remaining ones.

use k8s_openapi::api::core::v1::{Node, Pod};
use koord_api::extension::{CpuSharedPool, ResourceStatus};
use koord_api::topology::v1alpha2::NodeResourceTopology;
use koord_api::{annotations, extension};
use koord_apiserver::{ApiServer, Config};
use koord_app::{Clock, Context};
use koord_host::fake::Tree;
use koord_host::testing::eventually_within;
use koord_host::{CpuSet, Resource};
use koord_kube::api::{DeleteParams, PostParams};
use koord_kube::{Api, Client, patch};
use koord_scheduler::config::Configuration;
use koordlet::node_topology::Reporting;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

const NODE: &str = "n1";

/// Time limit of a wait, in paused time.
const WITHIN: Duration = Duration::from_secs(200);

/// A machine of two NUMA nodes with four CPUs each, its koordlet, and a scheduler.
struct KoordinatorCluster {
    client: Client,
    context: Context,
    tree: Tree,
    _server: Arc<ApiServer>,
}

impl Drop for KoordinatorCluster {
    fn drop(&mut self) {
        self.context.shutdown.cancel();
    }
}

impl KoordinatorCluster {
    /// Starts API server, koordlet and scheduler on a simulated machine.
    async fn set_up() -> Self {
        let clock = Clock::following_tokio("2026-01-01T00:00:00Z".parse().unwrap());
        let server = ApiServer::open(Config::memory(clock.clone()))
            .await
            .unwrap();
        server.install_crds(koord_api::crd_values()).await.unwrap();
        let tree = Tree::hybrid("0-7").unwrap();
        tree.put_numa_nodes(2, 4, 4 << 20).unwrap();
        tree.group("kubepods/besteffort").unwrap();
        let stage = Self {
            client: koord_kube::client::in_process(server.service()),
            context: Context::with_clock(clock),
            tree,
            _server: server,
        };
        let nodes: Api<Node> = Api::all(stage.client.clone());
        // The label replaces the kubelet's policy, which is not queried here.
        let labels = json!({"node.koordinator.sh/numa-topology-policy": "SingleNUMANode"});
        let node = json!({"metadata": {"name": NODE, "labels": labels}});
        let node = serde_json::from_value(node).unwrap();
        nodes.create(&PostParams::default(), &node).await.unwrap();
        let list = json!({"cpu": "8", "memory": "8Gi", "pods": "110"});
        let status = json!({"status": {"capacity": list, "allocatable": list}});
        patch::merge_node_status(&stage.client, NODE, &status)
            .await
            .unwrap();
        let options = koordlet::Options {
            node_name: NODE.to_owned(),
            root: Some(stage.tree.root().clone()),
            topology: Some(Reporting::default()),
            thread: koordlet::Thread::Shared,
            ..koordlet::Options::default()
        };
        let run = koordlet::run(options, stage.client.clone(), stage.context.clone());
        tokio::spawn(async move { run.await.unwrap() });
        stage.schedule();
        stage
    }

    fn schedule(&self) {
        let profile = json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "profiles": [{
                "schedulerName": "koord-scheduler",
                "plugins": {"multiPoint": {"enabled": [{"name": "NodeNUMAResource"}]}},
            }]
        });
        let mut options = koord_scheduler::Options::new(koord_plugins::registry());
        options.leader_elect = false;
        options.config = Some(Configuration::parse(&profile.to_string()).unwrap());
        let run = koord_scheduler::run(options, self.client.clone(), self.context.clone());
        tokio::spawn(async move { run.await.unwrap() });
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "default")
    }

    /// Creates a Guaranteed pod with so many exclusive CPUs.
    async fn pod(&self, name: &str, cpu: &str) {
        let amounts = json!({"cpu": cpu, "memory": "1Gi"});
        let labels = json!({"koordinator.sh/qosClass": "LSR",
            "koordinator.sh/priority-class": "koord-prod"});
        let pod = serde_json::from_value(json!({
            "metadata": {"name": name, "labels": labels},
            "spec": {"schedulerName": "koord-scheduler", "containers": [{"name": "c", "image": "c",
                "resources": {"requests": amounts, "limits": amounts}}]},
        }));
        let pods = self.pods();
        pods.create(&PostParams::default(), &pod.unwrap())
            .await
            .unwrap();
    }

    /// Waits until the pod is bound, starts it as the kubelet does, and waits until its container runs on the
    /// allocated CPUs.
    async fn runs(&self, name: &str) -> ResourceStatus {
        let bound = eventually_within(WITHIN, name, async || {
            let pod = self.pods().get(name).await.unwrap();
            pod.spec.as_ref()?.node_name.as_ref()?;
            Some(pod)
        });
        let pod = bound.await;
        let status = extension::read(
            pod.metadata.annotations.as_ref(),
            annotations::RESOURCE_STATUS,
        );
        let status: ResourceStatus = status.unwrap().unwrap();
        let uid = pod.metadata.uid.unwrap();
        let group = self
            .tree
            .group(&format!("kubepods/pod{uid}/{name}"))
            .unwrap();
        let running = json!({"status": {"phase": "Running", "containerStatuses": [{
            "name": "c", "containerID": format!("koord://{name}"), "image": "c", "imageID": "",
            "ready": true, "restartCount": 0}]}});
        patch::merge_status(&self.pods(), name, &running)
            .await
            .unwrap();
        eventually_within(WITHIN, "its CPUs", async || {
            let cpus = self.tree.raw(&group, Resource::CpusetCpus).unwrap();
            (cpus.trim() == status.cpuset).then_some(())
        })
        .await;
        status
    }

    /// Waits until the report lists these CPUs as shared.
    async fn shared(&self, want: &str) {
        let want: CpuSet = want.parse().unwrap();
        let reports: Api<NodeResourceTopology> = Api::all(self.client.clone());
        eventually_within(WITHIN, "the shared CPUs", async || {
            let report = reports.get_opt(NODE).await.unwrap()?;
            let annotations = report.metadata.annotations.as_ref();
            let pools = extension::read(annotations, annotations::NODE_CPU_SHARED_POOLS);
            let pools: Vec<CpuSharedPool> = pools.unwrap()?;
            let mut all = CpuSet::default();
            for pool in pools {
                all = all.union(&pool.cpuset.parse().unwrap());
            }
            (all == want).then_some(())
        })
        .await;
    }

    /// Waits until the pod is unschedulable, and returns the message.
    async fn waits(&self, name: &str) -> String {
        eventually_within(WITHIN, name, async || {
            let pod = self.pods().get(name).await.unwrap();
            let conditions = pod.status?.conditions?;
            let condition = conditions
                .into_iter()
                .find(|it| it.type_ == "PodScheduled")?;
            (condition.status == "False").then_some(condition.message)?
        })
        .await
    }
}

#[tokio::test(start_paused = true)]
async fn containers_run_on_cpus_of_the_koordlet_report() {
    let stage = KoordinatorCluster::set_up().await;
    stage.shared("0-7").await;
    let mut statuses = Vec::new();
    for name in ["a", "b"] {
        stage.pod(name, "3").await;
        statuses.push(stage.runs(name).await);
    }
    let nodes: Vec<i32> = statuses
        .iter()
        .map(|status| {
            let [zone] = status.numa_node_resources.as_slice() else {
                panic!("not one NUMA node: {status:?}")
            };
            let cpus: CpuSet = status.cpuset.parse().unwrap();
            let near = ["0-3", "4-7"].map(|text| text.parse::<CpuSet>().unwrap());
            let near = &near[usize::try_from(zone.node).unwrap()];
            assert_eq!((cpus.len(), cpus.is_subset(near)), (3, true), "{status:?}");
            zone.node
        })
        .collect();
    assert_ne!(nodes[0], nodes[1], "{statuses:?}");
    let mut free: CpuSet = "0-7".parse().unwrap();
    for status in &statuses {
        free = free.difference(&status.cpuset.parse().unwrap());
    }
    // One of each NUMA node: two in all, and no pod of two finds a NUMA node.
    stage.shared(&free.to_string()).await;
    stage.pod("c", "2").await;
    let message = stage.waits("c").await;
    assert!(
        message.contains("Unaligned NUMA Hint cause cpu"),
        "{message}"
    );
    let now = DeleteParams::default().grace_period(0);
    stage.pods().delete("a", &now).await.unwrap();
    let status = stage.runs("c").await;
    assert_eq!(status.numa_node_resources[0].node, nodes[0]);
}
