//! API defaulting of built-in kinds.

use serde_json::{Map, Value, json};

use super::{child, objects_mut, set_default, set_default_nonzero};
use crate::crd;
use crate::meta;
use crate::resource::Resource;

type Object = Map<String, Value>;

/// Sets the defaults of a kind's spec.
pub(super) fn default_object(resource: &Resource, object: &mut Value) {
    if crd::is_definition(resource) {
        crd::default_definition(object);
        return;
    }
    let name = meta::name(object).to_owned();
    let Some(root) = object.as_object_mut() else {
        return;
    };
    match (&*resource.group, &*resource.plural) {
        ("", "pods") => {
            if let Some(spec) = child(root, "spec") {
                pod_spec(spec);
                pod_only(spec);
            }
        }
        ("", "namespaces") => {
            if let Some(labels) = child(root, "metadata").and_then(|m| child(m, "labels")) {
                labels.insert("kubernetes.io/metadata.name".to_owned(), name.into());
            }
        }
        ("", "limitranges") => crate::limits::default_range(root),
        ("", "secrets") => secret(root),
        ("", "services") => service(root),
        ("", "nodes") => node(root),
        ("", "persistentvolumes") => {
            if let Some(spec) = child(root, "spec") {
                set_default_nonzero(spec, "persistentVolumeReclaimPolicy", "Retain");
                set_default(spec, "volumeMode", "Filesystem");
            }
        }
        ("", "persistentvolumeclaims") => {
            if let Some(spec) = child(root, "spec") {
                set_default(spec, "volumeMode", "Filesystem");
            }
        }
        ("", "podtemplates") => template(root),
        ("", "replicationcontrollers") => {
            with_replicas(root, &[]);
            controller_selector(root);
        }
        ("apps", "replicasets") => with_replicas(root, &[]),
        ("apps", "deployments") => {
            with_replicas(
                root,
                &[
                    ("revisionHistoryLimit", 10),
                    ("progressDeadlineSeconds", 600),
                ],
            );
            rolling(
                root,
                "strategy",
                json!({"maxUnavailable": "25%", "maxSurge": "25%"}),
            );
        }
        ("apps", "statefulsets") => {
            with_replicas(root, &[("revisionHistoryLimit", 10)]);
            rolling(root, "updateStrategy", json!({"partition": 0}));
            if let Some(spec) = child(root, "spec") {
                set_default_nonzero(spec, "podManagementPolicy", "OrderedReady");
                if let Some(policy) = child(spec, "persistentVolumeClaimRetentionPolicy") {
                    set_default_nonzero(policy, "whenDeleted", "Retain");
                    set_default_nonzero(policy, "whenScaled", "Retain");
                }
            }
        }
        ("apps", "daemonsets") => {
            if let Some(spec) = child(root, "spec") {
                set_default(spec, "revisionHistoryLimit", 10);
                template(spec);
            }
            rolling(
                root,
                "updateStrategy",
                json!({"maxUnavailable": 1, "maxSurge": 0}),
            );
        }
        ("batch", "jobs") => {
            if let Some(spec) = child(root, "spec") {
                job_spec(spec);
            }
        }
        ("batch", "cronjobs") => {
            if let Some(spec) = child(root, "spec") {
                set_default_nonzero(spec, "concurrencyPolicy", "Allow");
                set_default(spec, "suspend", false);
                set_default(spec, "successfulJobsHistoryLimit", 3);
                set_default(spec, "failedJobsHistoryLimit", 1);
                if let Some(job) = child(spec, "jobTemplate").and_then(|t| child(t, "spec"))
                    && let Some(template) = child(job, "template").and_then(|t| child(t, "spec"))
                {
                    pod_spec(template);
                }
            }
        }
        ("scheduling.k8s.io", "priorityclasses") => {
            set_default(root, "preemptionPolicy", "PreemptLowerPriority");
        }
        ("storage.k8s.io", "storageclasses") => {
            set_default(root, "reclaimPolicy", "Delete");
            set_default(root, "volumeBindingMode", "Immediate");
        }
        ("rbac.authorization.k8s.io", "rolebindings" | "clusterrolebindings") => {
            if let Some(role) = root.get_mut("roleRef").and_then(Value::as_object_mut) {
                set_default_nonzero(role, "apiGroup", "rbac.authorization.k8s.io");
            }
            for subject in objects_mut(root, "subjects") {
                if matches!(
                    subject.get("kind").and_then(Value::as_str),
                    Some("User" | "Group")
                ) {
                    set_default_nonzero(subject, "apiGroup", "rbac.authorization.k8s.io");
                }
            }
        }
        ("admissionregistration.k8s.io", "mutatingwebhookconfigurations") => webhooks(root, true),
        ("admissionregistration.k8s.io", "validatingwebhookconfigurations") => {
            webhooks(root, false);
        }
        _ => {}
    }
}

