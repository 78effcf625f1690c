//! `VolumeZone`: places a pod in the zones and regions of its volumes' labels.

use super::storage::Storage;
use super::trimmed::TrimmedVolume;
use super::{CLAIMS, CLASSES, VOLUMES, independent_claims, indexes, interest, storage, uses};
use koord_model::resources::ResourceTable;
use koord_scheduler::Watch;
use koord_scheduler::framework::{
    Action, ClusterEvent, Cycle, Filter, IndexKind, Inputs, Interest, Plugin, Points, PreFilter,
    PreFilterResult, QueueHints, QueueingHint, Rejection, Roles, Sign, Signable, Signature, State,
    Subject, Verdict, View,
};
use koord_scheduler::state::{NodeIndex, PodInfo};
use std::collections::BTreeSet;

const CONFLICT: &str = "node(s) had no available volume zone";
const ZONE: &str = "topology.kubernetes.io/zone";
const REGION: &str = "topology.kubernetes.io/region";
const OLD_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";
const OLD_REGION: &str = "failure-domain.beta.kubernetes.io/region";
const LABELS: [&str; 4] = [OLD_ZONE, OLD_REGION, ZONE, REGION];

/// State of the `VolumeZone` plugin, which has none.
#[derive(Debug, Default)]
pub(crate) struct VolumeZone;

/// Zone or region label that nodes must have, with one of these values.
#[derive(Debug, PartialEq)]
struct ZoneRequirement {
    label: &'static str,
    values: BTreeSet<String>,
}

/// Returns the requirements of a volume's labels; invalid label values are ignored.
fn zone_requirements(volume: &TrimmedVolume) -> impl Iterator<Item = ZoneRequirement> + '_ {
    LABELS.into_iter().filter_map(|label| {
        let text = volume.labels.get(label)?;
        let values = text.split("__").map(|value| value.trim().to_owned());
        let values: BTreeSet<String> = values.collect();
        (!values.contains("")).then_some(ZoneRequirement { label, values })
    })
}

impl VolumeZone {
    /// Returns the requirements of all volumes of `pod`.
    fn zone_requirements(
        storage: &Storage,
        pod: &PodInfo,
    ) -> Result<Vec<ZoneRequirement>, Rejection> {
        let reject = |text: String| Err(Rejection::unresolvable(text));
        let mut out = Vec::new();
        for used in independent_claims(pod) {
            let name = &used.name;
            if name.is_empty() {
                return reject("PersistentVolumeClaim had no name".to_owned());
            }
            let Some(claim) = storage.claims.get(&used.key) else {
                return reject(format!("persistentvolumeclaim {name:?} not found"));
            };
            let volume = &*claim.volume;
            if !volume.is_empty() {
                let Some(volume) = storage.volumes.get(volume) else {
                    return reject(format!("persistentvolume {volume:?} not found"));
                };
                out.extend(zone_requirements(volume));
                continue;
            }
            let class = &*claim.class;
            if class.is_empty() {
                let text = "PersistentVolumeClaim had no pv name and storageClass name";
                return reject(text.to_owned());
            }
            let Some(object) = storage.classes.get(class) else {
                return reject(format!("storageclass.storage.k8s.io {class:?} not found"));
            };
            match object.volume_binding_mode.as_deref() {
                None => {
                    return reject(format!(
                        "VolumeBindingMode not set for StorageClass {class:?}"
                    ));
                }
                Some("WaitForFirstConsumer") => {}
                Some(_) => return reject("PersistentVolume had no name".to_owned()),
            }
        }
        Ok(out)
    }
}

/// Requirements of all volumes of a pod.
#[derive(Debug)]
struct ZoneRequirements(Vec<ZoneRequirement>);

impl Plugin for VolumeZone {
    const ROLES: Roles<Self> = Roles::none()
        .inputs()
        .queue_hints()
        .sign()
        .pre_filter()
        .filter();

    fn name(&self) -> &'static str {
        "VolumeZone"
    }
    fn points(&self) -> Points {
        Points::PRE_FILTER.or(Points::FILTER)
    }
}

