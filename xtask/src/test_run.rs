//! `cargo xtask test`: builds all tests once and runs the test programs two at a time.
//!
//! Most of them wait for processes, disks and timers: one after the other, as `cargo test` runs them, they leave
//! half of the machine idle. Programs may run at the same time because what they make on the machine (control
//! groups, sockets, directories) has a name of its own; only koord/it makes the group `kubepods`.

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::io::{Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Number of test programs that run at the same time.
const LANES: usize = 2;
/// The test programs that take longest, the longest first. They start first, so that none is left at the end.
const LONGEST: [&str; 12] = [
    "koord/it",
    "koord-plugins/it",
    "koord-descheduler/it",
    "koord-apiserver/it",
    "koord-plugins/lib",
    "koordlet/lib",
    "koordlet/it",
    "koord-model/lib",
    "koord-manager/it",
    "koord-apiserver/lib",
    "koord/lib",
    "koord-descheduler/lib",
];
/// The time after which a test program is killed.
const TIME_LIMIT: Duration = Duration::from_secs(20 * 60);
/// The variable that names the file to which skipped tests are added; see `koord_host::testing`.
const SKIPPED_FILE: &str = "KOORD_SKIPPED";

/// Selection on the command line.
#[derive(Debug, Default, PartialEq, Eq)]
struct Selection {
    /// Packages to test; empty: the whole workspace.
    packages: Vec<String>,
    /// Filters and options of the test programs.
    arguments: Vec<String>,
}

impl Selection {
    /// Parses `[-p PACKAGE]... [FILTER]... [-- OPTION...]`.
    fn parse(args: impl IntoIterator<Item = String>) -> Result<Self> {
        let mut selection = Self::default();
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--workspace" => {}
                "-p" | "--package" => {
                    let package = args.next().with_context(|| format!("{arg} PACKAGE"))?;
                    selection.packages.push(package);
                }
                "--" => selection.arguments.extend(args.by_ref()),
                option if option.starts_with('-') => bail!(
                    "invalid option {option:?}: expected -p PACKAGE, a filter, or -- and options of test programs"
                ),
                _ => selection.arguments.push(arg),
            }
        }
        Ok(selection)
    }
}

/// A line of cargo's output with `--message-format=json`.
#[derive(Deserialize)]
struct CargoMessage {
    reason: String,
    #[serde(default)]
    package_id: String,
    #[serde(default)]
    manifest_path: PathBuf,
    target: Option<CargoTarget>,
    profile: Option<CargoProfile>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct CargoTarget {
    kind: Vec<String>,
    name: String,
    #[serde(default)]
    doctest: bool,
}

#[derive(Deserialize)]
struct CargoProfile {
    test: bool,
}

/// A built program of tests.
#[derive(Debug, PartialEq, Eq)]
struct TestProgram {
    /// `package/target`, or `package/lib`.
    name: String,
    path: PathBuf,
    /// Name and version, as cargo sets them in the environment of tests.
    package: (String, String),
    /// The package's directory, in which cargo runs its tests.
    directory: PathBuf,
}

/// Returns name and version of a package ID: `path+file:///dir/name#1.0.0` or `path+file:///dir#name@1.0.0`.
fn package_of(id: &str) -> Option<(&str, &str)> {
    let (url, fragment) = id.rsplit_once('#')?;
    let of_url = || Some((url.rsplit('/').next()?, fragment));
    fragment.split_once('@').or_else(of_url)
}

/// Returns the test programs in cargo's messages about a build, the longest first.
///
/// # Errors
/// When a package below `root` has documentation tests: they would not run.
fn test_programs(messages: &str, root: &Path) -> Result<Vec<TestProgram>> {
    let mut programs = Vec::new();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: CargoMessage =
            serde_json::from_str(line).with_context(|| format!("failed to decode {line}"))?;
        let (Some(target), Some(profile)) = (message.target, message.profile) else {
            continue;
        };
        if message.reason != "compiler-artifact" || !message.manifest_path.starts_with(root) {
            continue;
        }
        let package = package_of(&message.package_id)
            .with_context(|| format!("invalid package ID {:?}", message.package_id))?;
        let name = package.0;
        ensure!(
            profile.test || !target.doctest,
            "{name} has documentation tests, which `cargo xtask test` does not run: set `doctest = false`"
        );
        let Some(path) = message.executable.filter(|_| profile.test) else {
            continue;
        };
        let is_program = target
            .kind
            .iter()
            .any(|kind| kind == "test" || kind == "bin");
        let target = if is_program { &target.name } else { "lib" };
        programs.push(TestProgram {
            name: format!("{name}/{target}"),
            path,
            package: (name.to_owned(), package.1.to_owned()),
            directory: message
                .manifest_path
                .parent()
                .context("no directory")?
                .to_owned(),
        });
    }
    let rank = |program: &TestProgram| LONGEST.iter().position(|name| *name == program.name);
    programs.sort_by_key(|program| rank(program).unwrap_or(LONGEST.len()));
    Ok(programs)
}

