//! The terms of a pod's affinity to other pods, named so that equal ones are counted once.

use crate::topology::{Frame, Namespaces, Selector, Term, sign_selector};
use k8s_openapi::api::core::v1::{PodAffinityTerm, WeightedPodAffinityTerm};
use koord_scheduler::framework::Signature;
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
    let labels = owner.object.metadata.labels.as_ref();
    let with = move |keys: &'a Option<Vec<String>>, equal: bool| {
        keys.iter().flatten().filter_map(move |key| {
            let value = labels?.get(key)?;
            Some((key.as_str(), value.as_str(), equal))
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
