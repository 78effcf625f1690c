//! The terms of a pod's affinity to other pods, named so that equal ones are counted once.

use crate::common::topology::{Frame, Namespaces, Selector, Term, sign_selector};
use k8s_openapi::api::core::v1::{PodAffinityTerm, WeightedPodAffinityTerm};
use koord_scheduler::framework::{ShapeId, Signature};
use koord_scheduler::state::PodInfo;

/// Required terms of affinity, or of anti-affinity.
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

/// Preferred terms of affinity, or of anti-affinity.
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

/// What a pod says of other pods, as it was read once.
#[derive(Debug)]
pub(super) struct Said {
    /// Required terms of affinity.
    pub(super) affinity: Vec<One>,
    /// Of pods that match all of `affinity`: a counter for each topology key, as the term that has it first.
    pub(super) together: Vec<(usize, ShapeId)>,
    /// Required terms of anti-affinity.
    pub(super) anti_affinity: Vec<One>,
    /// With weights, which are negative where it is anti-affinity.
    pub(super) preferred: Vec<(One, i64)>,
}

/// One term.
#[derive(Debug)]
pub(super) struct One {
    pub(super) term: Term,
    /// What its domains are made of.
    pub(super) frame: Frame,
    /// Names the counter of the pods that match it.
    pub(super) key: ShapeId,
}

impl Said {
    /// What `pod` says; most pods say nothing, and nothing is kept of these.
    pub(super) fn of(pod: &PodInfo) -> Option<&Self> {
        has_any(pod).then(|| pod.facet(Self::read))
    }

    fn read(pod: &PodInfo) -> Self {
        let all = |anti: bool| {
            let terms = required(pod, anti).iter();
            terms.map(|term| One::of(term, pod)).collect()
        };
        let affinity: Vec<One> = all(false);
        let raw = required(pod, false);
        let mut together: Vec<(usize, ShapeId)> = Vec::new();
        for (at, term) in raw.iter().enumerate() {
            // The same pods for each of the keys; they match all terms.
            let mut before = raw[..at].iter();
            if !before.any(|other| other.topology_key == term.topology_key) {
                let others = raw.iter().enumerate().filter(|(i, _)| *i != at);
                let others = others.map(|(_, other)| other);
                let key = key(term, std::iter::once(term).chain(others), pod);
                together.push((at, key));
            }
        }
        let directions = [(false, 1), (true, -1)].into_iter();
        let preferred = directions.flat_map(|(anti, direction)| {
            preferred(pod, anti).iter().map(move |term| {
                let weight = direction * i64::from(term.weight);
                (One::of(&term.pod_affinity_term, pod), weight)
            })
        });
        Self {
            affinity,
            together,
            anti_affinity: all(true),
            preferred: preferred.collect(),
        }
    }

    /// Required terms of affinity, or of anti-affinity.
    pub(super) fn required(&self, anti: bool) -> &[One] {
        if anti {
            &self.anti_affinity
        } else {
            &self.affinity
        }
    }
}

impl One {
    fn of(term: &PodAffinityTerm, owner: &PodInfo) -> Self {
        Self {
            term: parse(term, owner),
            frame: frame(term),
            key: key(term, [term].into_iter(), owner),
        }
    }

    /// The label of nodes that makes its domains.
    pub(super) fn label(&self) -> &str {
        &self.frame.key
    }
}

/// Names the counter of the pods that match all of `terms` of `owner`, by the domains of `first`.
pub(super) fn key<'a>(
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

/// Whether the pod says anything of other pods.
pub(super) fn has_any(pod: &PodInfo) -> bool {
    pod.spec()
        .and_then(|spec| spec.affinity.as_ref())
        .is_some_and(|affinity| {
            affinity.pod_affinity.is_some() || affinity.pod_anti_affinity.is_some()
        })
}

/// Keys that count for `term` with the owner's own values: equal to them, or different from them.
fn merged<'a>(
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

/// Writes `term` of `owner`, without its topology key.
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
    for (name, value, equal) in merged(term, owner) {
        key.text(name);
        key.text(value);
        key.number(i64::from(equal));
    }
    key.number(-3);
}

/// `term` of `owner`, parsed.
pub(super) fn parse(term: &PodAffinityTerm, owner: &PodInfo) -> Term {
    let mut named = term.namespaces.clone().unwrap_or_default();
    if named.is_empty() && term.namespace_selector.is_none() {
        named.push(owner.namespace.to_string());
    }
    let mut selector = Selector::of(term.label_selector.as_ref());
    for (key, value, equal) in merged(term, owner) {
        selector.and(key, value, equal);
    }
    let selected = term
        .namespace_selector
        .as_ref()
        .map(|selector| Selector::of(Some(selector)));
    Term {
        namespaces: Namespaces { named, selected },
        selector,
    }
}

/// All nodes with the term's label count.
pub(super) fn frame(term: &PodAffinityTerm) -> Frame {
    Frame {
        key: term.topology_key.clone(),
        ..Frame::default()
    }
}
