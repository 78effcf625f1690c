//! Affinity terms of a pod in parsed form, with keys by which equal terms share a counter.

use crate::common::topology::{DomainSpec, Namespaces, Selector, Term, sign_selector};
use k8s_openapi::api::core::v1::{PodAffinityTerm, WeightedPodAffinityTerm};
use koord_scheduler::framework::{ShapeId, Signature};
use koord_scheduler::state::PodInfo;

/// Returns the required terms of the pod's affinity, or anti-affinity if `anti`.
pub(super) fn required(pod: &PodInfo, anti: bool) -> &[PodAffinityTerm] {
    let affinity = pod.spec().and_then(|spec| spec.affinity.as_ref());
    let terms = if anti {
        affinity
            .and_then(|a| a.pod_anti_affinity.as_ref())
            .and_then(|a| {
                a.required_during_scheduling_ignored_during_execution
                    .as_deref()
            })
    } else {
        affinity
            .and_then(|a| a.pod_affinity.as_ref())
            .and_then(|a| {
                a.required_during_scheduling_ignored_during_execution
                    .as_deref()
            })
    };
    terms.unwrap_or_default()
}

/// Returns the preferred terms of the pod's affinity, or anti-affinity if `anti`.
pub(super) fn preferred(pod: &PodInfo, anti: bool) -> &[WeightedPodAffinityTerm] {
    let affinity = pod.spec().and_then(|spec| spec.affinity.as_ref());
    let terms = if anti {
        affinity
            .and_then(|a| a.pod_anti_affinity.as_ref())
            .and_then(|a| {
                a.preferred_during_scheduling_ignored_during_execution
                    .as_deref()
            })
    } else {
        affinity
            .and_then(|a| a.pod_affinity.as_ref())
            .and_then(|a| {
                a.preferred_during_scheduling_ignored_during_execution
                    .as_deref()
            })
    };
    terms.unwrap_or_default()
}

/// Parsed affinity terms of a pod, cached per pod.
#[derive(Debug)]
pub(super) struct AffinityTerms {
    /// Required affinity terms.
    pub(super) affinity: Vec<AffinityTerm>,
    /// Index of the first term with each topology key, and the key of the counter of pods that match all of
    /// `affinity`.
    pub(super) counter_keys: Vec<(usize, ShapeId)>,
    /// Required anti-affinity terms.
    pub(super) anti_affinity: Vec<AffinityTerm>,
    /// Preferred terms with their weights, negative for anti-affinity.
    pub(super) preferred: Vec<(AffinityTerm, i64)>,
}

/// Parsed affinity term.
#[derive(Debug)]
pub(super) struct AffinityTerm {
    pub(super) term: Term,
    /// Definition of its topology domains.
    pub(super) domain_spec: DomainSpec,
    /// Key of the counter of pods that match the term.
    pub(super) key: ShapeId,
}

impl AffinityTerms {
    /// Returns the terms of `pod`; `None` for pods without affinity to pods, for which nothing is cached.
    pub(super) fn from_pod(pod: &PodInfo) -> Option<&Self> {
        has_affinity(pod).then(|| pod.facet(Self::parse))
    }

    /// Parses the terms of `pod`.
    fn parse(pod: &PodInfo) -> Self {
        let all = |anti: bool| {
            let terms = required(pod, anti).iter();
            terms.map(|term| AffinityTerm::parse(term, pod)).collect()
        };
        let affinity: Vec<AffinityTerm> = all(false);
        let raw = required(pod, false);
        let mut counter_keys: Vec<(usize, ShapeId)> = Vec::new();
        for (at, term) in raw.iter().enumerate() {
            // For each topology key, the counted pods are those that match all terms.
            let mut before = raw[..at].iter();
            if !before.any(|other| other.topology_key == term.topology_key) {
                let other_terms = raw.iter().enumerate().filter(|(i, _)| *i != at);
                let other_terms = other_terms.map(|(_, other)| other);
                let key = counter_key(term, std::iter::once(term).chain(other_terms), pod);
                counter_keys.push((at, key));
            }
        }
        let directions = [(false, 1), (true, -1)].into_iter();
        let preferred = directions.flat_map(|(anti, direction)| {
            preferred(pod, anti).iter().map(move |term| {
                let weight = direction * i64::from(term.weight);
                (AffinityTerm::parse(&term.pod_affinity_term, pod), weight)
            })
        });
        Self {
            affinity,
            counter_keys,
            anti_affinity: all(true),
            preferred: preferred.collect(),
        }
    }

