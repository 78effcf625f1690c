//! Settings per profile of a plugin instance that serves several profiles.

use crate::state::PodInfo;

/// The settings of each profile for a plugin instance that serves several ([`super::Plugin::join`]).
#[derive(Debug, Clone)]
pub struct PerProfile<T> {
    first: T,
    others: Vec<(String, T)>,
}

impl<T> PerProfile<T> {
    /// Creates settings that apply to all profiles until others are added.
    pub fn new(first: T) -> Self {
        Self {
            first,
            others: Vec::new(),
        }
    }

    /// Adds the settings of the profile `profile`.
    pub fn join(&mut self, profile: &str, value: T) {
        self.others.push((profile.to_owned(), value));
    }

    /// Returns the settings for `pod`, by its scheduler name.
    #[must_use]
    pub fn for_pod(&self, pod: &PodInfo) -> &T {
        if self.others.is_empty() {
            return &self.first;
        }
        let name = pod.scheduler_name();
        let other = self.others.iter().find(|(profile, _)| profile == name);
        other.map_or(&self.first, |(_, value)| value)
    }

    /// Iterates over the settings of all profiles.
    pub fn all(&self) -> impl Iterator<Item = &T> {
        let other_values = self.others.iter().map(|(_, value)| value);
        std::iter::once(&self.first).chain(other_values)
    }

    /// Returns the settings that apply to all pods together: those of the first profile.
    #[must_use]
    pub fn first(&self) -> &T {
        &self.first
    }
}
