//! Pods in compact form: the cache owns the facts, and an index by node refers to them.

use super::packed::PackedAmount;
use crate::Options;
use crate::cache::Cache;
use k8s_openapi::api::core::v1::Pod;
use koord_api::priority::{self, PriorityClass};
use koord_api::qos::{self, QosClass};
use koord_api::{annotations, labels};
use koord_kube::{Cacheable, Change, ObjectKey};
use koord_model::reclaim::pod_request;
use parking_lot::RwLock;
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock};

/// Selects the optional fields of a pod that are cached in addition to those that the noderesource controller
/// reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct FieldMask {
    /// Caches [`PodFacts::labels`].
    pub(crate) labels: bool,
    /// Caches [`PodFacts::uid`].
    pub(crate) uid: bool,
    /// Caches [`PodFacts::unscheduled`].
    pub(crate) unscheduled: bool,
}

impl FieldMask {
    /// Returns the fields that the enabled parts of the manager read.
    pub(crate) fn from_options(options: &Options) -> Self {
        let profiles = options.gates.enabled("ColocationProfileController");
        Self {
            labels: profiles || options.gates.enabled("EnableQuotaAdmission"),
            uid: profiles,
            unscheduled: options.secure_server.is_some(),
        }
    }
}

/// The fields of a pod that the manager reads.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PodFacts {
    pub(crate) key: ObjectKey,
    resource_version: Option<Box<str>>,
    /// The node it is bound to; empty if none.
    pub(crate) node: Box<str>,
    /// True if the phase is Running or Pending.
    pub(crate) active: bool,
    /// Priority class, with the default if none is set.
    pub(crate) priority: PriorityClass,
    /// QoS class, with the default if none is set.
    pub(crate) qos: QosClass,
    pub(crate) request: PackedAmount,
    /// `None` for most pods, which have none of these fields.
    optional: Option<Box<OptionalFields>>,
}

/// Fields that few pods have, or few managers cache.
#[derive(Debug, Clone, PartialEq, Default)]
struct OptionalFields {
    uid: Option<Box<str>>,
    quota: Box<str>,
    numa_nodes: Box<[usize]>,
    labels: BTreeMap<String, String>,
    unscheduled: Option<Box<Unscheduled>>,
}

/// Why a pod has no node, as its scheduler reported it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Unscheduled {
    /// Reason of the condition `PodScheduled`; empty if no scheduler has reported.
    pub(crate) reason: Box<str>,
    /// Message of the condition, of at most [`MAX_MESSAGE`] characters.
    pub(crate) message: Box<str>,
    /// Creation of the pod in Unix seconds; 0 if unknown.
    pub(crate) created: i64,
}

/// Maximum length of a cached message in characters: messages of a scheduler name nodes, and many pods wait.
const MAX_MESSAGE: usize = 400;

/// The optional fields of a pod that has none.
static NO_OPTIONAL_FIELDS: LazyLock<OptionalFields> = LazyLock::new(OptionalFields::default);

