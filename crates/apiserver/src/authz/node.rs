//! Node authorizer: nodes may access their own objects and what their pods refer to.
//!
//! Nodes have no binding. [`bootstrap::node_rules`](super::bootstrap::node_rules) bounds what they may do at
//! all; this module decides for which objects, as Kubernetes' node authorizer does. Checks that need more
//! than the request's path are part of admission (`rest/admission/nodes.rs`).

use super::{Attributes, ResourceTarget, Rule, Target};
use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::Value;
use std::sync::Arc;

/// Namespace of the nodes' leases.
pub const LEASES: &str = "kube-node-lease";

/// Kinds of objects that pods refer to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum ReferenceKind {
    Secret,
    ConfigMap,
    Claim,
    ResourceClaim,
    Account,
}

#[derive(Debug)]
struct NodePod {
    node: Arc<str>,
    refers: FxHashSet<(ReferenceKind, String)>,
}

/// A volume that is bound to a claim.
#[derive(Debug)]
struct Volume {
    /// Namespace and name of the claim.
    claim: (String, String),
    /// Namespaces and names of the secrets needed to mount it.
    secrets: FxHashSet<(String, String)>,
}

/// Namespace and name.
type NamespacedName = (Arc<str>, Arc<str>);

/// Group and plural of the kinds that a [`Graph`] is built from.
pub const GRAPH: [(&str, &str); 3] = [
    ("", "pods"),
    ("", "persistentvolumes"),
    ("storage.k8s.io", "volumeattachments"),
];

/// Pods of each node, and the objects they refer to.
#[derive(Debug, Default)]
pub struct Graph {
    pods: FxHashMap<NamespacedName, NodePod>,
    by_node: FxHashMap<Arc<str>, FxHashSet<NamespacedName>>,
    volumes: FxHashMap<String, Volume>,
    /// Node of each volume attachment.
    attached: FxHashMap<String, String>,
}

