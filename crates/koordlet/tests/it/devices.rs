//! Devices of a machine, from vendors' files and sysfs to the Device object.

use crate::agent::{NODE, cluster};
use k8s_openapi::api::core::v1::Node;
use koord_api::scheduling::Device;
use koord_apiserver::ApiServer;
use koord_app::{Clock, Context};
use koord_host::fake::Tree;
use koord_host::testing::{FakeGpu, FakeNvml, eventually_within};
use koord_kube::api::{Patch, PatchParams};
use koord_kube::{Api, Client};
use koordlet::devices::Config;
use koordlet::gates::Gate;
use koordlet::{Options, Settings, Thread};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::time::Duration;

struct Rig {
    client: Client,
    ctx: Context,
    tree: Tree,
    files: tempfile::TempDir,
    devices: Api<Device>,
    /// Time between two checks of a test.
    step: Duration,
    _server: Arc<ApiServer>,
}

impl Rig {
    async fn start(gates: &[Gate]) -> Self {
        Self::start_with(gates, Tree::hybrid("0-1").unwrap(), Config::default()).await
    }

    async fn start_with(gates: &[Gate], tree: Tree, config: Config) -> Self {
        let clock = Clock::following_tokio("2026-01-01T00:00:00Z".parse().unwrap());
        let (server, client) = cluster(&clock).await;
        let rig = Self {
            devices: Api::all(client.clone()),
            client,
            ctx: Context::with_clock(clock),
            tree,
            files: tempfile::tempdir().unwrap(),
            step: config.interval / 2,
            _server: server,
        };
        let mut settings = Settings::default();
        for gate in gates {
            settings.gates.set(*gate, true);
        }
        let options = Options {
            node_name: NODE.to_owned(),
            root: Some(rig.tree.root().clone()),
            settings,
            devices: Config {
                files: rig.files.path().to_owned(),
                ..config
            },
            thread: Thread::Shared,
            report: false,
            ..Options::default()
        };
        tokio::spawn(koordlet::run(options, rig.client.clone(), rig.ctx.clone()));
        rig
    }

    fn put(&self, name: &str, content: &str) {
        // Renamed into place as the tools do, so that no partial file is read.
        let draft = self.tree.dir().join("draft");
        fs::write(&draft, content).unwrap();
        fs::copy(&draft, self.files.path().join(".draft")).unwrap();
        fs::rename(
            self.files.path().join(".draft"),
            self.files.path().join(name),
        )
        .unwrap();
    }

    /// Waits, in paused time, until the Device satisfies `is_reached`.
    async fn until(&self, what: &str, is_reached: impl Fn(&Value) -> bool) -> Value {
        eventually_within(self.step * 2000, what, async || {
            let device = self.devices.get_opt(NODE).await.unwrap()?;
            Some(serde_json::to_value(device).unwrap()).filter(&is_reached)
        })
        .await
    }

    /// Returns the Device after ten more checks, which must not have written anything.
    async fn still(&self, version: &Value) -> Value {
        tokio::time::sleep(self.step * 20).await;
        let device = serde_json::to_value(self.devices.get(NODE).await.unwrap()).unwrap();
        assert_eq!(&device["metadata"]["resourceVersion"], version);
        device
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.ctx.shutdown.cancel();
    }
}

fn ids(device: &Value) -> Vec<&str> {
    let devices = device["spec"]["devices"].as_array();
    let ids = devices.into_iter().flatten();
    ids.map(|entry| entry["id"].as_str().unwrap()).collect()
}

fn version(device: &Value) -> &Value {
    &device["metadata"]["resourceVersion"]
}

/// Returns four connected accelerators.
fn wired() -> Value {
    let card = |minor: u8| {
        json!({"vendor": "huawei", "model": "Ascend-910B", "uuid": format!("npu-{minor}"),
            "minor": minor.to_string(),
            "resources": {"gpu-core": "100", "gpu-memory": "32Gi", "huawei.com/npu-core": "32"},
            "topology": {"p2pLinks": [{"peerMinor": "0,1,2,3", "type": "HCCS"}], "nodeID": "0",
                "pcieID": "pci0000:3a", "busID": format!("0000:3b:00.{minor}")},
            "status": {"healthy": true}})
    };
    json!([card(0), card(1), card(2), card(3)])
}

const TABLE: &str = "scheduling.koordinator.sh/gpu-partitions";

