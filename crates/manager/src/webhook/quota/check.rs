//! Validates writes of quotas: the checks of upstream's validating webhook, in its order and with its
//! messages.
//!
//! Source: Koordinator `pkg/webhook/elasticquota/quota_topology.go`, `quota_topology_check.go`.

use super::info::QuotaInfo;
use super::topology::QuotaTopology;
use koord_api::quantity::ResourceList;
use koord_api::quota::{ROOT_QUOTA, SYSTEM_QUOTA, is_built_in};
use koord_api::requests::Total;
use koord_api::scheduling::ElasticQuota;
use koord_api::{annotations, labels};
use koord_model::list;

/// Lookup of the pods of quotas, for checks that depend on them.
pub(crate) trait QuotaPods {
    /// Returns the names of the pods whose label names the quota, sorted.
    fn pods_of_quota(&self, quota: &str) -> Vec<String>;
    /// Returns true if there is a pod in the namespace.
    fn has_pods_in(&self, namespace: &str) -> bool;
}

/// Optional rules, by feature gates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct QuotaRules {
    /// Gate `ElasticQuotaGuaranteeUsage`: a minimum may only grow as far as an ancestor can guarantee it.
    pub(crate) guarantee_usage: bool,
    /// Gate `ElasticQuotaEnableUpdateResourceKey`: a child may limit fewer resources than its parent.
    pub(crate) fewer_keys: bool,
}

/// Reason why a write is refused; the text is the response to the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Refusal(pub(crate) String);

/// Returns a [`Refusal`] with a formatted message.
macro_rules! refuse {
    ($($message:tt)*) => {
        return Err(Refusal(format!($($message)*)))
    };
}

/// Checks the creation of `quota`.
///
/// # Errors
/// The quota may not be created.
pub(crate) fn create(
    topology: &QuotaTopology,
    quota: &ElasticQuota,
    rules: QuotaRules,
    pods: &dyn QuotaPods,
) -> Result<QuotaInfo, Refusal> {
    check_annotations(None, quota)?;
    let info = QuotaInfo::from_quota(quota);
    let name = &info.name;
    if topology.get(name).is_some() {
        refuse!("AddQuota quota already exist:{name}");
    }
    for namespace in &info.namespaces {
        if let Some(other) = topology.other_claimant(namespace, name) {
            refuse!(
                "AddQuota quota {name}'s annotation namespace {namespace} is already bound to quota {other}"
            );
        }
    }
    check_values(quota)?;
    check_in_tree(topology, None, &info, rules, pods)?;
    Ok(info)
}

/// Checks the update of `old` to `new`; returns `None` if no checked field changes.
pub(crate) fn update(
    topology: &QuotaTopology,
    old: &ElasticQuota,
    new: &ElasticQuota,
    rules: QuotaRules,
    pods: &dyn QuotaPods,
) -> Result<Option<QuotaInfo>, Refusal> {
    check_annotations(Some(old), new)?;
    let counts = |quota: &ElasticQuota| {
        let text = [
            quota.label(labels::QUOTA_PARENT),
            quota.label(labels::QUOTA_IS_PARENT),
            quota.label(labels::QUOTA_TREE_ID),
            quota.annotation(annotations::QUOTA_NAMESPACES),
        ];
        text.map(str::to_owned)
    };
    if counts(old) == counts(new) && old.spec == new.spec {
        return Ok(None);
    }
    let mut info = QuotaInfo::from_quota(new);
    info.version = super::info::version(old);
    let name = &info.name;
    if matches!(name.as_str(), ROOT_QUOTA | SYSTEM_QUOTA) {
        refuse!("invalid quota {name}");
    }
    for namespace in &info.namespaces {
        if let Some(other) = topology.other_claimant(namespace, name) {
            // The first word is upstream's.
            refuse!(
                "UpdadteQuota, quota {name} update namespaces, but namespace {namespace} is already bound to quota {other}"
            );
        }
    }
    let Some(existing) = topology.get(name) else {
        refuse!("UpdateQuota quota not exist in quotaInfoMap:{name}");
    };
    if existing.namespace != info.namespace {
        refuse!(
            "UpdateQuota metadata.name {name:?} of the quota in namespace {} is taken by the quota in namespace {}",
            info.namespace,
            existing.namespace
        );
    }
    check_values(new)?;
    let bound = old.namespaces().unwrap_or_default();
    check_in_tree(topology, Some((existing, &bound)), &info, rules, pods)?;
    Ok(Some(info))
}

