//! How a node's kubelet aligns, as its report says.

use std::str::FromStr;

/// `topologyManagerPolicy` of the kubelet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// `none`
    #[default]
    None,
    /// `best-effort`
    BestEffort,
    /// `restricted`
    Restricted,
    /// `single-numa-node`
    SingleNumaNode,
}

/// `topologyManagerScope` of the kubelet: what is aligned as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scope {
    /// Each container.
    #[default]
    Container,
    /// The pod.
    Pod,
}

/// A name that is none of a kubelet's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{value:?} is none of {known}")]
pub struct UnknownName {
    value: String,
    known: String,
}

impl UnknownName {
    fn new<T>(value: &str, all: &[T], name: impl Fn(&T) -> &'static str) -> Self {
        let names: Vec<&str> = all.iter().map(name).collect();
        Self {
            value: value.to_owned(),
            known: names.join(", "),
        }
    }
}

impl Policy {
    /// All of them, from the laxest to the strictest.
    pub const ALL: [Self; 4] = [
        Self::None,
        Self::BestEffort,
        Self::Restricted,
        Self::SingleNumaNode,
    ];

    /// As the kubelet's configuration names it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::BestEffort => "best-effort",
            Self::Restricted => "restricted",
            Self::SingleNumaNode => "single-numa-node",
        }
    }
}

impl FromStr for Policy {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let found = Self::ALL.into_iter().find(|one| one.as_str() == text);
        found.ok_or_else(|| UnknownName::new(text, &Self::ALL, |one| one.as_str()))
    }
}

impl Scope {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Container, Self::Pod];

    /// As the kubelet's configuration names it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Container => "container",
            Self::Pod => "pod",
        }
    }
}

impl FromStr for Scope {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let found = Self::ALL.into_iter().find(|one| one.as_str() == text);
        found.ok_or_else(|| UnknownName::new(text, &Self::ALL, |one| one.as_str()))
    }
}

/// The kubelet's configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// What it demands.
    pub policy: Policy,
    /// Of what.
    pub scope: Scope,
    /// The most NUMA nodes it deals with; 2 to 1024.
    pub max_zones: i64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            policy: Policy::None,
            scope: Scope::Container,
            max_zones: 8,
        }
    }
}

const MOST: i64 = 1024;

impl Config {
    /// Reads the first of the (deprecated) policies, then the attributes, which say more; the names and
    /// values that mean nothing here are passed over, and returned if the name does.
    #[must_use]
    pub fn read<'t>(
        policies: impl IntoIterator<Item = &'t str>,
        attributes: impl IntoIterator<Item = (&'t str, &'t str)>,
    ) -> (Self, Vec<(&'t str, &'t str)>) {
        let mut config = Self::default();
        let mut unread = Vec::new();
        let first = policies.into_iter().next().unwrap_or_default();
        let (policy, scope) = match first {
            "SingleNUMANodePodLevel" => (Policy::SingleNumaNode, Scope::Pod),
            "SingleNUMANodeContainerLevel" => (Policy::SingleNumaNode, Scope::Container),
            "RestrictedPodLevel" => (Policy::Restricted, Scope::Pod),
            "RestrictedContainerLevel" => (Policy::Restricted, Scope::Container),
            "BestEffortPodLevel" => (Policy::BestEffort, Scope::Pod),
            "BestEffortContainerLevel" => (Policy::BestEffort, Scope::Container),
            _ => (config.policy, config.scope),
        };
        (config.policy, config.scope) = (policy, scope);
        for (name, value) in attributes {
            match (name, value) {
                ("topologyManagerPolicy", "none") => config.policy = Policy::None,
                ("topologyManagerPolicy", "best-effort") => config.policy = Policy::BestEffort,
                ("topologyManagerPolicy", "restricted") => config.policy = Policy::Restricted,
                ("topologyManagerPolicy", "single-numa-node") => {
                    config.policy = Policy::SingleNumaNode;
                }
                ("topologyManagerScope", "container") => config.scope = Scope::Container,
                ("topologyManagerScope", "pod") => config.scope = Scope::Pod,
                ("topologyManagerMaxNUMANodes", _) => match value.parse::<i64>() {
                    Ok(most) if most > 1 => config.max_zones = most.min(MOST),
                    _ => unread.push((name, value)),
                },
                ("topologyManagerPolicy" | "topologyManagerScope", _) => unread.push((name, value)),
                _ => {}
            }
        }
        (config, unread)
    }
}
