//! Metrics of invoked hooks: the stage and the outcome of each, as `/metrics` shows them.

use super::*;
use koord_app::admin::Admin;
use std::collections::BTreeSet;
use tower::ServiceExt as _;

const NAME: &str = "koordlet_runtime_hook_invoked_duration_milliseconds_count";

impl Rig {
    /// Returns stage, hook, status and count of each row of the page.
    async fn invoked(&self) -> BTreeSet<String> {
        let admin = Admin::new(self.registry.clone()).split_metrics(crate::metrics::is_external);
        let request = http::Request::get("/metrics").body(axum::body::Body::empty());
        let answer = admin.router().oneshot(request.unwrap()).await.unwrap();
        let page = axum::body::to_bytes(answer.into_body(), 1 << 20).await;
        let page = String::from_utf8(page.unwrap().to_vec()).unwrap();
        let lines = page.lines().filter_map(|line| line.strip_prefix(NAME));
        lines
            .map(|line| {
                let (labels, count) = line.rsplit_once(' ').unwrap();
                let label_value = |label: &str| {
                    let begin = format!("{label}=\"");
                    let (_, rest) = labels.split_once(begin.as_str()).unwrap();
                    rest.split('"').next().unwrap().to_owned()
                };
                assert_eq!(label_value("node"), "n");
                let [stage, hook, status] = [
                    label_value("stage"),
                    label_value("hook"),
                    label_value("status"),
                ];
                format!("{stage} {hook} {status} {count}")
            })
            .collect()
    }
}

fn lines(lines: &[&str]) -> BTreeSet<String> {
    lines.iter().map(|line| (*line).to_owned()).collect()
}

/// Returns a node with active hooks of every stage.
fn node() -> Node {
    let gates = [
        Gate::BatchResource,
        Gate::CPUNormalization,
        Gate::CPUSetAllocator,
        Gate::GroupIdentity,
        Gate::GPUEnvInject,
        Gate::RDMADeviceInject,
    ];
    let mut node = Node::default();
    for gate in Gate::ALL {
        node = node.close(*gate);
    }
    gates.into_iter().fold(node, Node::open)
}

/// Returns a pod with an RDMA adapter that does not exist.
fn misplaced_sandbox() -> PodSandbox {
    let mut pod = batch_pod();
    let key = "scheduling.koordinator.sh/device-allocated".to_owned();
    let devices = r#"{"rdma":[{"minor":0,"id":"../0000:3b:00.0"}]}"#;
    pod.annotations.insert(key, devices.to_owned());
    pod
}

/// Names and stages are those that Koordinator's hooks register with; CpuIdle is koord's own.
const SANDBOX: [&str; 5] = [
    "PreRunPodSandbox BatchResource succeeded 1",
    "PreRunPodSandbox CPUNormalization succeeded 1",
    "PreRunPodSandbox CPUSetAllocator succeeded 1",
    "PreRunPodSandbox CpuIdle succeeded 1",
    "PreRunPodSandbox GroupIdentity succeeded 1",
];

const CREATION: [&str; 5] = [
    "PreCreateContainer BatchResource succeeded 1",
    "PreCreateContainer CPUNormalization succeeded 1",
    "PreCreateContainer CPUSetAllocator succeeded 1",
    "PreCreateContainer gpu env inject succeeded 1",
    "PreCreateContainer rdma device inject failed 1",
];

const UPDATE: [&str; 3] = [
    "PreUpdateContainerResources BatchResource succeeded 1",
    "PreUpdateContainerResources CPUNormalization succeeded 1",
    "PreUpdateContainerResources CPUSetAllocator succeeded 1",
];

#[tokio::test]
async fn hooks_that_the_runtime_asks_for_are_counted() {
    let rig = Rig::on(node());
    rig.tree.group("kubepods/besteffort/podu").unwrap();
    let plugin = rig.plugin(Policy::Ignore);
    let request = container(nri_resources(2, 0, 0, ""));
    // Hooks are not counted for these.
    plugin.synchronize(&[misplaced_sandbox()], std::slice::from_ref(&request));
    assert_eq!(rig.invoked().await, lines(&[]));
    let event = koord_rpc::nri::Event::RunPodSandbox;
    plugin.event(event, &misplaced_sandbox(), None).unwrap();
    assert_eq!(rig.invoked().await, lines(&SANDBOX));
    plugin.create(&misplaced_sandbox(), &request).unwrap();
    let requested = nri_resources(2, 0, 0, "");
    plugin
        .update(&misplaced_sandbox(), &request, &requested)
        .unwrap();
    let all = [&SANDBOX[..], &CREATION, &UPDATE].concat();
    assert_eq!(rig.invoked().await, lines(&all));
}

#[tokio::test]
async fn hooks_that_the_proxy_asks_for_are_counted() {
    let rig = Rig::on(node());
    rig.tree.group("kubepods/besteffort/podu").unwrap();
    let config = rig.config(Mode::Proxy);
    let _stop = rig.start(&config);
    let mut client = client(&config).await;
    let request = ContainerResourceHookRequest {
        pod_annotations: misplaced_sandbox().annotations,
        ..hook_request()
    };
    let pod = PodSandboxHookRequest {
        pod_meta: meta(),
        labels: misplaced_sandbox().labels,
        annotations: misplaced_sandbox().annotations,
        cgroup_parent: "/kubepods/besteffort/podu".to_owned(),
        ..PodSandboxHookRequest::default()
    };
    client.pre_run_pod_sandbox_hook(pod).await.unwrap();
    let create = client.pre_create_container_hook(request.clone());
    create.await.unwrap();
    let update = client.pre_update_container_resources_hook(request);
    update.await.unwrap();
    let all = [&SANDBOX[..], &CREATION, &UPDATE].concat();
    assert_eq!(rig.invoked().await, lines(&all));
}
