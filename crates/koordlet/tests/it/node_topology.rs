//! The NodeResourceTopology that the agent writes, in paused time.

use crate::agent::{NODE, add_pod, cluster, cluster_of, typed};
use http::{Method, Request};
use k8s_openapi::api::core::v1::Event;
use koord_api::topology::v1alpha1;
use koord_api::topology::v1alpha2::NodeResourceTopology;
use koord_api::{annotations, labels};
use koord_apiserver::ApiServer;
use koord_app::{Clock, Context};
use koord_host::fake::Tree;
use koord_host::root::Dirs;
use koord_host::testing::{eventually, eventually_within};
use koord_host::{CpuSet, Root, topology};
use koord_kube::api::{ListParams, PostParams};
use koord_kube::client::{Body, in_process};
use koord_kube::{Api, Client, patch};
use koordlet::collect::machine::MachineInfo;
use koordlet::gates::Gate;
use koordlet::node_topology::{Reporting, TopologyMode};
use koordlet::states::kubelet::Kubelet;
use koordlet::{Options, PodSource, Settings, Thread};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tower::service_fn;

/// Returns a machine of NUMA nodes with four CPUs and 1 GiB each; two NUMA nodes are a socket.
fn machine(numa_nodes: u32) -> Tree {
    let last = numa_nodes * 4 - 1;
    let tree = Tree::hybrid(&format!("0-{last}")).unwrap();
    tree.put_numa_nodes(numa_nodes, 4, 1 << 20).unwrap();
    tree.group("kubepods/besteffort").unwrap();
    MachineInfo::read(tree.root(), false).unwrap();
    tree
}

struct Rig {
    client: Client,
    ctx: Context,
    /// Number of NodeResourceTopology writes by the agent.
    writes: Arc<AtomicUsize>,
    server: Arc<ApiServer>,
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.ctx.shutdown.cancel();
    }
}

impl Rig {
    async fn start() -> Self {
        Self::with(koord_api::crd_values()).await
    }

    async fn with(definitions: Vec<Value>) -> Self {
        let clock = Clock::following_tokio("2026-01-01T00:00:00Z".parse().unwrap());
        let (server, client) = cluster_of(&clock, definitions).await;
        Self {
            client,
            ctx: Context::with_clock(clock),
            writes: Arc::default(),
            server,
        }
    }

    /// Starts an agent on `root` whose writes are counted.
    fn koordlet(&self, root: &Root, change: impl FnOnce(&mut Options)) {
        let (service, writes) = (self.client.clone(), self.writes.clone());
        let counted = in_process(service_fn(move |request: Request<Body>| {
            let about = request.uri().path().contains("noderesourcetopologies");
            if about && request.method() != Method::GET {
                writes.fetch_add(1, Ordering::Relaxed);
            }
            let service = service.clone();
            async move { service.send(request).await }
        }));
        let mut options = Options {
            node_name: NODE.to_owned(),
            root: Some(root.clone()),
            settings: Settings::default(),
            topology: Some(Reporting::default()),
            thread: Thread::Shared,
            ..Options::default()
        };
        change(&mut options);
        let run = koordlet::run(options, counted, self.ctx.clone());
        tokio::spawn(async move { run.await.unwrap() });
    }

    fn objects(&self) -> Api<NodeResourceTopology> {
        Api::all(self.client.clone())
    }

    async fn object(&self) -> Value {
        json!(self.objects().get(NODE).await.unwrap())
    }

    /// Waits until the object exists and satisfies `is`.
    async fn until(&self, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        eventually(what, async || {
            let object = self.objects().get_opt(NODE).await.unwrap()?;
            Some(json!(object)).filter(&is)
        })
        .await
    }

    /// Returns the messages of the node's events about failed reports, once there are `count`.
    async fn event_messages(&self, count: usize) -> Vec<String> {
        let events: Api<Event> = Api::all(self.client.clone());
        let context = format!("{count} events");
        eventually_within(Duration::from_secs(300), &context, async || {
            let all = events.list(&ListParams::default()).await.unwrap().items;
            let node_events = all.into_iter().filter(|event| {
                let about = &event.involved_object;
                event.reason.as_deref() == Some("NodeTopologyNotReported")
                    && event.type_.as_deref() == Some("Warning")
                    && about.kind.as_deref() == Some("Node")
                    && about.name.as_deref() == Some(NODE)
            });
            let messages: Vec<String> = node_events.filter_map(|event| event.message).collect();
            (messages.len() >= count).then_some(messages)
        })
        .await
    }

