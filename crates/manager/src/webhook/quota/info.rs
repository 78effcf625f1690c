//! What the topology keeps of an ElasticQuota.

use koord_api::annotations;
use koord_api::quantity::ResourceList;
use koord_api::scheduling::ElasticQuota;

/// One quota, read. Annotations that are malformed count as missing: whoever admits quotas refuses
/// them with [`super::check::malformed`].
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct QuotaInfo {
    /// Namespace of the object.
    pub(crate) namespace: String,
    /// Its name, which no other quota of the cluster should have.
    pub(crate) name: String,
    /// `metadata.uid`; empty if unknown.
    pub(crate) uid: String,
    /// `metadata.resourceVersion` as a number; 0 if unknown.
    pub(crate) version: u64,
    /// When it was created, in seconds since 1970: of two quotas with one name the older counts.
    pub(crate) created: i64,
    /// Name of the parent.
    pub(crate) parent: String,
    /// Whether it is meant to have children.
    pub(crate) is_parent: bool,
    /// Whether others may borrow from it.
    pub(crate) lendable: bool,
    /// Whether sums are not checked.
    pub(crate) forced: bool,
    /// Whether it is the root of a tree.
    pub(crate) tree_root: bool,
    /// The tree; empty is the default tree.
    pub(crate) tree: String,
    /// What it is guaranteed.
    pub(crate) min: ResourceList,
    /// The most it may use.
    pub(crate) max: ResourceList,
    /// What the scheduler says is guaranteed to it.
    pub(crate) guaranteed: ResourceList,
    /// Namespaces whose pods belong to it.
    pub(crate) namespaces: Vec<String>,
}

impl QuotaInfo {
    /// Reads an object.
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

/// The resource version as a number, which is how etcd orders writes; 0 if there is none.
pub(crate) fn version(quota: &ElasticQuota) -> u64 {
    let version = quota.metadata.resource_version.as_deref();
    version
        .and_then(|version| version.parse().ok())
        .unwrap_or_default()
}
