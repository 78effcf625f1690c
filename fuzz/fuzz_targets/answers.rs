//! What koordlet answers a container runtime and its proxy: to requests of any bytes, and to requests
//! with any text where koordlet looks. It does not panic, says the same when it is asked again, and
//! nothing that a kernel or a runtime could not take.

#![no_main]

use koord_rpc::hooks::runtime_hook_service_server::RuntimeHookService;
use koord_rpc::hooks::{
    ContainerMetadata, ContainerResourceHookRequest, LinuxContainerResources,
    PodSandboxHookRequest, PodSandboxMetadata,
};
use koord_rpc::nri::{
    Container, Event, Handler, LinuxContainer, LinuxCpu, LinuxPodSandbox, LinuxResources,
    OptionalInt64, OptionalUInt64, PodSandbox,
};
use koordlet::runtime::fuzzed::answering;
use libfuzzer_sys::fuzz_target;
use prost::Message;
use std::collections::BTreeMap;
use std::path::{Component, Path};
use std::sync::LazyLock;
use tokio::runtime::Runtime;
use tonic::Request;

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let built = builder.worker_threads(1).enable_all().build();
    built.expect("a runtime")
});

/// Labels and annotations that koordlet looks at.
const KEYS: [&str; 12] = [
    "koordinator.sh/qosClass",
    "koordinator.sh/priority",
    "koordinator.sh/gpu-isolation-provider",
    "koordinator.sh/coreSchedulingGroup",
    "koordinator.sh/oom-score-adj",
    "node.koordinator.sh/extended-resource-spec",
    "node.koordinator.sh/resctrl",
    "koordinator.sh/cpuBurst",
    "koordinator.sh/blkioQOS",
    "scheduling.koordinator.sh/resource-status",
    "scheduling.koordinator.sh/device-allocated",
    "koordinator.sh/networkQOS",
];

/// The UID of a pod of a file on the node, which nobody waits to see listed.
const STATIC: &str = "0123456789abcdef0123456789abcdef";

/// Takes a piece of the data: one byte of length, and so much.
fn piece<'a>(data: &mut &'a [u8]) -> &'a [u8] {
    let Some((length, rest)) = data.split_first() else {
        return &[];
    };
    let (piece, rest) = rest.split_at(usize::from(*length).min(rest.len()));
    *data = rest;
    piece
}

fn text(data: &mut &[u8]) -> String {
    String::from_utf8_lossy(piece(data)).into_owned()
}

fn number(data: &mut &[u8]) -> i64 {
    let piece = piece(data);
    let bytes = piece.iter().take(8);
    bytes.fold(0, |number, byte| number << 8 | i64::from(*byte))
}

/// A pod and its container with texts and numbers of the data.
fn told(mut data: &[u8]) -> (PodSandbox, Container) {
    let data = &mut data;
    let (name, parent) = (text(data), text(data));
    let (quota, period, shares) = (number(data), number(data), number(data));
    let mut texts = BTreeMap::new();
    while let Some((key, rest)) = data.split_first() {
        *data = rest;
        let key = KEYS[usize::from(*key) % KEYS.len()];
        texts.insert(key.to_owned(), text(data));
    }
    let resources = LinuxResources {
        cpu: Some(LinuxCpu {
            quota: Some(OptionalInt64 { value: quota }),
            period: Some(OptionalUInt64 {
                value: period.unsigned_abs(),
            }),
            shares: Some(OptionalUInt64 {
                value: shares.unsigned_abs(),
            }),
            ..LinuxCpu::default()
        }),
        ..LinuxResources::default()
    };
    let pod = PodSandbox {
        id: "p".to_owned(),
        uid: STATIC.to_owned(),
        name: "p".to_owned(),
        labels: texts.clone(),
        annotations: texts,
        linux: Some(LinuxPodSandbox {
            cgroup_parent: parent,
            ..LinuxPodSandbox::default()
        }),
        ..PodSandbox::default()
    };
    let container = Container {
        id: "c".to_owned(),
        pod_sandbox_id: "p".to_owned(),
        name,
        state: 3,
        linux: Some(LinuxContainer {
            resources: Some(resources),
            ..LinuxContainer::default()
        }),
        ..Container::default()
    };
    (pod, container)
}

/// As they come, one after the other.
fn decoded(mut data: &[u8]) -> Option<(PodSandbox, Container)> {
    let pod = PodSandbox::decode(piece(&mut data)).ok()?;
    Some((pod, Container::decode(data).ok()?))
}

/// What a kernel takes.
fn is_sound(resources: Option<&LinuxResources>) {
    let Some(resources) = resources else { return };
    if let Some(cpu) = &resources.cpu {
        if let Some(shares) = &cpu.shares {
            assert!((2..=262_144).contains(&shares.value), "{shares:?}");
        }
        if let Some(quota) = &cpu.quota {
            assert!(quota.value == -1 || quota.value >= 1000, "{quota:?}");
        }
        assert!(
            cpu.cpus
                .chars()
                .all(|c| c.is_ascii_digit() || ",-".contains(c))
        );
    }
    let limit = resources
        .memory
        .as_ref()
        .and_then(|memory| memory.limit.as_ref());
    assert!(limit.is_none_or(|limit| limit.value >= -1), "{limit:?}");
}