impl PodFacts {
    /// Keeps the fields of a pod that the manager reads; `fields` selects the optional ones.
    pub(crate) fn from_pod(pod: &Pod, fields: FieldMask) -> Self {
        let meta = &pod.metadata;
        let boxed = |text: &Option<String>| text.as_deref().map(Box::from);
        let status = pod.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref());
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        let optional = OptionalFields {
            uid: boxed(&meta.uid).filter(|_| fields.uid),
            quota: boxed_label(pod, labels::POD_QUOTA_NAME),
            numa_nodes: numa_nodes(pod),
            labels: if fields.labels {
                meta.labels.clone().unwrap_or_default()
            } else {
                BTreeMap::new()
            },
            unscheduled: fields.unscheduled.then(|| unscheduled(pod)).flatten(),
        };
        Self {
            key: ObjectKey::from_object(pod),
            resource_version: boxed(&meta.resource_version),
            node: node.unwrap_or_default().into(),
            active: matches!(phase, Some("Running" | "Pending")),
            priority: priority::pod_priority_class_or_default(pod),
            qos: qos::pod_qos_class_or_default(pod),
            request: pod_request(pod).into(),
            optional: (optional != *NO_OPTIONAL_FIELDS).then(|| Box::new(optional)),
        }
    }

    fn optional(&self) -> &OptionalFields {
        self.optional.as_deref().unwrap_or(&NO_OPTIONAL_FIELDS)
    }

    /// Returns the UID; `None` unless [`FieldMask::uid`] is set. It takes a tenth of the memory, and to the
    /// other readers a pod that replaces one of the same name is a changed pod.
    pub(crate) fn uid(&self) -> Option<&str> {
        self.optional().uid.as_deref()
    }

    /// Returns the quota in the pod's label; empty if there is none.
    pub(crate) fn quota(&self) -> &str {
        &self.optional().quota
    }

    /// Returns the NUMA nodes in the scheduler's annotation.
    pub(crate) fn numa_nodes(&self) -> &[usize] {
        &self.optional().numa_nodes
    }

    /// Returns why a pending pod has no node; `None` for other pods, and unless [`FieldMask::unscheduled`] is
    /// set.
    pub(crate) fn unscheduled(&self) -> Option<&Unscheduled> {
        self.optional().unscheduled.as_deref()
    }

    /// Returns the labels; empty unless [`FieldMask::labels`] is set.
    pub(crate) fn labels(&self) -> &BTreeMap<String, String> {
        &self.optional().labels
    }
}

impl Cacheable for PodFacts {
    fn names(&self) -> (&str, &str) {
        (&self.key.namespace, &self.key.name)
    }
    fn is_same(&self, other: &Self) -> bool {
        self.uid() == other.uid()
    }
    fn resource_version(&self) -> Option<&str> {
        self.resource_version.as_deref()
    }
}

fn unscheduled(pod: &Pod) -> Option<Box<Unscheduled>> {
    let status = pod.status.as_ref()?;
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    if status.phase.as_deref() != Some("Pending") || node.is_some_and(|node| !node.is_empty()) {
        return None;
    }
    let mut conditions = status.conditions.iter().flatten();
    let condition = conditions
        .find(|condition| condition.type_ == "PodScheduled" && condition.status != "True");
    let text = |field: Option<&String>| -> Box<str> {
        let text = field.map_or("", String::as_str);
        let end = text.char_indices().nth(MAX_MESSAGE);
        Box::from(&text[..end.map_or(text.len(), |(at, _)| at)])
    };
    let created = pod.metadata.creation_timestamp.as_ref();
    Some(Box::new(Unscheduled {
        reason: text(condition.and_then(|condition| condition.reason.as_ref())),
        message: text(condition.and_then(|condition| condition.message.as_ref())),
        created: created.map_or(0, |time| time.0.as_second()),
    }))
}

fn boxed_label(pod: &Pod, key: &str) -> Box<str> {
    let labels = pod.metadata.labels.as_ref();
    let value = labels.and_then(|all| all.get(key));
    value.map(String::as_str).unwrap_or_default().into()
}

fn numa_nodes(pod: &Pod) -> Box<[usize]> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Status {
        #[serde(default)]
        numa_node_resources: Vec<NumaNode>,
    }
    #[derive(Deserialize)]
    struct NumaNode {
        node: usize,
    }
    let annotations = pod.metadata.annotations.as_ref();
    let text = annotations.and_then(|all| all.get(annotations::RESOURCE_STATUS));
    let status = text.and_then(|text| serde_json::from_str::<Status>(text).ok());
    status
        .into_iter()
        .flat_map(|status| status.numa_node_resources)
        .map(|numa| numa.node)
        .collect()
}

/// Index of pods by the node they are bound to.
#[derive(Debug, Default)]
pub(crate) struct PodsByNode(RwLock<HashMap<Box<str>, Vec<Arc<PodFacts>>>>);