#[tokio::test(start_paused = true)]
async fn file_accelerators_are_reported_and_foreign_content_is_kept() {
    let rig = Rig::start(&[Gate::Accelerators]).await;
    let mut cards = wired();
    rig.put("huawei", &cards.to_string());
    let device = rig
        .until("four accelerators", |device| ids(device).len() == 4)
        .await;
    let node: Node = Api::all(rig.client.clone()).get(NODE).await.unwrap();
    assert_eq!(
        device["metadata"]["ownerReferences"],
        json!([{"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": node.metadata.uid,
            "controller": true, "blockOwnerDeletion": true}])
    );
    let labels = &device["metadata"]["labels"];
    assert_eq!(labels["node.koordinator.sh/gpu-vendor"], "huawei");
    assert_eq!(labels["node.koordinator.sh/gpu-partition-policy"], "Prefer");
    assert_eq!(
        device["metadata"]["annotations"][TABLE],
        r#"{"4":[{"minors":[0,1,2,3],"gpuLinkType":"HCCS","allocationScore":1}]}"#
    );
    // Nothing changes, nothing is written.
    rig.still(version(&device)).await;

    // An administrator's annotations stay, also when something is written.
    let annotations = json!({"metadata": {
        "labels": {"node.koordinator.sh/secondary-device-well-planned": "true"},
        "annotations": {"example.com/rack": "7"}}});
    let params = PatchParams {
        field_manager: Some("kubectl-edit".to_owned()),
        ..PatchParams::default()
    };
    let patched = rig
        .devices
        .patch(NODE, &params, &Patch::Merge(&annotations))
        .await
        .unwrap();
    rig.still(&json!(patched.metadata.resource_version)).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    cards[2]["status"] = json!({"healthy": false, "errCode": "ECC error"});
    rig.put("huawei", &cards.to_string());
    let sick = rig
        .until("the sick one", |device| {
            device["spec"]["devices"][2]["health"] == false
        })
        .await;
    let metadata = &sick["metadata"];
    assert_eq!(
        metadata["labels"]["node.koordinator.sh/secondary-device-well-planned"],
        "true"
    );
    assert_eq!(metadata["annotations"]["example.com/rack"], "7");
    let condition = |minor: usize| sick["spec"]["devices"][minor]["conditions"][0].clone();
    assert_eq!(condition(2)["reason"], "ECC_error");
    let (was, is) = (condition(1), condition(2));
    assert_eq!(
        was["lastTransitionTime"],
        device["spec"]["devices"][1]["conditions"][0]["lastTransitionTime"]
    );
    assert_ne!(was["lastTransitionTime"], is["lastTransitionTime"]);

    // Removed values are deleted: the file has no links now.
    for card in cards.as_array_mut().unwrap() {
        card["topology"].as_object_mut().unwrap().remove("p2pLinks");
    }
    rig.put("huawei", &cards.to_string());
    let plain = rig
        .until("no table", |device| {
            device["metadata"]["annotations"].get(TABLE).is_none()
        })
        .await;
    assert_eq!(
        plain["metadata"]["annotations"],
        json!({"example.com/rack": "7"})
    );
    let labels = plain["metadata"]["labels"].as_object().unwrap();
    assert!(
        !labels.contains_key("node.koordinator.sh/gpu-partition-policy"),
        "{labels:?}"
    );
    assert_eq!(
        labels.len(),
        3,
        "vendor, model, and the administrator's: {labels:?}"
    );

    // A table written by an administrator is kept, independent of the files.
    let table = json!({"metadata": {"annotations": {TABLE: "{}"}}});
    rig.devices
        .patch(NODE, &params, &Patch::Merge(&table))
        .await
        .unwrap();
    cards[2]["status"] = json!({"healthy": true});
    rig.put("huawei", &cards.to_string());
    let healed = rig
        .until("the healed one", |device| {
            device["spec"]["devices"][2]["health"] == true
        })
        .await;
    assert_eq!(healed["metadata"]["annotations"][TABLE], "{}");

    // A deleted Device is recreated.
    rig.devices.delete(NODE, &Default::default()).await.unwrap();
    let recreated = rig
        .until("another Device", |device| ids(device).len() == 4)
        .await;
    assert_ne!(recreated["metadata"]["uid"], device["metadata"]["uid"]);
}

