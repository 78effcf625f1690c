//! The kubelet's lists, read from a socket.

mod machines;
mod published;

use super::*;
use koord_rpc::podresources::pod_resources_lister_server::{
    PodResourcesLister, PodResourcesListerServer,
};
use koord_rpc::podresources::*;
use parking_lot::Mutex;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

/// A kubelet with fixed responses.
#[derive(Clone, Default)]
struct Kubelet {
    allocatable: AllocatableResourcesResponse,
    pods: Vec<PodResources>,
}

/// A kubelet that a test can change.
#[derive(Clone, Default)]
struct SharedKubelet(Arc<Mutex<Kubelet>>);

#[tonic::async_trait]
impl PodResourcesLister for SharedKubelet {
    async fn list(
        &self,
        _: Request<ListPodResourcesRequest>,
    ) -> Result<Response<ListPodResourcesResponse>, Status> {
        let pods = self.0.lock().pods.clone();
        if pods.is_empty() {
            return Err(Status::unavailable("starting"));
        }
        Ok(Response::new(ListPodResourcesResponse {
            pod_resources: pods,
        }))
    }
    async fn get_allocatable_resources(
        &self,
        _: Request<AllocatableResourcesRequest>,
    ) -> Result<Response<AllocatableResourcesResponse>, Status> {
        Ok(Response::new(self.0.lock().allocatable.clone()))
    }
    async fn get(
        &self,
        _: Request<GetPodResourcesRequest>,
    ) -> Result<Response<GetPodResourcesResponse>, Status> {
        Err(Status::unimplemented("not asked"))
    }
}

fn near(nodes: &[i64]) -> Option<TopologyInfo> {
    let node = |id: &i64| NumaNode { id: *id };
    Some(TopologyInfo {
        nodes: nodes.iter().map(node).collect(),
    })
}

fn memory(size: u64, nodes: &[i64]) -> ContainerMemory {
    ContainerMemory {
        memory_type: "memory".to_owned(),
        size,
        topology: near(nodes),
    }
}

fn devices(ids: &[&str], nodes: &[i64]) -> ContainerDevices {
    ContainerDevices {
        resource_name: "ex.com/a".to_owned(),
        device_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        topology: near(nodes),
    }
}

fn pod(name: &str, container: ContainerResources) -> PodResources {
    PodResources {
        name: name.to_owned(),
        namespace: "default".to_owned(),
        containers: vec![container],
        ..PodResources::default()
    }
}

const GI: u64 = 1 << 30;

fn machine_of_two() -> MachineTopology {
    let node = |list: &str| Node {
        cpus: list.parse().unwrap(),
        memory: [("memory".to_owned(), 8 * GI)].into(),
        ..Node::default()
    };
    [(0, node("0-3")), (1, node("4-7"))].into()
}

/// Reads the lists of `kubelet`.
async fn read_kubelet(kubelet: Kubelet) -> Result<PodResourcesSnapshot, ListError> {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("kubelet.sock");
    let stop = CancellationToken::new();
    let server = serve(SharedKubelet(Arc::new(Mutex::new(kubelet))), &socket, &stop);
    let snapshot = list(&machine_of_two(), &socket).await;
    stop.cancel();
    server.await.unwrap().unwrap();
    snapshot
}

fn serve(
    kubelet: SharedKubelet,
    socket: &Path,
    stop: &CancellationToken,
) -> tokio::task::JoinHandle<Result<(), tonic::transport::Error>> {
    let listener = grpc::listen(socket).unwrap();
    let server = tonic::transport::Server::builder()
        .add_service(PodResourcesListerServer::new(kubelet))
        .serve_with_incoming_shutdown(grpc::incoming(listener), stop.clone().cancelled_owned());
    tokio::spawn(server)
}

#[tokio::test]
async fn list_returns_zones_of_the_kubelets_lists() {
    let snapshot = read_kubelet(Kubelet {
        allocatable: AllocatableResourcesResponse {
            cpu_ids: (1..8).collect(),
            memory: vec![memory(7 * GI, &[0]), memory(8 * GI, &[1])],
            devices: vec![devices(&["a", "b"], &[0]), devices(&["c"], &[1])],
        },
        pods: vec![pod(
            "pod1",
            ContainerResources {
                cpu_ids: vec![2, 3, 4],
                memory: vec![memory(9 * GI, &[0, 1])],
                devices: vec![devices(&["c"], &[1])],
                ..ContainerResources::default()
            },
        )],
    })
    .await
    .unwrap();
    let text: Vec<String> = snapshot
        .zones
        .zones
        .iter()
        .flat_map(|zone| {
            zone.resources.iter().map(|resource| {
                let (capacity, free) = (&resource.capacity, &resource.available);
                format!(
                    "{} {} {capacity} {} {free}",
                    zone.name, resource.name, resource.allocatable
                )
            })
        })
        .collect();
    assert_eq!(
        text,
        [
            "node-0 cpu 4 3 1",
            "node-0 ex.com/a 2 2 2",
            "node-0 memory 8Gi 7Gi 0",
            "node-1 cpu 4 4 3",
            "node-1 ex.com/a 1 1 0",
            "node-1 memory 8Gi 8Gi 6Gi",
        ]
    );
    assert_eq!((snapshot.pods, snapshot.zones.problems.len()), (1, 0));
    assert!(!snapshot.zones.is_contradictory);
    // Fingerprint of default/pod1 by an independent implementation.
    assert_eq!(snapshot.fingerprint, "pfp0v001a5e1c50c557adb9d");
}