    fn metrics(&self) -> String {
        koord_app::metrics::encode(&self.ctx.metrics).unwrap()
    }
}

async fn sleep(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

fn note(object: &Value, key: &str) -> Value {
    let text = object["metadata"]["annotations"][key].as_str().unwrap();
    serde_json::from_str(text).unwrap()
}

fn pools(object: &Value) -> Vec<String> {
    let pools = note(object, annotations::NODE_CPU_SHARED_POOLS);
    let pools = pools.as_array().unwrap().iter();
    let text = |pool: &Value| format!("{}/{} {}", pool["socket"], pool["node"], pool["cpuset"]);
    pools.map(|pool| text(pool).replace('"', "")).collect()
}

#[tokio::test(start_paused = true)]
async fn machines_of_two_four_and_eight_numa_nodes_are_reported_once() {
    for count in [2_u32, 4, 8] {
        let rig = Rig::start().await;
        let tree = machine(count);
        rig.koordlet(tree.root(), |_| {});
        let object = rig.until("a report", |_| true).await;
        let detail = note(&object, annotations::NODE_CPU_TOPOLOGY)["detail"].clone();
        let detail = detail.as_array().unwrap();
        assert_eq!(detail.len(), 4 * count as usize);
        for (cpu, place) in (0..).zip(detail) {
            let expected = json!({"id": cpu, "core": cpu / 2, "socket": cpu / 8, "node": cpu / 4});
            assert_eq!(*place, expected);
        }
        let expected: Vec<String> = (0..count)
            .map(|node| format!("{}/{node} {}-{}", node / 2, node * 4, node * 4 + 3))
            .collect();
        assert_eq!(pools(&object), expected);
        let zones = object["zones"].as_array().unwrap();
        assert_eq!(zones.len(), count as usize);
        for (node, zone) in zones.iter().enumerate() {
            assert_eq!(zone["name"], format!("node-{node}"));
            let amount = |name: &str, capacity: &str| {
                json!({"name": name, "capacity": capacity, "allocatable": capacity,
                    "available": capacity})
            };
            assert_eq!(
                zone["resources"],
                json!([
                    amount("cpu", "4"),
                    amount("hugepages-1Gi", "0"),
                    amount("hugepages-2Mi", "0"),
                    amount("memory", "1Gi")
                ])
            );
        }
        assert_eq!(object["topologyPolicies"], json!(["None"]));
        let owner = &object["metadata"]["ownerReferences"][0];
        assert_eq!(
            (&owner["kind"], &owner["name"]),
            (&json!("Node"), &json!(NODE))
        );
        assert_eq!(
            object["metadata"]["labels"][labels::MANAGED_BY],
            "Koordinator"
        );
        // Without changes nothing is written: the object was created in full.
        sleep(600).await;
        assert_eq!(rig.object().await, object);
        assert_eq!(rig.writes.load(Ordering::Relaxed), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn node_changes_are_reported_and_foreign_changes_are_repaired() {
    let rig = Rig::start().await;
    let tree = machine(2);
    rig.koordlet(tree.root(), |_| {});
    rig.until("a report", |_| true).await;
    let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(rig.client.clone(), "default");
    let labels = json!({"koordinator.sh/qosClass": "LSR"});
    add_pod(
        &rig.client,
        "lsr",
        labels,
        json!({"requests": {"cpu": "2"}}),
    )
    .await;
    let status = json!({"metadata": {"annotations": {annotations::RESOURCE_STATUS:
        json!({"cpuset": "2-3"}).to_string()}}});
    patch::merge(&pods, "lsr", &status).await.unwrap();
    let object = rig.until("its CPUs", |it| pools(it)[0] == "0/0 0-1").await;
    let batch = note(&object, annotations::NODE_BE_CPU_SHARED_POOLS);
    assert_eq!(batch[0]["cpuset"], "0-3");

    // The manager's resources, another label, and a zone and an annotation with wrong content.
    let mut zones = object["zones"].clone();
    let batch = json!({"name": "kubernetes.io/batch-cpu", "capacity": "3", "allocatable": "2",
        "available": "1"});
    zones[1]["resources"]
        .as_array_mut()
        .unwrap()
        .push(batch.clone());
    zones[0]["resources"][0]["allocatable"] = json!("40");
    let change = json!({"zones": zones, "metadata": {
        "labels": {"team": "a"}, "annotations": {annotations::NODE_RESERVATION: "{\"a\":1}"}}});
    patch::merge(&rig.objects(), NODE, &change).await.unwrap();
    let mended = rig
        .until("the zone", |it| {
            it["zones"][0]["resources"][0]["allocatable"] == "4"
        })
        .await;
    assert_eq!(note(&mended, annotations::NODE_RESERVATION), json!({}));
    assert_eq!(mended["metadata"]["labels"]["team"], "a");
    let kept_resources = mended["zones"][1]["resources"].as_array().unwrap();
    assert!(kept_resources.contains(&batch), "{kept_resources:?}");
    assert_eq!(rig.writes.load(Ordering::Relaxed), 3);

    // The pod ends, and the object is deleted.
    let ended = json!({"status": {"phase": "Succeeded"}});
    patch::merge_status(&pods, "lsr", &ended).await.unwrap();
    rig.until("its CPUs again", |it| pools(it)[0] == "0/0 0-3")
        .await;
    rig.objects()
        .delete(NODE, &Default::default())
        .await
        .unwrap();
    rig.until("a new one", |it| pools(it)[0] == "0/0 0-3").await;
}

/// Writes as nfd-topology-updater does every minute: its own zones, attributes and policies replace the
/// present ones, the rest of the object stays. `free` is the free amount in its first zone.
async fn nfd(objects: &Api<NodeResourceTopology>, free: &str) {
    let mut object = json!(objects.get(NODE).await.unwrap());
    let zone = |node: usize, free: &str| {
        json!({"name": format!("node-{node}"), "type": "Node",
            "costs": [{"name": "node-0", "value": 10 + 11 * node}, {"name": "node-1", "value": 21 - 11 * node}],
            "resources": [{"name": "cpu", "capacity": "4", "allocatable": "3", "available": free}]})
    };
    object["zones"] = json!([zone(0, free), zone(1, "3")]);
    object["topologyPolicies"] = json!(["SingleNUMANodeContainerLevel"]);
    object["attributes"] = json!([
        {"name": "topologyManagerPolicy", "value": "single-numa-node"},
        {"name": "topologyManagerScope", "value": "container"},
        {"name": "nodeTopologyPodsFingerprint", "value": "pfp0v001ef46db3751d8e999"}]);
    let object = typed(object);
    objects
        .replace(NODE, &PostParams::default(), &object)
        .await
        .unwrap();
}

/// AC-11: koordlet and another writer such as NFD share one object for ten minutes.
#[tokio::test(start_paused = true)]
async fn ac_11_an_exporter_and_koordlet_share_an_object() {
    for first in ["koordlet", "nfd"] {
        let rig = Rig::start().await;
        let tree = machine(2);
        if first == "nfd" {
            let bare = json!({"metadata": {"name": NODE}, "zones": []});
            rig.objects()
                .create(&PostParams::default(), &typed(bare))
                .await
                .unwrap();
            nfd(&rig.objects(), "3").await;
        }
        rig.koordlet(tree.root(), |_| {});
        let has_notes =
            |it: &Value| it["metadata"]["annotations"][annotations::NODE_CPU_TOPOLOGY].is_string();
        rig.until("koordlet's part", has_notes).await;
        nfd(&rig.objects(), "3").await;
        sleep(5).await;
        let before = rig.object().await;
        let writes = rig.writes.load(Ordering::Relaxed);
        for _ in 0..10 {
            nfd(&rig.objects(), "3").await;
            sleep(60).await;
        }
        let after = rig.object().await;
        assert_eq!(after, before, "{first}: nothing has changed");
        assert_eq!(
            rig.writes.load(Ordering::Relaxed),
            writes,
            "{first}: nothing is written"
        );
        assert_eq!(after["attributes"].as_array().unwrap().len(), 3);
        assert_eq!(after["zones"][1]["costs"][0]["value"], 21);
        assert_eq!(after["zones"][0]["resources"][0]["allocatable"], "3");
        assert!(has_notes(&after));

        // Each continues to write its changes.
        nfd(&rig.objects(), "1").await;
        let labels = json!({"koordinator.sh/qosClass": "LSE"});
        add_pod(
            &rig.client,
            "lse",
            labels,
            json!({"requests": {"cpu": "2"}}),
        )
        .await;
        let pods: Api<k8s_openapi::api::core::v1::Pod> =
            Api::namespaced(rig.client.clone(), "default");
        let status = json!({"metadata": {"annotations": {annotations::RESOURCE_STATUS:
            json!({"cpuset": "0-1"}).to_string()}}});
        patch::merge(&pods, "lse", &status).await.unwrap();
        let merged = rig
            .until("the pod's CPUs", |it| pools(it)[0] == "0/0 2-3")
            .await;
        assert_eq!(
            merged["zones"][0]["resources"][0]["available"], "1",
            "{first}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn topology_mode_selects_the_owner_of_zones() {
    let rig = Rig::start().await;
    let tree = machine(2);
    rig.koordlet(tree.root(), |options| {
        options.topology = Some(Reporting {
            mode: TopologyMode::AnnotationsOnly,
            ..Reporting::default()
        });
    });
    let object = rig.until("a report", |_| true).await;
    assert_eq!(object["zones"], json!([]));
    assert_eq!(pools(&object).len(), 2);
}

/// The exporter of the same agent recognizes by this name what it may overwrite.
#[tokio::test(start_paused = true)]
async fn writes_set_the_field_manager() {
    let rig = Rig::start().await;
    let tree = machine(2);
    rig.koordlet(tree.root(), |_| {});
    rig.until("a report", |_| true).await;
    // Created and repaired by the same field manager.
    let no_zones = json!({"zones": []});
    patch::merge(&rig.objects(), NODE, &no_zones).await.unwrap();
    let is_back = |object: &Value| object["zones"][1]["name"] == "node-1";
    let object = rig.until("zones again", is_back).await;
    let writers = object["metadata"]["managedFields"].as_array().unwrap();
    let of_zones = |it: &&Value| !it["fieldsV1"]["f:zones"].is_null();
    let names: Vec<&Value> = writers
        .iter()
        .filter(of_zones)
        .map(|it| &it["manager"])
        .collect();
    assert_eq!(names, [&json!("koordlet")], "{writers:?}");
}

/// A disabled gate writes nothing, but the agent has the pools.
#[tokio::test(start_paused = true)]
async fn a_closed_gate_writes_nothing() {
    let rig = Rig::start().await;
    let tree = machine(2);
    rig.koordlet(tree.root(), |options| {
        options.settings.gates.set(Gate::NodeTopologyReport, false);
    });
    sleep(60).await;
    assert!(rig.objects().get_opt(NODE).await.unwrap().is_none());
    assert_eq!(rig.writes.load(Ordering::Relaxed), 0);
    let text = rig.metrics();
    assert!(text.contains("share_pool"), "{text}");
}

/// Reports this machine's kernel; only groups are in a separate directory.
#[tokio::test(start_paused = true)]
async fn this_machine_is_reported() {
    let rig = Rig::start().await;
    let tree = Tree::hybrid("0").unwrap();
    let root = Root::with_dirs(Dirs {
        cgroup: tree.dir().join("sys/fs/cgroup"),
        ..Dirs::below(Path::new("/"))
    })
    .unwrap();
    rig.koordlet(&root, |_| {});
    let object = rig.until("a report", |_| true).await;
    let online = topology::online(&Root::system().unwrap()).unwrap();
    let pools = note(&object, annotations::NODE_CPU_SHARED_POOLS);
    let pools = pools.as_array().unwrap().iter();
    let cpus = pools.fold(CpuSet::new(), |all, pool| {
        all.union(&pool["cpuset"].as_str().unwrap().parse().unwrap())
    });
    assert_eq!(cpus, online);
    let cpus = object["zones"].as_array().unwrap().iter().map(|zone| {
        let cpu = &zone["resources"][0];
        assert_eq!(cpu["name"], "cpu");
        cpu["capacity"].as_str().unwrap().parse::<usize>().unwrap()
    });
    assert_eq!(cpus.sum::<usize>(), online.len());
}

/// The kubelet of this test assigns exclusive CPUs itself.
#[tokio::test]
async fn a_static_cpu_manager_is_reported() {
    let clock = Clock::system();
    let (server, client) = cluster(&clock).await;
    let rig = Rig {
        client,
        ctx: Context::with_clock(clock),
        writes: Arc::default(),
        server,
    };
    let uid = add_pod(
        &rig.client,
        "g",
        json!({}),
        json!({"limits": {"cpu": "2", "memory": "1Gi"}}),
    )
    .await;
    let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(rig.client.clone(), "default");
    let list = json!({"apiVersion": "v1", "kind": "PodList", "metadata": {},
        "items": [pods.get("g").await.unwrap()]});
    let config = json!({"kubeletconfig": {"cpuManagerPolicy": "static",
        "cpuManagerPolicyOptions": {"full-pcpus-only": "true"}, "kubeReserved": {"cpu": "1500m"},
        "topologyManagerPolicy": "single-numa-node", "topologyManagerScope": "pod"}});
    let answer = move |uri: http::Uri| {
        let answer = if uri.path() == "/configz" {
            config.clone()
        } else {
            list.clone()
        };
        async move { axum::Json(answer) }
    };
    let routes = axum::Router::new().fallback(answer);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
    let tree = machine(2);
    let dir = tempfile::tempdir().unwrap();
    let state = |text: &str| std::fs::write(dir.path().join("cpu_manager_state"), text).unwrap();
    state(&json!({"policyName": "static", "entries": {&uid: {"c": "2-3"}}}).to_string());
    rig.koordlet(tree.root(), |options| {
        options.settings.kubelet_dir = dir.path().to_owned();
        options.thread = Thread::Own;
        options.topology = Some(Reporting {
            interval: Duration::from_millis(50),
            ..Reporting::default()
        });
        options.pods = PodSource::Kubelet(Kubelet {
            url: Some(format!("http://127.0.0.1:{port}")),
            interval: Duration::from_millis(100),
            ..Kubelet::default()
        });
    });
    let object = rig.until("a report", |_| true).await;
    assert_eq!(
        note(&object, annotations::KUBELET_CPU_MANAGER_POLICY),
        json!({"policy": "static", "options": {"full-pcpus-only": "true"}, "reservedCPUs": "0-1"})
    );
    assert_eq!(
        note(&object, annotations::NODE_CPU_ALLOCS),
        json!([{"namespace": "default", "name": "g", "uid": uid, "cpuset": "2-3",
            "managedByKubelet": true}])
    );
    // CPUs reserved by the kubelet stay in the pool, as in upstream.
    assert_eq!(pools(&object), ["0/0 0-1", "0/1 4-7"]);
    assert_eq!(
        object["topologyPolicies"],
        json!(["SingleNUMANodePodLevel"])
    );
    assert_eq!(
        object["attributes"][1],
        json!({"name": "topologyManagerScope", "value": "pod"})
    );
    // A partial file is ignored; the last report stays.
    state("{\"entries\":");
    sleep(1).await;
    assert_eq!(rig.object().await, object);
    state("");
    rig.until("the pool", |it| pools(it)[0] == "0/0 0-3").await;
}

/// Damaged or missing files of the kernel: the node has an event with the reason, and the last report stays.
#[tokio::test(start_paused = true)]
async fn unreadable_machine_is_reported_once_and_last_report_stays() {
    let rig = Rig::start().await;
    let tree = machine(2);
    rig.koordlet(tree.root(), |_| {});
    let before = rig.until("a report", |_| true).await;
    let file = "sys/devices/system/node/node1/meminfo";
    let good = std::fs::read_to_string(tree.dir().join(file)).unwrap();
    let is_complained = |value: &str| {
        let text = rig.metrics();
        let lines = text.lines();
        let mut lines = lines.filter(|line| line.starts_with("koordlet_malformed_input{"));
        lines.any(|line| line.contains("node1/meminfo") && line.contains(value))
    };
    assert!(!is_complained(""));

    // The machine is read every minute.
    tree.put(file, "Node 1 MemTotal: lots kB\n").unwrap();
    let messages = rig.event_messages(1).await;
    assert!(
        messages[0].starts_with("NodeResourceTopology is not reported: ")
            && messages[0].contains("node1/meminfo")
            && messages[0].contains("lots"),
        "{messages:?}"
    );
    assert!(is_complained("lots"), "{}", rig.metrics());
    sleep(600).await;
    assert_eq!(rig.event_messages(1).await, messages, "once");

    std::fs::remove_file(tree.dir().join(file)).unwrap();
    let messages = rig.event_messages(2).await;
    let expected = "NodeResourceTopology is not reported: memory of NUMA node 1 is not known";
    assert!(messages.iter().any(|text| text == expected), "{messages:?}");
    assert!(!is_complained("lots") && is_complained(""));
    assert_eq!(rig.object().await, before);

    tree.put(file, &good.replace("1048576", "2097152")).unwrap();
    sleep(60).await;
    rig.until("the new memory", |it| {
        it["zones"][1]["resources"][3]["capacity"] == "2Gi"
    })
    .await;
    assert!(!is_complained(""), "{}", rig.metrics());
}

/// Returns the definition of NodeResourceTopology in a list of definitions.
fn definition(all: &mut [Value]) -> &mut Value {
    let mut all = all.iter_mut();
    all.find(|it| it["spec"]["group"] == "topology.node.k8s.io")
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn missing_definition_is_reported_until_it_is_installed() {
    let mut definitions = koord_api::crd_values();
    definitions.retain(|it| it["spec"]["group"] != "topology.node.k8s.io");
    let rig = Rig::with(definitions).await;
    let tree = machine(2);
    rig.koordlet(tree.root(), |_| {});
    let messages = rig.event_messages(1).await;
    assert!(
        messages[0].ends_with("its definition is not installed"),
        "{messages:?}"
    );
    let topology = definition(&mut koord_api::crd_values()).clone();
    rig.server.install_crds(vec![topology]).await.unwrap();
    rig.until("a report", |it| it["zones"][1]["name"] == "node-1")
        .await;
}

/// Koordinator's chart 0.5 defines only v1alpha1.
#[tokio::test(start_paused = true)]
async fn older_version_is_written_if_only_it_is_served() {
    let mut definitions = koord_api::crd_values();
    let versions = &mut definition(&mut definitions)["spec"]["versions"];
    let mut older = versions[0].take();
    assert_eq!(older["name"], "v1alpha1");
    older["storage"] = json!(true);
    *versions = json!([older]);
    let rig = Rig::with(definitions).await;
    let tree = machine(2);
    rig.koordlet(tree.root(), |_| {});
    let objects: Api<v1alpha1::NodeResourceTopology> = Api::all(rig.client.clone());
    let until = async |what: &str, is: &dyn Fn(&Value) -> bool| {
        eventually(what, async || {
            let stored = objects.get_opt(NODE).await.unwrap();
            stored.map(|stored| json!(stored)).filter(is)
        })
        .await
    };
    let object = until("a report", &|_| true).await;
    assert_eq!(pools(&object), ["0/0 0-3", "0/1 4-7"]);
    assert_eq!(object["zones"][1]["resources"][0]["allocatable"], "4");
    sleep(600).await;
    assert_eq!(json!(objects.get(NODE).await.unwrap()), object);
    // The newer version was tried first.
    assert_eq!(rig.writes.load(Ordering::Relaxed), 2);
    patch::merge(&objects, NODE, &json!({"zones": []}))
        .await
        .unwrap();
    let is_back = |it: &Value| it["zones"][1]["name"] == "node-1";
    until("zones again", &is_back).await;
    let events: Api<Event> = Api::all(rig.client.clone());
    let events = events.list(&ListParams::default()).await.unwrap().items;
    assert!(
        events
            .iter()
            .all(|event| event.reason.as_deref() != Some("NodeTopologyNotReported")),
        "{events:?}"
    );
}