#[tokio::test(start_paused = true)]
async fn a_broken_file_is_named_and_takes_no_device_away() {
    let rig = Rig::start(&[Gate::Accelerators]).await;
    rig.put("huawei", &wired().to_string());
    let other = json!([{"vendor": "x", "model": "y", "uuid": "other", "minor": "9"}]);
    rig.put("other", &other.to_string());
    let device = rig.until("five", |device| ids(device).len() == 5).await;
    rig.put("huawei", "[{");
    let file_content =
        json!([other[0], {"uuid": "more", "minor": "10"}, {"uuid": "bad", "minor": "ten"}]);
    rig.put("other", &file_content.to_string());
    let after = rig.until("six", |device| ids(device).len() == 6).await;
    assert_eq!(
        ids(&after),
        ["npu-0", "npu-1", "npu-2", "npu-3", "other", "more"]
    );
    assert_eq!(
        after["metadata"]["annotations"],
        device["metadata"]["annotations"]
    );
    let shown = rig.ctx.metrics.gather();
    let shown = shown
        .iter()
        .find(|family| family.name() == "koordlet_malformed_input");
    let shown: Vec<Vec<&str>> = shown
        .unwrap()
        .get_metric()
        .iter()
        .map(|row| row.get_label().iter().map(|label| label.value()).collect())
        .collect();
    // By name: field, node, object, value.
    let row = |field, object, value| vec![field, NODE, object, value];
    assert!(
        shown.contains(&row("", "XPU file huawei", "[{")),
        "{shown:?}"
    );
    assert!(
        shown.contains(&row("[2].minor", "XPU file other", "ten")),
        "{shown:?}"
    );
}