impl PodsByNode {
    /// Creates an index of the pods in `cache`.
    pub(crate) fn from_cache(cache: &Cache<PodFacts>) -> Arc<Self> {
        let index = Arc::new(Self::default());
        let listener = index.clone();
        cache.on_change(move |change| listener.apply_change(change));
        index
    }

    /// Returns the pods bound to a node.
    pub(crate) fn get(&self, node: &str) -> Vec<Arc<PodFacts>> {
        self.0.read().get(node).cloned().unwrap_or_default()
    }

    fn apply_change(&self, change: &Change<PodFacts>) {
        match change {
            Change::Applied { old, new } => {
                if let Some(old) = old {
                    self.remove(old);
                }
                if !new.node.is_empty() {
                    let mut nodes = self.0.write();
                    nodes.entry(new.node.clone()).or_default().push(new.clone());
                }
            }
            Change::Deleted(pod) => self.remove(pod),
            Change::Synced => {}
        }
    }

    fn remove(&self, pod: &PodFacts) {
        let mut nodes = self.0.write();
        if let Some(pods) = nodes.get_mut(&pod.node) {
            pods.retain(|other| other.key != pod.key);
            if pods.is_empty() {
                nodes.remove(&pod.node);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, node: &str) -> Arc<PodFacts> {
        let mut pod = Pod::default();
        pod.metadata.name = Some(name.to_owned());
        pod.spec.get_or_insert_default().node_name = Some(node.to_owned());
        Arc::new(PodFacts::from_pod(&pod, FieldMask::default()))
    }

    #[test]
    fn pending_pod_has_its_reason() {
        let long = "\u{e9}".repeat(MAX_MESSAGE + 1);
        let read = |phase: &str, node: &str, message: &str| {
            let pod: Pod = serde_json::from_value(serde_json::json!({
                "metadata": {"name": "a", "creationTimestamp": "1970-01-01T00:01:00Z"},
                "spec": {"nodeName": node, "containers": []},
                "status": {"phase": phase, "conditions": [{"type": "PodScheduled",
                    "status": "False", "reason": "Unschedulable", "message": message}]},
            }))
            .unwrap();
            let fields = FieldMask {
                unscheduled: true,
                ..FieldMask::default()
            };
            let facts = PodFacts::from_pod(&pod, fields);
            let off = PodFacts::from_pod(&pod, FieldMask::default());
            assert!(off.unscheduled().is_none());
            facts.unscheduled().cloned()
        };
        let reason = read("Pending", "", "0/3 nodes").unwrap();
        assert_eq!(
            (&*reason.reason, &*reason.message),
            ("Unschedulable", "0/3 nodes")
        );
        assert_eq!(reason.created, 60);
        let cut = read("Pending", "", &long).unwrap();
        assert_eq!(cut.message.chars().count(), MAX_MESSAGE);
        assert_eq!(read("Pending", "n", "x"), None, "bound");
        assert_eq!(read("Running", "", "x"), None);
    }

    #[test]
    fn pod_is_listed_on_its_node_only() {
        let index = PodsByNode::default();
        let names = |node: &str| -> Vec<String> {
            let pods = index.get(node);
            pods.iter().map(|pod| pod.key.name.clone()).collect()
        };
        let (waiting, bound) = (pod("a", ""), pod("a", "n1"));
        let (old, new) = (None, waiting.clone());
        index.apply_change(&Change::Applied { old, new });
        assert!(index.0.read().is_empty(), "unbound pods are of no node");
        let (old, new) = (Some(waiting), bound.clone());
        index.apply_change(&Change::Applied { old, new });
        let (old, new) = (None, pod("b", "n1"));
        index.apply_change(&Change::Applied { old, new });
        // An unchanged pod, as after a relist.
        let (old, new) = (Some(bound.clone()), bound.clone());
        index.apply_change(&Change::Applied { old, new });
        assert_eq!(names("n1"), ["b", "a"]);
        index.apply_change(&Change::Deleted(bound));
        assert_eq!(names("n1"), ["b"]);
        index.apply_change(&Change::Deleted(pod("b", "n1")));
        assert!(index.0.read().is_empty());
    }
}
