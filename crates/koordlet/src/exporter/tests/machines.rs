//! Various machines, from the kernel's files to the object in the API server.

use super::published::Fixture;
use super::*;
use koord_api::topology::v1alpha2::NodeResourceTopology;

/// Formats each zone as `name costs: resource capacity/allocatable/available`.
fn text(object: &NodeResourceTopology) -> Vec<String> {
    let zones = object.spec.zones.iter().map(|zone| {
        let costs = zone.costs.iter();
        let costs: Vec<String> = costs
            .map(|cost| {
                let node = cost.name.strip_prefix("node-").unwrap();
                format!("{node}:{}", cost.value)
            })
            .collect();
        let resources = zone.resources.iter();
        let resources: Vec<String> = resources
            .map(|resource| {
                let (capacity, allocatable) = (&resource.capacity, &resource.allocatable);
                format!(
                    "{} {capacity}/{allocatable}/{}",
                    resource.name, resource.available
                )
            })
            .collect();
        format!(
            "{} {}: {}",
            zone.name,
            costs.join(" "),
            resources.join(", ")
        )
    });
    zones.collect()
}

/// Returns a kubelet that reserves `reserved` CPUs of `cpus` and no memory; memory is in GiB by NUMA node.
fn lists(
    cpus: i64,
    reserved: &[i64],
    gib: &[(i64, u64)],
    container: ContainerResources,
) -> Kubelet {
    let memory_of = |(node, gib): &(i64, u64)| memory(gib * GI, &[*node]);
    Kubelet {
        allocatable: AllocatableResourcesResponse {
            cpu_ids: (0..cpus).filter(|id| !reserved.contains(id)).collect(),
            memory: gib.iter().map(memory_of).collect(),
            ..AllocatableResourcesResponse::default()
        },
        pods: vec![pod("pod1", container)],
    }
}

/// Reports the machine and `kubelet` twice, and returns the zones of the object.
async fn reported(fixture: &Fixture, kubelet: Kubelet) -> Vec<String> {
    *fixture.kubelet.0.lock() = kubelet;
    assert_eq!(fixture.once().await, Ok(PublishOutcome::Written));
    let object = fixture.object().await;
    assert_eq!(fixture.once().await, Ok(PublishOutcome::Unchanged));
    text(&object)
}

/// A kubelet with default settings has no CPU manager and no memory manager, and lists nothing.
#[tokio::test]
async fn kubelet_without_managers_has_allocatable_zones() {
    let fixture = Fixture::new().await;
    let config = "kind: KubeletConfiguration\ncpuManagerPolicy: none\nmemoryManagerPolicy: None\n\
                  kubeReserved: {cpu: 500m, memory: 512Mi}\nsystemReserved: {cpu: 500m, memory: 256Mi}\n\
                  evictionHard: {memory.available: 256Mi}\n";
    fixture.put("kubelet/config.yaml", config);
    let container = ContainerResources::default();
    let zones = reported(&fixture, lists(0, &[], &[], container)).await;
    assert_eq!(
        zones,
        [
            "node-0 0:10 1:21: cpu 4/3500m/3500m, memory 8Gi/7680Mi/7680Mi",
            "node-1 0:21 1:10: cpu 4/3500m/3500m, memory 8Gi/7680Mi/7680Mi",
        ]
    );
}

#[tokio::test]
async fn four_sockets_with_huge_pages() {
    let fixture = Fixture::new().await;
    fixture.machine(
        "0-3",
        &[
            (0, "0-1", 4, "10 21 21 31"),
            (1, "2-3", 4, "21 10 31 21"),
            (2, "4-5", 4, "21 31 10 21"),
            (3, "6-7", 4, "31 21 21 10"),
        ],
    );
    let pages = "sys/devices/system/node/node3/hugepages/hugepages-1048576kB/nr_hugepages";
    fixture.put(pages, "2\n");
    let pages = |gib: u64, node: i64| ContainerMemory {
        memory_type: "hugepages-1Gi".to_owned(),
        ..memory(gib * GI, &[node])
    };
    let container = ContainerResources {
        cpu_ids: vec![6, 3],
        memory: vec![memory(GI, &[1]), pages(1, 3)],
        ..ContainerResources::default()
    };
    let mut kubelet = lists(8, &[0], &[(0, 4), (1, 4), (2, 4), (3, 2)], container);
    // One of two pages is reserved.
    kubelet.allocatable.memory.push(pages(1, 3));
    assert_eq!(
        reported(&fixture, kubelet).await,
        [
            "node-0 0:10 1:21 2:21 3:31: cpu 2/1/1, memory 4Gi/4Gi/4Gi",
            "node-1 0:21 1:10 2:31 3:21: cpu 2/2/1, memory 4Gi/4Gi/3Gi",
            "node-2 0:21 1:31 2:10 3:21: cpu 2/2/2, memory 4Gi/4Gi/4Gi",
            "node-3 0:31 1:21 2:21 3:10: cpu 2/2/1, hugepages-1Gi 2Gi/1Gi/0, memory 4Gi/2Gi/2Gi",
        ]
    );
}

