//! What a plugin answers: pass, or a rejection with its reasons.

use std::sync::Arc;

/// One reason, cheap to clone. Equal when the text is equal.
#[derive(Debug, Clone)]
pub enum Reason {
    /// A fixed text.
    Static(&'static str),
    /// A text that names something of the object.
    Shared(Arc<str>),
}

impl Reason {
    /// The text.
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

/// How final a rejection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    /// Not now; evicting pods might help.
    Unschedulable,
    /// Not on this node, whoever is evicted.
    Unresolvable,
    /// Waiting for something outside; retried at once when it happens.
    Pending,
    /// The plugin failed; retried with error back-off.
    Error,
}

/// A plugin's no.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Rejection {
    /// How final it is.
    pub code: Code,
    /// Why; at least one.
    pub reasons: Reasons,
}

/// The reasons of one rejection. One is by far the most frequent case and needs no allocation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Reasons {
    /// A single reason.
    One(Reason),
    /// Several.
    Many(Box<[Reason]>),
}

impl Reasons {
    /// The reasons in the plugin's order.
    #[must_use]
    pub fn as_slice(&self) -> &[Reason] {
        match self {
            Self::One(reason) => std::slice::from_ref(reason),
            Self::Many(reasons) => reasons,
        }
    }
}

impl Rejection {
    /// [`Code::Unschedulable`] with one reason.
    #[must_use]
    pub fn unschedulable(reason: impl Into<Reason>) -> Self {
        Self {
            code: Code::Unschedulable,
            reasons: Reasons::One(reason.into()),
        }
    }

    /// [`Code::Unresolvable`] with one reason.
    #[must_use]
    pub fn unresolvable(reason: impl Into<Reason>) -> Self {
        Self {
            code: Code::Unresolvable,
            reasons: Reasons::One(reason.into()),
        }
    }

    /// [`Code::Error`] with one reason.
    #[must_use]
    pub fn error(reason: impl Into<Reason>) -> Self {
        Self {
            code: Code::Error,
            reasons: Reasons::One(reason.into()),
        }
    }

    /// The reasons joined by `, `.
    #[must_use]
    pub fn message(&self) -> String {
        let texts: Vec<&str> = self.reasons.as_slice().iter().map(Reason::as_str).collect();
        texts.join(", ")
    }
}

/// Pass, or why not.
pub type Verdict = Result<(), Rejection>;
