//! The fields of an ElasticQuota that the topology stores.

use koord_api::annotations;
use koord_api::quantity::ResourceList;
use koord_api::scheduling::ElasticQuota;

/// One parsed quota. Invalid annotations count as missing: the admission refuses them in
/// [`super::check::check_annotations`].
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct QuotaInfo {
    /// Namespace of the object.
    pub(crate) namespace: String,
    /// Name, which should be unique in the cluster.
    pub(crate) name: String,
    /// `metadata.uid`; empty if unknown.
    pub(crate) uid: String,
    /// `metadata.resourceVersion` as a number; 0 if unknown.
    pub(crate) version: u64,
    /// Creation time in Unix seconds: of two quotas with one name the older is effective.
    pub(crate) created: i64,
    /// Name of the parent.
    pub(crate) parent: String,
    /// True if it may have children.
    pub(crate) is_parent: bool,
    /// True if other quotas may borrow from it.
    pub(crate) lendable: bool,
    /// True if sums of minimums are not checked.
    pub(crate) forced: bool,
    /// True if it is the root of a tree.
    pub(crate) tree_root: bool,
    /// Tree id; empty for the default tree.
    pub(crate) tree: String,
    /// Guaranteed amounts (`spec.min`).
    pub(crate) min: ResourceList,
    /// Maximum amounts (`spec.max`).
    pub(crate) max: ResourceList,
    /// Amounts that the scheduler reports as guaranteed.
    pub(crate) guaranteed: ResourceList,
    /// Namespaces whose pods belong to it.
    pub(crate) namespaces: Vec<String>,
}

impl QuotaInfo {
    /// Parses an object.
    pub(crate) fn from_quota(quota: &ElasticQuota) -> Self {
        let meta = &quota.metadata;
        let created = meta.creation_timestamp.as_ref();
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        Self {
            namespace: text(&meta.namespace),
            name: text(&meta.name),
            uid: text(&meta.uid),
            version: version(quota),
            created: created.map_or(i64::MAX, |time| time.0.as_second()),
            parent: quota.parent().to_owned(),
            is_parent: quota.is_parent(),
            lendable: quota.is_lendable(),
            forced: quota.is_forced(),
            tree_root: quota.is_tree_root(),
            tree: quota.label(koord_api::labels::QUOTA_TREE_ID).to_owned(),
            min: quota.spec.min.clone(),
            max: quota.spec.max.clone(),
            guaranteed: quota
                .amounts(annotations::QUOTA_GUARANTEED)
                .unwrap_or_default(),
            namespaces: quota.namespaces().unwrap_or_default(),
        }
    }
}

/// Returns the resourceVersion as a number, which orders writes in etcd; 0 if there is none.
pub(crate) fn version(quota: &ElasticQuota) -> u64 {
    let version = quota.metadata.resource_version.as_deref();
    version
        .and_then(|version| version.parse().ok())
        .unwrap_or_default()
}
