//! Search for volumes on a node: filter and plan of [`VolumeBinding`].

use super::binding::VolumeBinding;
use super::claims;
use super::matching::{self, ClaimId, meant_for, reachable, serves, suits, topology_allows};
use super::metrics::Failures;
use super::plan::{Fill, Step};
use super::seen::{SeenClaim, SeenVolume};
use super::storage::Storage;
use super::{Key, Used};
use crate::common::hosts::HOSTNAME;
use crate::common::node_selector::sign_terms;
use k8s_openapi::api::storage::v1::StorageClass;
use koord_scheduler::framework::{Code, Reason, Reasons, Rejection, Signature, Verdict};
use koord_scheduler::state::{NodeInfo, PodInfo};
use std::sync::Arc;

const UNBOUND: &str = "pod has unbound immediate PersistentVolumeClaims";
const ELSEWHERE: &str = "node(s) didn't match PersistentVolume's node affinity";
const NO_VOLUME: &str = "node(s) didn't find available persistent volumes to bind";
const NO_ROOM: &str = "node(s) did not have enough free storage";
const NO_SUCH_VOLUME: &str =
    "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)";
/// Provisioner of classes whose volumes are created manually.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// Claim that waits for its first consumer.
#[derive(Debug)]
pub(super) struct Delayed {
    claim: Arc<SeenClaim>,
    key: Key,
    /// Node that was selected for it before.
    pub(super) selected: Option<String>,
    /// Volume that is reserved for it.
    meant: Option<Arc<SeenVolume>>,
}

/// Claims of the pod that is being scheduled.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    pub(super) bound: Vec<Arc<SeenClaim>>,
    /// Claims that wait for this pod, smallest first.
    pub(super) delayed: Vec<Delayed>,
}

fn unresolvable(reasons: Vec<&'static str>) -> Rejection {
    let reasons: Vec<Reason> = reasons.into_iter().map(Reason::Static).collect();
    Rejection {
        code: Code::Unresolvable,
        reasons: Reasons::Many(reasons.into()),
    }
}

/// Returns the reason why a pod cannot use a claim on any node.
fn problem(pod: &PodInfo, used: &Used, claim: &SeenClaim) -> Option<String> {
    let (name, volume) = (&used.name, &claim.volume);
    if claim.lost {
        Some(format!(
            "persistentvolumeclaim {name:?} bound to non-existent persistentvolume {volume:?}"
        ))
    } else if claim.leaving {
        Some(format!("persistentvolumeclaim {name:?} is being deleted"))
    } else {
        used.foreign(pod, claim)
    }
}

/// Writes the node affinity of a volume to `signature`.
fn sign_place(volume: &SeenVolume, signature: &mut Signature) {
    signature.flag(volume.reachable.is_some());
    let terms = volume.reachable.as_deref();
    sign_terms(terms.unwrap_or_default(), signature);
}

/// Writes a version number to `signature`.
fn sign_version(version: u64, signature: &mut Signature) {
    signature.number(i64::try_from(version).unwrap_or(i64::MAX));
}

impl VolumeBinding {
    pub(super) fn wanted(&self, storage: &Storage, pod: &PodInfo) -> Result<Wanted, Rejection> {
        let mut out = Wanted::default();
        let mut immediate = false;
        for used in claims(pod) {
            let name = &used.name;
            let Some(claim) = storage.claims.get(&used.key) else {
                let text = if used.ephemeral {
                    format!(
                        "waiting for ephemeral volume controller to create the persistentvolumeclaim {name:?}"
                    )
                } else {
                    format!("persistentvolumeclaim {name:?} not found")
                };
                return Err(Rejection::unresolvable(text));
            };
            if let Some(problem) = problem(pod, used, claim) {
                return Err(Rejection::unresolvable(problem));
            }
            if claim.is_fully_bound() {
                out.bound.push(claim.clone());
                continue;
            }
            let delayed = storage.delayed(claim).map_err(Rejection::error)?;
            if delayed && claim.volume.is_empty() {
                out.delayed.push(self.delayed(storage, claim, &used.key));
            } else {
                immediate = true;
            }
        }
        if immediate {
            return Err(Rejection::unresolvable(UNBOUND));
        }
        let size = |delayed: &Delayed| delayed.claim.request;
        out.delayed
            .sort_by(|a, b| (size(a), &a.key).cmp(&(size(b), &b.key)));
        Ok(out)
    }