fn with_replicas(root: &mut Object, numbers: &[(&str, i64)]) {
    if let Some(spec) = child(root, "spec") {
        set_default(spec, "replicas", 1);
        for (key, n) in numbers {
            set_default(spec, key, *n);
        }
        template(spec);
    }
}

fn controller_selector(root: &mut Object) {
    let labels = root
        .get("spec")
        .and_then(|s| meta::at(s, &["template", "metadata", "labels"]))
        .cloned();
    if let (Some(labels), Some(spec)) = (labels, child(root, "spec")) {
        set_default(spec, "selector", labels);
    }
}

fn template(parent: &mut Object) {
    if let Some(Value::Object(template)) = parent.get_mut("template")
        && let Some(spec) = child(template, "spec")
    {
        pod_spec(spec);
    }
}

/// Sets the defaults of an update strategy whose default is `RollingUpdate`.
fn rolling(root: &mut Object, key: &str, defaults: Value) {
    let Some(strategy) = child(root, "spec").and_then(|s| child(s, key)) else {
        return;
    };
    set_default_nonzero(strategy, "type", "RollingUpdate");
    if strategy.get("type").and_then(Value::as_str) != Some("RollingUpdate") {
        return;
    }
    if let (Some(params), Value::Object(defaults)) = (child(strategy, "rollingUpdate"), defaults) {
        for (k, v) in defaults {
            set_default(params, &k, v);
        }
    }
}

/// Sets the defaults of the spec of a Job.
fn job_spec(spec: &mut Object) {
    if !spec.contains_key("completions") && !spec.contains_key("parallelism") {
        spec.insert("completions".to_owned(), 1.into());
    }
    set_default(spec, "parallelism", 1);
    let limit = if spec.contains_key("backoffLimitPerIndex") {
        i32::MAX
    } else {
        6
    };
    set_default(spec, "backoffLimit", limit);
    set_default(spec, "completionMode", "NonIndexed");
    set_default(spec, "suspend", false);
    let policy = if spec.contains_key("podFailurePolicy") {
        "Failed"
    } else {
        "TerminatingOrFailed"
    };
    set_default(spec, "podReplacementPolicy", policy);
    template(spec);
}

fn secret(root: &mut Object) {
    use base64::Engine as _;
    set_default_nonzero(root, "type", "Opaque");
    // `stringData` is write-only: it is moved, encoded, to `data`.
    if let Some(Value::Object(plain)) = root.remove("stringData")
        && let Some(data) = child(root, "data")
    {
        for (k, v) in plain {
            let text = v.as_str().unwrap_or_default();
            data.insert(
                k,
                base64::engine::general_purpose::STANDARD
                    .encode(text)
                    .into(),
            );
        }
    }
}

fn service(root: &mut Object) {
    let Some(spec) = child(root, "spec") else {
        return;
    };
    set_default_nonzero(spec, "sessionAffinity", "None");
    set_default_nonzero(spec, "type", "ClusterIP");
    if spec.get("type").and_then(Value::as_str) != Some("ExternalName") {
        set_default(spec, "internalTrafficPolicy", "Cluster");
        set_default(spec, "ipFamilyPolicy", "SingleStack");
    }
    for port in objects_mut(spec, "ports") {
        set_default_nonzero(port, "protocol", "TCP");
        if let Some(number) = port.get("port").cloned() {
            set_default(port, "targetPort", number);
        }
    }
}

fn node(root: &mut Object) {
    let Some(Value::Object(status)) = root.get_mut("status") else {
        return;
    };
    if let Some(capacity) = status.get("capacity").cloned() {
        set_default(status, "allocatable", capacity);
    }
}

fn webhooks(root: &mut Object, mutating: bool) {
    for hook in objects_mut(root, "webhooks") {
        set_default(hook, "failurePolicy", "Fail");
        set_default(hook, "matchPolicy", "Equivalent");
        set_default(hook, "namespaceSelector", json!({}));
        set_default(hook, "objectSelector", json!({}));
        set_default(hook, "timeoutSeconds", 10);
        if mutating {
            set_default(hook, "reinvocationPolicy", "Never");
        }
        for rule in objects_mut(hook, "rules") {
            set_default(rule, "scope", "*");
        }
        if let Some(Value::Object(config)) = hook.get_mut("clientConfig")
            && let Some(Value::Object(service)) = config.get_mut("service")
        {
            set_default(service, "port", 443);
        }
    }
}