#[tokio::test]
async fn eight_numa_nodes() {
    let fixture = Fixture::new().await;
    let rows: Vec<(String, String)> = (0..8)
        .map(|id| {
            let to = (0..8).map(|to| if to == id { "10" } else { "32" });
            (id.to_string(), to.collect::<Vec<_>>().join(" "))
        })
        .collect();
    let nodes = (0..).zip(&rows);
    let nodes: Vec<_> = nodes
        .map(|(id, (cpus, distances))| (id, cpus.as_str(), 1, distances.as_str()))
        .collect();
    fixture.machine("0-7", &nodes);
    let container = ContainerResources {
        cpu_ids: vec![5],
        ..ContainerResources::default()
    };
    let zones = reported(&fixture, lists(8, &[], &[], container)).await;
    assert_eq!(zones.len(), 8);
    for (id, zone) in zones.iter().enumerate() {
        let free = u8::from(id != 5);
        let expected = format!("cpu 1/1/{free}");
        assert!(zone.starts_with(&format!("node-{id} ")), "{zone}");
        assert!(zone.contains(&format!(" {id}:10")), "{zone}");
        assert_eq!(zone.matches(":32").count(), 7, "{zone}");
        assert!(zone.ends_with(&expected), "{zone}");
    }
}

/// Two sockets of two NUMA nodes each, CPUs numbered thread by thread.
#[tokio::test]
async fn sub_numa_clusters() {
    let fixture = Fixture::new().await;
    fixture.machine(
        "0-3",
        &[
            (0, "0-1,8-9", 2, "10 12 21 21"),
            (1, "2-3,10-11", 2, "12 10 21 21"),
            (2, "4-5,12-13", 2, "21 21 10 12"),
            (3, "6-7,14-15", 2, "21 21 12 10"),
        ],
    );
    let container = ContainerResources {
        cpu_ids: vec![2, 10, 3, 11, 4],
        ..ContainerResources::default()
    };
    assert_eq!(
        reported(&fixture, lists(16, &[0, 8], &[], container)).await,
        [
            "node-0 0:10 1:12 2:21 3:21: cpu 4/2/2",
            "node-1 0:12 1:10 2:21 3:21: cpu 4/4/0",
            "node-2 0:21 1:21 2:10 3:12: cpu 4/4/3",
            "node-3 0:21 1:21 2:12 3:10: cpu 4/4/4",
        ]
    );
}

/// NUMA node 2 has only memory, number 3 does not exist, and 4 is a device's, which is not a zone.
#[tokio::test]
async fn memory_that_has_no_cpus() {
    let fixture = Fixture::new().await;
    fixture.machine(
        "0-2,4",
        &[
            (0, "0-3", 8, "10 21 14 30"),
            (1, "4-7", 8, "21 10 24 30"),
            (2, "", 32, "14 24 10 30"),
            (4, "", 0, "30 30 30 10"),
        ],
    );
    fixture.put("sys/devices/system/node/has_generic_initiator", "4\n");
    let container = ContainerResources {
        cpu_ids: vec![1, 2],
        memory: vec![memory(10 * GI, &[0, 2])],
        ..ContainerResources::default()
    };
    let memory = [(0, 8), (1, 8), (2, 32)];
    assert_eq!(
        reported(&fixture, lists(8, &[], &memory, container)).await,
        [
            "node-0 0:10 1:21 2:14 4:30: cpu 4/4/2, memory 8Gi/8Gi/0",
            "node-1 0:21 1:10 2:24 4:30: cpu 4/4/4, memory 8Gi/8Gi/8Gi",
            "node-2 0:14 1:24 2:10 4:30: cpu 0/0/0, memory 32Gi/32Gi/30Gi",
        ]
    );
}

/// This machine, with a kubelet that has assigned one CPU and half of a NUMA node's memory.
#[tokio::test]
async fn this_machine_is_reported_whole() {
    let mut fixture = Fixture::new().await;
    fixture.root = Root::system().unwrap();
    let online = topology::online(&fixture.root).unwrap();
    let cpus: Vec<i64> = online.iter().map(i64::from).collect();
    let nodes = machine(&fixture.root).unwrap();
    let (first, node) = nodes
        .iter()
        .find(|(_, node)| !node.cpus.is_empty())
        .unwrap();
    let (first, taken) = (i64::from(*first), node.cpus.iter().next().unwrap());
    let bytes = node.memory["memory"];
    let container = ContainerResources {
        cpu_ids: vec![i64::from(taken)],
        memory: vec![memory(bytes / 2, &[first])],
        ..ContainerResources::default()
    };
    *fixture.kubelet.0.lock() = Kubelet {
        allocatable: AllocatableResourcesResponse {
            cpu_ids: cpus.clone(),
            memory: vec![memory(bytes, &[first])],
            ..AllocatableResourcesResponse::default()
        },
        pods: vec![pod("pod1", container)],
    };
    assert_eq!(fixture.once().await, Ok(PublishOutcome::Written));
    let object = fixture.object().await;
    assert_eq!(fixture.once().await, Ok(PublishOutcome::Unchanged));
    let sum = |name: &str, of: fn(&koord_api::topology::ResourceInfo) -> i64| -> i64 {
        let zones = object.spec.zones.iter();
        let all = zones.flat_map(|zone| &zone.resources);
        all.filter(|it| it.name == name).map(of).sum()
    };
    let count = i64::try_from(cpus.len()).unwrap();
    assert_eq!(sum("cpu", |it| it.capacity.value()), count);
    assert_eq!(sum("cpu", |it| it.available.value()), count - 1);
    let bytes = i64::try_from(bytes).unwrap();
    assert_eq!(sum("memory", |it| it.allocatable.value()), bytes);
    assert_eq!(sum("memory", |it| it.available.value()), bytes - bytes / 2);
    for zone in &object.spec.zones {
        let own = zone.costs.iter().find(|cost| cost.name == zone.name);
        assert_eq!(own.map(|cost| cost.value), Some(10), "{zone:?}");
    }
}
