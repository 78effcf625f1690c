//! `koord validate`: checks settings, custom resources and configurations in files, without a cluster.
//!
//! ```text
//! file ──► documents (document) ──► faults by kind (kinds and the modules that it calls) ──► findings with positions
//! ```
//!
//! The checks are those of the components: their parsers, and the rules of the manager's webhooks.

mod component_config;
mod document;
mod fault;
mod kinds;
mod metadata;
mod pod;
mod quota;
mod settings;
#[cfg(test)]
mod tests;
mod text;
mod values;

use anyhow::Result;
use document::{FaultPlace, SourceDocument};
use fault::{Fault, Severity};
use koord_app::console::{self, counted};
use serde::Serialize;
use std::fmt::Write as _;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use text::{Position, Text};

/// Maximum size of a file in bytes.
const MAX_SIZE: u64 = 16 * 1024 * 1024;
/// Maximum number of findings per document, with the one that stands for the rest.
const MAX_FINDINGS: usize = 100;

/// Hint for dots, which stand for what an example leaves out.
const DOTS_HINT: &str = "write what the dots stand for, or remove them";

/// Arguments of `koord validate`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Files in YAML or JSON; `-` is standard input.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Output format.
    #[arg(short, long, default_value = "text", value_parser = ["text", "json"])]
    pub output: String,
    /// Count warnings as errors.
    #[arg(long)]
    pub strict: bool,
}

/// A fault in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Finding {
    /// Index of the file among the arguments.
    #[serde(skip)]
    index: usize,
    file: String,
    line: usize,
    column: usize,
    severity: Severity,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

/// What was found in all files.
#[derive(Debug, Default, Serialize)]
struct Report {
    findings: Vec<Finding>,
    /// Number of documents that were checked.
    checked: usize,
    /// Number of documents of kinds without checks.
    skipped: usize,
}

/// Checks the files and prints the faults. The exit code is 0 without errors, 1 with errors, 2 if a file cannot be
/// read.
///
/// # Errors
/// The findings cannot be written as JSON; never happens.
pub fn main(args: &Args) -> Result<ExitCode> {
    let mut texts = Vec::new();
    let mut is_unreadable = false;
    for path in &args.files {
        match read(path) {
            Ok(text) => texts.push((name_of(path), text)),
            Err(error) => {
                is_unreadable = true;
                console::warn(format_args!("failed to read {}: {error}", path.display()));
            }
        }
    }
    let report = check(&texts);
    let output = match args.output.as_str() {
        "json" => serde_json::to_string_pretty(&report)?,
        _ => render(&report),
    };
    console::print_line(output.trim_end());
    let is_fault = |finding: &Finding| args.strict || finding.severity == Severity::Error;
    Ok(
        match (is_unreadable, report.findings.iter().any(is_fault)) {
            (true, _) => ExitCode::from(2),
            (false, true) => ExitCode::FAILURE,
            (false, false) => ExitCode::SUCCESS,
        },
    )
}

/// Returns the name of a file in findings.
fn name_of(path: &Path) -> String {
    match path.to_str() {
        Some("-") => "standard input".to_owned(),
        _ => path.display().to_string(),
    }
}

fn read(path: &Path) -> Result<String, String> {
    let mut bytes = Vec::new();
    let size = if path == Path::new("-") {
        std::io::stdin().take(MAX_SIZE + 1).read_to_end(&mut bytes)
    } else if path.is_dir() {
        return Err("it is a directory: name the files in it".to_owned());
    } else {
        std::fs::File::open(path).and_then(|file| file.take(MAX_SIZE + 1).read_to_end(&mut bytes))
    };
    let size = size.map_err(|error| error.to_string())?;
    if size as u64 > MAX_SIZE {
        return Err(format!("it has more than {MAX_SIZE} bytes"));
    }
    let text = String::from_utf8(bytes);
    text.map_err(|error| format!("it is not UTF-8: {}", error.utf8_error()))
}

