//! The objects whose selectors tell which pods belong together: services and controllers.

use crate::topology::Selector;
use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{ReplicationController, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use koord_scheduler::Watch;
use koord_scheduler::framework::{Action, ObjectChange};
use koord_scheduler::state::PodInfo;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};

const SERVICES: &str = "services.v1.";
const REPLICA_SETS: &str = "replicasets.v1.apps";
const STATEFUL_SETS: &str = "statefulsets.v1.apps";
const REPLICATION_CONTROLLERS: &str = "replicationcontrollers.v1.";

/// Selectors by namespace and name.
#[derive(Debug, Default)]
pub(super) struct Owners {
    services: FxHashMap<String, Services>,
    controllers: FxHashMap<(&'static str, String, String), Selector>,
}

/// The services of a namespace, by name, and their names by one label that each selects.
#[derive(Debug, Default)]
struct Services {
    selectors: BTreeMap<String, BTreeMap<String, String>>,
    by_label: FxHashMap<String, FxHashMap<String, BTreeSet<String>>>,
}

impl Services {
    fn set(&mut self, name: String, selector: Option<BTreeMap<String, String>>) {
        if let Some((label, value)) = self.selectors.remove(&name).iter().flatten().next()
            && let Some(by_value) = self.by_label.get_mut(label)
            && let Some(names) = by_value.get_mut(value)
        {
            names.remove(&name);
            if names.is_empty() {
                by_value.remove(value);
            }
        }
        if let Some(selector) = selector {
            // One that selects by no label adds nothing to what belongs together.
            if let Some((label, value)) = selector.iter().next() {
                let by_value = self.by_label.entry(label.clone()).or_default();
                by_value
                    .entry(value.clone())
                    .or_default()
                    .insert(name.clone());
            }
            self.selectors.insert(name, selector);
        }
    }

    /// Those that select `labels`, by name.
    fn of(
        &self,
        labels: &BTreeMap<String, String>,
    ) -> BTreeMap<&String, &BTreeMap<String, String>> {
        let named = labels
            .iter()
            .filter_map(|(label, value)| self.by_label.get(label)?.get(value));
        let known = |name| self.selectors.get_key_value(name);
        let mut found: BTreeMap<_, _> = named.flatten().filter_map(known).collect();
        found.retain(|_, selector| {
            selector
                .iter()
                .all(|(label, value)| labels.get(label) == Some(value))
        });
        found
    }
}

impl Owners {
    pub(super) fn watches() -> Vec<Watch> {
        vec![
            Watch::of::<Service>(SERVICES),
            Watch::of::<ReplicaSet>(REPLICA_SETS),
            Watch::of::<StatefulSet>(STATEFUL_SETS),
            Watch::of::<ReplicationController>(REPLICATION_CONTROLLERS),
        ]
    }

    pub(super) fn changed(&mut self, change: &ObjectChange) {
        if let Some(service) = change.new_as::<Service>() {
            let selector = service.spec.as_ref().and_then(|spec| spec.selector.clone());
            self.service(&service.metadata, change.action, selector);
        } else if let Some(set) = change.new_as::<ReplicaSet>() {
            let selector = set
                .spec
                .as_ref()
                .map(|spec| Selector::of(Some(&spec.selector)));
            self.controller("ReplicaSet", &set.metadata, change.action, selector);
        } else if let Some(set) = change.new_as::<StatefulSet>() {
            let selector = set
                .spec
                .as_ref()
                .map(|spec| Selector::of(Some(&spec.selector)));
            self.controller("StatefulSet", &set.metadata, change.action, selector);
        } else if let Some(controller) = change.new_as::<ReplicationController>() {
            let labels = controller
                .spec
                .as_ref()
                .and_then(|spec| spec.selector.as_ref());
            let selector = labels.map(|labels| Selector::equal_to(labels.iter()));
            let (meta, action) = (&controller.metadata, change.action);
            self.controller("ReplicationController", meta, action, selector);
        }
    }

    fn service(
        &mut self,
        meta: &ObjectMeta,
        action: Action,
        selector: Option<BTreeMap<String, String>>,
    ) {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let services = self.services.entry(text(&meta.namespace)).or_default();
        services.set(
            text(&meta.name),
            selector.filter(|_| action != Action::DELETE),
        );
    }

    fn controller(
        &mut self,
        kind: &'static str,
        meta: &ObjectMeta,
        action: Action,
        selector: Option<Selector>,
    ) {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let key = (kind, text(&meta.namespace), text(&meta.name));
        match selector.filter(|_| action != Action::DELETE) {
            Some(selector) => self.controllers.insert(key, selector),
            None => self.controllers.remove(&key),
        };
    }

    /// What selects the pods that belong together with `pod`; empty when nothing does.
    pub(super) fn selector(&self, pod: &PodInfo) -> Selector {
        let mut merged: BTreeMap<&String, &String> = BTreeMap::new();
        let services = self.services.get(&*pod.namespace);
        if let (Some(services), Some(labels)) = (services, &pod.object.metadata.labels) {
            for wanted in services.of(labels).into_values() {
                merged.extend(wanted);
            }
        }
        let mut selector = Selector::equal_to(merged.into_iter());
        let owners = pod.object.metadata.owner_references.iter().flatten();
        let Some(owner) = owners
            .into_iter()
            .find(|owner| owner.controller == Some(true))
        else {
            return selector;
        };
        let kind = match (owner.kind.as_str(), owner.api_version.as_str()) {
            ("ReplicaSet", "apps/v1") => "ReplicaSet",
            ("StatefulSet", "apps/v1") => "StatefulSet",
            ("ReplicationController", "v1") => "ReplicationController",
            _ => return selector,
        };
        let key = (kind, pod.namespace.to_string(), owner.name.clone());
        if let Some(own) = self.controllers.get(&key) {
            selector.and_all(own.clone());
        }
        selector
    }
}
