//! Figures that documents name, and the commands that measure them.
//!
//! docs/figures.json has every measurement: its command, the figures to take from what that writes, and the commit,
//! machine and date of the recorded values. A paragraph, item or table of a document that names figures has a line
//! before it, `<!-- figures: ID PREFIX* -->`, and below that line up to the next empty one each figure's text, in the same
//! order. Text that differs is a fault, and a new measurement replaces the text.

use crate::git::{self, CommitAge};
use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

mod text;

const FILE: &str = "docs/figures.json";
/// Commits after which a figure is stale.
const STALE: usize = 300;

/// The content of docs/figures.json.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    measurements: Vec<Measurement>,
}

/// A command that has the option `--json FILE`, and the figures taken from that file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Measurement {
    id: String,
    /// The command as a reader types it; `koord` is the release build's.
    command: String,
    /// Number of runs of the command; a figure is the range of its values.
    repeat: usize,
    commit: String,
    date: String,
    machine: String,
    figures: Vec<Figure>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Figure {
    id: String,
    unit: String,
    /// The value's place in the command's JSON, as a JSON pointer.
    from: String,
    /// Factor that converts the value to the unit.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    scale: f64,
    /// Significant digits of the text.
    digits: usize,
    /// The recorded values, one a run; none before the first.
    values: Vec<f64>,
}

fn one() -> f64 {
    1.0
}

#[allow(clippy::float_cmp, reason = "the default itself")]
fn is_one(scale: &f64) -> bool {
    *scale == 1.0
}

impl Figure {
    /// Returns the recorded values as documents have them: one, or the least and the most.
    fn text(&self) -> String {
        let shown = |pick: fn(f64, f64) -> f64| {
            let value = self.values.iter().copied().reduce(pick);
            value.map_or_else(
                || "–".to_owned(),
                |v| text::format(v * self.scale, self.digits),
            )
        };
        let (least, most) = (shown(f64::min), shown(f64::max));
        if least == most {
            least
        } else {
            format!("{least} to {most}")
        }
    }
}

/// Returns the figures' identifiers in the order of the record.
fn ids(record: &Record) -> Vec<&str> {
    let figures = record.measurements.iter().flat_map(|m| &m.figures);
    figures.map(|figure| figure.id.as_str()).collect()
}

/// Returns the recorded text of each figure.
fn texts(record: &Record) -> BTreeMap<&str, String> {
    let figures = record.measurements.iter().flat_map(|m| &m.figures);
    figures.map(|f| (f.id.as_str(), f.text())).collect()
}

fn read(root: &Path) -> Result<Record> {
    let path = root.join(FILE);
    let text = std::fs::read_to_string(&path).with_context(|| format!("failed to read {FILE}"))?;
    serde_json::from_str(&text).with_context(|| format!("failed to decode {FILE}"))
}

/// Returns the faults of the record and of the documents that name its figures, and prints stale ones.
pub(crate) fn faults(root: &Path, documents: &[(PathBuf, String)]) -> Result<Vec<String>> {
    let record = read(root)?;
    let (faults, _) = check_documents(&record, documents);
    let mut faults = faults;
    for measurement in &record.measurements {
        let commit = &measurement.commit;
        match git::age(commit)? {
            CommitAge::Missing => faults.push(format!(
                "{FILE}: {}: no such commit: {commit}",
                measurement.id
            )),
            CommitAge::Commits(behind) if behind > STALE => warn(&format!(
                "{} is stale: measured {behind} commits ago; repeat it with `cargo xtask figures --run {}`",
                measurement.id, measurement.id
            )),
            CommitAge::Commits(_) | CommitAge::Unknown => {}
        }
    }
    Ok(faults)
}