impl Sign for VolumeZone {
    fn sign(&self, _: &PodInfo, _: &ResourceTable, _: &mut Signature) -> Signable {
        Signable::Yes
    }
    fn sign_external(&self, pod: &PodInfo, view: View<'_>, signature: &mut Signature) -> Signable {
        if independent_claims(pod).next().is_none() {
            return Signable::Yes;
        }
        let Ok(zone_requirements) = Self::zone_requirements(storage(view), pod) else {
            return Signable::No;
        };
        for requirement in zone_requirements {
            signature.text(requirement.label);
            signature.count(requirement.values.len());
            for value in &requirement.values {
                signature.text(value);
            }
        }
        Signable::Yes
    }
}

impl Inputs for VolumeZone {
    fn watches(&self) -> Vec<Watch> {
        Storage::watches(&[CLAIMS, VOLUMES, CLASSES])
    }
    fn indexes(&self) -> Vec<IndexKind> {
        indexes()
    }
}

impl PreFilter for VolumeZone {
    fn pre_filter(&self, cycle: &Cycle<'_>) -> PreFilterResult {
        if independent_claims(cycle.pod).next().is_none() {
            return PreFilterResult::Skip;
        }
        match Self::zone_requirements(storage(cycle.view), cycle.pod) {
            Ok(zone_requirements) if zone_requirements.is_empty() => PreFilterResult::Skip,
            Ok(zone_requirements) => PreFilterResult::ready(ZoneRequirements(zone_requirements)),
            Err(rejection) => PreFilterResult::Reject(rejection),
        }
    }
}

impl Filter for VolumeZone {
    fn filter(&self, cycle: &Cycle<'_>, state: &State, node: NodeIndex) -> Verdict {
        let (Some(ZoneRequirements(zone_requirements)), Some(info)) =
            (state.get::<ZoneRequirements>(), cycle.view.nodes.info(node))
        else {
            return Ok(());
        };
        if LABELS.iter().all(|label| info.label(label).is_none()) {
            // A cluster in a single zone need not label its nodes.
            return Ok(());
        }
        let matches = |requirement: &ZoneRequirement| {
            let current = match requirement.label {
                OLD_ZONE => ZONE,
                OLD_REGION => REGION,
                label => label,
            };
            info.label(requirement.label)
                .or_else(|| info.label(current))
                .is_some_and(|value| requirement.values.contains(value))
        };
        if zone_requirements.iter().all(matches) {
            Ok(())
        } else {
            Err(Rejection::unresolvable(CONFLICT))
        }
    }
}

impl QueueHints for VolumeZone {
    fn interests(&self) -> Vec<Interest> {
        let change = Action::ADD.or(Action::UPDATE);
        vec![
            interest(Subject::Object(CLASSES), Action::ADD),
            interest(Subject::Node, Action::ADD.or(Action::NODE_LABEL)),
            interest(Subject::Object(CLAIMS), change),
            interest(Subject::Object(VOLUMES), change),
        ]
    }
    fn hint(&self, pod: &PodInfo, event: &ClusterEvent<'_>, _view: View<'_>) -> QueueingHint {
        let Some(change) = event.object else {
            return QueueingHint::Queue;
        };
        let old = change.old.as_ref().and_then(|old| old.downcast_ref());
        let new = change.new_as::<TrimmedVolume>();
        let helps = match (old, new) {
            (Some(old), Some(new)) => zone_requirements(old).ne(zone_requirements(new)),
            _ => change.new_as().is_none_or(|claim| uses(pod, claim)),
        };
        if helps {
            QueueingHint::Queue
        } else {
            QueueingHint::Skip
        }
    }
    fn event_subject(&self, event: &ClusterEvent<'_>) -> Option<String> {
        super::event_claim_key(event)
    }
    fn referenced_objects<'a>(&self, pod: &'a PodInfo) -> Vec<&'a str> {
        super::used_claim_keys(pod)
    }
}
