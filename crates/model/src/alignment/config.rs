//! Topology manager settings of a node's kubelet, as reported.

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

/// `topologyManagerScope` of the kubelet: the unit of alignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scope {
    /// Aligns each container.
    #[default]
    Container,
    /// The pod.
    Pod,
}

/// Error for a name that is not in the kubelet's configuration API.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{value:?} is none of {expected}")]
pub struct UnknownName {
    value: String,
    expected: String,
}

impl UnknownName {
    fn new<T>(value: &str, all: &[T], name: impl Fn(&T) -> &'static str) -> Self {
        let names: Vec<&str> = all.iter().map(name).collect();
        Self {
            value: value.to_owned(),
            expected: names.join(", "),
        }
    }
}

impl Policy {
    /// All policies, from the least to the most strict.
    pub const ALL: [Self; 4] = [
        Self::None,
        Self::BestEffort,
        Self::Restricted,
        Self::SingleNumaNode,
    ];

    /// Returns the name used in the kubelet's configuration.
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
        let policy = Self::ALL.into_iter().find(|policy| policy.as_str() == text);
        policy.ok_or_else(|| UnknownName::new(text, &Self::ALL, |policy| policy.as_str()))
    }
}

impl Scope {
    /// Both scopes.
    pub const ALL: [Self; 2] = [Self::Container, Self::Pod];

    /// Returns the name used in the kubelet's configuration.
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
        let scope = Self::ALL.into_iter().find(|scope| scope.as_str() == text);
        scope.ok_or_else(|| UnknownName::new(text, &Self::ALL, |scope| scope.as_str()))
    }
}

/// Topology manager configuration of a kubelet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Alignment policy.
    pub policy: Policy,
    /// Unit of alignment.
    pub scope: Scope,
    /// Maximum number of NUMA nodes that the kubelet supports, 2 to 1024.
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

const MAX_MAX_ZONES: i64 = 1024;

impl Config {
    /// Parses the first of the deprecated `policies`, then the attributes, which take precedence. Returns the
    /// configuration and the attributes that were ignored because their value is invalid. Attributes with
    /// other names are skipped.
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
                    Ok(most) if most > 1 => config.max_zones = most.min(MAX_MAX_ZONES),
                    _ => unread.push((name, value)),
                },
                ("topologyManagerPolicy" | "topologyManagerScope", _) => unread.push((name, value)),
                _ => {}
            }
        }
        (config, unread)
    }
}