/// Checks the deletion of `quota`; returns `None` if another quota of this name is the effective one.
pub(crate) fn delete(
    topology: &QuotaTopology,
    quota: &ElasticQuota,
    pods: &dyn QuotaPods,
) -> Result<Option<QuotaInfo>, Refusal> {
    let info = QuotaInfo::from_quota(quota);
    let name = &info.name;
    if is_built_in(name) {
        refuse!("can not delete quotaGroup :{name}");
    }
    let Some(existing) = topology.get(name) else {
        refuse!("not found quota:{name}");
    };
    if existing.namespace != info.namespace {
        return Ok(None);
    }
    let children = topology.children(name).count();
    if children > 0 {
        refuse!("delete quota failed, quota {name} has {children} child quotas");
    }
    let bound = pods.pods_of_quota(name);
    if !bound.is_empty() {
        let count = bound.len();
        let mut shown = bound;
        if count > 2 {
            shown.truncate(2);
            shown.push("...".to_owned());
        }
        refuse!(
            "delete quota failed, quota {name} has {count} child pods: {}",
            shown.join(", ")
        );
    }
    Ok(Some(info))
}

/// Refuses invalid annotations that users write. An update only fails for annotations that it changes, so
/// that one of two mistakes can be corrected.
fn check_annotations(old: Option<&ElasticQuota>, new: &ElasticQuota) -> Result<(), Refusal> {
    let changed = |key: &str| old.is_none_or(|old| old.annotation(key) != new.annotation(key));
    let lists = [
        annotations::QUOTA_NAMESPACES,
        annotations::QUOTA_MAX_STRICT_CHECK_RESOURCE_KEYS,
    ];
    for key in lists.into_iter().filter(|key| changed(key)) {
        if let Err(error) = new.list(key) {
            refuse!("{} {error}", new.metadata.name.as_deref().unwrap_or(""));
        }
    }
    let amounts = [
        annotations::QUOTA_SHARED_WEIGHT,
        annotations::QUOTA_ADMISSION,
    ];
    for key in amounts.into_iter().filter(|key| changed(key)) {
        if let Err(error) = new.amounts(key) {
            refuse!("{} {error}", new.metadata.name.as_deref().unwrap_or(""));
        }
    }
    Ok(())
}

/// Checks the values of a quota that do not depend on other quotas.
pub(crate) fn check_values(quota: &ElasticQuota) -> Result<(), Refusal> {
    let name = quota.metadata.name.as_deref().unwrap_or_default();
    let (min, max) = (&quota.spec.min, &quota.spec.max);
    for (list, amounts) in [("Max", max), ("Min", min)] {
        let below = list::negative(amounts);
        if !below.is_empty() {
            let below = below.join(" ");
            refuse!("{name} quota.Spec.{list}'s value < 0, in dimensions :[{below}]");
        }
    }
    let read = |error: koord_api::extension::AnnotationError| Refusal(format!("{name} {error}"));
    let key = annotations::QUOTA_SHARED_WEIGHT;
    let weight = quota.amounts(key).map_err(read)?;
    let below = list::negative(&weight);
    if !below.is_empty() {
        let below = below.join(" ");
        refuse!("{name} quota.Annotation[{key}]'s value < 0, in dimension :[{below}]");
    }
    for (resource, amount) in min {
        match max.get(resource) {
            Some(most) if amount > most => {
                refuse!("resourceKey {resource} of quota {name} min {amount} > max {most}")
            }
            Some(_) => {}
            None => refuse!(
                "resourceKey {resource} of quota {name} is included in min, which is not included in max"
            ),
        }
    }
    let strict = quota
        .list(annotations::QUOTA_MAX_STRICT_CHECK_RESOURCE_KEYS)
        .map_err(read)?;
    let used = quota.status.as_ref().map(|status| &status.used);
    for resource in strict {
        let Some(used) = used.and_then(|used| used.get(&resource)) else {
            continue;
        };
        match max.get(&resource) {
            Some(most) if used > most => {
                refuse!("resourceKey {resource} of quota {name} max {most} < used {used}")
            }
            Some(_) => {}
            None => refuse!(
                "resourceKey {resource} of quota {name} is included in used, which is not included in max but should check max >= used"
            ),
        }
    }
    Ok(())
}

