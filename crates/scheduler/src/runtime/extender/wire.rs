//! Requests to and responses of extenders: `k8s.io/kube-scheduler/extender/v1`.
//!
//! The Go types have no JSON names: requests use the field names, capitals included, and the case of names in
//! responses is ignored, as by Go's decoder. `null` counts as absent.

use crate::engine::Proposal;
use crate::state::{NodeInfo, PodInfo};
use k8s_openapi::api::core::v1::{Node, Pod};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Declares types whose fields are matched case-insensitively.
macro_rules! any_case {
    ($($(#[$doc:meta])* struct $type:ident { $($name:literal => $field:ident: $of:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Default)]
        pub(super) struct $type { $(pub(super) $field: $of,)* }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                struct Fields;
                impl<'de> Visitor<'de> for Fields {
                    type Value = $type;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str(concat!("an object (", stringify!($type), ")"))
                    }
                    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<$type, A::Error> {
                        let mut out = $type::default();
                        while let Some(key) = map.next_key::<String>()? {
                            $(if key.eq_ignore_ascii_case($name) {
                                if let Some(value) = map.next_value::<Option<$of>>()? {
                                    out.$field = value;
                                }
                                continue;
                            })*
                            map.next_value::<IgnoredAny>()?;
                        }
                        Ok(out)
                    }
                }
                from.deserialize_map(Fields)
            }
        }
    )*};
}

any_case! {
    /// `ExtenderFilterResult`.
    struct FilterResult {
        "Nodes" => nodes: Option<NodeList>,
        "NodeNames" => names: Option<Vec<String>>,
        "FailedNodes" => failed: BTreeMap<String, String>,
        "FailedAndUnresolvableNodes" => unresolvable: BTreeMap<String, String>,
        "Error" => error: String,
    }
    /// A list of nodes, of which only the names are read.
    struct NodeList { "items" => items: Vec<NamedNode>, }
    struct NamedNode { "metadata" => metadata: Metadata, }
    struct Metadata { "name" => name: String, }
    /// One entry of `HostPriorityList`.
    struct HostPriority { "Host" => host: String, "Score" => score: i64, }
    /// `ExtenderBindingResult`.
    struct BindingResult { "Error" => error: String, }
    /// `ExtenderPreemptionResult`.
    struct PreemptionResult {
        "NodeNameToMetaVictims" => nodes: BTreeMap<String, Option<MetaVictims>>,
    }
    struct MetaVictims {
        "Pods" => pods: Vec<Option<MetaPod>>,
        "NumPDBViolations" => violations: i64,
    }
    struct MetaPod { "UID" => uid: String, }
}

/// Decodes the first JSON value of `text`, as Go's streaming decoder does; the rest is ignored.
pub(super) fn read<T: for<'de> Deserialize<'de>>(text: &[u8]) -> Result<T, String> {
    let mut from = serde_json::Deserializer::from_slice(text);
    T::deserialize(&mut from).map_err(|error| format!("its answer cannot be read: {error}"))
}

/// `ExtenderArgs`: nodes by name for extenders with a node cache.
pub(super) struct Args<'a> {
    pub(super) pod: &'a PodInfo,
    pub(super) nodes: &'a [Arc<NodeInfo>],
    pub(super) by_name: bool,
}

impl Serialize for Args<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let names = || {
            self.nodes
                .iter()
                .map(|node| &*node.name)
                .collect::<Vec<_>>()
        };
        let mut map = to.serialize_map(Some(3))?;
        map.serialize_entry("Pod", &*self.pod.object.pod)?;
        map.serialize_entry("Nodes", &(!self.by_name).then_some(Nodes(self.nodes)))?;
        map.serialize_entry("NodeNames", &self.by_name.then(names))?;
        map.end()
    }
}

/// A `v1.NodeList`.
struct Nodes<'a>(&'a [Arc<NodeInfo>]);

impl Serialize for Nodes<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        struct Items<'a>(&'a [Arc<NodeInfo>]);
        impl Serialize for Items<'_> {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                let mut list = to.serialize_seq(Some(self.0.len()))?;
                for node in self.0 {
                    list.serialize_element::<Node>(&node.object)?;
                }
                list.end()
            }
        }
        let mut map = to.serialize_map(Some(2))?;
        map.serialize_entry("metadata", &serde_json::json!({}))?;
        map.serialize_entry("items", &Items(self.0))?;
        map.end()
    }
}

/// `ExtenderPreemptionArgs`: victims by uid for extenders with a node cache.
pub(super) struct PreemptionArgs<'a> {
    pub(super) pod: &'a PodInfo,
    pub(super) proposals: &'a [Proposal],
    pub(super) by_name: bool,
}

impl Serialize for PreemptionArgs<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let victims = |by_name: bool| {
            (self.by_name == by_name).then(|| {
                let each = self
                    .proposals
                    .iter()
                    .map(|it| (&*it.node, Victims(it, by_name)));
                each.collect::<BTreeMap<_, _>>()
            })
        };
        let mut map = to.serialize_map(Some(3))?;
        map.serialize_entry("Pod", &*self.pod.object.pod)?;
        map.serialize_entry("NodeNameToVictims", &victims(false))?;
        map.serialize_entry("NodeNameToMetaVictims", &victims(true))?;
        map.end()
    }
}

/// `Victims`, or `MetaVictims`.
struct Victims<'a>(&'a Proposal, bool);

impl Serialize for Victims<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Self(proposal, by_name) = self;
        let mut map = to.serialize_map(Some(2))?;
        if *by_name {
            let uid = |pod: &Arc<PodInfo>| BTreeMap::from([("UID", pod.uid.to_string())]);
            let pods: Vec<_> = proposal.victims.iter().map(uid).collect();
            map.serialize_entry("Pods", &pods)?;
        } else {
            let pods: Vec<Pod> = proposal
                .victims
                .iter()
                .map(|pod| pod.named_object())
                .collect();
            map.serialize_entry("Pods", &pods)?;
        }
        map.serialize_entry("NumPDBViolations", &proposal.violations)?;
        map.end()
    }
}

/// `ExtenderBindingArgs`.
pub(super) fn binding(pod: &PodInfo, node: &str) -> serde_json::Value {
    serde_json::json!({
        "PodName": &*pod.name,
        "PodNamespace": &*pod.namespace,
        "PodUID": &*pod.uid,
        "Node": node,
    })
}
