//! Checks subjects of commits.

use crate::git::{self, CommitAge};
use anyhow::Result;

/// The first commit whose successors are checked: earlier subjects had other forms.
const SINCE: &str = "58c66ad0";
/// Longest subject, in characters.
const LONGEST: usize = 72;

/// Returns the commits since [`SINCE`] whose subjects are not `area: imperative subject`; none where the
/// history is not complete.
///
/// # Errors
/// When git cannot be run.
pub(crate) fn faults() -> Result<Vec<String>> {
    if !matches!(git::age(SINCE)?, CommitAge::Commits(_)) {
        return Ok(Vec::new());
    }
    let range = format!("{SINCE}..HEAD");
    let log = git::output(&["log", "--no-merges", "--format=%h %s", &range])?.unwrap_or_default();
    let faults = log.lines().filter_map(|line| {
        let (commit, subject) = line.split_once(' ')?;
        let fault = problem(subject)?;
        Some(format!("commit {commit}: {fault}: {subject:?}"))
    });
    Ok(faults.collect())
}

/// Returns what is wrong with the subject of a commit; `None` if it is valid.
fn problem(subject: &str) -> Option<&'static str> {
    let is_area = |area: &str| {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-, ".contains(c);
        !area.is_empty() && area.chars().all(plain)
    };
    let Some((_, what)) = subject.split_once(": ").filter(|(area, _)| is_area(area)) else {
        return Some("subject has no `area: ` in front");
    };
    if subject.chars().count() > LONGEST {
        return Some("subject has more than 72 characters");
    }
    // An imperative comes first, so these verbs mean an indicative sentence.
    let indicative = [" is ", " are ", " was "].map(|verb| what.find(verb));
    let clause = [
        " that ",
        " which ",
        " if ",
        " when ",
        " where ",
        " what ",
        " whether ",
    ];
    let subordinate = clause.iter().filter_map(|word| what.find(word)).min();
    let first = indicative.into_iter().flatten().min()?;
    subordinate
        .is_none_or(|at| at > first)
        .then_some("subject is not in the imperative")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imperative_subjects_pass() {
        for subject in [
            "kube: read objects by one function per kind",
            "kube, xtask: drop what is unused",
            "runtime-proxy: end a call when its client is gone",
        ] {
            assert_eq!(problem(subject), None, "{subject}");
        }
    }

    #[test]
    fn other_subjects_are_named() {
        for subject in [
            "Update things",
            "Kube: read objects",
            "kube: a watch is read as text",
            "the informer: objects are decoded",
            &format!("kube: {}", "x".repeat(67)),
        ] {
            assert!(problem(subject).is_some(), "{subject}");
        }
    }
}