/// Checks a quota against its parent and children. `old` is the current quota with the namespaces that the
/// object claims.
fn check_in_tree(
    topology: &QuotaTopology,
    old: Option<(&QuotaInfo, &[String])>,
    new: &QuotaInfo,
    rules: QuotaRules,
    pods: &dyn QuotaPods,
) -> Result<(), Refusal> {
    let name = &new.name;
    if name == ROOT_QUOTA {
        return Ok(());
    }
    if let Some((old, claimed)) = old {
        check_is_parent(topology, old, new, claimed, pods)?;
    }
    check_tree_id(topology, old.map(|(old, _)| old), new)?;
    if new.parent == ROOT_QUOTA && !new.is_parent {
        return Ok(());
    }
    check_parent(topology, new)?;
    if is_own_ancestor(topology, new) {
        refuse!(
            "{name} has parentName {} but that is {name} itself or below it",
            new.parent
        );
    }
    check_keys(topology, new, rules).map_err(|reason| {
        Refusal(format!(
            "failed to check sub and parent group quotaKey, err: {reason}"
        ))
    })?;
    check_min_sums(topology, new)?;
    if rules.guarantee_usage {
        check_guaranteed(topology, new).map_err(|reason| Refusal(format!("{reason} {name}")))?;
    }
    Ok(())
}

/// Checks a change of the label that makes a quota a parent.
fn check_is_parent(
    topology: &QuotaTopology,
    old: &QuotaInfo,
    new: &QuotaInfo,
    claimed: &[String],
    pods: &dyn QuotaPods,
) -> Result<(), Refusal> {
    let name = &old.name;
    if old.is_parent == new.is_parent {
        return Ok(());
    }
    if !new.is_parent && topology.children(name).next().is_some() {
        refuse!("quota has children, isParent is forbidden to modify as false, quotaName:{name}");
    }
    if new.is_parent {
        let has_pods = !pods.pods_of_quota(name).is_empty()
            || pods.has_pods_in(name)
            || claimed.iter().any(|namespace| pods.has_pods_in(namespace));
        if has_pods {
            refuse!(
                "quota has bound pods, isParent is forbidden to modify as true, quotaName: {name}"
            );
        }
    }
    Ok(())
}

/// Checks that the tree id is unchanged and equal to that of parent and children.
fn check_tree_id(
    topology: &QuotaTopology,
    old: Option<&QuotaInfo>,
    new: &QuotaInfo,
) -> Result<(), Refusal> {
    let (name, tree) = (&new.name, &new.tree);
    if let Some(old) = old.filter(|old| old.tree != *tree) {
        refuse!("{name} tree id changed [{}] vs [{tree}]", old.tree);
    }
    let parent = Some(&new.parent).filter(|parent| *parent != ROOT_QUOTA);
    if let Some(parent) = parent.and_then(|parent| topology.get(parent))
        && parent.tree != *tree
    {
        refuse!(
            "{name} tree id is different from parent {}, [{tree}] vs [{}]",
            parent.name,
            parent.tree
        );
    }
    if let Some(child) = topology.children(name).find(|child| child.tree != *tree) {
        refuse!(
            "{name} tree id is different from child {}, [{}] vs [{tree}]",
            child.name,
            child.tree
        );
    }
    Ok(())
}

/// Refuses a quota whose parent does not exist or is no parent quota; the root always is one.
fn check_parent(topology: &QuotaTopology, new: &QuotaInfo) -> Result<(), Refusal> {
    let (name, parent) = (&new.name, &new.parent);
    if parent == ROOT_QUOTA {
        return Ok(());
    }
    match topology.get(parent) {
        None => refuse!("{name} has parentName {parent} but not find parentInfo in quotaInfoMap"),
        Some(quota) if !quota.is_parent => {
            refuse!("{name} has parentName {parent} but the parentQuotaInfo's IsParent is false")
        }
        Some(_) => Ok(()),
    }
}

/// Returns true if the quota is among its own ancestors.
fn is_own_ancestor(topology: &QuotaTopology, new: &QuotaInfo) -> bool {
    ancestors(topology, new).any(|ancestor| ancestor.name == new.name)
}

/// Returns the ancestors of `quota`, nearest first. Terminates even if the cluster already has a cycle.
fn ancestors<'a>(
    topology: &'a QuotaTopology,
    quota: &QuotaInfo,
) -> impl Iterator<Item = &'a QuotaInfo> {
    let first = topology.get(&quota.parent);
    let all = std::iter::successors(first, |above| topology.get(&above.parent));
    all.take(topology.len())
}

