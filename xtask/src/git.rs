//! Queries to the repository's history.

use anyhow::{Context, Result};
use std::process::Command;
use std::sync::OnceLock;

/// A commit's distance from the head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommitAge {
    /// Commits that the head has and it has not.
    Commits(usize),
    /// The history is complete and does not have it.
    Missing,
    /// The history here is not complete, or is none.
    Unknown,
}

/// Returns what `git` prints; `None` when it fails.
pub(crate) fn output(args: &[&str]) -> Result<Option<String>> {
    let output = Command::new("git")
        .args(args)
        .current_dir(crate::workspace_root()?)
        .output()
        .context("failed to run git")?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    Ok(output.status.success().then_some(text))
}

/// Returns true if the whole history is here: neither a shallow clone nor a copy without one.
pub(crate) fn is_complete() -> bool {
    static COMPLETE: OnceLock<bool> = OnceLock::new();
    *COMPLETE.get_or_init(|| {
        let shallow = output(&["rev-parse", "--is-shallow-repository"]);
        matches!(shallow, Ok(Some(answer)) if answer == "false")
    })
}

/// Returns how far `commit` is behind the head.
pub(crate) fn age(commit: &str) -> Result<CommitAge> {
    if !is_complete() {
        return Ok(CommitAge::Unknown);
    }
    // A word that starts with a dash would be an option.
    let is_hex = commit.chars().all(|c| c.is_ascii_hexdigit());
    if !is_hex || output(&["cat-file", "-e", &format!("{commit}^{{commit}}")])?.is_none() {
        return Ok(CommitAge::Missing);
    }
    let range = format!("{commit}..HEAD");
    let count = output(&["rev-list", "--count", &range])?.unwrap_or_default();
    Ok(count.parse().map_or(CommitAge::Unknown, CommitAge::Commits))
}