#[tokio::test]
async fn list_reports_and_skips_invalid_entries() {
    let container = ContainerResources {
        cpu_ids: vec![-1, 5, i64::MAX],
        memory: vec![memory(GI, &[64])],
        devices: vec![devices(&["z"], &[-7])],
        ..ContainerResources::default()
    };
    let snapshot = read_kubelet(Kubelet {
        allocatable: AllocatableResourcesResponse {
            cpu_ids: (0..8).collect(),
            ..AllocatableResourcesResponse::default()
        },
        pods: vec![pod("pod1", container)],
    })
    .await
    .unwrap();
    assert!(snapshot.zones.is_contradictory);
    let free = |zone: usize| snapshot.zones.zones[zone].resources[0].available.value();
    assert_eq!((free(0), free(1)), (4, 3));
    let mut problems = snapshot.zones.problems.clone();
    problems.sort();
    assert_eq!(
        problems,
        [
            "CPU -1 is listed, which no machine has",
            "CPU 9223372036854775807 is listed, which no machine has",
            "a container has device \"z\" of ex.com/a, which is not allocatable",
            "ex.com/a is listed in NUMA node -7: not 0 to 63",
            "memory is listed in NUMA node 64: not 0 to 63",
        ]
    );
}

/// Upstream's TestPodScanner: which resources of a container's entry count, with and without a device's NUMA
/// node. CPUs in the lists are exclusive to the container; upstream queries the API server to decide that, which
/// differs only in its last row, a pod with 1500 milli-CPUs for which no kubelet lists any.
#[test]
fn taken_counts_listed_resources_of_a_container() {
    let device = |nodes: &[i64]| ContainerDevices {
        resource_name: "fake.io/resource".to_owned(),
        device_ids: vec!["devA".to_owned()],
        topology: if nodes.is_empty() { None } else { near(nodes) },
    };
    let rows: [(&[i64], Vec<ContainerDevices>, &str, usize); 5] = [
        (&[0, 1], vec![device(&[0])], "0-1", 1),
        (&[0, 1], vec![device(&[])], "0-1", 1),
        (&[0, 1], vec![], "0-1", 0),
        (&[], vec![device(&[])], "", 1),
        (&[], vec![], "", 0),
    ];
    for (cpus, devices, want, count) in rows {
        let container = ContainerResources {
            cpu_ids: cpus.to_vec(),
            devices: devices.clone(),
            ..ContainerResources::default()
        };
        let mut problems = lists::Problems::default();
        let share = lists::container_share(&container, &mut problems);
        assert_eq!(share.cpus.to_string(), want, "{cpus:?} {devices:?}");
        let ids = share.devices.iter().flat_map(|group| &group.ids);
        assert_eq!(ids.count(), count, "{devices:?}");
        assert!(problems.messages.is_empty() && !problems.is_contradictory);
    }
}

#[tokio::test]
async fn unresponsive_kubelet_is_named() {
    let error = read_kubelet(Kubelet::default())
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("List at ") && error.ends_with("Unavailable: starting"),
        "{error}"
    );
    let absent = Path::new("/nonexistent/kubelet.sock");
    let error = list(&machine_of_two(), absent)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("GetAllocatableResources at /nonexistent/kubelet.sock"),
        "{error}"
    );
}

#[test]
fn huge_pages_are_named_as_kubernetes_does() {
    assert_eq!(lists::huge_pages(2 << 20), "hugepages-2Mi");
    assert_eq!(lists::huge_pages(1 << 30), "hugepages-1Gi");
    assert_eq!(lists::huge_pages(64 << 10), "hugepages-64Ki");
}

/// A machine without NUMA support, and this one.
#[test]
fn every_machine_has_a_numa_node() {
    let temp = tempfile::tempdir().unwrap();
    let put = |path: &str, text: &str| {
        let path = temp.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    put("sys/devices/system/cpu/online", "0-1\n");
    put("proc/meminfo", "MemTotal: 4 kB\nMemFree: 1 kB\n");
    let nodes = machine(&Root::below(temp.path()).unwrap()).unwrap();
    assert_eq!(nodes[&0].cpus.to_string(), "0-1");
    assert_eq!(nodes[&0].memory["memory"], 4096);
    let nodes = machine(&Root::system().unwrap()).unwrap();
    assert!(
        nodes.values().any(|node| !node.cpus.is_empty()),
        "{nodes:?}"
    );
}
