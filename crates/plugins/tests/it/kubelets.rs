//! Pods that a kubelet rejects because of their NUMA nodes: behavior of a Deployment with and without
//! NodeResourceTopologies. Simulated nodes, controllers and scheduler in one process, in paused time.

use crate::api::{Scheduler, TestCluster};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use koord_api::topology::v1alpha2::NodeResourceTopology;
use koord_host::testing::poll_until;
use koord_kube::Api;
use koord_kube::api::{ListParams, PostParams};
use koord_scheduler::config::Configuration;
use koord_sim::{Layout, NodeTemplate};
use serde_json::json;
use std::time::Duration;
use tokio::time::timeout;

const MATCH: &str = "NodeResourceTopologyMatch";

/// Plugin chain that places pods.
#[derive(Clone, Copy, PartialEq)]
enum Chain {
    /// Places pods by the sums of nodes, like kube-scheduler.
    Default,
    /// Places pods by the free resources that an exporter reports per NUMA node, and placements since.
    Community,
    /// Places pods by the scheduler's own accounting of NUMA nodes.
    Koordinator,
}

impl Chain {
    fn profile(self) -> Configuration {
        // Without plugins in the configuration, a profile has those of kube-scheduler.
        let enabled = match self {
            Self::Default => json!([]),
            Self::Community => json!([{"name": MATCH}]),
            Self::Koordinator => json!([{"name": "NodeNUMAResource"}]),
        };
        let mut arguments = Vec::new();
        if self == Self::Community {
            arguments.push(json!({"name": MATCH, "args": {"cacheResyncPeriodSeconds": 5}}));
        }
        let config = json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "profiles": [{
                "schedulerName": "koord-scheduler",
                "plugins": {"multiPoint": {"enabled": enabled}},
                "pluginConfig": arguments,
            }]
        });
        Configuration::parse(&config.to_string()).unwrap()
    }
}

/// Simulated nodes of two NUMA nodes with eight CPUs each, and a scheduler.
struct SimCluster {
    cluster: TestCluster,
    scheduler: Scheduler,
    sim: (
        tokio_util::sync::CancellationToken,
        tokio::task::JoinHandle<Result<(), koord_sim::Error>>,
    ),
}

impl SimCluster {
    async fn set(chain: Chain, scope: &str, nodes: usize) -> Self {
        let cluster = TestCluster::start_virtual_with_controllers().await;
        let mut layout: Layout = "2x8".parse().unwrap();
        layout.scope = scope.to_owned();
        let options = koord_sim::Options {
            nodes,
            template: NodeTemplate::with_numa(layout),
            ..koord_sim::Options::default()
        };
        let context = cluster.context();
        let stop = context.shutdown.clone();
        let run = koord_sim::run(options, cluster.client.clone(), context);
        let sim = (stop, tokio::spawn(run));
        for node in 0..nodes {
            let name = format!("sim-{node}");
            cluster
                .until(&name, |report: &NodeResourceTopology| {
                    (report.metadata.name.as_ref() == Some(&name)).then_some(())
                })
                .await;
        }
        let scheduler = cluster.schedule(|options| options.config = Some(chain.profile()));
        Self {
            cluster,
            scheduler,
            sim,
        }
    }

