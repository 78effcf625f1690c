//! A pod's reservation annotations, and the check of a reservation against them.

use super::owners::OwnerListId;
use super::pod::ReservationTerms;
use super::pre_allocation::PreAllocationCandidates;
use crate::common::allocate_policy::AllocatePolicy;
use k8s_openapi::api::core::v1::{NodeSelectorTerm, Taint, Toleration};
use koord_api::extension::{ExactMatchReservationSpec, ReservationAffinity};
use koord_api::{annotations, labels};
use koord_model::nodes::{any_term, tolerates};
use koord_model::resources::{Amounts, ResourceId, ResourceTable};
use koord_scheduler::state::{NodeInfo, PodInfo};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The reason why a pod cannot use a reservation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum MismatchReason {
    /// The pod is no owner.
    Owner,
    /// The pod names another reservation.
    Name,
    /// The reservation is closed to new owners.
    Unschedulable,
    /// The pod does not tolerate this taint of the reservation, given as `{key: value}`.
    Taint(String),
    /// The pod's reservation affinity does not match.
    Affinity,
    /// An amount that must be equal differs.
    Exact,
}

impl std::fmt::Display for MismatchReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Owner => "the pod is no owner",
            Self::Name => "the pod asks for another one by name",
            Self::Unschedulable => "it is unschedulable",
            Self::Taint(taint) => return write!(f, "untolerated taint {taint}"),
            Self::Affinity => "the pod's reservation affinity does not match it",
            Self::Exact => "an amount that must be equal is not",
        })
    }
}

/// A pod's relation to reservations.
#[derive(Debug, Default)]
pub(super) struct PodReservationState {
    /// True if the pod ignores reservations and may use what they hold.
    pub(super) ignores: bool,
    /// Ids of the owner lists that the pod matches.
    pub(super) owner_of: Vec<OwnerListId>,
    /// Affinity that its reservation must match; `None` if the pod may also run without a reservation.
    pub(super) affinity: Option<Arc<Affinity>>,
    /// Resources whose requested and reserved amounts must be equal.
    exact: Vec<ResourceId>,
}

/// A pod's parsed reservation affinity.
#[derive(Debug, Default)]
pub(super) struct Affinity {
    /// Name of the required reservation; if set, all other parts are ignored.
    pub(super) name: Option<String>,
    selector: BTreeMap<String, String>,
    terms: Option<Vec<NodeSelectorTerm>>,
    tolerations: Vec<Toleration>,
    tolerates_unschedulable: bool,
}

/// The subject of a scheduling cycle: a pod, or a reservation that is to be placed.
#[derive(Debug)]
pub(super) enum CycleSubject {
    /// A reservation.
    Reservation {
        /// Node that the template names.
        fixed: Option<String>,
        /// Allocate policy of the reservation.
        policy: AllocatePolicy,
        /// The running pods that it may be placed over; `None` if it is placed without pre-allocation.
        candidates: Option<PreAllocationCandidates>,
    },
    /// A pod.
    Pod(PodReservationState),
}

impl PodReservationState {
    /// Parses the pod's annotations.
    ///
    /// # Errors
    /// Returns a message that names the invalid annotation and its value.
    pub(super) fn new(
        pod: &PodInfo,
        owner_of: Vec<OwnerListId>,
        table: &ResourceTable,
    ) -> Result<Self, String> {
        let mut out = Self {
            ignores: ignores_reservations(pod),
            owner_of,
            ..Self::default()
        };
        let parsed = pod
            .facet(ReservationAnnotations::read)
            .as_ref()
            .map_err(Clone::clone)?;
        out.affinity.clone_from(&parsed.affinity);
        let exact = parsed.exact.iter();
        out.exact = exact.map(|name| table.intern(name)).collect();
        Ok(out)
    }

    /// Returns true if the pod only has to be an owner of a reservation to use it.
    pub(super) fn is_simple(&self) -> bool {
        self.affinity.is_none() && self.exact.is_empty()
    }