    fn delayed(&self, storage: &Storage, claim: &Arc<SeenClaim>, key: &str) -> Delayed {
        let selected = self.chosen_for(key);
        let selected = selected.or(claim.selected_node.as_deref());
        let meant = match selected {
            Some(_) => None,
            None => self.meant(storage, claim, key),
        };
        Delayed {
            claim: claim.clone(),
            key: key.to_owned(),
            selected: selected.map(str::to_owned),
            meant,
        }
    }

    /// Returns the first volume, by name, that is reserved for this claim.
    fn meant(&self, storage: &Storage, claim: &SeenClaim, key: &str) -> Option<Arc<SeenVolume>> {
        let id = ClaimId::of(claim);
        let mut names: Vec<&String> = storage.naming(key).chain(self.given_to(key)).collect();
        names.sort_unstable();
        let mut volumes = names.into_iter().filter_map(|name| {
            let volume = storage.volumes.get(name)?;
            let fits = volume.class == claim.class && suits(volume, claim);
            let meant = meant_for(volume, self.given(name), &id) == Some(true);
            (fits && meant).then_some(volume)
        });
        volumes.next().cloned()
    }

    /// Returns whether the node can reach or get all volumes; appends the necessary steps to `steps`.
    pub(super) fn answer(
        &self,
        storage: &Storage,
        wanted: &Wanted,
        node: &NodeInfo,
        steps: Option<&mut Vec<Step>>,
    ) -> Verdict {
        let mut reasons = Vec::new();
        let mut missing = false;
        for claim in &wanted.bound {
            match storage.volumes.get(&*claim.volume) {
                Some(volume) if reachable(volume, node) => {}
                Some(_) => {
                    reasons.push(ELSEWHERE);
                    break;
                }
                None => {
                    missing = true;
                    break;
                }
            }
        }
        let found = self.find(storage, &wanted.delayed, node, steps)?;
        reasons.extend(found);
        if missing {
            reasons.push(NO_SUCH_VOLUME);
        }
        if reasons.is_empty() {
            Ok(())
        } else {
            Err(unresolvable(reasons))
        }
    }

