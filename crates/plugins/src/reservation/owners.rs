//! Owner lists of reservations, shared between reservations with equal lists and indexed by pod properties.

use koord_api::scheduling::{ReservationControllerReference, ReservationOwner};
use koord_api::selector;
use koord_api::texts::Texts;
use koord_scheduler::state::PodInfo;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Id of a list of owner terms. Reservations with equal lists share it. Ids are never reused, so that they
/// can be part of a pod's signature.
pub(super) type OwnerListId = u32;

/// A property that a pod must have for a term to match; the term is indexed under it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    Uid(String),
    Name(String),
    Controller(String),
    Label(String, String),
    /// No specific property: the term is tried for every pod.
    Any,
}

/// A list of owner terms, its index keys, and the reservations that use it.
#[derive(Debug)]
struct OwnerList {
    text: Arc<str>,
    terms: Vec<ReservationOwner>,
    keys: Vec<Key>,
    users: BTreeSet<u32>,
}

/// All owner lists in use.
#[derive(Debug, Default)]
pub(super) struct OwnerLists {
    specs: FxHashMap<OwnerListId, OwnerList>,
    by_text: FxHashMap<Arc<str>, OwnerListId>,
    by_key: FxHashMap<Key, Vec<OwnerListId>>,
    last: OwnerListId,
}

impl OwnerLists {
    /// Records that reservation `user` is open to `owners`. Returns the id of the list.
    ///
    /// # Errors
    /// Returns a message that names a term which cannot be evaluated.
    pub(super) fn add(
        &mut self,
        owners: &[ReservationOwner],
        user: u32,
    ) -> Result<OwnerListId, String> {
        check(owners)?;
        let text: Arc<str> = serde_json::to_string(owners)
            .map_err(|error| format!("spec.owners: {error}"))?
            .into();
        if let Some(id) = self.by_text.get(&text) {
            if let Some(spec) = self.specs.get_mut(id) {
                spec.users.insert(user);
            }
            return Ok(*id);
        }
        self.last += 1;
        let id = self.last;
        let mut keys: Vec<Key> = owners
            .iter()
            .flat_map(|owner| self.index_keys(owner))
            .collect();
        keys.sort_unstable_by_key(|key| format!("{key:?}"));
        keys.dedup();
        for key in &keys {
            self.by_key.entry(key.clone()).or_default().push(id);
        }
        let spec = OwnerList {
            text: text.clone(),
            terms: owners.to_vec(),
            keys,
            users: BTreeSet::from([user]),
        };
        self.specs.insert(id, spec);
        self.by_text.insert(text, id);
        Ok(id)
    }

    /// Removes the reservation `user` from an owner list, and the list once no reservation uses it.
    pub(super) fn remove(&mut self, id: OwnerListId, user: u32) {
        let Some(spec) = self.specs.get_mut(&id) else {
            return;
        };
        spec.users.remove(&user);
        if !spec.users.is_empty() {
            return;
        }
        let Some(spec) = self.specs.remove(&id) else {
            return;
        };
        self.by_text.remove(&spec.text);
        for key in spec.keys {
            if let Some(ids) = self.by_key.get_mut(&key) {
                ids.retain(|other| *other != id);
                if ids.is_empty() {
                    self.by_key.remove(&key);
                }
            }
        }
    }