/// Checks that the resources of the maximum equal those of parent and children, and that those of the minimum
/// are a subset of the parent's.
fn check_keys(topology: &QuotaTopology, new: &QuotaInfo, rules: QuotaRules) -> Result<(), String> {
    let name = &new.name;
    let have_matching_keys = |above: &QuotaInfo, below: &QuotaInfo| {
        list::names_within(&below.max, &above.max)
            && (rules.fewer_keys || list::names_within(&above.max, &below.max))
    };
    let mut pairs = Vec::new();
    if new.parent != ROOT_QUOTA
        && let Some(parent) = topology.get(&new.parent)
    {
        // Upstream names the two in reverse order here.
        let strict = (&parent.name, name);
        pairs.push((parent, new, strict));
    }
    for child in topology.children(name) {
        pairs.push((new, child, (&child.name, name)));
    }
    for (above, below, strict) in pairs {
        if !have_matching_keys(above, below) {
            return Err(if rules.fewer_keys {
                format!(
                    "checkSubAndParentGroupQuotaKey failed: {}'s max keys are not all included in {}'s",
                    below.name, above.name
                )
            } else {
                format!(
                    "checkSubAndParentGroupQuotaKey failed: {}'s max keys are not the same with {}'s",
                    strict.0, strict.1
                )
            });
        }
        if !list::names_within(&below.min, &above.min) {
            return Err(format!(
                "checkSubAndParentGroupQuotaKey failed: {}'s min keys are not all included in {}'s",
                below.name, above.name
            ));
        }
    }
    Ok(())
}

/// Checks that the minimums of siblings do not sum up to more than the minimum of their parent.
fn check_min_sums(topology: &QuotaTopology, new: &QuotaInfo) -> Result<(), Refusal> {
    if new.forced || new.tree_root {
        return Ok(());
    }
    if new.parent != ROOT_QUOTA
        && let Some(parent) = topology.get(&new.parent)
    {
        let mut sum = sum(topology, &new.parent, &new.name, |quota| &quota.min);
        sum.add(&new.min);
        if !list::fits_in(&sum, &parent.min) {
            refuse!(
                "checkMinQuotaSum all brothers' MinQuota > parent MinQuota, parent: {}",
                new.parent
            );
        }
    }
    let sum = sum(topology, &new.name, "", |quota| &quota.min);
    if !list::fits_in(&sum, &new.min) {
        refuse!(
            "checkMinQuotaSum all children's MinQuota > current MinQuota, current: {}",
            new.name
        );
    }
    Ok(())
}

/// Returns the sum over the children of `parent` except `without`.
fn sum(
    topology: &QuotaTopology,
    parent: &str,
    without: &str,
    of: impl Fn(&QuotaInfo) -> &ResourceList,
) -> ResourceList {
    let children = topology.children(parent);
    let mut sum = ResourceList::new();
    for child in children.filter(|child| child.name != without) {
        sum.add(of(child));
    }
    sum
}

/// Checks that a new minimum can be guaranteed. From the parent upwards, the guarantees of an ancestor's
/// children are summed with the new one: the first ancestor whose own guarantee covers the sum suffices; it
/// is an error if none does.
fn check_guaranteed(topology: &QuotaTopology, new: &QuotaInfo) -> Result<(), String> {
    if new.forced || new.tree.is_empty() || new.tree_root {
        return Ok(());
    }
    if list::fits_in(&new.min, &new.guaranteed) {
        return Ok(());
    }
    let mut needed = new.min.clone();
    needed.raise(&new.guaranteed);
    let mut below = new;
    let mut above = ancestors(topology, new);
    loop {
        if below.parent == ROOT_QUOTA {
            return Err(format!(
                "tree root quota {} can't guarantee for min",
                below.name
            ));
        }
        let Some(parent) = above.next() else {
            return Err(format!("parent {} not found", below.parent));
        };
        needed.add(&sum(topology, &parent.name, &below.name, |quota| {
            &quota.guaranteed
        }));
        needed.raise(&parent.min);
        if list::fits_in(&needed, &parent.guaranteed) {
            return Ok(());
        }
        below = parent;
    }
}

#[cfg(test)]
mod tests;