/// Returns faults, and for each figure the documents that name it.
fn check_documents<'a>(
    record: &'a Record,
    documents: &[(PathBuf, String)],
) -> (Vec<String>, BTreeMap<&'a str, Vec<String>>) {
    let mut faults = Vec::new();
    let mut named: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for measurement in &record.measurements {
        for figure in &measurement.figures {
            if named.insert(&figure.id, Vec::new()).is_some() {
                faults.push(format!("{FILE}: {} is there twice", figure.id));
            }
            if !(1..=9).contains(&figure.digits) || figure.values.iter().any(|v| !v.is_finite()) {
                faults.push(format!("{FILE}: {}: invalid digits or values", figure.id));
            }
        }
    }
    let (ids, texts) = (ids(record), texts(record));
    for (path, document) in documents {
        for marker in text::markers(document) {
            let place = format!("{}:{}", path.display(), marker.line);
            let mut from = marker.body.start;
            for id in marker.ids.iter().flat_map(|word| text::expand(word, &ids)) {
                let Some((known, shown)) = texts.get_key_value(id) else {
                    faults.push(format!("{place}: {FILE} has no figure {id:?}"));
                    continue;
                };
                let shown_in = named.entry(known).or_default();
                let name = path.display().to_string();
                if !shown_in.contains(&name) {
                    shown_in.push(name);
                }
                match text::find(&document[..marker.body.end], from, shown) {
                    Some(range) => from = range.end,
                    None => faults.push(format!(
                        "{place}: {id} is {shown:?}, which is not below in its place"
                    )),
                }
            }
        }
    }
    for (id, documents) in &named {
        if documents.is_empty() {
            faults.push(format!("{FILE}: no document names the figure {id}"));
        }
    }
    (faults, named)
}

/// Runs `cargo xtask figures` with `args`.
pub(crate) fn run(root: &Path, args: impl Iterator<Item = String>) -> Result<()> {
    let mut options = Options::default();
    options.parse(args)?;
    let documents = crate::documents(root)?;
    if options.check {
        let faults = faults(root, &documents)?;
        faults.iter().for_each(|fault| warn(fault));
        ensure!(faults.is_empty(), "{} faults", faults.len());
        return Ok(());
    }
    if options.run {
        return measure(root, &documents, &options);
    }
    list(&read(root)?, &documents, options.json)
}

#[derive(Debug, Default)]
struct Options {
    check: bool,
    run: bool,
    json: bool,
    /// A program built before, in place of the release build of this clone.
    program: Option<PathBuf>,
    /// The commit that program was built from.
    commit: Option<String>,
    ids: Vec<String>,
}

impl Options {
    fn parse(&mut self, mut args: impl Iterator<Item = String>) -> Result<()> {
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--check" => self.check = true,
                "--run" => self.run = true,
                "--json" => self.json = true,
                "--program" => self.program = Some(args.next().context("--program PATH")?.into()),
                "--commit" => self.commit = Some(args.next().context("--commit COMMIT")?),
                id if !id.starts_with('-') => self.ids.push(arg),
                _ => bail!(
                    "unknown argument {arg:?}; there are: [--json], --check, --run [--program PATH --commit COMMIT] [ID...]"
                ),
            }
        }
        ensure!(self.run || self.ids.is_empty(), "identifiers are for --run");
        ensure!(
            self.program.is_some() == self.commit.is_some(),
            "--program and --commit belong together"
        );
        Ok(())
    }
}

/// Row of the listing: one figure.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row<'a> {
    id: &'a str,
    value: String,
    unit: &'a str,
    values: &'a [f64],
    documents: Vec<String>,
    measurement: &'a str,
    command: &'a str,
    commit: &'a str,
    commits_behind: Option<usize>,
    stale: bool,
    date: &'a str,
    machine: &'a str,
}

/// Prints the figures with the documents that cite them.
#[allow(clippy::print_stdout, reason = "this is a command-line tool")]
fn list(record: &Record, documents: &[(PathBuf, String)], json: bool) -> Result<()> {
    let (_, mut named) = check_documents(record, documents);
    let mut rows = Vec::new();
    for measurement in &record.measurements {
        let behind = match git::age(&measurement.commit)? {
            CommitAge::Commits(behind) => Some(behind),
            CommitAge::Missing | CommitAge::Unknown => None,
        };
        for figure in &measurement.figures {
            rows.push(Row {
                id: &figure.id,
                value: figure.text(),
                unit: &figure.unit,
                values: &figure.values,
                documents: named.remove(figure.id.as_str()).unwrap_or_default(),
                measurement: &measurement.id,
                command: &measurement.command,
                commit: &measurement.commit,
                commits_behind: behind,
                stale: behind.is_some_and(|behind| behind > STALE),
                date: &measurement.date,
                machine: &measurement.machine,
            });
        }
    }
    // The figures that README names come first.
    rows.sort_by_key(|row| !row.documents.iter().any(|name| name == "README.md"));
    if json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(());
    }
    println!("| figure | value | unit | named in | measurement | commit | age | date |");
    println!("|---|---:|---|---|---|---|---|---|");
    for row in &rows {
        let age = match row.commits_behind {
            Some(behind) if row.stale => format!("{behind} commits, stale"),
            Some(behind) => format!("{behind} commits"),
            None => "unknown".to_owned(),
        };
        println!(
            "| {} | {} | {} | {} | {} | {} | {age} | {} |",
            row.id,
            row.value,
            row.unit,
            row.documents.join(", "),
            row.measurement,
            row.commit,
            row.date
        );
    }
    println!("\n| measurement | machine | runs | command |\n|---|---|---:|---|");
    for m in &record.measurements {
        println!(
            "| {} | {} | {} | `{}` |",
            m.id, m.machine, m.repeat, m.command
        );
    }
    println!("\n`cargo xtask figures --run [MEASUREMENT...]` repeats them.");
    Ok(())
}

