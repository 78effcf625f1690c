//! Results of checks.

use serde::Serialize;

/// Result of a check, from best to worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Status {
    /// Everything is as it has to be.
    Ok,
    /// The check does not apply, or what it reads is not available.
    Skipped,
    /// Works, but needs attention.
    Warning,
    /// Does not work.
    Failed,
}

impl Status {
    /// Returns the word in the table.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Skipped => "skipped",
            Self::Warning => "warning",
            Self::Failed => "failed",
        }
    }
}

/// What a rule found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The result.
    pub(crate) status: Status,
    /// What was found, the reason of a skip, or a summary.
    pub(crate) findings: Vec<String>,
}

impl Outcome {
    /// Creates the result of a check that found nothing wrong.
    pub(crate) fn ok(summary: impl Into<String>) -> Self {
        Self {
            status: Status::Ok,
            findings: vec![summary.into()],
        }
    }

    /// Creates the result of a check that could not be made, or does not apply.
    pub(crate) fn skipped(reason: impl Into<String>) -> Self {
        Self {
            status: Status::Skipped,
            findings: vec![reason.into()],
        }
    }
}

/// Collects findings of a rule.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    worst: Option<Status>,
    texts: Vec<String>,
}

impl Findings {
    /// Adds a finding that makes the check fail.
    pub(crate) fn fail(&mut self, text: impl Into<String>) {
        self.add(Status::Failed, text.into());
    }

    /// Adds a finding that is a warning.
    pub(crate) fn warn(&mut self, text: impl Into<String>) {
        self.add(Status::Warning, text.into());
    }

    fn add(&mut self, status: Status, text: String) {
        self.worst = self.worst.max(Some(status));
        self.texts.push(text);
    }

    /// Returns the outcome: the findings, or ok with `summary` if there are none.
    pub(crate) fn finish(self, summary: impl Into<String>) -> Outcome {
        match self.worst {
            None => Outcome::ok(summary),
            Some(status) => Outcome {
                status,
                findings: self.texts,
            },
        }
    }
}

/// A check with its result, as it is printed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct CheckResult {
    /// Stable id, such as `C-06`.
    pub(crate) id: &'static str,
    /// What is checked.
    pub(crate) title: &'static str,
    /// The result.
    pub(crate) result: Status,
    /// What was found, the reason of a skip, or a summary.
    pub(crate) findings: Vec<String>,
    /// What to do; only with a warning or a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hint: Option<&'static str>,
}

/// Number of names in [`join_names`].
const MAX_NAMES: usize = 5;

/// Returns the first names and the number of the others.
pub(crate) fn join_names<S: AsRef<str>>(names: &[S]) -> String {
    let shown: Vec<&str> = names.iter().take(MAX_NAMES).map(AsRef::as_ref).collect();
    match names.len().saturating_sub(MAX_NAMES) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