/// Returns the programs of [`LONGEST`] that are not in `programs`.
fn not_built(programs: &[TestProgram]) -> Vec<&'static str> {
    let is_built = |name: &&str| programs.iter().any(|program| program.name == *name);
    LONGEST.into_iter().filter(|name| !is_built(name)).collect()
}

/// Tests that passed and those that failed.
#[derive(Debug, Default, PartialEq, Eq)]
struct TestCounts {
    passed: usize,
    failed: Vec<String>,
}

/// Returns the counts of tests in a test program's output; `None` when it ended without a summary.
///
/// A program that a test starts may print a summary of its own, so the last one counts.
fn parse_counts(output: &str) -> Option<TestCounts> {
    let lines: Vec<&str> = output.lines().collect();
    let is_summary = |line: &&str| line.starts_with("test result: ");
    let end = lines.iter().rposition(is_summary)?;
    // `test result: ok. 3 passed; 0 failed; ...`
    let passed = lines[end].split_once(". ")?.1.split_once(" passed;")?.0;
    let passed = passed.parse().ok()?;
    let begin = lines[..end].iter().rposition(|line| *line == "failures:");
    // After a summary without failures, the block before belongs to another program.
    let begin = begin.filter(|_| !lines[end].starts_with("test result: ok"));
    let names = lines[begin.map_or(end, |at| at + 1)..end].iter();
    let failed = names
        .map_while(|line| line.strip_prefix("    "))
        .map(str::to_owned)
        .collect();
    Some(TestCounts { passed, failed })
}

/// Result of a test program.
struct ProgramResult {
    name: String,
    took: Duration,
    counts: TestCounts,
    output: Vec<u8>,
}

impl ProgramResult {
    fn summary(&self) -> String {
        let (seconds, counts) = (self.took.as_secs_f64(), &self.counts);
        let failed = counts.failed.len();
        format!(
            "{seconds:7.1} s  {}: {} passed, {failed} failed",
            self.name, counts.passed
        )
    }
}

/// Runs a test program to its end, or until it is killed after `limit`, with its output in a file.
///
/// # Errors
/// When it cannot be started or its output cannot be kept.
fn run_program(
    program: &TestProgram,
    arguments: &[String],
    skipped: &Path,
    limit: Duration,
) -> Result<ProgramResult> {
    let begin = Instant::now();
    let mut file = tempfile::tempfile().context("failed to create a file")?;
    let mut child = Command::new(&program.path)
        .args(arguments)
        .current_dir(&program.directory)
        .env("CARGO_MANIFEST_DIR", &program.directory)
        .env("CARGO_PKG_NAME", &program.package.0)
        .env("CARGO_PKG_VERSION", &program.package.1)
        .env(SKIPPED_FILE, skipped)
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file.try_clone()?)
        .spawn()
        .with_context(|| format!("failed to start {}", program.path.display()))?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if begin.elapsed() >= limit {
            child.kill()?;
            child.wait()?;
            break None;
        }
        std::thread::park_timeout(Duration::from_millis(20));
    };
    let mut output = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut output)?;
    let counts = parse_counts(&String::from_utf8_lossy(&output));
    let mut counts = counts.unwrap_or_default();
    match status {
        None => counts.failed = vec![format!("killed after {} s", limit.as_secs())],
        Some(status) if !status.success() && counts.failed.is_empty() => {
            counts.failed.push(status.to_string());
        }
        Some(_) => {}
    }
    Ok(ProgramResult {
        name: program.name.clone(),
        took: begin.elapsed(),
        counts,
        output,
    })
}

