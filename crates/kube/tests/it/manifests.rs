//! The manifests in `deploy/`, which are rendered from the chart: what all programs have in common. Each program's crate
//! tests that the RBAC rules match what it uses, and koordctl's that the files are those of the chart.

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::PathBuf;

const DEPLOYMENTS: [&str; 3] = ["descheduler", "manager", "scheduler"];
const DAEMON_SETS: [&str; 2] = ["koordlet", "topology-exporter"];
const NAMESPACE: &str = "koordinator-system";

fn all() -> impl Iterator<Item = &'static str> {
    DEPLOYMENTS.into_iter().chain(DAEMON_SETS)
}

fn path(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../deploy")
        .join(file)
}

/// Returns the objects of a file in `deploy/`.
fn documents(file: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(path(file)).unwrap();
    let documents = text.split("\n---\n");
    documents
        .map(|text| serde_saphyr::from_str(text).unwrap())
        .collect()
}

/// Returns the manifest of a component.
fn manifest(dir: &str) -> Vec<Value> {
    documents(&format!("{dir}/{dir}.yaml"))
}

/// Returns the objects of a kind in a manifest.
fn of_kind<'a>(objects: &'a [Value], kind: &str) -> impl Iterator<Item = &'a Value> {
    objects.iter().filter(move |it| it["kind"] == kind)
}

/// Returns the only object of `kind` in the manifest of a component.
fn only(dir: &str, kind: &str) -> Value {
    let objects = manifest(dir);
    let objects: Vec<&Value> = of_kind(&objects, kind).collect();
    assert_eq!(objects.len(), 1, "{dir}: {kind}");
    objects[0].clone()
}

fn workload(dir: &str) -> Value {
    let is_deployment = DEPLOYMENTS.contains(&dir);
    only(
        dir,
        if is_deployment {
            "Deployment"
        } else {
            "DaemonSet"
        },
    )
}

fn pod(dir: &str) -> Value {
    workload(dir)["spec"]["template"]["spec"].clone()
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap()
}

/// Asserts that an object of a kind and name is among those before.
#[track_caller]
fn assert_present(before: &[Value], kind: &str, wanted: &Value) {
    let mut matching = of_kind(before, kind);
    assert!(
        matching.any(|it| it["metadata"]["name"] == *wanted),
        "no {kind} {wanted} before"
    );
}

#[test]
fn objects_follow_those_that_they_need() {
    let files = all().map(|dir| format!("{dir}/{dir}.yaml"));
    for file in files.chain(["install.yaml".to_owned()]) {
        let objects = documents(&file);
        for (at, object) in objects.iter().enumerate() {
            let before = &objects[..at];
            if let Some(namespace) = object["metadata"].get("namespace") {
                assert_present(before, "Namespace", namespace);
            }
            if object["roleRef"].is_object() {
                let kind = object["roleRef"]["kind"].as_str().unwrap();
                assert_present(before, kind, &object["roleRef"]["name"]);
                let subjects = object["subjects"].as_array().unwrap();
                for subject in subjects {
                    assert_present(before, "ServiceAccount", &subject["name"]);
                }
            }
            let pod = &object["spec"]["template"]["spec"];
            if pod.is_object() {
                assert_present(before, "ServiceAccount", &pod["serviceAccountName"]);
                let class = pod["priorityClassName"].as_str().unwrap_or("system-");
                if !class.starts_with("system-") {
                    assert_present(before, "PriorityClass", &json!(class));
                }
                for volume in pod["volumes"].as_array().into_iter().flatten() {
                    if volume["configMap"].is_object() {
                        assert_present(before, "ConfigMap", &volume["configMap"]["name"]);
                    }
                }
            }
            let is_webhook = |it: &Value| it["webhooks"].is_array();
            if is_webhook(object) {
                assert!(objects[at..].iter().all(is_webhook), "{file}: {object}");
                for entry in object["webhooks"].as_array().unwrap() {
                    let service = &entry["clientConfig"]["service"];
                    assert_present(before, "Service", &service["name"]);
                    // Pods are created unchanged until the manager answers.
                    assert_eq!(entry["failurePolicy"], "Ignore", "{file}");
                }
            }
        }
    }
}

#[test]
fn install_manifest_has_the_objects_of_all_components() {
    let id = |object: &Value| (object["kind"].to_string(), name(object).to_owned());
    let install = documents("install.yaml");
    let in_all: BTreeSet<_> = install.iter().map(id).collect();
    assert_eq!(in_all.len(), install.len(), "rendered twice");
    let definitions = of_kind(&install, "CustomResourceDefinition").count();
    assert_eq!(definitions, 14);
    // The exporter is an option of koordlet in the whole.
    let parts = all().filter(|dir| *dir != "topology-exporter");
    let parts: BTreeSet<_> = parts.flat_map(manifest).map(|it| id(&it)).collect();
    let more: Vec<_> = in_all.difference(&parts).collect();
    assert!(
        more.iter().all(|it| it.0.contains("Definition")),
        "{more:?}"
    );
    assert!(parts.is_subset(&in_all));
    for dir in all() {
        assert_eq!(name(&only(dir, "Namespace")), NAMESPACE);
        assert_eq!(of_kind(&manifest(dir), "PriorityClass").count(), 4);
    }
}

