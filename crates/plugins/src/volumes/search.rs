//! Search for volumes on a node: filter and plan of [`VolumeBinding`].

use super::binding::VolumeBinding;
use super::claims;
use super::matching::{
    self, ClaimId, can_serve, is_reachable, is_reserved_for, meets_claim, topology_allows,
};
use super::metrics::Failures;
use super::plan::{BindStep, Utilization};
use super::storage::Storage;
use super::trimmed::{TrimmedClaim, TrimmedVolume};
use super::{ClaimUse, Key};
use crate::common::hostname_index::HOSTNAME;
use crate::common::node_selector::sign_terms;
use k8s_openapi::api::storage::v1::StorageClass;
use koord_scheduler::framework::{Code, Reason, Reasons, Rejection, Signature, Verdict};
use koord_scheduler::state::{NodeInfo, PodInfo};
use std::sync::Arc;

const UNBOUND: &str = "pod has unbound immediate PersistentVolumeClaims";
const ELSEWHERE: &str = "node(s) didn't match PersistentVolume's node affinity";
const NO_VOLUME: &str = "node(s) didn't find available persistent volumes to bind";
const NO_CAPACITY: &str = "node(s) did not have enough free storage";
const NO_SUCH_VOLUME: &str =
    "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)";
/// Provisioner of classes whose volumes are created manually.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// Claim that waits for its first consumer.
#[derive(Debug)]
pub(super) struct DelayedClaim {
    claim: Arc<TrimmedClaim>,
    key: Key,
    /// Node that was selected for it before.
    pub(super) selected: Option<String>,
    /// Volume that is reserved for it.
    reserved: Option<Arc<TrimmedVolume>>,
}

/// Claims of the pod that is being scheduled.
#[derive(Debug, Default)]
pub(super) struct PodClaims {
    pub(super) bound: Vec<Arc<TrimmedClaim>>,
    /// Claims that wait for this pod, smallest first.
    pub(super) delayed: Vec<DelayedClaim>,
}

fn unresolvable(reasons: Vec<&'static str>) -> Rejection {
    let reasons: Vec<Reason> = reasons.into_iter().map(Reason::Static).collect();
    Rejection {
        code: Code::Unresolvable,
        reasons: Reasons::Many(reasons.into()),
    }
}

/// Returns the reason why a pod cannot use a claim on any node.
fn claim_problem(pod: &PodInfo, used: &ClaimUse, claim: &TrimmedClaim) -> Option<String> {
    let (name, volume) = (&used.name, &claim.volume);
    if claim.lost {
        Some(format!(
            "persistentvolumeclaim {name:?} bound to non-existent persistentvolume {volume:?}"
        ))
    } else if claim.deleting {
        Some(format!("persistentvolumeclaim {name:?} is being deleted"))
    } else {
        used.ownership_problem(pod, claim)
    }
}

/// Writes the node affinity of a volume to `signature`.
fn sign_node_affinity(volume: &TrimmedVolume, signature: &mut Signature) {
    signature.flag(volume.reachable.is_some());
    let terms = volume.reachable.as_deref();
    sign_terms(terms.unwrap_or_default(), signature);
}

/// Writes a version number to `signature`.
fn sign_version(version: u64, signature: &mut Signature) {
    signature.number(i64::try_from(version).unwrap_or(i64::MAX));
}

