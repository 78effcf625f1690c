//! The objects that the rules read.

use crate::fetch::{Fetched, text};
use jiff::Timestamp;
use serde_json::Value;

/// Objects of one kind.
pub(crate) type Objects = Fetched<Vec<Value>>;

/// Objects of a cluster at one time. A rule is a function of it.
#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    /// Time of the collection.
    pub(crate) now: Timestamp,
    /// Namespace of the components.
    pub(crate) namespace: String,
    /// Version of the API server, such as `v1.35.0`.
    pub(crate) server_version: String,
    /// API groups and versions that are served.
    pub(crate) group_versions: Fetched<Vec<String>>,
    /// The namespace of the components.
    pub(crate) namespace_object: Fetched<Option<Value>>,
    pub(crate) nodes: Objects,
    pub(crate) pods: Objects,
    /// Deployments in the namespace.
    pub(crate) deployments: Objects,
    /// DaemonSets in the namespace.
    pub(crate) daemon_sets: Objects,
    /// Leases of all namespaces but those of the nodes.
    pub(crate) leases: Objects,
    pub(crate) budgets: Objects,
    pub(crate) mutating: Objects,
    pub(crate) validating: Objects,
    pub(crate) endpoint_slices: Objects,
    /// The Secret with the webhooks' certificates.
    pub(crate) webhook_secret: Fetched<Option<Value>>,
    pub(crate) definitions: Objects,
    /// Permissions of service accounts: a description and whether they are granted.
    pub(crate) access: Vec<(String, Fetched<bool>)>,
    pub(crate) priority_classes: Objects,
    pub(crate) node_metrics: Objects,
    pub(crate) node_slos: Objects,
    pub(crate) quotas: Objects,
    pub(crate) pod_groups: Objects,
    pub(crate) reservations: Objects,
    pub(crate) migration_jobs: Objects,
    pub(crate) profiles: Objects,
    pub(crate) devices: Objects,
    pub(crate) topologies: Objects,
    /// The ConfigMap `slo-controller-config`.
    pub(crate) slo_config: Fetched<Option<Value>>,
    /// The ConfigMap with the addresses of a `koord up` cluster.
    pub(crate) up_addresses: Fetched<Option<Value>>,
    /// Configurations of some kubelets, by node.
    pub(crate) kubelets: Vec<(String, Fetched<Value>)>,
}

impl Snapshot {
    /// Returns whether the components run in the process of `koord up`.
    pub(crate) fn is_koord_up(&self) -> bool {
        matches!(self.up_addresses.value(), Some(Some(_)))
    }

    /// Returns the age of an RFC 3339 time in seconds; `None` if it is invalid.
    pub(crate) fn age(&self, time: &str) -> Option<i64> {
        let time: Timestamp = time.parse().ok()?;
        Some(self.now.as_second() - time.as_second())
    }

    /// Returns the seconds since the creation of an object.
    pub(crate) fn age_of(&self, object: &Value) -> Option<i64> {
        self.age(text(object, "/metadata/creationTimestamp"))
    }
}
