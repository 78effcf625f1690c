//! What profiles share of a plugin, and what they do not.

use crate::state::PodInfo;

/// What each profile says to a plugin that serves several ([`super::Plugin::join`]).
#[derive(Debug, Clone)]
pub struct PerProfile<T> {
    first: T,
    others: Vec<(String, T)>,
}

impl<T> PerProfile<T> {
    /// The same for all profiles, until others join.
    pub fn new(first: T) -> Self {
        Self {
            first,
            others: Vec::new(),
        }
    }

    /// What the profile of this name says.
    pub fn join(&mut self, profile: &str, value: T) {
        self.others.push((profile.to_owned(), value));
    }

    /// What applies to `pod`, by its scheduler's name.
    #[must_use]
    pub fn of(&self, pod: &PodInfo) -> &T {
        if self.others.is_empty() {
            return &self.first;
        }
        let name = pod.scheduler_name();
        let other = self.others.iter().find(|(profile, _)| profile == name);
        other.map_or(&self.first, |(_, value)| value)
    }

    /// What any profile says.
    pub fn all(&self) -> impl Iterator<Item = &T> {
        let others = self.others.iter().map(|(_, value)| value);
        std::iter::once(&self.first).chain(others)
    }

    /// What applies to all pods together: the word of the first profile.
    #[must_use]
    pub fn first(&self) -> &T {
        &self.first
    }
}
