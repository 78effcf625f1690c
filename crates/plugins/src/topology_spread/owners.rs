//! Selectors of services and controllers, which define the pods that belong together.

use crate::common::topology::Selector;
use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{ReplicationController, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use koord_api::texts::Texts;
use koord_scheduler::framework::{Action, ObjectChange};
use koord_scheduler::state::PodInfo;
use koord_scheduler::{Cacheable, Watch};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};

const SERVICES: &str = "services.v1.";
const REPLICA_SETS: &str = "replicasets.v1.apps";
const STATEFUL_SETS: &str = "statefulsets.v1.apps";
const REPLICATION_CONTROLLERS: &str = "replicationcontrollers.v1.";

/// Selectors of services and controllers, by namespace and name.
#[derive(Debug, Default)]
pub(super) struct OwnerSelectors {
    services: FxHashMap<Box<str>, ServiceSelectors>,
    controllers: FxHashMap<(OwnerKind, Box<str>, Box<str>), Selector>,
}

/// Kind of object that selects pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum OwnerKind {
    Service,
    ReplicaSet,
    StatefulSet,
    ReplicationController,
}

/// Trimmed form of a service or controller for informers. Most of a controller is its pod template, which is
/// not read, and there are dozens of old ReplicaSets.
#[derive(Debug)]
pub(super) struct TrimmedOwner {
    kind: OwnerKind,
    namespace: Box<str>,
    name: Box<str>,
    uid: Option<Box<str>>,
    resource_version: Option<Box<str>>,
    /// Selector of a service.
    labels: Option<BTreeMap<String, String>>,
    /// Selector of a controller.
    selector: Option<Selector>,
}

impl TrimmedOwner {
    fn new(kind: OwnerKind, meta: &ObjectMeta) -> Self {
        let text = |text: &Option<String>| text.as_deref().map(Box::from);
        Self {
            kind,
            namespace: text(&meta.namespace).unwrap_or_default(),
            name: text(&meta.name).unwrap_or_default(),
            uid: text(&meta.uid),
            resource_version: text(&meta.resource_version),
            labels: None,
            selector: None,
        }
    }
}

impl From<Service> for TrimmedOwner {
    fn from(service: Service) -> Self {
        Self {
            labels: service.spec.and_then(|spec| spec.selector),
            ..Self::new(OwnerKind::Service, &service.metadata)
        }
    }
}

impl From<ReplicaSet> for TrimmedOwner {
    fn from(set: ReplicaSet) -> Self {
        let selector = set.spec.map(|spec| Selector::parse(Some(&spec.selector)));
        Self {
            selector,
            ..Self::new(OwnerKind::ReplicaSet, &set.metadata)
        }
    }
}

impl From<StatefulSet> for TrimmedOwner {
    fn from(set: StatefulSet) -> Self {
        let selector = set.spec.map(|spec| Selector::parse(Some(&spec.selector)));
        Self {
            selector,
            ..Self::new(OwnerKind::StatefulSet, &set.metadata)
        }
    }
}

impl From<ReplicationController> for TrimmedOwner {
    fn from(controller: ReplicationController) -> Self {
        let labels = controller.spec.and_then(|spec| spec.selector);
        let selector = labels.map(|labels| Selector::equal_to(labels.iter()));
        Self {
            selector,
            ..Self::new(OwnerKind::ReplicationController, &controller.metadata)
        }
    }
}

impl Cacheable for TrimmedOwner {
    fn names(&self) -> (&str, &str) {
        (&self.namespace, &self.name)
    }
    fn is_same(&self, other: &Self) -> bool {
        self.uid == other.uid
    }
    fn resource_version(&self) -> Option<&str> {
        self.resource_version.as_deref()
    }
}

/// Services of a namespace: selectors by service name, and names by one label of each selector.
#[derive(Debug, Default)]
struct ServiceSelectors {
    selectors: BTreeMap<String, BTreeMap<String, String>>,
    by_label: FxHashMap<String, FxHashMap<String, BTreeSet<String>>>,
}

impl ServiceSelectors {
    /// Sets the selector of service `name`; `None` removes the service.
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
            // A service without labels in its selector groups no pods.
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

    /// Returns the services that select `labels`, by name.
    fn matching(&self, labels: &Texts) -> BTreeMap<&String, &BTreeMap<String, String>> {
        let named = labels
            .iter()
            .filter_map(|(label, value)| self.by_label.get(label)?.get(value));
        let with_name = |name| self.selectors.get_key_value(name);
        let mut matching: BTreeMap<_, _> = named.flatten().filter_map(with_name).collect();
        matching.retain(|_, selector| {
            selector
                .iter()
                .all(|(label, value)| labels.get(label) == Some(value.as_str()))
        });
        matching
    }
}

impl OwnerSelectors {
    pub(super) fn watches() -> Vec<Watch> {
        vec![
            Watch::mapped::<Service, TrimmedOwner>(SERVICES),
            Watch::mapped::<ReplicaSet, TrimmedOwner>(REPLICA_SETS),
            Watch::mapped::<StatefulSet, TrimmedOwner>(STATEFUL_SETS),
            Watch::mapped::<ReplicationController, TrimmedOwner>(REPLICATION_CONTROLLERS),
        ]
    }

    /// Applies a change of a service or controller.
    pub(super) fn apply(&mut self, change: &ObjectChange) {
        let Some(owner) = change.new_as::<TrimmedOwner>() else {
            let kinds = [
                SERVICES,
                REPLICA_SETS,
                STATEFUL_SETS,
                REPLICATION_CONTROLLERS,
            ];
            debug_assert!(!kinds.contains(&change.kind), "not what informers keep");
            return;
        };
        let deleted = change.action == Action::DELETE;
        if owner.kind == OwnerKind::Service {
            let services = self.services.entry(owner.namespace.clone()).or_default();
            let labels = owner.labels.clone().filter(|_| !deleted);
            services.set(owner.name.to_string(), labels);
            return;
        }
        let key = (owner.kind, owner.namespace.clone(), owner.name.clone());
        match owner.selector.clone().filter(|_| !deleted) {
            Some(selector) => self.controllers.insert(key, selector),
            None => self.controllers.remove(&key),
        };
    }

    /// Returns the selector of the pods that belong together with `pod`; empty if there is none.
    pub(super) fn selector(&self, pod: &PodInfo) -> Selector {
        let mut merged: BTreeMap<&String, &String> = BTreeMap::new();
        let services = self.services.get(&*pod.namespace);
        for labels in services
            .into_iter()
            .flat_map(|all| all.matching(pod.labels()).into_values())
        {
            merged.extend(labels);
        }
        let mut selector = Selector::equal_to(merged.into_iter());
        let owners = pod.object.owners.iter();
        let Some(owner) = owners
            .into_iter()
            .find(|owner| owner.controller == Some(true))
        else {
            return selector;
        };
        let kind = match (owner.kind.as_str(), owner.api_version.as_str()) {
            ("ReplicaSet", "apps/v1") => OwnerKind::ReplicaSet,
            ("StatefulSet", "apps/v1") => OwnerKind::StatefulSet,
            ("ReplicationController", "v1") => OwnerKind::ReplicationController,
            _ => return selector,
        };
        let key = (
            kind,
            pod.namespace.as_ref().into(),
            owner.name.as_str().into(),
        );
        if let Some(own) = self.controllers.get(&key) {
            selector.and_all(own.clone());
        }
        selector
    }
}