/// Checks files, given as pairs of name and content.
fn check(files: &[(String, String)]) -> Report {
    let mut report = Report::default();
    let mut documents = Vec::new();
    let finding = |index: usize, position: Position, fault: Fault| Finding {
        index,
        file: files[index].0.clone(),
        line: position.line,
        column: position.column,
        severity: fault.severity,
        message: fault.message,
        hint: fault.hint,
    };
    for (index, (_, content)) in files.iter().enumerate() {
        for text in split(content) {
            match SourceDocument::parse(text) {
                Ok(None) => {}
                Ok(Some(document)) => documents.push((index, document, Vec::new())),
                Err(error) => {
                    report.checked += 1;
                    let line = content.lines().nth(error.position.line - 1);
                    let mut fault = Fault::error(FaultPlace::value(""), error.message);
                    fault.hint = syntax_hint(line.unwrap_or_default());
                    report.findings.push(finding(index, error.position, fault));
                }
            }
        }
    }
    for (_, document, faults) in &mut documents {
        match kinds::faults(document) {
            Some(of_kind) => {
                report.checked += 1;
                *faults = of_kind;
            }
            None => report.skipped += 1,
        }
    }
    let values: Vec<_> = documents.iter().map(|(_, it, _)| &it.value).collect();
    let across = quota::faults_across(&values);
    for (at, fault) in across {
        documents[at].2.push(fault);
    }
    for (index, document, mut faults) in documents {
        // The number of omitted findings is unknown: validation by a schema stops at the same maximum.
        if faults.len() >= MAX_FINDINGS {
            let rest = faults.split_off(MAX_FINDINGS - 1);
            faults.push(Fault::unlisted(&rest));
        }
        for fault in faults {
            let position = document.position(&fault.place);
            report.findings.push(finding(index, position, fault));
        }
    }
    let place = |it: &Finding| (it.index, it.line, it.column);
    report.findings.sort_by_key(place);
    report.findings.dedup();
    report
}

/// Splits a file at the lines that begin a document.
fn split(text: &str) -> Vec<Text> {
    let mut texts = Vec::new();
    let mut current = String::new();
    let mut first_line = 1;
    for (at, line) in text.split_inclusive('\n').enumerate() {
        let is_start = line
            .strip_prefix("---")
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace));
        if is_start {
            texts.push((std::mem::take(&mut current), first_line));
            first_line = at + 1;
        }
        current.push_str(line);
    }
    texts.push((current, first_line));
    let is_blank = |text: &str| {
        let mut lines = text.lines().map(str::trim);
        // Directives are of no use without a document.
        lines.all(|line| line.is_empty() || line.starts_with(['#', '%']) || line == "---")
    };
    texts.retain(|(text, _)| !is_blank(text));
    let texts = texts.into_iter();
    texts.map(|(text, line)| Text::new(text, line)).collect()
}

/// Returns a hint for a syntax error in this line.
fn syntax_hint(line: &str) -> Option<String> {
    let hint = if line.contains("{{") {
        "render templates first, for example with helm template"
    } else if line.trim() == "..." {
        DOTS_HINT
    } else if line.trim_start_matches(' ').starts_with('\t') {
        "indent with spaces: YAML allows no tabs"
    } else {
        return None;
    };
    Some(hint.to_owned())
}

/// Formats the findings and their number.
fn render(report: &Report) -> String {
    let mut text = String::new();
    for finding in &report.findings {
        let Finding {
            file,
            line,
            column,
            severity,
            message,
            hint,
            ..
        } = finding;
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{file}:{line}:{column}: {}: {message}",
            severity.as_str()
        );
        if let Some(hint) = hint {
            let _ = writeln!(text, "    hint: {hint}");
        }
    }
    let count = |severity| {
        let all = report.findings.iter();
        all.filter(|it| it.severity == severity).count()
    };
    let _ = writeln!(
        text,
        "{} checked, {} of other kinds: {}, {}",
        counted(report.checked, "document"),
        report.skipped,
        counted(count(Severity::Error), "error"),
        counted(count(Severity::Warning), "warning")
    );
    text
}
