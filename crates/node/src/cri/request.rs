//! CRI requests built from a pod. Names and rules are the kubelet's.

use crate::container_request::ProcessSpec;
use crate::pod::{Amounts, Qos, qos_of};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use koord_rpc::cri;
use std::collections::BTreeMap;

/// Label with the pod's name. The kubelet's labels identify pods and containers in a runtime.
pub(crate) const POD_NAME: &str = "io.kubernetes.pod.name";
/// Label with the pod's namespace.
pub(crate) const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
/// Label with the pod's uid.
pub(crate) const POD_UID: &str = "io.kubernetes.pod.uid";
/// Label with the container's name.
const CONTAINER_NAME: &str = "io.kubernetes.container.name";
/// Annotation with the number of restarts.
const RESTARTS: &str = "io.kubernetes.container.restartCount";
/// The label with the data directory of the node that made a sandbox or container.
pub(crate) const OWNER: &str = "node.koordinator.sh/owner";

/// Microseconds of a CFS period.
const PERIOD: i64 = 100_000;

/// Paths that are masked in containers without privileges.
const MASKED: [&str; 10] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
];
const READ_ONLY: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];

/// Inputs of the requests in addition to the pod.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestContext<'a> {
    /// Value of [`OWNER`].
    pub(crate) owner: &'a str,
    /// The pod's group, absolute; empty for the runtime's own.
    pub(crate) group: &'a str,
    /// True if the runtime has a network for pods.
    pub(crate) network: bool,
    /// The pod's log directory.
    pub(crate) logs: &'a str,
    /// Bytes of the machine's memory.
    pub(crate) memory: i64,
}

/// Returns the OOM score adjustment of a container by its QoS class. For burstable containers it falls with
/// the requested share of the machine's `memory`.
pub(crate) fn oom_score_adj(pod: &Pod, request: Option<i64>, memory: i64) -> i64 {
    let class = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.priority_class_name.as_deref());
    match qos_of(pod) {
        _ if class == Some("system-node-critical") => -997,
        Qos::Guaranteed => -997,
        Qos::BestEffort => 1000,
        Qos::Burstable => {
            let request = i128::from(request.unwrap_or(0).max(0));
            let share = 1000 * request / i128::from(memory.max(1));
            i64::try_from(1000 - share).unwrap_or(3).clamp(3, 999)
        }
    }
}

fn labels(pod: &Pod, owner: &str) -> BTreeMap<String, String> {
    let meta = &pod.metadata;
    let pairs = [
        (POD_NAME, meta.name.as_deref()),
        (POD_NAMESPACE, meta.namespace.as_deref()),
        (POD_UID, meta.uid.as_deref()),
        (OWNER, Some(owner)),
    ];
    let pairs = pairs.into_iter();
    pairs
        .map(|(key, value)| (key.to_owned(), value.unwrap_or_default().to_owned()))
        .collect()
}

fn namespaces(spec: &PodSpec, network: bool) -> cri::NamespaceOption {
    use cri::NamespaceMode::{Container, Node, Pod};
    let on_host = |host: Option<bool>, otherwise| match host {
        Some(true) => Node,
        _ => otherwise,
    };
    let processes = match spec.share_process_namespace {
        Some(true) => Pod,
        _ => Container,
    };
    let network = if network { Pod } else { Node };
    cri::NamespaceOption {
        network: on_host(spec.host_network, network) as i32,
        pid: on_host(spec.host_pid, processes) as i32,
        ipc: on_host(spec.host_ipc, Pod) as i32,
        ..cri::NamespaceOption::default()
    }
}

fn id(value: i64) -> cri::Int64Value {
    cri::Int64Value { value }
}

/// Returns the sandbox configuration of a pod.
pub(crate) fn sandbox(pod: &Pod, attempt: u32, ctx: &RequestContext<'_>) -> cri::PodSandboxConfig {
    let (meta, none) = (&pod.metadata, PodSpec::default());
    let spec = pod.spec.as_ref().unwrap_or(&none);
    // Sandboxes are found and removed by these labels, so a pod's own labels must not replace them.
    let mut all_labels = meta.labels.clone().unwrap_or_default();
    all_labels.extend(labels(pod, ctx.owner));
    let mut annotations = meta.annotations.clone().unwrap_or_default();
    annotations.insert("kubernetes.io/config.source".into(), "api".into());
    let options = namespaces(spec, ctx.network);
    // A pod on the host's network has the host's name.
    let hostname = match options.network == cri::NamespaceMode::Node as i32 {
        true => String::new(),
        false => {
            let name = spec.hostname.clone().filter(|name| !name.is_empty());
            let name = name.or_else(|| meta.name.clone()).unwrap_or_default();
            let name: String = name.chars().take(63).collect();
            name.trim_end_matches(['-', '.']).to_owned()
        }
    };
    let context = spec.security_context.as_ref();
    let privileged = |container: &Container| {
        let context = container.security_context.as_ref();
        context.and_then(|context| context.privileged) == Some(true)
    };
    let all = spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten());
    let security = cri::LinuxSandboxSecurityContext {
        namespace_options: Some(options),
        run_as_user: context.and_then(|context| context.run_as_user).map(id),
        run_as_group: context
            .filter(|context| context.run_as_user.is_some())
            .and_then(|context| context.run_as_group)
            .map(id),
        supplemental_groups: supplemental(spec),
        privileged: all.into_iter().any(privileged),
        ..cri::LinuxSandboxSecurityContext::default()
    };
    let sysctls = context.and_then(|context| context.sysctls.as_ref());
    cri::PodSandboxConfig {
        metadata: Some(cri::PodSandboxMetadata {
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            namespace: meta.namespace.clone().unwrap_or_default(),
            attempt,
        }),
        hostname,
        log_directory: ctx.logs.to_owned(),
        labels: all_labels,
        annotations,
        linux: Some(cri::LinuxPodSandboxConfig {
            cgroup_parent: ctx.group.to_owned(),
            security_context: Some(security),
            sysctls: sysctls
                .into_iter()
                .flatten()
                .map(|sysctl| (sysctl.name.clone(), sysctl.value.clone()))
                .collect(),
            ..cri::LinuxPodSandboxConfig::default()
        }),
        ..cri::PodSandboxConfig::default()
    }
}