#[test]
fn readme_applies_the_manifest() {
    for dir in all() {
        let text = std::fs::read_to_string(path(dir).join("README.md")).unwrap();
        let (_, block) = text.split_once("```console\n").unwrap();
        let (block, _) = block.split_once("```").unwrap();
        let lines: Vec<&str> = block.lines().collect();
        let at = |what: &str| {
            let position = lines.iter().position(|line| line.contains(what));
            position.unwrap_or_else(|| panic!("{dir}: no {what} in {block}"))
        };
        let apply = "kubectl apply --server-side -f ";
        let manifest = format!("{apply}{dir}.yaml");
        assert!(at(&format!("{apply}../../crates/api/crds")) < at(&manifest));
        let mut files = std::fs::read_dir(path(dir)).unwrap().flatten();
        let only = format!("{dir}.yaml");
        assert!(
            files.all(|file| [&*only, "README.md"].contains(&file.file_name().to_str().unwrap())),
            "{dir}"
        );
    }
}

#[test]
fn resource_requests_match_measurements() {
    for dir in all() {
        let resources = pod(dir)["containers"][0]["resources"].clone();
        let number = |field: &str, unit: &str| {
            let text = resources["requests"][field].as_str().unwrap();
            text.strip_suffix(unit).unwrap().parse::<u32>().unwrap()
        };
        // koordlet uses 17.6 m and 27 MiB with 750 containers; the others 3 m and 6 MiB in small clusters.
        assert!((1..=20).contains(&number("cpu", "m")), "{dir}: {resources}");
        assert!(
            (16..=64).contains(&number("memory", "Mi")),
            "{dir}: {resources}"
        );
        let has_limit = resources["limits"]["cpu"].is_string();
        assert_eq!(has_limit, DEPLOYMENTS.contains(&dir), "{dir}: {resources}");
    }
}

#[test]
fn replicas_are_spread_over_nodes() {
    for dir in DEPLOYMENTS {
        let deployment = workload(dir);
        let template = &deployment["spec"]["template"];
        // Only pods of one revision count: a rolling update has both on a node for a while. On a single node
        // the skew is 0.
        let expected = json!([{
            "maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "DoNotSchedule", "nodeTaintsPolicy": "Honor",
            "matchLabelKeys": ["pod-template-hash"],
            "labelSelector": {"matchLabels": template["metadata"]["labels"]},
        }]);
        assert_eq!(
            template["spec"]["topologySpreadConstraints"], expected,
            "{dir}"
        );
        assert_eq!(template["spec"]["affinity"], Value::Null, "{dir}");
    }
}

#[test]
fn exporter_mounts_no_keys_and_no_secrets() {
    let pod = pod("topology-exporter");
    let paths: Vec<_> = pod["volumes"].as_array().unwrap().iter().collect();
    let paths: Vec<_> = paths
        .iter()
        .map(|it| it["hostPath"]["path"].as_str().unwrap())
        .collect();
    assert_eq!(
        paths,
        [
            "/var/lib/kubelet/pod-resources",
            "/var/lib/kubelet/config.yaml"
        ]
    );
    let mounts = pod["containers"][0]["volumeMounts"].as_array().unwrap();
    assert!(mounts.iter().all(|mount| mount["readOnly"] == true));
}

/// Returns the resources that a policy covers, as `resource.group`.
fn policed(policy: &ValidatingAdmissionPolicy) -> BTreeSet<String> {
    let constraints = policy
        .spec
        .as_ref()
        .unwrap()
        .match_constraints
        .clone()
        .unwrap();
    let mut out = BTreeSet::new();
    for rule in constraints.resource_rules.unwrap() {
        assert_eq!(rule.operations.unwrap(), ["CREATE", "UPDATE"]);
        let groups = rule.api_groups.unwrap();
        for resource in rule.resources.unwrap() {
            out.extend(groups.iter().map(|group| format!("{resource}.{group}")));
        }
    }
    out
}

#[test]
fn node_policies_bind_all_that_is_written() {
    for dir in DAEMON_SETS {
        let document = only(dir, "ValidatingAdmissionPolicy");
        let policy: ValidatingAdmissionPolicy = serde_json::from_value(document.clone()).unwrap();
        assert_eq!(
            serde_json::to_value(&policy).unwrap(),
            document,
            "fields of the API only"
        );
        let spec = policy.spec.as_ref().unwrap();
        assert_eq!(spec.failure_policy.as_deref(), Some("Fail"));
        let account = only(dir, "ServiceAccount")["metadata"].clone();
        let (namespace, name) = (account["namespace"].as_str(), account["name"].as_str());
        let user = format!(
            "system:serviceaccount:{}:{}",
            namespace.unwrap(),
            name.unwrap()
        );
        let conditions = spec.match_conditions.as_ref().unwrap();
        let expected = format!("request.userInfo.username == {user:?}");
        assert_eq!(conditions[0].expression, expected);

        // All writes that its role allows except evictions, which are not objects of the node.
        let role = only(dir, "ClusterRole");
        let mut written = BTreeSet::new();
        for rule in role["rules"].as_array().unwrap() {
            let list = |field: &str| rule[field].as_array().unwrap().clone();
            let reads = [json!("get"), json!("list"), json!("watch")];
            if list("verbs").iter().all(|verb| reads.contains(verb)) {
                continue;
            }
            for (group, resource) in list("apiGroups").iter().zip(list("resources")) {
                written.insert(format!(
                    "{}.{}",
                    resource.as_str().unwrap(),
                    group.as_str().unwrap()
                ));
            }
        }
        written.remove("pods/eviction.");
        assert_eq!(policed(&policy), written, "{dir}");

        let binding = only(dir, "ValidatingAdmissionPolicyBinding");
        let typed: ValidatingAdmissionPolicyBinding =
            serde_json::from_value(binding.clone()).unwrap();
        assert_eq!(
            serde_json::to_value(&typed).unwrap(),
            binding,
            "fields of the API only"
        );
        let spec = typed.spec.unwrap();
        assert_eq!(spec.policy_name, policy.metadata.name);
        assert_eq!(spec.validation_actions.unwrap(), ["Deny"]);
    }
}
