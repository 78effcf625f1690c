//! The manifests in `deploy/` and the commands in their READMEs: what all programs have in common. Each
//! program's crate tests that the RBAC rules match what it uses.

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::PathBuf;

const DEPLOYMENTS: [&str; 3] = ["descheduler", "manager", "scheduler"];
const DAEMON_SETS: [&str; 2] = ["koordlet", "topology-exporter"];

fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
    let deployments = DEPLOYMENTS.iter().map(|dir| (*dir, "deployment.yaml"));
    deployments.chain(DAEMON_SETS.iter().map(|dir| (*dir, "daemonset.yaml")))
}

fn path(dir: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../deploy")
        .join(dir)
}

fn documents(dir: &str, file: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(path(dir).join(file)).unwrap();
    let documents = text.split("\n---\n");
    documents
        .map(|text| serde_saphyr::from_str(text).unwrap())
        .collect()
}

/// Returns the only object of `kind`.
fn only(dir: &str, file: &str, kind: &str) -> Value {
    let objects = documents(dir, file)
        .into_iter()
        .filter(|it| it["kind"] == kind);
    let objects: Vec<Value> = objects.collect();
    assert_eq!(objects.len(), 1, "{dir}/{file}: {kind}");
    objects[0].clone()
}

fn pod(dir: &str, file: &str) -> Value {
    documents(dir, file)[0]["spec"]["template"]["spec"].clone()
}

/// Returns the commands that install the program: the first block of its README.
fn commands(dir: &str) -> Vec<String> {
    let text = std::fs::read_to_string(path(dir).join("README.md")).unwrap();
    let (_, block) = text.split_once("```console\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    block.lines().map(str::to_owned).collect()
}

#[test]
fn readme_installs_rights_before_the_program() {
    for (dir, workload) in all() {
        let commands = commands(dir);
        let at = |what: &str| {
            let position = commands.iter().position(|line| line.contains(what));
            position.unwrap_or_else(|| panic!("{dir}: no {what} in {commands:#?}"))
        };
        let mut files: Vec<_> = std::fs::read_dir(path(dir)).unwrap().flatten().collect();
        files.retain(|file| file.path().extension().is_some_and(|it| it == "yaml"));
        for file in files {
            at(file.file_name().to_str().unwrap());
        }
        assert!(at("rbac.yaml") < at(workload), "{dir}: {commands:#?}");
        let config = commands.iter().find(|line| line.contains("config.yaml"));
        if let Some(config) = config {
            let create = config.starts_with("kubectl create -f config.yaml");
            assert!(create, "{dir}: settings of users stay: {config}");
            assert!(at("config.yaml") < at(workload), "{dir}: {commands:#?}");
        }
        // Applied over Koordinator's objects, the manifests would be merged. Koordinator has no topology
        // exporter.
        let mut applied = commands
            .iter()
            .filter(|line| line.contains("kubectl apply"));
        let allowed = |line: &str| dir == "topology-exporter" || line.starts_with("koord crds");
        assert!(applied.all(|line| allowed(line)), "{dir}: {commands:#?}");
    }
    let manager = commands("manager");
    let last = manager.last().unwrap();
    assert!(last.starts_with("put webhooks.yaml"), "{last}");
    assert!(
        manager[manager.len() - 2].contains("rollout status"),
        "{manager:#?}"
    );
}

#[test]
fn resource_requests_match_measurements() {
    for (dir, file) in all() {
        let resources = pod(dir, file)["containers"][0]["resources"].clone();
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
        let deployment = &documents(dir, "deployment.yaml")[0];
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
    let pod = pod("topology-exporter", "daemonset.yaml");
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
        let document = only(dir, "node-policy.yaml", "ValidatingAdmissionPolicy");
        let policy: ValidatingAdmissionPolicy = serde_json::from_value(document.clone()).unwrap();
        assert_eq!(
            serde_json::to_value(&policy).unwrap(),
            document,
            "fields of the API only"
        );
        let spec = policy.spec.as_ref().unwrap();
        assert_eq!(spec.failure_policy.as_deref(), Some("Fail"));
        let account = only(dir, "rbac.yaml", "ServiceAccount")["metadata"].clone();
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
        let role = only(dir, "rbac.yaml", "ClusterRole");
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

        let binding = only(dir, "node-policy.yaml", "ValidatingAdmissionPolicyBinding");
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