/// Runs `programs` in their order, [`LANES`] at a time, and prints the output of each when it has ended.
///
/// # Errors
/// When a program cannot be run; those that run already still end.
fn run_programs(
    programs: &[TestProgram],
    run: impl Fn(&TestProgram) -> Result<ProgramResult> + Sync,
) -> Result<Vec<ProgramResult>> {
    let (queue, results) = (Mutex::new(programs.iter()), Mutex::new(Vec::new()));
    let work = || -> Result<()> {
        loop {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(program) = next else {
                return Ok(());
            };
            let mut result = run(program)?;
            let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
            let mut stdout = std::io::stdout().lock();
            writeln!(stdout, "\n== {}", result.summary().trim_start())?;
            stdout.write_all(&std::mem::take(&mut result.output))?;
            results.push(result);
        }
    };
    std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES).map(|_| scope.spawn(work)).collect();
        let ends = lanes.into_iter().map(|lane| {
            let end = lane.join();
            end.unwrap_or_else(|_| bail!("a lane of test programs panicked"))
        });
        ends.collect::<Vec<_>>().into_iter().collect::<Result<()>>()
    })?;
    Ok(results.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Builds the selected tests and returns cargo's messages.
fn build(packages: &[String]) -> Result<String> {
    let mut cargo = Command::new("cargo");
    cargo.args([
        "test",
        "--no-run",
        "--message-format=json-render-diagnostics",
    ]);
    if packages.is_empty() {
        cargo.arg("--workspace");
    }
    for package in packages {
        cargo.args(["--package", package]);
    }
    // `cargo xtask` sets them for this program. Build scripts that depend on them would run once more, and all
    // that is built on theirs.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(&name);
        }
    }
    let built = cargo.stderr(Stdio::inherit()).output();
    let built = built.context("failed to run cargo")?;
    ensure!(built.status.success(), "failed to build the tests");
    String::from_utf8(built.stdout).context("cargo's messages are not UTF-8")
}

