//! Files that a demo reads and writes. They are checked to be writable before the measurement.

use super::result::Suite;
use crate::console;
use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use std::path::Path;

/// Checks that results can be written to `path` later. An existing file stays as it is.
///
/// # Errors
/// When it is a directory, its directory is missing, or it may not be written.
pub fn check(path: &Path) -> Result<()> {
    let refused = || format!("cannot write {}", path.display());
    ensure!(!path.is_dir(), "{}: it is a directory", refused());
    let existed = path.exists();
    let mut options = std::fs::OpenOptions::new();
    options
        .append(true)
        .create(true)
        .open(path)
        .with_context(refused)?;
    if !existed {
        // A file that another process creates meanwhile is overwritten at the end anyway.
        std::fs::remove_file(path).with_context(refused)?;
    }
    Ok(())
}

/// Checks that the page and, if requested, the file of figures can be written later.
///
/// # Errors
/// When one of them cannot be written, or both are the same file.
pub fn check_files(report: &Path, json: Option<&Path>) -> Result<()> {
    check(report)?;
    if let Some(path) = json {
        check(path)?;
        distinct(path, report, "--json and --report")?;
    }
    Ok(())
}

/// Checks that two options name different files.
///
/// # Errors
/// When both name the same file; `what` is the options in the error.
pub fn distinct(one: &Path, other: &Path, what: &str) -> Result<()> {
    let whole = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let is_same = whole(one) == whole(other)
        || matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other);
    ensure!(!is_same, "{what} both name {}", one.display());
    Ok(())
}

/// Reads the results that `--json` wrote.
///
/// # Errors
/// When the file cannot be read, or is not what this version writes.
pub fn read(path: &Path) -> Result<Suite> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
    if text.trim().is_empty() {
        bail!("{shown} is empty: it should be what koord demo --json wrote");
    }
    let suite: Suite = serde_json::from_str(&text)
        .with_context(|| format!("{shown} is not what this version's koord demo --json writes"))?;
    ensure!(!suite.scenarios.is_empty(), "{shown} has no scenario");
    Ok(suite)
}

/// Writes figures to a file, as JSON.
///
/// # Errors
/// When it cannot be written.
pub fn write_json(path: &Path, figures: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(figures).context("figures as JSON")?;
    write(path, &text)
}

/// Prints the table of a demo of simulated nodes, writes its figures if requested, and its page, which has
/// `pictures`.
///
/// # Errors
/// When a file cannot be written.
pub fn publish(
    figures: &impl Serialize,
    table: &str,
    json: Option<&Path>,
    page: (&str, &Path),
    pictures: &str,
) -> Result<()> {
    console::print_line("");
    console::print_line(table);
    if let Some(path) = json {
        write_json(path, figures)?;
        console::print_line(format_args!("The figures: {}", path.display()));
    }
    let (html, report) = page;
    write(report, html)?;
    console::print_line(format_args!("The {pictures}: {}", report.display()));
    Ok(())
}

/// Writes a file.
///
/// # Errors
/// When it cannot be written.
pub fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