    /// Returns the reservations that use owner list `id`.
    pub(super) fn reservations(&self, id: OwnerListId) -> impl Iterator<Item = u32> + '_ {
        self.specs
            .get(&id)
            .into_iter()
            .flat_map(|spec| spec.users.iter().copied())
    }

    /// Returns the ids of the lists that `pod` matches, sorted.
    pub(super) fn matching_lists(&self, pod: &PodInfo) -> Vec<OwnerListId> {
        if self.specs.is_empty() {
            return Vec::new();
        }
        let mut matching: Vec<OwnerListId> = Vec::new();
        let mut collect = |key: &Key| {
            for id in self.by_key.get(key).into_iter().flatten() {
                let matches_pod =
                    |spec: &OwnerList| spec.terms.iter().any(|term| matches(term, pod));
                if !matching.contains(id) && self.specs.get(id).is_some_and(matches_pod) {
                    matching.push(*id);
                }
            }
        };
        collect(&Key::Any);
        collect(&Key::Uid(pod.uid.to_string()));
        collect(&Key::Name(pod.name.to_string()));
        for owner in &*pod.object.owners {
            collect(&Key::Controller(owner.uid.clone()));
        }
        for (key, value) in pod.labels().iter() {
            collect(&Key::Label(key.to_owned(), value.to_owned()));
        }
        matching.sort_unstable();
        matching
    }

    /// Returns the index keys of `owner`: a pod must have at least one of them to match.
    fn index_keys(&self, owner: &ReservationOwner) -> Vec<Key> {
        let set = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        if let Some(object) = &owner.object {
            if let Some(uid) = set(&object.uid) {
                return vec![Key::Uid(uid)];
            }
            if let Some(name) = set(&object.name) {
                return vec![Key::Name(name)];
            }
        }
        if let Some(controller) = &owner.controller
            && !controller.uid.is_empty()
        {
            return vec![Key::Controller(controller.uid.clone())];
        }
        if let Some(labels) = &owner.label_selector {
            // Of several labels, the one that the fewest lists use.
            let rarest = labels
                .match_labels
                .iter()
                .flatten()
                .map(|(key, value)| Key::Label(key.clone(), value.clone()))
                .min_by_key(|key| self.by_key.get(key).map_or(0, Vec::len));
            if let Some(key) = rarest {
                return vec![key];
            }
            let mut listed = labels.match_expressions.iter().flatten();
            if let Some(expression) = listed.find(|e| e.operator == "In") {
                let values = expression.values.iter().flatten();
                return values
                    .map(|value| Key::Label(expression.key.clone(), value.clone()))
                    .collect();
            }
        }
        vec![Key::Any]
    }
}

/// Checks that all terms can be evaluated.
///
/// # Errors
/// Returns a message that names a term which cannot.
pub(super) fn check(owners: &[ReservationOwner]) -> Result<(), String> {
    for (at, owner) in owners.iter().enumerate() {
        if let Some(labels) = &owner.label_selector {
            selector::matches(labels, &Texts::default())
                .map_err(|error| format!("spec.owners[{at}].labelSelector: {error}"))?;
        }
    }
    Ok(())
}

/// Returns true if `pod` matches any of `owners`.
pub(super) fn is_owner(owners: &[ReservationOwner], pod: &PodInfo) -> bool {
    owners.iter().any(|term| matches(term, pod))
}