impl Graph {
    /// Adds or replaces an object of one of the kinds of [`GRAPH`].
    pub fn put(&mut self, plural: &str, namespace: &str, name: &str, object: &Value) {
        self.remove(plural, namespace, name);
        let spec = &object["spec"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        match plural {
            "pods" => self.put_pod(namespace, name, object),
            "persistentvolumes" => {
                let claim = &spec["claimRef"];
                let claim = (text(&claim["namespace"]), text(&claim["name"]));
                if !claim.1.is_empty() {
                    let secrets = mounted_with(spec, &claim.0);
                    let volume = Volume { claim, secrets };
                    self.volumes.insert(name.to_owned(), volume);
                }
            }
            _ => {
                self.attached
                    .insert(name.to_owned(), text(&spec["nodeName"]));
            }
        }
    }

    fn put_pod(&mut self, namespace: &str, name: &str, pod: &Value) {
        let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
        if node.is_empty() {
            return;
        }
        let key: NamespacedName = (namespace.into(), name.into());
        let node: Arc<str> = node.into();
        let on_node = self.by_node.entry(Arc::clone(&node)).or_default();
        on_node.insert(key.clone());
        let refers = pod_references(name, pod);
        self.pods.insert(key, NodePod { node, refers });
    }

    /// Removes an object of one of the kinds of [`GRAPH`].
    pub fn remove(&mut self, plural: &str, namespace: &str, name: &str) {
        match plural {
            "pods" => self.remove_pod(namespace, name),
            "persistentvolumes" => drop(self.volumes.remove(name)),
            _ => drop(self.attached.remove(name)),
        }
    }

    fn remove_pod(&mut self, namespace: &str, name: &str) {
        let key: NamespacedName = (namespace.into(), name.into());
        let Some(pod) = self.pods.remove(&key) else {
            return;
        };
        if let Some(on_node) = self.by_node.get_mut(&pod.node) {
            on_node.remove(&key);
            if on_node.is_empty() {
                self.by_node.remove(&pod.node);
            }
        }
    }

    fn has_pod(&self, node: &str, namespace: &str, name: &str) -> bool {
        let key: NamespacedName = (namespace.into(), name.into());
        self.pods.get(&key).is_some_and(|pod| *pod.node == *node)
    }

    /// Returns true if a pod of the node refers to the object.
    fn refers(&self, node: &str, kind: ReferenceKind, namespace: &str, name: &str) -> bool {
        let of = (kind, name.to_owned());
        let pods = self.by_node.get(node).into_iter().flatten();
        let mut pods = pods.filter(|key| *key.0 == *namespace);
        pods.any(|key| {
            self.pods
                .get(key)
                .is_some_and(|pod| pod.refers.contains(&of))
        })
    }

    /// Returns true if a pod of the node uses the volume by its claim.
    fn uses(&self, node: &str, volume: &Volume) -> bool {
        let (namespace, name) = &volume.claim;
        self.refers(node, ReferenceKind::Claim, namespace, name)
    }

    /// Returns true if a pod of the node needs the secret, itself or for a volume.
    fn needs(&self, node: &str, namespace: &str, name: &str) -> bool {
        let secret = (namespace.to_owned(), name.to_owned());
        self.refers(node, ReferenceKind::Secret, namespace, name)
            || self
                .volumes
                .values()
                .any(|volume| volume.secrets.contains(&secret) && self.uses(node, volume))
    }

    /// Checks a request of `node`, which `rules` must allow to nodes in general.
    ///
    /// # Errors
    /// The reason; empty if nodes may not do this at all.
    pub fn check(
        &self,
        node: &str,
        attributes: &Attributes<'_>,
        rules: &[Rule],
    ) -> Result<(), String> {
        if !rules.iter().any(|rule| rule.allows(attributes)) {
            return Err(String::new());
        }
        let Target::Resource(target) = &attributes.target else {
            return Ok(());
        };
        let verb = attributes.verb;
        let ResourceTarget {
            namespace, name, ..
        } = *target;
        let when = |holds: bool, reason: &str| {
            if holds {
                Ok(())
            } else {
                Err(reason.to_owned())
            }
        };
        let related = |holds: bool| {
            let reason = format!("no relationship found between node '{node}' and this object");
            when(holds && !name.is_empty(), &reason)
        };
        let refers = |kind| related(self.refers(node, kind, namespace, name));
        match (target.group, target.resource, target.subresource) {
            ("", "secrets", _) => related(self.needs(node, namespace, name)),
            ("", "configmaps", _) => refers(ReferenceKind::ConfigMap),
            ("", "persistentvolumeclaims", _) => refers(ReferenceKind::Claim),
            ("resource.k8s.io", "resourceclaims", _) => refers(ReferenceKind::ResourceClaim),
            ("", "serviceaccounts", _) => refers(ReferenceKind::Account),
            ("", "persistentvolumes", _) => {
                let volume = self.volumes.get(name);
                related(volume.is_some_and(|volume| self.uses(node, volume)))
            }
            ("storage.k8s.io", "volumeattachments", _) => {
                related(self.attached.get(name).is_some_and(|at| at == node))
            }
            // New objects have no name here, and changes are checked by admission.
            ("", "nodes", _) => {
                let reason =
                    format!("node '{node}' cannot read '{name}', only its own Node object");
                when(
                    name == node || !matches!(verb, "get" | "list" | "watch"),
                    &reason,
                )
            }
            ("", "pods", "") if matches!(verb, "list" | "watch") && name.is_empty() => when(
                target.node == node,
                "can only list/watch pods with spec.nodeName field selector",
            ),
            ("", "pods", "") if verb == "create" => Ok(()),
            ("", "pods", _) => related(self.has_pod(node, namespace, name)),
            ("coordination.k8s.io", "leases", _) if namespace != LEASES => Err(format!(
                "can only access leases in the {LEASES:?} system namespace"
            )),
            ("coordination.k8s.io", "leases", _) => when(
                name == node || verb == "create",
                "can only access node lease with the same name as the requesting node",
            ),
            ("storage.k8s.io", "csinodes", _) => when(
                name == node || verb == "create",
                "can only access CSINode with the same name as the requesting node",
            ),
            _ => Ok(()),
        }
    }
}

/// Volume fields of the drivers that take a secret as `secretRef`.
const DRIVERS: [&str; 6] = [
    "cephfs",
    "rbd",
    "iscsi",
    "flexVolume",
    "scaleIO",
    "storageos",
];

/// Returns the secrets with which a kubelet mounts a volume; `claim` is the namespace of its claim.
fn mounted_with(spec: &Value, claim: &str) -> FxHashSet<(String, String)> {
    fn text(value: &Value) -> Option<&str> {
        value.as_str().filter(|text| !text.is_empty())
    }
    let of_drivers = DRIVERS.iter().map(|driver| &spec[driver]["secretRef"]);
    let csi = [
        "nodePublishSecretRef",
        "nodeStageSecretRef",
        "nodeExpandSecretRef",
    ];
    let of_csi = csi.iter().map(|field| &spec["csi"][field]);
    let azure = &spec["azureFile"];
    let azure = (text(&azure["secretNamespace"]), text(&azure["secretName"]));
    let references = of_drivers.chain(of_csi);
    references
        .map(|secret| (text(&secret["namespace"]), text(&secret["name"])))
        .chain([azure])
        .filter_map(|(namespace, name)| {
            Some((namespace.unwrap_or(claim).to_owned(), name?.to_owned()))
        })
        .collect()
}

/// Returns the objects that a pod refers to, all in its own namespace.
fn pod_references(name: &str, pod: &Value) -> FxHashSet<(ReferenceKind, String)> {
    let mut matches = FxHashSet::default();
    let spec = &pod["spec"];
    let mut add = |kind, name: &Value| {
        if let Some(name) = name.as_str().filter(|name| !name.is_empty()) {
            matches.insert((kind, name.to_owned()));
        }
    };
    add(ReferenceKind::Account, &spec["serviceAccountName"]);
    for secret in items(&spec["imagePullSecrets"]) {
        add(ReferenceKind::Secret, &secret["name"]);
    }
    let lists = ["containers", "initContainers", "ephemeralContainers"];
    for container in lists.iter().flat_map(|list| items(&spec[list])) {
        for from in items(&container["envFrom"]) {
            add(ReferenceKind::ConfigMap, &from["configMapRef"]["name"]);
            add(ReferenceKind::Secret, &from["secretRef"]["name"]);
        }
        for variable in items(&container["env"]) {
            let from = &variable["valueFrom"];
            add(ReferenceKind::ConfigMap, &from["configMapKeyRef"]["name"]);
            add(ReferenceKind::Secret, &from["secretKeyRef"]["name"]);
        }
    }
    for volume in items(&spec["volumes"]) {
        add(ReferenceKind::Secret, &volume["secret"]["secretName"]);
        add(ReferenceKind::ConfigMap, &volume["configMap"]["name"]);
        add(
            ReferenceKind::Claim,
            &volume["persistentVolumeClaim"]["claimName"],
        );
        if volume.get("ephemeral").is_some()
            && let Some(volume) = volume["name"].as_str()
        {
            add(ReferenceKind::Claim, &format!("{name}-{volume}").into());
        }
        for source in items(&volume["projected"]["sources"]) {
            add(ReferenceKind::Secret, &source["secret"]["name"]);
            add(ReferenceKind::ConfigMap, &source["configMap"]["name"]);
        }
        for driver in DRIVERS {
            add(ReferenceKind::Secret, &volume[driver]["secretRef"]["name"]);
        }
        add(ReferenceKind::Secret, &volume["azureFile"]["secretName"]);
        add(
            ReferenceKind::Secret,
            &volume["csi"]["nodePublishSecretRef"]["name"],
        );
    }
    for claim in items(&spec["resourceClaims"]) {
        add(ReferenceKind::ResourceClaim, &claim["resourceClaimName"]);
    }
    for claim in items(&pod["status"]["resourceClaimStatuses"]) {
        add(ReferenceKind::ResourceClaim, &claim["resourceClaimName"]);
    }
    matches
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authz::bootstrap::node_rules;
    use crate::authz::{NODES, User, node_of};
    use serde_json::json;

    fn graph() -> Graph {
        let mut graph = Graph::default();
        let pod = json!({"spec": {
            "nodeName": "n1",
            "serviceAccountName": "web",
            "imagePullSecrets": [{"name": "pull"}],
            "containers": [{
                "envFrom": [{"configMapRef": {"name": "all"}}, {"secretRef": {"name": "hidden"}}],
                "env": [{"valueFrom": {"secretKeyRef": {"name": "one"}}}],
            }],
            "initContainers": [{"env": [{"valueFrom": {"configMapKeyRef": {"name": "init"}}}]}],
            "volumes": [
                {"name": "a", "secret": {"secretName": "mounted"}},
                {"name": "b", "projected": {"sources": [{"configMap": {"name": "part"}}]}},
                {"name": "c", "persistentVolumeClaim": {"claimName": "disk"}},
                {"name": "d", "ephemeral": {}},
                {"name": "e", "csi": {"nodePublishSecretRef": {"name": "publish"}}},
            ],
        }});
        graph.put("pods", "x", "p1", &pod);
        let other = json!({"spec": {"nodeName": "n2", "serviceAccountName": "other"}});
        graph.put("pods", "x", "p2", &other);
        let waits = json!({"spec": {"serviceAccountName": "waits"}});
        graph.put("pods", "x", "p3", &waits);
        for (name, claim) in [("v", "disk"), ("w", "elsewhere")] {
            let volume = json!({"spec": {
                "claimRef": {"namespace": "x", "name": claim},
                "csi": {
                    "nodeStageSecretRef": {"namespace": "y", "name": name},
                    "controllerPublishSecretRef": {"namespace": "y", "name": "controller"},
                },
                "azureFile": {"secretName": "azure"},
            }});
            graph.put("persistentvolumes", "", name, &volume);
        }
        let free = json!({"spec": {"capacity": {"storage": "1Gi"}}});
        graph.put("persistentvolumes", "", "free", &free);
        for (name, node) in [("a1", "n1"), ("a2", "n2")] {
            let attachment = json!({"spec": {"nodeName": node}});
            graph.put("volumeattachments", "", name, &attachment);
        }
        graph
    }

    /// Checks `verb group:resource/sub namespace/name`, or `verb path`.
    fn may(graph: &Graph, node: &str, question: &str) -> bool {
        let mut tokens = question.split(' ');
        let (verb, what) = (tokens.next().unwrap(), tokens.next().unwrap());
        let place = tokens.next().unwrap_or("/");
        let (namespace, name) = place.split_once('/').unwrap();
        let (group, rest) = what.split_once(':').unwrap_or(("", what));
        let (resource, subresource) = rest.split_once('/').unwrap_or((rest, ""));
        let target = Target::Resource(ResourceTarget {
            group,
            resource,
            subresource,
            namespace,
            name,
            node: tokens.next().unwrap_or(""),
        });
        let attributes = Attributes { verb, target };
        graph.check(node, &attributes, &node_rules()).is_ok()
    }

    /// The rows follow the tests of Kubernetes' node authorizer.
    #[test]
    fn node_may_access_its_own_objects() {
        let graph = graph();
        for question in [
            "get nodes /n1",
            "list nodes /n1",
            "watch nodes /n1",
            "create nodes",
            "update nodes /n1",
            "patch nodes/status /n1",
            "get pods x/p1",
            "list pods / n1",
            "watch pods / n1",
            "patch pods/status x/p1",
            "delete pods x/p1",
            "create pods/eviction x/p1",
            "get coordination.k8s.io:leases kube-node-lease/n1",
            "create coordination.k8s.io:leases kube-node-lease/",
            "update coordination.k8s.io:leases kube-node-lease/n1",
            "get secrets x/pull",
            "get secrets x/hidden",
            "get secrets x/one",
            "watch secrets x/mounted",
            "get secrets x/publish",
            "get configmaps x/all",
            "list configmaps x/init",
            "get configmaps x/part",
            "get persistentvolumeclaims x/disk",
            "get persistentvolumeclaims x/p1-d",
            "get serviceaccounts x/web",
            "create serviceaccounts/token x/web",
            "create events x/",
            "patch events.k8s.io:events x/e",
            "list services",
            "create storage.k8s.io:csinodes",
            "get persistentvolumes /v",
            "get secrets y/v",
            "get secrets x/azure",
            "get storage.k8s.io:volumeattachments /a1",
            // Admission checks which ones.
            "create pods x/",
            "create coordination.k8s.io:leases kube-node-lease/n2",
            "watch pods x/p1",
        ] {
            assert!(may(&graph, "n1", question), "{question}");
        }
    }

    #[test]
    fn node_may_not_access_other_objects() {
        let mut graph = graph();
        for question in [
            "get nodes /n2",
            "list nodes",
            "get nodes/status /n1",
            "delete nodes /n1",
            "get pods x/p2",
            "get pods x/p3",
            "get pods y/p1",
            "list pods",
            "list pods x/",
            "watch pods / n2",
            "patch pods/status x/p2",
            "update pods x/p1",
            "delete pods x/p2",
            "create pods/binding x/p1",
            "create pods/eviction x/p2",
            "get coordination.k8s.io:leases kube-node-lease/n2",
            "list coordination.k8s.io:leases kube-node-lease/",
            "update coordination.k8s.io:leases kube-system/n1",
            "get secrets x/none",
            "get secrets y/w",
            "get secrets y/controller",
            "get persistentvolumes /w",
            "get persistentvolumes /free",
            "get persistentvolumes",
            "list persistentvolumes /v",
            "get storage.k8s.io:volumeattachments /a2",
            "get secrets y/pull",
            "list secrets x/",
            "list secrets",
            "update secrets x/pull",
            "get configmaps x/pull",
            "get persistentvolumeclaims x/other",
            "get persistentvolumes /any",
            "get serviceaccounts x/other",
            "create serviceaccounts/token x/other",
            "create serviceaccounts/token x/waits",
            "update serviceaccounts x/web",
            "list apps:deployments x/",
            "create rbac.authorization.k8s.io:clusterrolebindings",
        ] {
            assert!(!may(&graph, "n1", question), "{question}");
        }
        // Removing a pod, or moving it to another node, also removes its references.
        graph.remove("persistentvolumes", "", "v");
        assert!(!may(&graph, "n1", "get persistentvolumes /v"));
        assert!(!may(&graph, "n1", "get secrets y/v"));
        graph.remove("volumeattachments", "", "a1");
        assert!(!may(
            &graph,
            "n1",
            "get storage.k8s.io:volumeattachments /a1"
        ));
        graph.remove("pods", "x", "p1");
        assert!(!may(&graph, "n1", "get secrets x/pull"));
        let moved = json!({"spec": {"nodeName": "n2", "serviceAccountName": "web"}});
        graph.put("pods", "x", "p1", &moved);
        assert!(!may(&graph, "n1", "get serviceaccounts x/web"));
        assert!(may(&graph, "n2", "get serviceaccounts x/web"));
        assert!(!graph.by_node.contains_key("n1"));
    }

    #[test]
    fn node_users_are_recognized() {
        assert_eq!(node_of(&User::new("system:node:n1", [NODES])), Some("n1"));
        for (name, group) in [
            ("system:node:", NODES),
            ("system:node:n1", "x"),
            ("n1", NODES),
        ] {
            assert_eq!(node_of(&User::new(name, [group])), None, "{name} {group}");
        }
    }
}
