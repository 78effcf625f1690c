//! `cargo xtask crds DIR [VERSION]` rewrites the summary of upstream's custom resource definitions that a
//! test of koord-api compares ours with. DIR is a checkout of Koordinator, VERSION the version for the
//! summary's first line; by default the commit that git reports.

use anyhow::{Context, Result};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

#[path = "../../crates/api/tests/it/summary.rs"]
mod summary;

/// Path of the summary in the workspace.
const SUMMARY: &str = "crates/api/tests/it/upstream-crds.txt";
/// Path of the definitions in upstream's repository.
const BASES: &str = "config/crd/bases";

/// Rewrites the summary; its comment stays, but for its first line.
///
/// # Errors
/// When a definition cannot be read.
pub(crate) fn run(root: &Path, from: &Path, version: Option<String>) -> Result<()> {
    let bases = from.join(BASES);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&bases).with_context(|| bases.display().to_string())? {
        files.push(entry?.path());
    }
    files.retain(|path| path.extension().is_some_and(|e| e == "yaml"));
    files.sort();
    let mut definitions = Vec::new();
    for path in &files {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let value: Value =
            serde_saphyr::from_str(&indented(&text)).with_context(|| path.display().to_string())?;
        definitions.push(value);
    }
    let version = match version {
        Some(version) => version,
        None => head(from)?,
    };
    let path = root.join(SUMMARY);
    let old = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let comment: Vec<&str> = old
        .lines()
        .skip(1)
        .take_while(|l| l.starts_with('#'))
        .collect();
    let new = format!(
        "# Upstream's custom resource definitions in short, by `cargo xtask crds`: Koordinator {version}, {BASES}.\n{}\n{}",
        comment.join("\n"),
        summary::summary(&definitions)
    );
    std::fs::write(&path, new).with_context(|| path.display().to_string())
}

/// Indents the continuation lines of quoted texts: some of upstream's are not indented more than their key,
/// which YAML does not allow.
fn indented(text: &str) -> String {
    let mut out = String::new();
    let mut inside = false;
    for line in text.lines() {
        if inside {
            out.push_str("  ");
        }
        inside ^= line.matches('\'').count() % 2 == 1 && (inside || line.contains(": '"));
        out.push_str(line);
        out.push('\n');
    }
    out
}

/// Returns the commit of a checkout.
fn head(from: &Path) -> Result<String> {
    let output = Command::new("git")
        .args(["rev-parse", "--short=8", "HEAD"])
        .current_dir(from)
        .output()
        .context("git")?;
    let commit = String::from_utf8(output.stdout)?.trim().to_owned();
    anyhow::ensure!(!commit.is_empty(), "no version given, and git knows none");
    Ok(format!("main at {commit}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_go_on_below_their_key_are_read() {
        let text = "a:\n  b: 'it''s one\n  line: two'\n  c: d's\n  e: 'f'\n";
        let value: Value = serde_saphyr::from_str(&indented(text)).unwrap();
        let want = serde_json::json!({"a": {"b": "it's one line: two", "c": "d's", "e": "f"}});
        assert_eq!(value, want);
    }
}