/// A path that a container could be given: absolute, and it goes nowhere else.
fn is_plain(path: &str) {
    let path = Path::new(path);
    let up = path.components().any(|part| part == Component::ParentDir);
    assert!(path.is_absolute() && !up, "{}", path.display());
}

fn asks_the_plugin(plugin: &impl Handler, pod: &PodSandbox, container: &Container) {
    let created = plugin.create(pod, container);
    assert_eq!(plugin.create(pod, container), created);
    if let Ok(Some(adjust)) = created.map(|reply| reply.adjust) {
        for mount in &adjust.mounts {
            is_plain(&mount.destination);
            is_plain(&mount.source);
        }
        assert!(adjust.env.iter().all(|env| !env.key.is_empty()));
        let linux = adjust.linux.unwrap_or_default();
        // This machine has none.
        assert!(linux.devices.is_empty());
        is_sound(linux.resources.as_ref());
        let score = linux.oom_score_adj.map_or(0, |score| score.value);
        assert!((-1000..=1000).contains(&score));
    }
    let resources = container
        .linux
        .as_ref()
        .and_then(|linux| linux.resources.clone());
    let requested = resources.unwrap_or_default();
    let mut updates = plugin
        .update(pod, container, &requested)
        .unwrap_or_default();
    let all = std::slice::from_ref(pod);
    updates.extend(plugin.synchronize(all, std::slice::from_ref(container)));
    for update in updates {
        assert_eq!(update.container_id, container.id);
        is_sound(update.linux.unwrap_or_default().resources.as_ref());
    }
    for event in [
        Event::RunPodSandbox,
        Event::StartContainer,
        Event::RemovePodSandbox,
    ] {
        let _ = plugin.event(event, pod, Some(container));
    }
}

fn of_hooks(pod: &PodSandbox, container: &Container) -> ContainerResourceHookRequest {
    let linux = container.linux.clone().unwrap_or_default();
    let cpu = linux.resources.unwrap_or_default().cpu.unwrap_or_default();
    let signed = |value: Option<OptionalUInt64>| {
        i64::try_from(value.map_or(0, |value| value.value)).unwrap_or(i64::MAX)
    };
    ContainerResourceHookRequest {
        pod_meta: Some(PodSandboxMetadata {
            uid: pod.uid.clone(),
            name: pod.name.clone(),
            namespace: pod.namespace.clone(),
            attempt: 0,
        }),
        container_meta: Some(ContainerMetadata {
            name: container.name.clone(),
            ..ContainerMetadata::default()
        }),
        container_resources: Some(LinuxContainerResources {
            cpu_quota: cpu.quota.map_or(0, |value| value.value),
            cpu_period: signed(cpu.period),
            cpu_shares: signed(cpu.shares),
            ..LinuxContainerResources::default()
        }),
        pod_labels: pod.labels.clone(),
        pod_annotations: pod.annotations.clone(),
        pod_cgroup_parent: pod.linux.clone().unwrap_or_default().cgroup_parent,
        ..ContainerResourceHookRequest::default()
    }
}

async fn asks_the_server(server: &impl RuntimeHookService, request: ContainerResourceHookRequest) {
    let answer = server
        .pre_create_container_hook(Request::new(request.clone()))
        .await;
    let answer = answer.expect("an answer, whatever it is").into_inner();
    assert_eq!(answer.container_annotations, request.container_annotations);
    for key in request.container_envs.keys() {
        assert!(answer.container_envs.contains_key(key));
    }
    let update = server.pre_update_container_resources_hook(Request::new(request.clone()));
    update.await.expect("an answer");
    let pod = PodSandboxHookRequest {
        pod_meta: request.pod_meta,
        labels: request.pod_labels,
        annotations: request.pod_annotations,
        cgroup_parent: request.pod_cgroup_parent,
        ..PodSandboxHookRequest::default()
    };
    let run = server.pre_run_pod_sandbox_hook(Request::new(pod));
    run.await.expect("an answer");
}

/// Asks one plugin and one hook server of a machine without files.
static ASK: LazyLock<Box<dyn Fn(&[u8]) + Send + Sync>> = LazyLock::new(|| {
    let root = std::env::temp_dir().join(format!("koord-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&root).expect("a directory");
    let (plugin, server) = answering(&root);
    Box::new(move |data| {
        let Some((which, rest)) = data.split_first() else {
            return;
        };
        let request = if which % 3 == 0 {
            ContainerResourceHookRequest::decode(rest).ok()
        } else {
            let asked = if which % 3 == 1 {
                decoded(rest)
            } else {
                Some(told(rest))
            };
            asked.map(|(pod, container)| {
                asks_the_plugin(&plugin, &pod, &container);
                of_hooks(&pod, &container)
            })
        };
        if let Some(request) = request {
            RUNTIME.block_on(asks_the_server(&server, request));
        }
    })
});

fuzz_target!(|data: &[u8]| {
    let _entered = RUNTIME.enter();
    ASK(data);
});