    /// Creates a Deployment whose pods have one container with this many exclusive CPUs.
    async fn deploy(&self, replicas: u32, cpu: &str) {
        let amounts = json!({"cpu": cpu, "memory": "1Gi"});
        let labels = json!({"app": "web"});
        let deployment: Deployment = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": {
                "metadata": {"labels": labels},
                "spec": {"schedulerName": "koord-scheduler", "containers": [{
                    "name": "web", "image": "web",
                    "resources": {"requests": amounts, "limits": amounts}}]},
            }},
        }))
        .unwrap();
        let api: Api<Deployment> = Api::namespaced(self.cluster.client.clone(), "default");
        api.create(&PostParams::default(), &deployment)
            .await
            .unwrap();
    }

    async fn pods(&self) -> Vec<Pod> {
        let all = self.cluster.pods().list(&ListParams::default()).await;
        all.unwrap().items
    }

    async fn count(&self, of: impl Fn(&Pod) -> bool) -> usize {
        self.pods().await.iter().filter(|pod| of(pod)).count()
    }

    /// Waits for at most an hour of virtual time.
    async fn until(&self, what: &str, at_least: usize, of: impl Fn(&Pod) -> bool + Copy) {
        let check = async || {
            let pods = self.pods().await;
            if pods.iter().filter(|pod| of(pod)).count() >= at_least {
                return Some(());
            }
            // A Deployment whose pods always fail creates them in no time, and would never end.
            let failed: Vec<&Pod> = pods.iter().filter(|pod| refused(pod)).collect();
            assert!(
                failed.len() < 200,
                "{} refused: {:?}",
                failed.len(),
                failed[0]
            );
            None
        };
        let hour = Duration::from_secs(3600);
        if timeout(hour, poll_until(check)).await.is_err() {
            let pods = self.pods().await.into_iter();
            let statuses: Vec<_> = pods.map(|pod| pod.status).collect();
            panic!("not {at_least} {what} in an hour: {statuses:#?}");
        }
    }

    async fn stop(self) {
        self.scheduler.stop().await;
        self.sim.0.cancel();
        self.sim.1.await.unwrap().unwrap();
    }
}

fn refused(pod: &Pod) -> bool {
    let status = pod.status.as_ref().unwrap();
    status.phase.as_deref() == Some("Failed")
        && status.reason.as_deref() == Some("TopologyAffinityError")
}

fn runs(pod: &Pod) -> bool {
    pod.status.as_ref().unwrap().phase.as_deref() == Some("Running")
}

/// Returns why the pod waits.
fn waits(pod: &Pod) -> Option<String> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let condition = conditions.iter().find(|c| c.type_ == "PodScheduled")?;
    (condition.status == "False").then(|| condition.message.clone().unwrap_or_default())
}

/// Two nodes take two pods of five CPUs each, and three by the sum of their CPUs.
#[tokio::test(start_paused = true)]
async fn deployment_without_topology_loops_on_rejection() {
    let stage = SimCluster::set(Chain::Default, "container", 2).await;
    stage.deploy(5, "5").await;
    // Pods are created one after the other, without end.
    stage.until("refused pods", 50, refused).await;
    assert_eq!(stage.count(runs).await, 4);
    stage.stop().await;
}

async fn check_fitting_pods_run_and_others_wait(chain: Chain, scope: &str, reason: &str) {
    let stage = SimCluster::set(chain, scope, 4).await;
    stage.deploy(10, "5").await;
    stage.until("running pods", 8, runs).await;
    stage
        .until("waiting pods", 2, |pod| waits(pod).is_some())
        .await;
    // Long enough for any report and retry.
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(stage.count(refused).await, 0);
    assert_eq!(stage.count(runs).await, 8);
    let pods = stage.pods().await;
    let waiting: Vec<String> = pods.iter().filter_map(waits).collect();
    assert_eq!(waiting.len(), 2);
    for message in waiting {
        assert!(message.contains(reason), "{message}");
    }
    stage.stop().await;
}

#[tokio::test(start_paused = true)]
async fn community_chain_avoids_kubelet_rejection() {
    let message = "4 cannot align container";
    check_fitting_pods_run_and_others_wait(Chain::Community, "container", message).await;
    let message = "4 cannot align pod";
    check_fitting_pods_run_and_others_wait(Chain::Community, "pod", message).await;
}

#[tokio::test(start_paused = true)]
async fn koordinator_chain_avoids_kubelet_rejection() {
    let message = "4 Unaligned NUMA Hint cause cpu";
    check_fitting_pods_run_and_others_wait(Chain::Koordinator, "pod", message).await;
}