    /// Returns true if reservations do not concern the pod.
    pub(super) fn is_plain(&self) -> bool {
        !self.ignores && self.owner_of.is_empty() && self.affinity.is_none()
    }

    /// Checks whether the pod may use a reservation with these terms on `node`; that it is an owner is
    /// checked already.
    pub(super) fn check(
        &self,
        pod: &PodInfo,
        name: &str,
        terms: &ReservationTerms,
        node: Option<&NodeInfo>,
    ) -> Result<(), MismatchReason> {
        self.check_with_unschedulable(pod, name, terms, node, terms.unschedulable)
    }

    /// Checks whether the pod may use a reservation, as [`Self::check`] does, but with `unschedulable` in
    /// place of the reservation's own flag.
    pub(super) fn check_with_unschedulable(
        &self,
        pod: &PodInfo,
        name: &str,
        terms: &ReservationTerms,
        node: Option<&NodeInfo>,
        unschedulable: bool,
    ) -> Result<(), MismatchReason> {
        let exact = || {
            if exact_match(&self.exact, &pod.requests, &terms.allocatable) {
                Ok(())
            } else {
                Err(MismatchReason::Exact)
            }
        };
        let Some(affinity) = &self.affinity else {
            // Taints apply only to pods that have a reservation affinity.
            return if unschedulable {
                Err(MismatchReason::Unschedulable)
            } else {
                exact()
            };
        };
        if let Some(wanted) = &affinity.name {
            return if wanted == name {
                exact()
            } else {
                Err(MismatchReason::Name)
            };
        }
        if unschedulable && !affinity.tolerates_unschedulable {
            return Err(MismatchReason::Unschedulable);
        }
        let hard = |taint: &&Taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute");
        let mut taints = terms.taints.iter().filter(hard);
        if let Some(taint) = taints.find(|taint| !tolerates(&affinity.tolerations, taint)) {
            let value = taint.value.as_deref().unwrap_or_default();
            return Err(MismatchReason::Taint(format!("{{{}: {value}}}", taint.key)));
        }
        let label = |key: &str| {
            let own = terms.labels.get(key).map(String::as_str);
            own.or_else(|| node?.label(key))
        };
        if affinity.matches(name, label) {
            exact()
        } else {
            Err(MismatchReason::Affinity)
        }
    }
}

/// The pod's reservation annotations, parsed once.
struct ReservationAnnotations {
    affinity: Option<Arc<Affinity>>,
    /// Names of resources whose requested and reserved amounts must be equal.
    exact: Vec<String>,
}

impl ReservationAnnotations {
    /// Parses the annotations.
    ///
    /// # Errors
    /// Returns a message that names the invalid annotation and its value.
    fn read(pod: &PodInfo) -> Result<Self, String> {
        fn parsed<T: DeserializeOwned>(
            pod: &PodInfo,
            key: &'static str,
        ) -> Result<Option<T>, String> {
            let Some((key, text)) = annotation(pod, key) else {
                return Ok(None);
            };
            let malformed = |error| format!("annotation {key} is malformed: {error}: {text:?}");
            serde_json::from_str(text).map(Some).map_err(malformed)
        }
        let affinity: Option<ReservationAffinity> = parsed(pod, annotations::RESERVATION_AFFINITY)?;
        let exact: Option<ExactMatchReservationSpec> =
            parsed(pod, annotations::EXACT_MATCH_RESERVATION)?;
        Ok(Self {
            affinity: affinity.map(|affinity| Arc::new(affinity.into())),
            exact: exact.map(|exact| exact.resource_names).unwrap_or_default(),
        })
    }
}

impl Affinity {
    fn matches<'a>(&self, name: &str, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.selector
            .iter()
            .all(|(key, value)| label(key) == Some(value))
            && self
                .terms
                .as_ref()
                .is_none_or(|terms| any_term(terms, name, label))
    }
}