    /// Finds volumes for claims that have none. Returns the reason if there are not enough.
    fn find(
        &self,
        storage: &Storage,
        delayed: &[Delayed],
        node: &NodeInfo,
        mut steps: Option<&mut Vec<Step>>,
    ) -> Result<Option<&'static str>, Rejection> {
        let elsewhere = |delayed: &Delayed| {
            let selected = delayed.selected.as_ref();
            selected.is_some_and(|selected| **selected != *node.name)
        };
        if delayed.iter().any(elsewhere) {
            return Ok(Some(NO_VOLUME));
        }
        let mut note = |delayed: &Delayed, volume: Option<String>, fill: Option<Fill>| {
            if let Some(steps) = &mut steps {
                let id = ClaimId::of(&delayed.claim);
                steps.push(Step::new(delayed.key.clone(), id, volume, fill));
            }
        };
        let mut taken = Vec::new();
        let mut make: Vec<&Delayed> = delayed.iter().filter(|d| d.selected.is_some()).collect();
        for one in delayed.iter().filter(|d| d.selected.is_none()) {
            match self.volume_for(storage, one, node, &taken) {
                Some(volume) => {
                    let name = volume.names.name.to_string();
                    taken.push(name.clone());
                    let fill = Fill::of_volume(&one.claim, volume);
                    note(one, Some(name), Some(fill));
                }
                None => make.push(one),
            }
        }
        for one in make {
            let Some(class) = storage.classes.get(&*one.claim.class) else {
                Failures::count(&self.failures.predicate);
                let text = format!("failed to find storage class {:?}", one.claim.class);
                return Err(Rejection::error(text));
            };
            let by_hand = matches!(class.provisioner.as_str(), "" | NO_PROVISIONER);
            if by_hand || !topology_allows(class, node) {
                return Ok(Some(NO_VOLUME));
            }
            let mut fill = None;
            if let Some(size) = self.asks(storage, class, &one.claim) {
                let Some(room) = storage.rooms.find(&one.claim.class, size, node) else {
                    return Ok(Some(NO_ROOM));
                };
                fill = Some(Fill::of_class(&one.claim, room));
            }
            note(one, None, fill);
        }
        Ok(None)
    }

    /// Returns the volume for a claim on the node: the one reserved for it, or the smallest free one. Among
    /// equals, the first by name.
    fn volume_for<'a>(
        &self,
        storage: &'a Storage,
        delayed: &'a Delayed,
        node: &NodeInfo,
        taken: &[String],
    ) -> Option<&'a Arc<SeenVolume>> {
        if let Some(volume) = &delayed.meant {
            return reachable(volume, node).then_some(volume);
        }
        let pool = storage.pool(&delayed.claim.class)?;
        let free = pool
            .near(node.label(HOSTNAME))
            .filter(|name| self.given(name).is_none() && taken.iter().all(|taken| taken != *name));
        let volumes = free.filter_map(|name| {
            let volume = storage.volumes.get(name)?;
            serves(volume, &delayed.claim, node).then_some((name, volume))
        });
        let best = volumes.min_by_key(|(name, volume)| (volume.capacity, *name))?;
        Some(best.1)
    }

    /// Returns the capacity in bytes that a new volume for the claim needs, if its driver reports capacity.
    fn asks(&self, storage: &Storage, class: &StorageClass, claim: &SeenClaim) -> Option<i64> {
        let driver = storage.csi_drivers.get(&class.provisioner);
        let asks = self.capacities
            && driver.is_some_and(|driver| driver.spec.storage_capacity == Some(true));
        claim.request.filter(|_| asks)
    }

    /// Writes what filter results (and scores, if `scored`) depend on to `signature`, except for what is
    /// specific to a node.
    pub(super) fn sign_wanted(
        &self,
        storage: &Storage,
        wanted: &Wanted,
        scored: bool,
        signature: &mut Signature,
    ) {
        signature.count(wanted.bound.len());
        for claim in &wanted.bound {
            let volume = storage.volumes.get(&*claim.volume);
            signature.flag(volume.is_some());
            if let Some(volume) = volume {
                sign_place(volume, signature);
            }
        }
        signature.count(wanted.delayed.len());
        for delayed in &wanted.delayed {
            self.sign_delayed(storage, delayed, scored, signature);
        }
    }

    fn sign_delayed(
        &self,
        storage: &Storage,
        delayed: &Delayed,
        scored: bool,
        signature: &mut Signature,
    ) {
        let claim = &delayed.claim;
        signature.text(&claim.class);
        sign_version(storage.class_version(&claim.class), signature);
        signature.number(claim.request.unwrap_or(-1));
        signature.text(delayed.selected.as_deref().unwrap_or_default());
        signature.flag(delayed.meant.is_some());
        let pool = storage.pool(&delayed.claim.class);
        let pool = pool.filter(|_| delayed.selected.is_none());
        if let Some(volume) = &delayed.meant {
            signature.text(&volume.names.name);
            sign_place(volume, signature);
            if scored {
                signature.number(volume.capacity);
            }
        } else if let Some(pool) = pool {
            matching::sign(claim, signature);
            if let Some(version) = pool.elsewhere() {
                sign_version(version, signature);
                sign_version(self.handed, signature);
            }
        }
        let class = storage.classes.get(&*claim.class);
        let size = class.and_then(|class| self.asks(storage, class, claim));
        signature.flag(size.is_some());
        if let Some(size) = size {
            storage.rooms.sign(&claim.class, size, scored, signature);
        }
    }
}