/// Returns the lines of a file of skipped tests; none when it does not exist.
fn skipped_tests(path: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Runs the tests that `args` select, prints their output, seconds and failures.
///
/// # Errors
/// When a test fails, does not build, or does not end in time.
#[allow(clippy::print_stdout, reason = "this is a command-line tool")]
pub(crate) fn run(root: &Path, args: impl IntoIterator<Item = String>) -> Result<()> {
    let selection = Selection::parse(args)?;
    let begin = Instant::now();
    let programs = test_programs(&build(&selection.packages)?, root)?;
    ensure!(!programs.is_empty(), "no package has tests");
    let missing = not_built(&programs);
    ensure!(
        !selection.packages.is_empty() || missing.is_empty(),
        "LONGEST in xtask/src/test_run.rs lists {missing:?}, which are not built"
    );
    let build_time = begin.elapsed().as_secs_f64();
    let own = tempfile::NamedTempFile::new().context("failed to create a file")?;
    let skipped = std::env::var_os(SKIPPED_FILE).map_or_else(|| own.path().into(), PathBuf::from);
    // Programs run in other directories.
    let skipped = std::path::absolute(skipped)?;
    let skipped_before = skipped_tests(&skipped);

    let begin = Instant::now();
    let mut results = run_programs(&programs, |program| {
        run_program(program, &selection.arguments, &skipped, TIME_LIMIT)
    })?;
    let run_time = begin.elapsed().as_secs_f64();

    println!("\n== slowest programs");
    results.sort_by_key(|result| std::cmp::Reverse(result.took));
    for result in &results {
        println!("{}", result.summary());
    }
    let skipped_after = skipped_tests(&skipped);
    let skipped: Vec<_> = skipped_after.difference(&skipped_before).collect();
    if !skipped.is_empty() {
        println!("\n== skipped tests");
    }
    for line in &skipped {
        println!("{}", line.replace('\t', ": "));
    }
    let failures = results.iter().flat_map(|result| {
        let tests = result.counts.failed.iter();
        tests.map(|test| format!("{}: {test}", result.name))
    });
    let failures: Vec<_> = failures.collect();
    if !failures.is_empty() {
        println!("\n== failed tests\n{}", failures.join("\n"));
    }
    let passed: usize = results.iter().map(|result| result.counts.passed).sum();
    println!(
        "\n{passed} passed, {} failed, {} skipped in {} programs; built in {build_time:.0} s, ran in {run_time:.0} s",
        failures.len(),
        skipped.len(),
        results.len()
    );
    ensure!(failures.is_empty(), "{} tests failed", failures.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn artifact(id: &str, manifest: &str, target: &str, test: bool, executable: &str) -> String {
        format!(
            r#"{{"reason":"compiler-artifact","package_id":"{id}","manifest_path":"{manifest}","target":{target},"profile":{{"test":{test}}},"executable":{executable},"fresh":true}}"#
        )
    }

    #[test]
    fn programs_are_those_of_tests_longest_first() {
        let lib = r#"{"kind":["lib"],"name":"koord_api","doctest":false}"#;
        let integration = r#"{"kind":["test"],"name":"it","doctest":false}"#;
        let bin = r#"{"kind":["bin"],"name":"koord","doctest":false}"#;
        let api = "path+file:///w/crates/api#koord-api@0.1.0";
        let koord = "path+file:///w/crates/koord#0.1.0";
        let foreign = r#"{"kind":["lib"],"name":"serde","doctest":true}"#;
        let messages = [
            artifact(
                "registry+https://x#serde@1.0.0",
                "/r/serde/Cargo.toml",
                foreign,
                false,
                "null",
            ),
            artifact(api, "/w/crates/api/Cargo.toml", lib, false, "null"),
            artifact(api, "/w/crates/api/Cargo.toml", lib, true, r#""/t/api""#),
            artifact(
                koord,
                "/w/crates/koord/Cargo.toml",
                bin,
                false,
                r#""/t/koord""#,
            ),
            artifact(
                koord,
                "/w/crates/koord/Cargo.toml",
                integration,
                true,
                r#""/t/it""#,
            ),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ];
        let programs = test_programs(&messages.join("\n"), Path::new("/w")).expect("programs");
        let actual = programs.iter().map(|program| {
            let directory = program.directory.to_str().expect("a path");
            (program.name.as_str(), program.package.0.as_str(), directory)
        });
        assert_eq!(
            actual.collect::<Vec<_>>(),
            [
                ("koord/it", "koord", "/w/crates/koord"),
                ("koord-api/lib", "koord-api", "/w/crates/api")
            ]
        );
    }

    #[test]
    fn documentation_tests_are_refused() {
        let lib = r#"{"kind":["lib"],"name":"koord_api","doctest":true}"#;
        let id = "path+file:///w/crates/api#koord-api@0.1.0";
        let message = artifact(id, "/w/crates/api/Cargo.toml", lib, false, "null");
        let error = test_programs(&message, Path::new("/w")).expect_err("documentation tests");
        assert!(error.to_string().contains("doctest = false"), "{error}");
    }

    #[test]
    fn longest_programs_that_are_not_built_are_named() {
        let program = |name: &str| TestProgram {
            name: name.to_owned(),
            path: PathBuf::new(),
            package: (String::new(), String::new()),
            directory: PathBuf::new(),
        };
        let mut programs: Vec<_> = LONGEST.into_iter().map(program).collect();
        assert_eq!(not_built(&programs), [""; 0]);
        programs.remove(1);
        assert_eq!(not_built(&programs), [LONGEST[1]]);
    }

    #[test]
    fn counts_are_those_of_the_last_summary() {
        let of_child = "test result: FAILED. 0 passed; 1 failed; 0 ignored\nfailures:\n    other\n";
        let passed =
            format!("{of_child}\ntest result: ok. 41 passed; 0 failed; 0 ignored; 0 measured\n\n");
        let counts = |passed, failed: &[&str]| TestCounts {
            passed,
            failed: failed.iter().map(|&name| name.to_owned()).collect(),
        };
        assert_eq!(parse_counts(&passed), Some(counts(41, &[])));
        let failed = "\nfailures:\n\n---- a::b stdout ----\n    an indented line\n\nfailures:\n    a::b\n    c\n\n\
                      test result: FAILED. 5 passed; 2 failed; 0 ignored\n";
        assert_eq!(parse_counts(failed), Some(counts(5, &["a::b", "c"])));
        assert_eq!(parse_counts("running 3 tests\n"), None);
    }

    #[test]
    fn selection_separates_packages_from_arguments() {
        let parse = |args: &str| Selection::parse(args.split_whitespace().map(str::to_owned));
        let selection = parse("-p koord-api quantity:: -- --exact -p").expect("a selection");
        assert_eq!(selection.packages, ["koord-api"]);
        assert_eq!(selection.arguments, ["quantity::", "--exact", "-p"]);
        assert_eq!(
            parse("--workspace").expect("a selection"),
            Selection::default()
        );
        assert!(parse("--release").is_err());
        assert!(parse("-p").is_err());
    }

    /// Runs a shell script as a test program.
    fn run_script(script: &str, limit: Duration) -> ProgramResult {
        let program = TestProgram {
            name: "a/it".to_owned(),
            path: "/bin/sh".into(),
            package: ("a".to_owned(), "0.1.0".to_owned()),
            directory: "/".into(),
        };
        let arguments = ["-c".to_owned(), script.to_owned()];
        run_program(&program, &arguments, Path::new("/dev/null"), limit).expect("a result")
    }

    #[test]
    fn program_without_a_summary_fails_with_its_status() {
        let result = run_script("echo $CARGO_PKG_NAME $PWD; echo b >&2; exit 3", TIME_LIMIT);
        assert_eq!(result.output, b"a /\nb\n");
        assert_eq!(result.counts.failed, ["exit status: 3"]);
        let result = run_script("echo 'test result: ok. 2 passed; 0 failed'", TIME_LIMIT);
        assert_eq!((result.counts.passed, result.counts.failed.len()), (2, 0));
    }

    #[test]
    fn program_that_does_not_end_is_killed_and_fails() {
        let result = run_script("exec sleep 600", Duration::ZERO);
        assert_eq!(result.counts.failed, ["killed after 0 s"]);
        assert!(result.took < Duration::from_secs(300));
    }

    #[test]
    fn programs_run_in_order_and_all_results_are_kept() {
        let names = ["a", "b", "c"];
        let programs = names.map(|name| TestProgram {
            name: name.to_owned(),
            path: PathBuf::new(),
            package: (String::new(), String::new()),
            directory: PathBuf::new(),
        });
        let started = Mutex::new(Vec::new());
        let results = run_programs(&programs, |program| {
            started.lock().expect("a lock").push(program.name.clone());
            Ok(ProgramResult {
                name: program.name.clone(),
                took: Duration::ZERO,
                counts: TestCounts::default(),
                output: Vec::new(),
            })
        });
        let mut ended: Vec<_> = results
            .expect("results")
            .into_iter()
            .map(|result| result.name)
            .collect();
        ended.sort();
        assert_eq!(ended, names);
        assert_eq!(started.lock().expect("a lock").len(), 3);
        let failed = run_programs(&programs, |program| {
            bail!("failed to start {}", program.name)
        });
        assert!(failed.is_err());
    }
}
