//! Results of a plugin's check: pass, or a rejection with reasons.

use std::sync::Arc;

/// One reason for a rejection, cheap to clone. Reasons are equal if their texts are.
#[derive(Debug, Clone)]
pub enum Reason {
    /// A fixed text.
    Static(&'static str),
    /// A text that contains details of the object.
    Shared(Arc<str>),
}

impl Reason {
    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Static(text) => text,
            Self::Shared(text) => text,
        }
    }
}

impl From<&'static str> for Reason {
    fn from(text: &'static str) -> Self {
        Self::Static(text)
    }
}

impl From<String> for Reason {
    fn from(text: String) -> Self {
        Self::Shared(text.into())
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl serde::Serialize for Reason {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.as_str())
    }
}

impl PartialEq for Reason {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}
impl Eq for Reason {}
impl std::hash::Hash for Reason {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}
impl PartialOrd for Reason {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Reason {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.as_str().cmp(other.as_str())
    }
}

/// The kind of a rejection: which changes can make the pod schedulable, and how it is retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    /// The pod does not fit now; evicting pods might help.
    Unschedulable,
    /// The pod does not fit this node, whichever pods are evicted.
    Unresolvable,
    /// The pod waits for something outside the scheduler; retried at once when it happens.
    Pending,
    /// The plugin failed; retried with error backoff.
    Error,
}

/// A plugin's refusal of a pod or a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Rejection {
    /// The kind of changes that can end the refusal.
    pub code: Code,
    /// The reasons; at least one.
    pub reasons: Reasons,
}

/// The reasons of one rejection. A single reason, by far the most frequent case, needs no allocation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Reasons {
    /// A single reason.
    One(Reason),
    /// Several.
    Many(Box<[Reason]>),
}

impl Reasons {
    /// Returns the reasons in the plugin's order.
    #[must_use]
    pub fn as_slice(&self) -> &[Reason] {
        match self {
            Self::One(reason) => std::slice::from_ref(reason),
            Self::Many(reasons) => reasons,
        }
    }
}

impl Rejection {
    /// Creates a rejection with [`Code::Unschedulable`] and one reason.
    #[must_use]
    pub fn unschedulable(reason: impl Into<Reason>) -> Self {
        Self {
            code: Code::Unschedulable,
            reasons: Reasons::One(reason.into()),
        }
    }

    /// Creates a rejection with [`Code::Unresolvable`] and one reason.
    #[must_use]
    pub fn unresolvable(reason: impl Into<Reason>) -> Self {
        Self {
            code: Code::Unresolvable,
            reasons: Reasons::One(reason.into()),
        }
    }

    /// Creates a rejection with [`Code::Error`] and one reason.
    #[must_use]
    pub fn error(reason: impl Into<Reason>) -> Self {
        Self {
            code: Code::Error,
            reasons: Reasons::One(reason.into()),
        }
    }

    /// Returns the reasons joined by `, `.
    #[must_use]
    pub fn message(&self) -> String {
        let texts: Vec<&str> = self.reasons.as_slice().iter().map(Reason::as_str).collect();
        texts.join(", ")
    }
}

/// Pass, or the rejection.
pub type Verdict = Result<(), Rejection>;
