//! `VolumeZone`: places a pod in the zones and regions of its volumes' labels.

use super::seen::SeenVolume;
use super::storage::Storage;
use super::{CLAIMS, CLASSES, VOLUMES, indexes, interest, standing, storage, uses};
use koord_model::resources::ResourceTable;
use koord_scheduler::Watch;
use koord_scheduler::framework::{
    Action, ClusterEvent, Cycle, Filter, Helps, IndexKind, Inputs, Interest, Plugin, Points,
    PreFilter, PreFilterResult, QueueHints, Rejection, Roles, Sign, Signable, Signature, State,
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
struct Place {
    label: &'static str,
    values: BTreeSet<String>,
}

/// Returns the requirements of a volume's labels; invalid label values are ignored.
fn places(volume: &SeenVolume) -> impl Iterator<Item = Place> + '_ {
    LABELS.into_iter().filter_map(|label| {
        let text = volume.labels.get(label)?;
        let values = text.split("__").map(|value| value.trim().to_owned());
        let values: BTreeSet<String> = values.collect();
        (!values.contains("")).then_some(Place { label, values })
    })
}

impl VolumeZone {
    fn places(storage: &Storage, pod: &PodInfo) -> Result<Vec<Place>, Rejection> {
        let no = |text: String| Err(Rejection::unresolvable(text));
        let mut out = Vec::new();
        for used in standing(pod) {
            let name = &used.name;
            if name.is_empty() {
                return no("PersistentVolumeClaim had no name".to_owned());
            }
            let Some(claim) = storage.claims.get(&used.key) else {
                return no(format!("persistentvolumeclaim {name:?} not found"));
            };
            let volume = &*claim.volume;
            if !volume.is_empty() {
                let Some(volume) = storage.volumes.get(volume) else {
                    return no(format!("persistentvolume {volume:?} not found"));
                };
                out.extend(places(volume));
                continue;
            }
            let class = &*claim.class;
            if class.is_empty() {
                let text = "PersistentVolumeClaim had no pv name and storageClass name";
                return no(text.to_owned());
            }
            let Some(object) = storage.classes.get(class) else {
                return no(format!("storageclass.storage.k8s.io {class:?} not found"));
            };
            match object.volume_binding_mode.as_deref() {
                None => {
                    return no(format!(
                        "VolumeBindingMode not set for StorageClass {class:?}"
                    ));
                }
                Some("WaitForFirstConsumer") => {}
                Some(_) => return no("PersistentVolume had no name".to_owned()),
            }
        }
        Ok(out)
    }
}

/// Requirements of all volumes of a pod.
#[derive(Debug)]
struct Places(Vec<Place>);

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
    fn sign_found(&self, pod: &PodInfo, view: View<'_>, signature: &mut Signature) -> Signable {
        if standing(pod).next().is_none() {
            return Signable::Yes;
        }
        let Ok(places) = Self::places(storage(view), pod) else {
            return Signable::No;
        };
        for place in places {
            signature.text(place.label);
            signature.count(place.values.len());
            for value in &place.values {
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
        if standing(cycle.pod).next().is_none() {
            return PreFilterResult::Skip;
        }
        match Self::places(storage(cycle.view), cycle.pod) {
            Ok(places) if places.is_empty() => PreFilterResult::Skip,
            Ok(places) => PreFilterResult::ready(Places(places)),
            Err(rejection) => PreFilterResult::Reject(rejection),
        }
    }
}

impl Filter for VolumeZone {
    fn filter(&self, cycle: &Cycle<'_>, state: &State, node: NodeIndex) -> Verdict {
        let (Some(Places(places)), Some(info)) =
            (state.get::<Places>(), cycle.view.nodes.info(node))
        else {
            return Ok(());
        };
        if LABELS.iter().all(|label| info.label(label).is_none()) {
            // A cluster in a single zone need not label its nodes.
            return Ok(());
        }
        let here = |place: &Place| {
            let current = match place.label {
                OLD_ZONE => ZONE,
                OLD_REGION => REGION,
                label => label,
            };
            info.label(place.label)
                .or_else(|| info.label(current))
                .is_some_and(|value| place.values.contains(value))
        };
        if places.iter().all(here) {
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
    fn hint(&self, pod: &PodInfo, event: &ClusterEvent<'_>, _view: View<'_>) -> Helps {
        let Some(change) = event.object else {
            return Helps::Queue;
        };
        let old = change.old.as_ref().and_then(|old| old.downcast_ref());
        let new = change.new_as::<SeenVolume>();
        let helps = match (old, new) {
            (Some(old), Some(new)) => places(old).ne(places(new)),
            _ => change.new_as().is_none_or(|claim| uses(pod, claim)),
        };
        if helps { Helps::Queue } else { Helps::Skip }
    }
    fn about(&self, event: &ClusterEvent<'_>) -> Option<String> {
        super::claim_told(event)
    }
    fn names<'a>(&self, pod: &'a PodInfo) -> Vec<&'a str> {
        super::claim_names(pod)
    }
}