/// Returns true if every set part of `term` matches `pod`. A term with nothing set matches all pods.
fn matches(term: &ReservationOwner, pod: &PodInfo) -> bool {
    let object = term.object.as_ref().is_none_or(|object| {
        let is_equal = |wanted: &Option<String>, actual: Option<&str>| {
            wanted
                .as_deref()
                .is_none_or(|wanted| wanted.is_empty() || Some(wanted) == actual)
        };
        is_equal(&object.uid, Some(&pod.uid))
            && is_equal(&object.name, Some(&pod.name))
            && is_equal(&object.namespace, Some(&pod.namespace))
            // Only pods are compared, whatever the kind.
            && is_equal(&object.api_version, Some("v1"))
    });
    let controller = |wanted: &ReservationControllerReference| {
        let is_equal = |wanted: &str, actual: &str| wanted.is_empty() || wanted == actual;
        is_equal(&wanted.namespace, &pod.namespace)
            && pod.object.owners.iter().any(|owner| {
                wanted
                    .controller
                    .is_none_or(|c| owner.controller == Some(c))
                    && is_equal(&wanted.uid, &owner.uid)
                    && is_equal(&wanted.name, &owner.name)
                    && is_equal(&wanted.kind, &owner.kind)
                    && is_equal(&wanted.api_version, &owner.api_version)
            })
    };
    let labels = || {
        let selector = term.label_selector.as_ref();
        selector.is_none_or(|selector| selector::matches(selector, pod.labels()).unwrap_or(false))
    };
    object && term.controller.as_ref().is_none_or(controller) && labels()
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_model::resources::ResourceTable;
    use serde_json::{Value, json};

    fn pod() -> PodInfo {
        let pod = serde_json::from_value(json!({
            "metadata": {"name": "web-1", "namespace": "shop", "uid": "u1",
                "labels": {"app": "web", "tier": "front"},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web",
                    "uid": "rs1", "controller": true}]},
            "spec": {"containers": []}
        }))
        .unwrap();
        PodInfo::new(Arc::new(pod), &ResourceTable::new()).unwrap()
    }

    fn owners(value: &Value) -> Vec<ReservationOwner> {
        serde_json::from_value(value.clone()).unwrap()
    }

    #[test]
    fn index_returns_matching_lists() {
        let reference = |change: Value| {
            let mut out = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web",
                "uid": "rs1"});
            for (key, value) in change.as_object().unwrap() {
                out[key] = value.clone();
            }
            json!([{"controller": out}])
        };
        for (name, list, expected) in [
            ("no owners", json!([]), false),
            ("an empty term", json!([{}]), true),
            (
                "object by name",
                json!([{"object": {"name": "web-1", "namespace": "shop"}}]),
                true,
            ),
            (
                "object elsewhere",
                json!([{"object": {"name": "web-1", "namespace": "x"}}]),
                false,
            ),
            ("object by uid", json!([{"object": {"uid": "u1"}}]), true),
            (
                "object of another uid",
                json!([{"object": {"uid": "u2", "name": "web-1"}}]),
                false,
            ),
            (
                "object by namespace only",
                json!([{"object": {"namespace": "shop"}}]),
                true,
            ),
            (
                "object of another version",
                json!([{"object": {"apiVersion": "v2"}}]),
                false,
            ),
            ("controller", reference(json!({})), true),
            (
                "controller in its namespace",
                reference(json!({"namespace": "shop"})),
                true,
            ),
            (
                "controller elsewhere",
                reference(json!({"namespace": "x"})),
                false,
            ),
            (
                "managing controller",
                reference(json!({"controller": true})),
                true,
            ),
            (
                "not managing",
                reference(json!({"controller": false})),
                false,
            ),
            (
                "another controller",
                reference(json!({"uid": "rs2"})),
                false,
            ),
            ("another kind", reference(json!({"kind": "Job"})), false),
            (
                "controller by name only",
                json!([{"controller": {"apiVersion": "", "kind": "", "name": "web", "uid": ""}}]),
                true,
            ),
            (
                "labels",
                json!([{"labelSelector": {"matchLabels": {"app": "web"}}}]),
                true,
            ),
            (
                "labels and more",
                json!([{"labelSelector": {"matchLabels": {"app": "web", "tier": "back"}}}]),
                false,
            ),
            (
                "label in",
                json!([{"labelSelector": {"matchExpressions": [
                    {"key": "app", "operator": "In", "values": ["api", "web"]}]}}]),
                true,
            ),
            (
                "label not in",
                json!([{"labelSelector": {"matchExpressions": [
                    {"key": "app", "operator": "NotIn", "values": ["web"]}]}}]),
                false,
            ),
            (
                "label absent",
                json!([{"labelSelector": {"matchExpressions": [
                    {"key": "zone", "operator": "DoesNotExist"}]}}]),
                true,
            ),
            (
                "all parts of a term",
                json!([{"object": {"name": "web-1"}, "labelSelector":
                    {"matchLabels": {"app": "api"}}}]),
                false,
            ),
            (
                "any of the terms",
                json!([{"object": {"name": "x"}}, {"labelSelector":
                    {"matchLabels": {"app": "web"}}}]),
                true,
            ),
        ] {
            let mut table = OwnerLists::default();
            table
                .add(&owners(&json!([{"object": {"name": "other"}}])), 9)
                .unwrap();
            let id = table.add(&owners(&list), 1).unwrap();
            let matching = table.matching_lists(&pod());
            assert_eq!(matching == [id], expected, "{name}: {matching:?}");
        }
    }

    #[test]
    fn equal_lists_share_a_number_which_is_never_reused() {
        let mut table = OwnerLists::default();
        let web = owners(&json!([{"labelSelector": {"matchLabels": {"app": "web"}}}]));
        let first = table.add(&web, 1).unwrap();
        assert_eq!(table.add(&web, 2), Ok(first));
        table.remove(first, 1);
        assert_eq!(table.reservations(first).collect::<Vec<_>>(), [2]);
        table.remove(first, 2);
        assert!(table.matching_lists(&pod()).is_empty() && table.by_key.is_empty());
        assert_ne!(table.add(&web, 3), Ok(first));
    }

    #[test]
    fn invalid_selector_is_reported() {
        let bad = json!([{}, {"labelSelector": {"matchExpressions": [
            {"key": "app", "operator": "Like", "values": ["x"]}]}}]);
        let error = OwnerLists::default().add(&owners(&bad), 1).unwrap_err();
        assert!(
            error.contains("spec.owners[1]") && error.contains("Like"),
            "{error}"
        );
    }
}