/// Runs the commands, records their values, and writes both the record and the documents.
fn measure(root: &Path, documents: &[(PathBuf, String)], options: &Options) -> Result<()> {
    let mut record = read(root)?;
    for id in &options.ids {
        let exists = record.measurements.iter().any(|m| m.id == *id);
        ensure!(exists, "{FILE} has no measurement {id:?}");
    }
    let (program, commit) = match (&options.program, &options.commit) {
        (Some(program), Some(commit)) => (std::path::absolute(program)?, commit.clone()),
        _ => build(root)?,
    };
    let (date, machine) = (date()?, machine());
    let before: HashMap<String, String> = texts(&record)
        .into_iter()
        .map(|(id, text)| (id.to_owned(), text))
        .collect();
    let mut failed = Vec::new();
    for measurement in &mut record.measurements {
        if !options.ids.is_empty() && !options.ids.contains(&measurement.id) {
            continue;
        }
        match values(measurement, &program) {
            Ok(values) => {
                for (figure, values) in measurement.figures.iter_mut().zip(values) {
                    figure.values = values;
                }
                measurement.commit.clone_from(&commit);
                measurement.date.clone_from(&date);
                measurement.machine.clone_from(&machine);
            }
            Err(error) => {
                warn(&format!(
                    "{} failed and keeps its values: {error:#}",
                    measurement.id
                ));
                failed.push(measurement.id.clone());
            }
        }
    }
    // Documents first: were they written after a record that differs, a second run would not find the old text.
    let (ids, after) = (ids(&record), texts(&record));
    for (path, document) in documents {
        let (rewritten, missing) = text::replace(document, &ids, &before, &after);
        for (line, id) in missing {
            warn(&format!(
                "{}:{line}: the old text of {id} is not there",
                path.display()
            ));
            failed.push(id);
        }
        if rewritten != *document {
            std::fs::write(root.join(path), rewritten)
                .with_context(|| format!("failed to write {}", path.display()))?;
        }
    }
    let mut json = serde_json::to_string_pretty(&record)?;
    json.push('\n');
    std::fs::write(root.join(FILE), json).with_context(|| format!("failed to write {FILE}"))?;
    list(&record, documents, options.json)?;
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

/// Builds the release programs of the head, and returns koord's path and the commit.
fn build(root: &Path) -> Result<(PathBuf, String)> {
    let changed = git::output(&[
        "status",
        "--porcelain",
        "--",
        "crates",
        "bins",
        "Cargo.toml",
        "Cargo.lock",
    ])?;
    let changed = changed.context("failed to read the state of the work tree")?;
    ensure!(
        changed.is_empty(),
        "the programs would not be those of a commit: commit these first:\n{changed}"
    );
    let commit =
        git::output(&["rev-parse", "--short=8", "HEAD"])?.context("failed to find the head")?;
    let built = Command::new("cargo")
        .args(["build", "--release", "--quiet"])
        .current_dir(root)
        .status()
        .context("failed to run cargo")?;
    ensure!(built.success(), "failed to build the release programs");
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    Ok((root.join(target).join("release/koord"), commit))
}

/// Runs a measurement's command [`Measurement::repeat`] times, and returns the values of each figure.
fn values(measurement: &Measurement, program: &Path) -> Result<Vec<Vec<f64>>> {
    let directory = tempfile::tempdir().context("failed to create a directory")?;
    let file = directory.path().join("figures.json");
    let mut values = vec![Vec::new(); measurement.figures.len()];
    for run in 1..=measurement.repeat.max(1) {
        warn(&format!(
            "{} ({run} of {})",
            measurement.command,
            measurement.repeat.max(1)
        ));
        let mut words = measurement.command.split_whitespace();
        ensure!(
            words.next() == Some("koord"),
            "invalid command: expected koord first"
        );
        let log = std::fs::File::create(directory.path().join("log"))?;
        let status = Command::new(program)
            .args(words)
            .arg("--json")
            .arg(&file)
            .current_dir(directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .status()
            .with_context(|| format!("failed to run {}", program.display()))?;
        if !status.success() {
            let log = std::fs::read_to_string(directory.path().join("log")).unwrap_or_default();
            bail!("{status}: {}", log.lines().last().unwrap_or_default());
        }
        let text = std::fs::read_to_string(&file).context("failed to read the command's JSON")?;
        let json: serde_json::Value = serde_json::from_str(&text)?;
        for (figure, values) in measurement.figures.iter().zip(&mut values) {
            let value = json
                .pointer(&figure.from)
                .and_then(serde_json::Value::as_f64);
            values.push(
                value.with_context(|| format!("{}: no number at {}", figure.id, figure.from))?,
            );
        }
    }
    Ok(values)
}

fn date() -> Result<String> {
    let output = Command::new("date").args(["-u", "+%Y-%m-%d"]).output();
    Ok(
        String::from_utf8_lossy(&output.context("failed to run date")?.stdout)
            .trim()
            .to_owned(),
    )
}

/// Describes this machine: CPU, memory and kernel.
fn machine() -> String {
    let file = |path| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        let value = line.and_then(|line| line.split_once(':'));
        value.map_or_else(
            || "unknown".to_owned(),
            |(_, value)| value.trim().to_owned(),
        )
    };
    let cpu = field(&file("/proc/cpuinfo"), "model name");
    let count = std::thread::available_parallelism().map_or(0, usize::from);
    let memory = field(&file("/proc/meminfo"), "MemTotal");
    let kib: u64 = memory.trim_end_matches(" kB").parse().unwrap_or(0);
    let kernel = file("/proc/sys/kernel/osrelease");
    let gib = (kib + (1 << 19)) >> 20;
    format!("{cpu}, {count} CPUs, {gib} GiB, Linux {}", kernel.trim())
}

#[allow(clippy::print_stderr, reason = "this is a command-line tool")]
fn warn(text: &str) {
    eprintln!("figures: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        serde_json::from_value(serde_json::json!({"measurements": [{
            "id": "m", "command": "koord bench", "repeat": 2, "commit": "786c39c5", "date": "2026-11-26", "machine": "x",
            "figures": [
                {"id": "rate", "unit": "pods/s", "from": "/a", "digits": 2, "values": [6361.0, 7240.0]},
                {"id": "p99", "unit": "ms", "from": "/b", "scale": 1000.0, "digits": 2, "values": [0.00251, 0.00249]}
            ]
        }]}))
        .expect("a record")
    }

    fn check(document: &str) -> Vec<String> {
        let documents = [(PathBuf::from("README.md"), document.to_owned())];
        check_documents(&record(), &documents).0
    }

    #[test]
    fn figure_text_is_the_range_of_its_values() {
        let record = record();
        let texts = texts(&record);
        assert_eq!(texts["rate"], "6,400 to 7,200");
        assert_eq!(texts["p99"], "2.5");
    }

    #[test]
    fn document_with_recorded_figures_has_no_faults() {
        let text =
            "<!-- figures: rate p99 -->\nAt 6,400\nto 7,200 a second, p99 2.5 ms.\n\nNo more.\n";
        assert_eq!(check(text), [""; 0]);
    }

    #[test]
    fn document_with_other_figures_has_faults() {
        let text = "<!-- figures: rate p99 -->\nAt 6,400 to 7,300 a second\n\np99 2.5 ms <!-- figures: x -->\n";
        assert_eq!(
            check(text),
            [
                "README.md:1: rate is \"6,400 to 7,200\", which is not below in its place",
                "README.md:1: p99 is \"2.5\", which is not below in its place",
                "README.md:4: docs/figures.json has no figure \"x\"",
            ]
        );
        assert_eq!(
            check("Nothing."),
            [
                "docs/figures.json: no document names the figure p99",
                "docs/figures.json: no document names the figure rate",
            ]
        );
    }

    #[test]
    fn options_refuse_what_they_do_not_have() {
        let parse = |args: &[&str]| {
            let mut options = Options::default();
            let args = args.iter().map(|&arg| arg.to_owned());
            options.parse(args).map(|()| options)
        };
        assert_eq!(parse(&["--run", "up"]).expect("valid").ids, ["up"]);
        for args in [
            &["--cheque"][..],
            &["up"],
            &["--run", "--program"],
            &["--run", "--program", "x"],
        ] {
            assert!(parse(args).is_err(), "{args:?}");
        }
    }
}