/// Applies the defaults that pods and pod templates share.
fn pod_spec(spec: &mut Object) {
    set_default_nonzero(spec, "dnsPolicy", "ClusterFirst");
    set_default_nonzero(spec, "restartPolicy", "Always");
    set_default(spec, "terminationGracePeriodSeconds", 30);
    set_default_nonzero(spec, "schedulerName", "default-scheduler");
    set_default(spec, "securityContext", json!({}));
    let host_network = spec
        .get("hostNetwork")
        .and_then(Value::as_bool)
        .unwrap_or(false);
    for key in ["initContainers", "containers", "ephemeralContainers"] {
        for c in objects_mut(spec, key) {
            container(c, host_network, key != "ephemeralContainers");
        }
    }
    for volume in objects_mut(spec, "volumes") {
        default_volume(volume);
    }
}

/// Applies the defaults of pods that templates do not get, so that both stay comparable.
fn pod_only(spec: &mut Object) {
    set_default(spec, "enableServiceLinks", true);
    for key in ["initContainers", "containers"] {
        for c in objects_mut(spec, key) {
            let Some(Value::Object(resources)) = c.get_mut("resources") else {
                continue;
            };
            let Some(Value::Object(limits)) = resources.get("limits").cloned() else {
                continue;
            };
            if let Some(requests) = child(resources, "requests") {
                for (name, quantity) in limits {
                    requests.entry(name).or_insert(quantity);
                }
            }
        }
    }
}

/// Returns the default pull policy: `Always` for images without a fixed tag.
fn pull_policy(image: &str) -> &'static str {
    if image.contains('@') {
        return "IfNotPresent";
    }
    let last = image.rsplit('/').next().unwrap_or(image);
    match last.split_once(':') {
        None | Some((_, "latest")) => "Always",
        Some(_) => "IfNotPresent",
    }
}

/// Sets the defaults of a container.
fn container(c: &mut Object, host_network: bool, has_resources: bool) {
    set_default_nonzero(c, "terminationMessagePath", "/dev/termination-log");
    set_default_nonzero(c, "terminationMessagePolicy", "File");
    let policy = pull_policy(c.get("image").and_then(Value::as_str).unwrap_or(""));
    set_default_nonzero(c, "imagePullPolicy", policy);
    if has_resources {
        set_default(c, "resources", json!({}));
    }
    for port in objects_mut(c, "ports") {
        set_default_nonzero(port, "protocol", "TCP");
        if host_network && let Some(number) = port.get("containerPort").cloned() {
            set_default_nonzero(port, "hostPort", number);
        }
    }
    for key in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(Value::Object(probe)) = c.get_mut(key) {
            set_default_nonzero(probe, "timeoutSeconds", 1);
            set_default_nonzero(probe, "periodSeconds", 10);
            set_default_nonzero(probe, "successThreshold", 1);
            set_default_nonzero(probe, "failureThreshold", 3);
            handler(probe);
        }
    }
    if let Some(Value::Object(lifecycle)) = c.get_mut("lifecycle") {
        for key in ["postStart", "preStop"] {
            if let Some(Value::Object(h)) = lifecycle.get_mut(key) {
                handler(h);
            }
        }
    }
    for env in objects_mut(c, "env") {
        if let Some(Value::Object(from)) = env.get_mut("valueFrom") {
            field_ref(from);
        }
    }
}

/// Sets the defaults of the action of a probe or a lifecycle hook.
fn handler(h: &mut Object) {
    if let Some(Value::Object(get)) = h.get_mut("httpGet") {
        set_default_nonzero(get, "path", "/");
        set_default_nonzero(get, "scheme", "HTTP");
    }
    if let Some(Value::Object(grpc)) = h.get_mut("grpc") {
        set_default(grpc, "service", "");
    }
}

fn field_ref(parent: &mut Object) {
    if let Some(Value::Object(field)) = parent.get_mut("fieldRef") {
        set_default_nonzero(field, "apiVersion", "v1");
    }
}

/// Sets the defaults of a volume.
fn default_volume(volume: &mut Object) {
    // A volume without a source is an emptyDir.
    if volume.keys().all(|k| k == "name") {
        volume.insert("emptyDir".to_owned(), json!({}));
    }
    for key in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(Value::Object(source)) = volume.get_mut(key) {
            set_default(source, "defaultMode", 420);
            for item in objects_mut(source, "items") {
                field_ref(item);
            }
            for part in objects_mut(source, "sources") {
                if let Some(Value::Object(token)) = part.get_mut("serviceAccountToken") {
                    set_default(token, "expirationSeconds", 3600);
                }
                if let Some(Value::Object(api)) = part.get_mut("downwardAPI") {
                    for item in objects_mut(api, "items") {
                        field_ref(item);
                    }
                }
            }
        }
    }
    if let Some(Value::Object(host)) = volume.get_mut("hostPath") {
        set_default(host, "type", "");
    }
}