    /// Returns the required affinity terms, or anti-affinity terms if `anti`.
    pub(super) fn required(&self, anti: bool) -> &[AffinityTerm] {
        if anti {
            &self.anti_affinity
        } else {
            &self.affinity
        }
    }
}

impl AffinityTerm {
    fn parse(term: &PodAffinityTerm, owner: &PodInfo) -> Self {
        Self {
            term: parse(term, owner),
            domain_spec: domain_spec(term),
            key: counter_key(term, [term].into_iter(), owner),
        }
    }

    /// Returns the node label that defines its domains.
    pub(super) fn label(&self) -> &str {
        &self.domain_spec.key
    }
}

/// Returns the key of the counter of pods that match all of `terms` of `owner`, by the domains of `first`.
pub(super) fn counter_key<'a>(
    first: &PodAffinityTerm,
    terms: impl Iterator<Item = &'a PodAffinityTerm>,
    owner: &PodInfo,
) -> ShapeId {
    let mut key = Signature::default();
    key.text(&first.topology_key);
    for term in terms {
        sign(term, owner, &mut key);
    }
    key.finish()
}

/// Returns true if the pod has affinity or anti-affinity to pods.
pub(super) fn has_affinity(pod: &PodInfo) -> bool {
    pod.spec()
        .and_then(|spec| spec.affinity.as_ref())
        .is_some_and(|affinity| {
            affinity.pod_affinity.is_some() || affinity.pod_anti_affinity.is_some()
        })
}

/// Returns the requirements from `matchLabelKeys` and `mismatchLabelKeys` with the owner's values, as (key,
/// value, equal).
fn label_key_requirements<'a>(
    term: &'a PodAffinityTerm,
    owner: &'a PodInfo,
) -> impl Iterator<Item = (&'a str, &'a str, bool)> {
    let with = move |keys: &'a Option<Vec<String>>, equal: bool| {
        keys.iter().flatten().filter_map(move |key| {
            let value = owner.label(key)?;
            Some((key.as_str(), value, equal))
        })
    };
    with(&term.match_label_keys, true).chain(with(&term.mismatch_label_keys, false))
}

/// Writes `term` of `owner` to `key`, without its topology key.
pub(super) fn sign(term: &PodAffinityTerm, owner: &PodInfo, key: &mut Signature) {
    match (&term.namespaces, &term.namespace_selector) {
        (None, None) => key.text(&owner.namespace),
        (Some(names), None) if names.is_empty() => key.text(&owner.namespace),
        (names, selector) => {
            for name in names.iter().flatten() {
                key.text(name);
            }
            key.number(-1);
            sign_selector(selector.as_ref(), key);
        }
    }
    key.number(-2);
    sign_selector(term.label_selector.as_ref(), key);
    for (name, value, equal) in label_key_requirements(term, owner) {
        key.text(name);
        key.text(value);
        key.number(i64::from(equal));
    }
    key.number(-3);
}

/// Parses `term` of `owner`.
pub(super) fn parse(term: &PodAffinityTerm, owner: &PodInfo) -> Term {
    let mut named = term.namespaces.clone().unwrap_or_default();
    if named.is_empty() && term.namespace_selector.is_none() {
        named.push(owner.namespace.to_string());
    }
    let mut selector = Selector::parse(term.label_selector.as_ref());
    for (key, value, equal) in label_key_requirements(term, owner) {
        selector.and(key, value, equal);
    }
    let selected = term
        .namespace_selector
        .as_ref()
        .map(|selector| Selector::parse(Some(selector)));
    Term {
        namespaces: Namespaces { named, selected },
        selector,
    }
}

/// Returns the domains of `term`: all nodes with its label count.
pub(super) fn domain_spec(term: &PodAffinityTerm) -> DomainSpec {
    DomainSpec {
        key: term.topology_key.clone(),
        ..DomainSpec::default()
    }
}