impl VolumeBinding {
    /// Returns the claims of `pod`, or why it cannot be placed on any node.
    pub(super) fn pod_claims(
        &self,
        storage: &Storage,
        pod: &PodInfo,
    ) -> Result<PodClaims, Rejection> {
        let mut out = PodClaims::default();
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
            if let Some(problem) = claim_problem(pod, used, claim) {
                return Err(Rejection::unresolvable(problem));
            }
            if claim.is_fully_bound() {
                out.bound.push(claim.clone());
                continue;
            }
            let delayed = storage.is_delayed(claim).map_err(Rejection::error)?;
            if delayed && claim.volume.is_empty() {
                out.delayed.push(self.delayed(storage, claim, &used.key));
            } else {
                immediate = true;
            }
        }
        if immediate {
            return Err(Rejection::unresolvable(UNBOUND));
        }
        let size = |delayed: &DelayedClaim| delayed.claim.request;
        out.delayed
            .sort_by(|a, b| (size(a), &a.key).cmp(&(size(b), &b.key)));
        Ok(out)
    }

    /// Returns a claim that waits, with its selected node or reserved volume.
    fn delayed(&self, storage: &Storage, claim: &Arc<TrimmedClaim>, key: &str) -> DelayedClaim {
        let selected = self.selected_node_for(key);
        let selected = selected.or(claim.selected_node.as_deref());
        let reserved = match selected {
            Some(_) => None,
            None => self.reserved_volume(storage, claim, key),
        };
        DelayedClaim {
            claim: claim.clone(),
            key: key.to_owned(),
            selected: selected.map(str::to_owned),
            reserved,
        }
    }

    /// Returns the first volume, by name, that is reserved for this claim.
    fn reserved_volume(
        &self,
        storage: &Storage,
        claim: &TrimmedClaim,
        key: &str,
    ) -> Option<Arc<TrimmedVolume>> {
        let id = ClaimId::from_claim(claim);
        let mut names: Vec<&String> = storage
            .volumes_reserved_for(key)
            .chain(self.assigned_volumes(key))
            .collect();
        names.sort_unstable();
        let mut volumes = names.into_iter().filter_map(|name| {
            let volume = storage.volumes.get(name)?;
            let fits = volume.class == claim.class && meets_claim(volume, claim);
            let reserved = is_reserved_for(volume, self.assigned_claim(name), &id) == Some(true);
            (fits && reserved).then_some(volume)
        });
        volumes.next().cloned()
    }

    /// Returns whether the node can reach or get all volumes; appends the necessary steps to `steps`.
    pub(super) fn check_node(
        &self,
        storage: &Storage,
        pod_claims: &PodClaims,
        node: &NodeInfo,
        steps: Option<&mut Vec<BindStep>>,
    ) -> Verdict {
        let mut reasons = Vec::new();
        let mut missing = false;
        for claim in &pod_claims.bound {
            match storage.volumes.get(&*claim.volume) {
                Some(volume) if is_reachable(volume, node) => {}
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
        let reason = self.find_volumes(storage, &pod_claims.delayed, node, steps)?;
        reasons.extend(reason);
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
    fn find_volumes(
        &self,
        storage: &Storage,
        delayed: &[DelayedClaim],
        node: &NodeInfo,
        mut steps: Option<&mut Vec<BindStep>>,
    ) -> Result<Option<&'static str>, Rejection> {
        let elsewhere = |delayed: &DelayedClaim| {
            let selected = delayed.selected.as_ref();
            selected.is_some_and(|selected| **selected != *node.name)
        };
        if delayed.iter().any(elsewhere) {
            return Ok(Some(NO_VOLUME));
        }
        let mut add_step =
            |delayed: &DelayedClaim, volume: Option<String>, utilization: Option<Utilization>| {
                if let Some(steps) = &mut steps {
                    let id = ClaimId::from_claim(&delayed.claim);
                    steps.push(BindStep::new(delayed.key.clone(), id, volume, utilization));
                }
            };
        let mut chosen = Vec::new();
        let mut to_provision: Vec<&DelayedClaim> =
            delayed.iter().filter(|d| d.selected.is_some()).collect();
        for claim_to_bind in delayed.iter().filter(|d| d.selected.is_none()) {
            match self.choose_volume(storage, claim_to_bind, node, &chosen) {
                Some(volume) => {
                    let name = volume.names.name.to_string();
                    chosen.push(name.clone());
                    let utilization = Utilization::from_volume(&claim_to_bind.claim, volume);
                    add_step(claim_to_bind, Some(name), Some(utilization));
                }
                None => to_provision.push(claim_to_bind),
            }
        }
        for claim_to_bind in to_provision {
            let Some(class) = storage.classes.get(&*claim_to_bind.claim.class) else {
                Failures::count(&self.failures.predicate);
                let text = format!(
                    "failed to find storage class {:?}",
                    claim_to_bind.claim.class
                );
                return Err(Rejection::error(text));
            };
            let by_hand = matches!(class.provisioner.as_str(), "" | NO_PROVISIONER);
            if by_hand || !topology_allows(class, node) {
                return Ok(Some(NO_VOLUME));
            }
            let mut utilization = None;
            if let Some(size) = self.needed_capacity(storage, class, &claim_to_bind.claim) {
                let Some(capacity) =
                    storage
                        .storage_capacities
                        .find(&claim_to_bind.claim.class, size, node)
                else {
                    return Ok(Some(NO_CAPACITY));
                };
                utilization = Some(Utilization::from_capacity(&claim_to_bind.claim, capacity));
            }
            add_step(claim_to_bind, None, utilization);
        }
        Ok(None)
    }

    /// Returns the volume for a claim on the node: the one reserved for it, or the smallest free one. Among
    /// equals, the first by name.
    fn choose_volume<'a>(
        &self,
        storage: &'a Storage,
        delayed: &'a DelayedClaim,
        node: &NodeInfo,
        chosen: &[String],
    ) -> Option<&'a Arc<TrimmedVolume>> {
        if let Some(volume) = &delayed.reserved {
            return is_reachable(volume, node).then_some(volume);
        }
        let pool = storage.pool(&delayed.claim.class)?;
        let free = pool.reachable_from(node.label(HOSTNAME)).filter(|name| {
            self.assigned_claim(name).is_none()
                && chosen.iter().all(|name_chosen| name_chosen != *name)
        });
        let volumes = free.filter_map(|name| {
            let volume = storage.volumes.get(name)?;
            can_serve(volume, &delayed.claim, node).then_some((name, volume))
        });
        let best = volumes.min_by_key(|(name, volume)| (volume.capacity, *name))?;
        Some(best.1)
    }

    /// Returns the capacity in bytes that a new volume for the claim needs, if its driver reports capacity.
    fn needed_capacity(
        &self,
        storage: &Storage,
        class: &StorageClass,
        claim: &TrimmedClaim,
    ) -> Option<i64> {
        let driver = storage.csi_drivers.get(&class.provisioner);
        let reports_capacity = self.capacities
            && driver.is_some_and(|driver| driver.spec.storage_capacity == Some(true));
        claim.request.filter(|_| reports_capacity)
    }

    /// Writes what filter results (and scores, if `scored`) depend on to `signature`, except for what is
    /// specific to a node.
    pub(super) fn sign_claims(
        &self,
        storage: &Storage,
        pod_claims: &PodClaims,
        scored: bool,
        signature: &mut Signature,
    ) {
        signature.count(pod_claims.bound.len());
        for claim in &pod_claims.bound {
            let volume = storage.volumes.get(&*claim.volume);
            signature.flag(volume.is_some());
            if let Some(volume) = volume {
                sign_node_affinity(volume, signature);
            }
        }
        signature.count(pod_claims.delayed.len());
        for delayed in &pod_claims.delayed {
            self.sign_delayed(storage, delayed, scored, signature);
        }
    }

    /// Writes what filter results and scores depend on for one waiting claim.
    fn sign_delayed(
        &self,
        storage: &Storage,
        delayed: &DelayedClaim,
        scored: bool,
        signature: &mut Signature,
    ) {
        let claim = &delayed.claim;
        signature.text(&claim.class);
        sign_version(storage.class_version(&claim.class), signature);
        signature.number(claim.request.unwrap_or(-1));
        signature.text(delayed.selected.as_deref().unwrap_or_default());
        signature.flag(delayed.reserved.is_some());
        let pool = storage.pool(&delayed.claim.class);
        let pool = pool.filter(|_| delayed.selected.is_none());
        if let Some(volume) = &delayed.reserved {
            signature.text(&volume.names.name);
            sign_node_affinity(volume, signature);
            if scored {
                signature.number(volume.capacity);
            }
        } else if let Some(pool) = pool {
            matching::sign(claim, signature);
            if let Some(version) = pool.shared_version() {
                sign_version(version, signature);
                sign_version(self.assignment_changes, signature);
            }
        }
        let class = storage.classes.get(&*claim.class);
        let size = class.and_then(|class| self.needed_capacity(storage, class, claim));
        signature.flag(size.is_some());
        if let Some(size) = size {
            storage
                .storage_capacities
                .sign(&claim.class, size, scored, signature);
        }
    }
}
