//! Faults of documents.

use super::document::{FaultPlace, PlaceTarget};
use serde::Serialize;

/// Severity of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Severity {
    /// The file is refused, or a part of it has no effect.
    Error,
    /// The file is accepted, and may do something else than what its author expects.
    Warning,
}

impl Severity {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

/// A fault of a document.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Fault {
    pub(super) severity: Severity,
    pub(super) place: FaultPlace,
    pub(super) message: String,
    pub(super) hint: Option<String>,
}

impl Fault {
    /// Creates an error.
    pub(super) fn error(place: FaultPlace, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            place,
            message: message.into(),
            hint: None,
        }
    }

    /// Returns the fault that stands for `rest`, which are not listed.
    pub(super) fn unlisted(rest: &[Self]) -> Self {
        let is_error = rest.iter().any(|it| it.severity == Severity::Error);
        let message = "more findings of this document are not listed";
        Self {
            severity: if is_error {
                Severity::Error
            } else {
                Severity::Warning
            },
            ..Self::error(FaultPlace::value(""), message)
        }
    }

    /// Creates a warning.
    pub(super) fn warning(place: FaultPlace, message: impl Into<String>) -> Self {
        let severity = Severity::Warning;
        Self {
            severity,
            ..Self::error(place, message)
        }
    }

    /// Creates an error about the field at `path`, which does not exist; `names` are those that do.
    pub(super) fn unknown_field<'a>(path: &str, names: impl Iterator<Item = &'a str>) -> Self {
        let name = path.rsplit_once('.').map_or(path, |(_, name)| name);
        Self {
            hint: suggest(name, names).map(|it| format!("did you mean {it}?")),
            ..Self::error(
                FaultPlace::name(path),
                format!("{path}: there is no such field"),
            )
        }
    }

    pub(super) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Returns the fault of an object that is at `prefix` of the document.
    pub(super) fn below(mut self, prefix: &str) -> Self {
        self.place = self.place.below(prefix);
        self
    }

    /// Returns the fault of a text that is the string at `path` of the document.
    pub(super) fn inside(mut self, path: &str) -> Self {
        self.place = self.place.inside(path);
        self
    }

    /// Returns true if the fault is about the value or the name at `path`.
    pub(super) fn is_at(&self, path: &str) -> bool {
        self.place.texts.is_empty()
            && match &self.place.target {
                PlaceTarget::Paths(paths) => paths.iter().any(|it| it == path),
                PlaceTarget::Name(name) => name == path,
                PlaceTarget::Position(_) => false,
            }
    }
}

/// Returns the one of `names` that `name` is most likely a misspelling of.
pub(super) fn suggest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let most = match name.chars().count() {
        0..=3 => 1,
        4..=8 => 2,
        _ => 3,
    };
    let close = names.filter_map(|other| {
        let equal = name.eq_ignore_ascii_case(other);
        let distance = if equal {
            0
        } else {
            distance(name, other, most)?
        };
        Some((distance, other))
    });
    close.min().map(|(_, other)| other)
}

/// Returns the number of characters to insert, remove, replace or exchange with the next one to make `a` of `b`;
/// `None` if it is above `most`.
fn distance(a: &str, b: &str, most: usize) -> Option<usize> {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    // Names are short; a long one is not compared.
    if a.len().abs_diff(b.len()) > most || a.len() > 200 {
        return None;
    }
    let mut before = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(before[j - 2] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut last, row);
    }
    last.last().copied().filter(|distance| *distance <= most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closest_name_is_suggested() {
        let names = ["enable", "qosClass", "minMember", "min", "max"];
        for (name, expected) in [
            ("enabel", Some("enable")),
            ("QoSClass", Some("qosClass")),
            ("minmembers", Some("minMember")),
            ("mim", Some("min")),
            ("unlike", None),
            ("", None),
        ] {
            assert_eq!(suggest(name, names.into_iter()), expected, "{name}");
        }
    }
}
