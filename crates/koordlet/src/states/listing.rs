//! Building a list of pods, one pod at a time.

use super::pod::resolve_cpu_conflicts;
use super::{Layout, PodInfo, States};
use crate::conditions::Condition;
use k8s_openapi::api::core::v1::Pod;
use rustc_hash::{FxHashMap, FxHashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

/// Pods by the text they were parsed from, so that a pod with an unchanged text is not parsed again. Contains
/// pods without malformed values, of one layout.
#[derive(Debug, Default)]
pub(super) struct PodTextCache {
    /// Hasher with a random key, so that hash collisions cannot be forged.
    hasher: RandomState,
    layout: Option<Arc<Layout>>,
    /// UID by the hash of the text.
    by_text: FxHashMap<u64, Box<str>>,
}

/// A pod list under construction.
pub(super) struct Listing<'a> {
    states: &'a States,
    layout: Arc<Layout>,
    old: &'a [PodInfo],
    by_uid: FxHashMap<&'a str, usize>,
    /// True for old pods that are listed.
    listed: Vec<bool>,
    /// True for old pods that are unchanged.
    same: Vec<bool>,
    new: Vec<PodInfo>,
    /// Pods of this list, by the hash of their text.
    texts: FxHashMap<u64, Box<str>>,
    count: usize,
}

impl<'a> Listing<'a> {
    /// Creates an empty list that follows `old`.
    pub(super) fn new(states: &'a States, old: &'a [PodInfo], layout: Arc<Layout>) -> Self {
        let by_uid = old.iter().map(|pod| pod.uid.as_str()).zip(0..).collect();
        Self {
            states,
            layout,
            old,
            by_uid,
            listed: vec![false; old.len()],
            same: vec![false; old.len()],
            new: Vec::new(),
            texts: FxHashMap::default(),
            count: 0,
        }
    }

    /// Adds a pod.
    pub(super) fn add(&mut self, pod: &Pod) {
        self.add_read(pod);
    }

    /// Adds a pod as JSON; parses it only if it is not in `cache`.
    ///
    /// # Errors
    /// When the text is no pod.
    pub(super) fn add_text(&mut self, text: &[u8], cache: &PodTextCache) -> serde_json::Result<()> {
        let hash = cache.hasher.hash_one(text);
        if cache.layout.as_ref() == Some(&self.layout)
            && let Some(uid) = cache.by_text.get(&hash)
            && let Some(at) = self.by_uid.get(&**uid).copied()
            && let (Some(listed), Some(same)) = (self.listed.get_mut(at), self.same.get_mut(at))
        {
            (*listed, *same) = (true, true);
            self.texts.insert(hash, uid.clone());
            self.count += 1;
            return Ok(());
        }
        let pod = serde_json::from_slice(text)?;
        if let Some(uid) = self.add_read(&pod) {
            self.texts.insert(hash, uid);
        }
        Ok(())
    }

    /// Adds a parsed pod. Returns its UID if it has no malformed value.
    fn add_read(&mut self, pod: &Pod) -> Option<Box<str>> {
        self.count += 1;
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let index = self.by_uid.get(uid).copied();
        let last = index.and_then(|index| self.old.get(index));
        let (mut info, mut malformed) = PodInfo::read(pod, &self.layout, last)?;
        malformed.extend(info.remove_unrequested_devices(pod));
        let sound = malformed.is_empty().then(|| Box::from(uid));
        self.states
            .malformed_inputs
            .replace(&name(&info), malformed);
        if let Some(listed) = index.and_then(|index| self.listed.get_mut(index)) {
            *listed = true;
        }
        match index.and_then(|index| self.same.get_mut(index)) {
            Some(same) if last == Some(&info) => *same = true,
            _ => self.new.push(info),
        }
        sound
    }

    /// Returns whether no pod was added.
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns whether the old pod `uid` is listed.
    pub(super) fn has(&self, uid: &str) -> bool {
        let index = self.by_uid.get(uid);
        index.and_then(|index| self.listed.get(*index)) == Some(&true)
    }

    /// Publishes the list. Old pods that are not listed are kept if `keep` returns true for their UID.
    pub(super) fn publish(mut self, cache: &mut PodTextCache, keep: impl Fn(&str) -> bool) {
        cache.layout = Some(self.layout.clone());
        cache.by_text = std::mem::take(&mut self.texts);
        let old = || self.old.iter().zip(&self.listed).zip(&self.same);
        let stays =
            |pod: &PodInfo, listed: bool, same: bool| same || (!listed && keep(pod.uid.as_str()));
        if !self.new.is_empty() || self.listed.contains(&false) {
            let listed = old().filter(|((_, listed), _)| **listed);
            let names = listed.map(|((pod, _), _)| name(pod));
            let names: FxHashSet<String> = names.chain(self.new.iter().map(name)).collect();
            let malformed_inputs = &self.states.malformed_inputs;
            malformed_inputs.retain("Pod ", |name| names.contains(name));
        }
        let first = self.states.pods.load().is_none();
        if !first && self.new.is_empty() && old().all(|((pod, l), same)| stays(pod, *l, *same)) {
            return;
        }
        let stay = old().filter(|((pod, listed), same)| stays(pod, **listed, **same));
        let stay: Vec<PodInfo> = stay.map(|((pod, _), _)| pod.clone()).collect();
        let mut infos = self.new;
        infos.extend(stay);
        infos.shrink_to_fit();
        // Sort, so that equal lists compare equal.
        infos.sort_by(|a, b| (&a.namespace, &a.name, &a.uid).cmp(&(&b.namespace, &b.name, &b.uid)));
        let conflicts = resolve_cpu_conflicts(&mut infos, self.old);
        let conditions = &self.states.conditions;
        conditions.replace(Condition::CpusConflict, &conflicts);
        // Pods that were refused CPUs are parsed with them each time.
        if !first && infos == self.old {
            return;
        }
        self.states.pods.store(Some(Arc::new(infos)));
    }
}

fn name(pod: &PodInfo) -> String {
    format!("Pod {}/{}", pod.namespace, pod.name)
}