/// Adds an adapter with one port to sysfs.
fn adapter(tree: &Tree, address: &str, name: &str, state: &str) {
    let function = format!("sys/devices/pci0000:3a/{address}");
    tree.put(&format!("{function}/class"), "0x020700\n")
        .unwrap();
    tree.put(&format!("{function}/numa_node"), "1\n").unwrap();
    let device = format!("{function}/infiniband/{name}");
    tree.put(&format!("{device}/ports/1/state"), state).unwrap();
    let link = tree.dir().join(&device).join("device");
    if !link.exists() {
        symlink("../..", link).unwrap();
        fs::create_dir_all(tree.dir().join("sys/class/infiniband")).unwrap();
        let class = tree.dir().join("sys/class/infiniband").join(name);
        symlink(tree.dir().join(&device), class).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn rdma_adapters_are_reported_with_or_without_accelerators() {
    let rig = Rig::start(&[Gate::RDMADevices]).await;
    rig.put("huawei", &wired().to_string());
    adapter(&rig.tree, "0000:3b:00.0", "mlx5_0", "4: ACTIVE\n");
    let device = rig
        .until("an adapter", |device| ids(device).len() == 1)
        .await;
    assert_eq!(
        device["spec"]["devices"],
        json!([{"id": "0000:3b:00.0", "minor": 0, "type": "rdma", "health": true,
            "resources": {"koordinator.sh/rdma": "100"},
            "topology": {"socketID": -1, "nodeID": 1, "pcieID": "pci0000:3a", "busID": "0000:3b:00.0"}}])
    );
    rig.still(version(&device)).await;
    adapter(&rig.tree, "0000:3b:00.0", "mlx5_0", "1: DOWN\n");
    rig.until("the port that is down", |device| {
        device["spec"]["devices"][0]["health"] == false
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn without_a_gate_there_is_no_device() {
    let rig = Rig::start(&[]).await;
    rig.put("huawei", &wired().to_string());
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(rig.devices.get_opt(NODE).await.unwrap(), None);
}

/// The upstream rows `Test_reportGPUDevice` and `Test_reportGPUDeviceUnhealthy`, with a loaded library.
#[tokio::test]
async fn gpus_of_nvidias_library_are_reported_until_they_fail() {
    let gpu = |uuid, minor, bus| FakeGpu {
        uuid,
        name: "NVIDIA A100 SXM4 80GB",
        minor,
        memory: 80 << 30,
        bus,
        watched: true,
    };
    let old = FakeGpu {
        watched: false,
        ..gpu("GPU-old", 3, 0x58)
    };
    let home = tempfile::tempdir().unwrap();
    let gpus = [gpu("GPU-1", 1, 0x44), gpu("GPU-0", 0, 0x4d), old];
    let Some(fake) = FakeNvml::build(home.path(), &gpus).unwrap() else {
        return;
    };
    let tree = Tree::hybrid("0-1").unwrap();
    FakeNvml::plug(&tree, 0x44, 0, "pci0000:3a").unwrap();
    FakeNvml::plug(&tree, 0x4d, 1, "pci0000:4a").unwrap();
    FakeNvml::plug(&tree, 0x58, -1, "pci0000:54").unwrap();
    let config = Config {
        library: fake.library(),
        interval: Duration::from_millis(20),
        ..Config::default()
    };
    let rig = Rig::start_with(&[Gate::Accelerators], tree, config).await;
    let device = rig
        .until("three GPUs", |device| ids(device).len() == 3)
        .await;
    let resources = json!({"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory": "80Gi",
        "koordinator.sh/gpu-memory-ratio": "100"});
    let expected = |uuid: &str, minor: u8, node: u8, pcie: &str, bus: &str| {
        json!({"id": uuid, "minor": minor, "type": "gpu", "health": true, "resources": resources,
            "topology": {"socketID": -1, "nodeID": node, "pcieID": pcie, "busID": bus}})
    };
    let devices = &device["spec"]["devices"];
    assert_eq!(
        devices[0],
        expected("GPU-0", 0, 1, "pci0000:4a", "0000:4d:00.0")
    );
    assert_eq!(
        devices[1],
        expected("GPU-1", 1, 0, "pci0000:3a", "0000:44:00.0")
    );
    // The library is too old to report this value.
    assert_eq!(devices[2]["health"], false);
    assert_eq!(
        devices[2]["conditions"][0]["reason"],
        "DeviceHealthCheckNotSupported"
    );
    assert_eq!(
        device["metadata"]["labels"],
        json!({"node.koordinator.sh/gpu-vendor": "nvidia",
            "node.koordinator.sh/gpu-model": "A100-SXM4-80GB",
            "node.koordinator.sh/gpu-driver-version": "535.104.05"})
    );
    rig.still(version(&device)).await;

    fake.put("event", "44 1").unwrap();
    let failed = rig
        .until("a failed GPU", |device| {
            device["spec"]["devices"][0]["health"] == false
        })
        .await;
    let condition = &failed["spec"]["devices"][0]["conditions"][0];
    assert_eq!(condition["reason"], "Xid44");
    assert_eq!(
        condition["message"],
        "Xid error detected on device, error code: 44"
    );
    assert_eq!(failed["spec"]["devices"][1], device["spec"]["devices"][1]);

    // A lost GPU is noticed with the next one that fails.
    fake.put("lost", "0").unwrap();
    fake.put("event", "48 1").unwrap();
    let failed = rig
        .until("a lost GPU", |device| {
            device["spec"]["devices"][1]["health"] == false
        })
        .await;
    let condition = &failed["spec"]["devices"][1]["conditions"][0];
    assert_eq!(condition["reason"], "Xid48");
    let message = condition["message"].as_str().unwrap();
    assert!(message.contains("GPU is lost"), "{message}");

    // Files have precedence.
    rig.put("huawei", &wired().to_string());
    let device = rig
        .until("accelerators of files", |device| ids(device).len() == 4)
        .await;
    let labels = device["metadata"]["labels"].as_object().unwrap();
    assert!(
        !labels.contains_key("node.koordinator.sh/gpu-driver-version"),
        "{labels:?}"
    );
}

/// GPUs with NVIDIA's driver and an unusable library: logged once, and shown while the problem persists.
#[tokio::test(start_paused = true)]
async fn missing_library_is_reported() {
    let tree = Tree::hybrid("0-1").unwrap();
    FakeNvml::plug(&tree, 0x44, 0, "pci0000:3a").unwrap();
    let config = Config {
        library: tree.dir().join("nowhere.so"),
        ..Config::default()
    };
    let rig = Rig::start_with(&[Gate::Accelerators, Gate::RDMADevices], tree, config).await;
    adapter(&rig.tree, "0000:3b:00.0", "mlx5_0", "4: ACTIVE\n");
    // Other devices are still reported.
    rig.until("the adapter", |device| ids(device) == ["0000:3b:00.0"])
        .await;
    let shown = rig.ctx.metrics.gather();
    let shown = shown
        .iter()
        .find(|family| family.name() == "koordlet_malformed_input");
    let rows = shown.unwrap().get_metric();
    let malformed = rows.iter().filter(|row| {
        let labels = row.get_label().iter();
        labels.clone().any(|label| label.value() == "NVIDIA GPUs")
    });
    assert_eq!(malformed.count(), 1);
}