fn supplemental(spec: &PodSpec) -> Vec<i64> {
    let context = spec.security_context.as_ref();
    let groups = context.and_then(|context| context.supplemental_groups.clone());
    let own = context.and_then(|context| context.fs_group);
    groups.into_iter().flatten().chain(own).collect()
}

/// Returns the configuration of a container's `attempt`-th start.
pub(crate) fn container(
    pod: &Pod,
    container: &Container,
    process: ProcessSpec,
    amounts: &Amounts,
    image: &str,
    attempt: u32,
    ctx: &RequestContext<'_>,
) -> cri::ContainerConfig {
    let none = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&none);
    let settings = amounts.settings();
    let resources = cri::LinuxContainerResources {
        cpu_period: PERIOD,
        cpu_quota: settings.quota.unwrap_or(0),
        cpu_shares: settings.shares,
        memory_limit_in_bytes: settings.memory_limit.unwrap_or(0),
        oom_score_adj: oom_score_adj(pod, amounts.memory_request, ctx.memory),
        ..cri::LinuxContainerResources::default()
    };
    let mut labels = labels(pod, ctx.owner);
    labels.insert(CONTAINER_NAME.into(), container.name.clone());
    let owned = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect();
    let context = container.security_context.clone().unwrap_or_default();
    let privileged = context.privileged == Some(true);
    let unmasked = privileged || context.proc_mount.as_deref() == Some("Unmasked");
    let capabilities = context.capabilities.map(|set| cri::Capability {
        add_capabilities: set.add.unwrap_or_default(),
        drop_capabilities: set.drop.unwrap_or_default(),
        ..cri::Capability::default()
    });
    let security = cri::LinuxContainerSecurityContext {
        capabilities,
        privileged,
        namespace_options: Some(namespaces(spec, ctx.network)),
        run_as_user: process.uid.map(|uid| id(uid.into())),
        // Runtimes reject a group without a user.
        run_as_group: process.uid.and(process.gid).map(|gid| id(gid.into())),
        readonly_rootfs: context.read_only_root_filesystem == Some(true),
        supplemental_groups: supplemental(spec),
        no_new_privs: context.allow_privilege_escalation == Some(false),
        masked_paths: if unmasked { Vec::new() } else { owned(&MASKED) },
        readonly_paths: if unmasked {
            Vec::new()
        } else {
            owned(&READ_ONLY)
        },
        ..cri::LinuxContainerSecurityContext::default()
    };
    let env = process.env.into_iter();
    cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata {
            name: container.name.clone(),
            attempt,
        }),
        image: Some(cri::ImageSpec {
            image: image.to_owned(),
            user_specified_image: container.image.clone().unwrap_or_default(),
            ..cri::ImageSpec::default()
        }),
        command: process.command,
        args: process.args,
        working_dir: process
            .dir
            .map(|dir| dir.display().to_string())
            .unwrap_or_default(),
        envs: env
            .map(|(key, value)| cri::KeyValue {
                key,
                value: value.into(),
            })
            .collect(),
        labels,
        annotations: BTreeMap::from([(RESTARTS.to_owned(), attempt.to_string())]),
        log_path: format!("{}/{attempt}.log", container.name),
        stdin: container.stdin == Some(true),
        stdin_once: container.stdin_once == Some(true),
        tty: container.tty == Some(true),
        linux: Some(cri::LinuxContainerConfig {
            resources: Some(resources),
            security_context: Some(security),
        }),
        ..cri::ContainerConfig::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{self, HostFacts};
    use serde_json::{Value, json};

    fn pod(spec: Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"app": "a"},
                "annotations": {"note": "x"}},
            "spec": spec,
        }))
        .unwrap()
    }

    const CONTEXT: RequestContext<'static> = RequestContext {
        owner: "/data",
        group: "/kubepods/burstable/podu",
        network: false,
        logs: "/data/logs/n_p_u",
        memory: 8 << 30,
    };

    /// Values of the kubelet's rules in spec, and at their limits.
    #[test]
    fn oom_scores_follow_the_qos_class() {
        let with = |resources: Value, class: &str| {
            let pod = pod(json!({"priorityClassName": class,
                "containers": [{"name": "c", "resources": resources}]}));
            let amounts =
                Amounts::from_container(&pod.spec.as_ref().unwrap().containers[0]).unwrap();
            oom_score_adj(&pod, amounts.memory_request, 8 << 30)
        };
        let both = json!({"limits": {"cpu": "1", "memory": "1Gi"},
            "requests": {"cpu": "1", "memory": "1Gi"}});
        let memory = |amount: &str| json!({"requests": {"memory": amount}});
        assert_eq!(with(both, ""), -997);
        assert_eq!(with(json!({}), ""), 1000);
        assert_eq!(
            with(json!({"requests": {"kubernetes.io/batch-cpu": "1"}}), ""),
            1000
        );
        assert_eq!(with(memory("2Gi"), ""), 750);
        assert_eq!(with(memory("1Ki"), ""), 999);
        assert_eq!(with(memory("16Gi"), ""), 3);
        assert_eq!(with(json!({}), "system-node-critical"), -997);
    }

    #[test]
    fn sandbox_config_carries_pod_labels_and_namespaces() {
        let config = sandbox(&pod(json!({"containers": []})), 2, &CONTEXT);
        let label = |key: &str| config.labels.get(key).map(String::as_str);
        assert_eq!(
            [POD_NAME, POD_NAMESPACE, POD_UID, OWNER, "app"].map(label),
            [Some("p"), Some("n"), Some("u"), Some("/data"), Some("a")]
        );
        let mut liar = pod(json!({"containers": []}));
        let lies = [(POD_UID, "other"), (OWNER, "/other"), ("app", "b")];
        let lies = lies.map(|(key, value)| (key.to_owned(), value.to_owned()));
        liar.metadata.labels = Some(lies.into());
        let lied = sandbox(&liar, 2, &CONTEXT).labels;
        assert_eq!(
            [POD_UID, OWNER, "app"].map(|key| lied[key].as_str()),
            ["u", "/data", "b"]
        );
        assert_eq!(
            config.annotations.get("note").map(String::as_str),
            Some("x")
        );
        let modes = |config: &cri::PodSandboxConfig| {
            let linux = config.linux.clone().unwrap();
            let options = linux.security_context.unwrap().namespace_options.unwrap();
            (options.network(), options.pid(), options.ipc())
        };
        use cri::NamespaceMode::{Container, Node, Pod};
        // The runtime has no network for pods: they use the host's, and its name.
        assert_eq!(modes(&config), (Node, Container, Pod));
        assert_eq!(config.hostname, "");
        let ctx = RequestContext {
            network: true,
            ..CONTEXT
        };
        let config = sandbox(&pod(json!({"containers": [], "hostPID": true})), 0, &ctx);
        assert_eq!(modes(&config), (Pod, Node, Pod));
        assert_eq!(config.hostname, "p");
        let host = json!({"containers": [], "hostNetwork": true, "shareProcessNamespace": true});
        assert_eq!(modes(&sandbox(&pod(host), 0, &ctx)), (Node, Pod, Pod));
    }

    #[test]
    fn containers_get_what_their_pod_asks_for() {
        let pod = pod(json!({"containers": [{
            "name": "c", "image": "i:1", "args": ["$(A)"],
            "env": [{"name": "A", "value": "b"}],
            "resources": {"limits": {"cpu": "500m", "memory": "64Mi"}},
            "securityContext": {"runAsUser": 5, "capabilities": {"drop": ["ALL"]}},
        }]}));
        let container_of = &pod.spec.as_ref().unwrap().containers[0];
        let process =
            command::process_spec(&pod, container_of, &HostFacts::default(), Vec::new()).unwrap();
        let amounts = Amounts::from_container(container_of).unwrap();
        let config = container(
            &pod,
            container_of,
            process,
            &amounts,
            "sha256:1",
            3,
            &CONTEXT,
        );
        assert!(config.command.is_empty());
        assert_eq!(
            (&*config.args, &*config.log_path),
            (&["b".to_owned()][..], "c/3.log")
        );
        assert_eq!(config.envs[0].value, b"b");
        assert_eq!(config.image.unwrap().image, "sha256:1");
        let linux = config.linux.unwrap();
        let got = linux.resources.unwrap();
        assert_eq!(
            (
                got.cpu_shares,
                got.cpu_quota,
                got.cpu_period,
                got.memory_limit_in_bytes
            ),
            (512, 50_000, 100_000, 64 << 20)
        );
        let security = linux.security_context.unwrap();
        assert_eq!(security.run_as_user, Some(id(5)));
        assert_eq!(security.capabilities.unwrap().drop_capabilities, ["ALL"]);
        assert!(security.masked_paths.contains(&"/proc/kcore".to_owned()));
    }
}