impl From<ReservationAffinity> for Affinity {
    fn from(parsed: ReservationAffinity) -> Self {
        let unschedulable = Taint {
            key: "node.kubernetes.io/unschedulable".to_owned(),
            effect: "NoSchedule".to_owned(),
            ..Taint::default()
        };
        Self {
            tolerates_unschedulable: tolerates(&parsed.tolerations, &unschedulable),
            name: Some(parsed.name).filter(|name| !name.is_empty()),
            selector: parsed.reservation_selector,
            terms: parsed
                .required_during_scheduling_ignored_during_execution
                .map(|required| required.reservation_selector_terms),
            tolerations: parsed.tolerations,
        }
    }
}

/// Returns true if the listed resources are requested and reserved in equal amounts.
fn exact_match(names: &[ResourceId], requests: &Amounts, allocatable: &Amounts) -> bool {
    names.iter().all(|id| {
        requests.contains(*id) == allocatable.contains(*id)
            && requests.get(*id) == allocatable.get(*id)
    })
}

/// Returns true if the pod has the label to ignore reservations.
pub(super) fn ignores_reservations(pod: &PodInfo) -> bool {
    pod.label(labels::RESERVATION_IGNORED) == Some("true")
}

/// Returns an annotation's key and value if the pod has it and it is not empty.
pub(super) fn annotation<'a>(
    pod: &'a PodInfo,
    key: &'static str,
) -> Option<(&'static str, &'a str)> {
    pod.annotation(key)
        .filter(|text| !text.is_empty())
        .map(|text| (key, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_api::scheduling::Reservation;
    use koord_api::texts::Texts;
    use serde_json::{Value, json};

    fn pod(affinity: &Value, exact: &Value) -> PodInfo {
        let mut notes = json!({});
        if !affinity.is_null() {
            notes[annotations::RESERVATION_AFFINITY] = json!(affinity.to_string());
        }
        if !exact.is_null() {
            let spec = json!({"resourceNames": exact});
            notes[annotations::EXACT_MATCH_RESERVATION] = json!(spec.to_string());
        }
        let pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "p", "annotations": notes},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]}
        }))
        .unwrap();
        PodInfo::new(Arc::new(pod), &TABLE).unwrap()
    }

    static TABLE: std::sync::LazyLock<ResourceTable> = std::sync::LazyLock::new(ResourceTable::new);

    fn check(spec: Value, affinity: &Value, exact: &Value) -> Result<(), MismatchReason> {
        let mut value = json!({
            "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Reservation",
            "metadata": {"name": "r1", "uid": "u", "labels": {"team": "a", "zone": "own"}},
            "spec": {"ttl": "1h", "owners": [{}], "template": {"spec": {"containers":
                [{"name": "c", "resources": {"requests": {"cpu": "2", "memory": "1Gi"}}}]}}}
        });
        for (key, part) in spec.as_object().unwrap() {
            value["spec"][key] = part.clone();
        }
        let object: Reservation = serde_json::from_value(value).unwrap();
        let terms = ReservationTerms::new(&object, &TABLE).unwrap();
        let node = serde_json::from_value(json!({"metadata": {"name": "n", "labels":
            {"zone": "nodes", "arch": "arm64"}}}))
        .unwrap();
        let (node, _) = NodeInfo::new(Arc::new(node), None, &TABLE);
        let pod = pod(affinity, exact);
        PodReservationState::new(&pod, vec![1], &TABLE)
            .unwrap()
            .check(&pod, "r1", &terms, Some(&node))
    }

    #[test]
    fn checks_run_in_fixed_order() {
        let none = Value::Null;
        let closed = || json!({"unschedulable": true});
        let tainted = || json!({"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]});
        let soft = || json!({"taints": [{"key": "k", "effect": "PreferNoSchedule"}]});
        let selector = |key: &str, value: &str| json!({"reservationSelector": {key: value}});
        let term = |key: &str, operator: &str, values: Value| {
            json!({"requiredDuringSchedulingIgnoredDuringExecution": {"reservationSelectorTerms": [
                {"matchExpressions": [{"key": key, "operator": operator, "values": values}]}]}})
        };
        let no_terms = json!({"requiredDuringSchedulingIgnoredDuringExecution": {}});
        let tolerating = |key: &str| json!({"tolerations": [{"key": key, "operator": "Exists"}]});
        let taint = Err(MismatchReason::Taint("{k: v}".to_owned()));
        let cases = [
            ("plain", json!({}), none.clone(), none.clone(), Ok(())),
            ("empty affinity", json!({}), json!({}), none.clone(), Ok(())),
            (
                "closed",
                closed(),
                none.clone(),
                none.clone(),
                Err(MismatchReason::Unschedulable),
            ),
            (
                "closed, tolerated",
                closed(),
                tolerating("node.kubernetes.io/unschedulable"),
                none.clone(),
                Ok(()),
            ),
            (
                "closed, by name",
                closed(),
                json!({"name": "r1"}),
                none.clone(),
                Ok(()),
            ),
            (
                "another name",
                json!({}),
                json!({"name": "r2"}),
                none.clone(),
                Err(MismatchReason::Name),
            ),
            (
                "by name, amounts differ",
                json!({}),
                json!({"name": "r1"}),
                json!(["memory"]),
                Err(MismatchReason::Exact),
            ),
            (
                "taints without affinity",
                tainted(),
                none.clone(),
                none.clone(),
                Ok(()),
            ),
            ("taints", tainted(), json!({}), none.clone(), taint),
            (
                "taints, tolerated",
                tainted(),
                tolerating("k"),
                none.clone(),
                Ok(()),
            ),
            (
                "taints, by name",
                tainted(),
                json!({"name": "r1"}),
                none.clone(),
                Ok(()),
            ),
            ("soft taints", soft(), json!({}), none.clone(), Ok(())),
            (
                "own label",
                json!({}),
                selector("team", "a"),
                none.clone(),
                Ok(()),
            ),
            (
                "another label",
                json!({}),
                selector("team", "b"),
                none.clone(),
                Err(MismatchReason::Affinity),
            ),
            (
                "label of the node",
                json!({}),
                selector("arch", "arm64"),
                none.clone(),
                Ok(()),
            ),
            (
                "own labels win",
                json!({}),
                selector("zone", "nodes"),
                none.clone(),
                Err(MismatchReason::Affinity),
            ),
            (
                "term",
                json!({}),
                term("team", "In", json!(["a", "b"])),
                none.clone(),
                Ok(()),
            ),
            (
                "term unmet",
                json!({}),
                term("team", "NotIn", json!(["a"])),
                none.clone(),
                Err(MismatchReason::Affinity),
            ),
            (
                "no terms",
                json!({}),
                no_terms,
                none.clone(),
                Err(MismatchReason::Affinity),
            ),
            (
                "equal amount",
                json!({}),
                none.clone(),
                json!(["cpu"]),
                Ok(()),
            ),
            (
                "amount asked for only here",
                json!({}),
                none.clone(),
                json!(["cpu", "memory"]),
                Err(MismatchReason::Exact),
            ),
            (
                "absent on both sides goes on",
                json!({}),
                none.clone(),
                json!(["a.com/x", "memory"]),
                Err(MismatchReason::Exact),
            ),
        ];
        for (name, spec, affinity, exact, expected) in cases {
            assert_eq!(check(spec, &affinity, &exact), expected, "{name}");
        }
    }

    #[test]
    fn invalid_annotations_are_reported_with_value() {
        let broken = |key: &str| {
            let mut pod = pod(&Value::Null, &Value::Null);
            let broken = [(key.to_owned(), "{x".to_owned())].into();
            let object = Arc::make_mut(&mut pod.object);
            object.annotations = Arc::new(Texts::from_map(Some(&broken), String::as_str));
            PodReservationState::new(&pod, Vec::new(), &TABLE).unwrap_err()
        };
        for key in [
            annotations::RESERVATION_AFFINITY,
            annotations::EXACT_MATCH_RESERVATION,
        ] {
            let error = broken(key);
            assert!(error.contains(key) && error.contains("{x"), "{error}");
        }
    }
}
