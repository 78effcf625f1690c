//! Order of the values of one kind along a hierarchy.

use crate::cpuset;

/// Constraint between the value of a target and those of its parents and children.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Files may be written in any order.
    Plain,
    /// A number that a child should not exceed: larger is looser, -1 is no limit. Grows from the
    /// root down, shrinks from the leaves up.
    Limit,
    /// A list of which a child may only have a part: a superset is looser. Moves through the union
    /// of old and new.
    List,
}

impl Order {
    /// Returns what to write on the way from the root to the leaves if `wanted` is looser than `current`:
    /// `wanted`, or for a list the union of both. Returns `None` if nothing may be written before the
    /// children. The exact value is written on the way back.
    #[must_use]
    pub fn loosened(self, current: &str, wanted: &str) -> Option<String> {
        match self {
            Self::Plain => None,
            Self::Limit => (limit(wanted)? > limit(current)?).then(|| wanted.to_owned()),
            Self::List => {
                let wanted_set = cpuset::parse(wanted).ok()?;
                let current = cpuset::parse(current).ok()?;
                let union = wanted_set.union(&current);
                if union == current {
                    None
                } else if union == wanted_set {
                    Some(wanted.to_owned())
                } else {
                    Some(union.to_string())
                }
            }
        }
    }
}

fn limit(text: &str) -> Option<i64> {
    match text.trim() {
        "-1" | "max" => Some(i64::MAX),
        number => number.parse().ok(),
    }
}
