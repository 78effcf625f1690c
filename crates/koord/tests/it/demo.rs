//! `koord demo` with unusable input: arguments, files, machines that miss something, Ctrl-C.

use crate::harness::exclusive;
use koord::demo::result::{ScenarioResult, Suite};
use koord::demo::verdict::Overall;
use koord_host::testing::skip;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

fn demo(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_koord"));
    command.arg("demo").args(args).current_dir(dir);
    command.stdin(Stdio::null());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs the demo, which must fail with `code` before it measures anything, in a sentence with all of `texts`.
fn refuses(dir: &Path, args: &[&str], code: i32, texts: &[&str]) {
    let Output {
        status,
        stdout,
        stderr,
    } = demo(dir, args).output().expect("koord starts");
    let stderr = text(&stderr);
    assert_eq!(status.code(), Some(code), "{args:?}: {stderr}");
    assert_eq!(text(&stdout), "", "{args:?}");
    for part in texts {
        assert!(stderr.contains(part), "{args:?}: {stderr}");
    }
    assert!(!stderr.contains("panicked"), "{stderr}");
    if code == 1 {
        assert_eq!(stderr.lines().count(), 1, "one sentence: {stderr}");
    }
}

#[test]
fn bad_arguments_report_expected_values() {
    let dir = tempfile::tempdir().expect("a directory");
    for (args, says) in [
        (["--scenario", "disk"], "there is no scenario \"disk\": cpu"),
        (["--scenario", "cpu,,io"], "there is no scenario \"\""),
        (["--phase-seconds", "0"], "expected 0.5 to 3600 seconds"),
        (["--phase-seconds", "NaN"], "expected 0.5 to 3600 seconds"),
        (
            ["--phase-seconds=-1", "--verbose"],
            "expected 0.5 to 3600 seconds",
        ),
        (["--phase-seconds", "1e9"], "expected 0.5 to 3600 seconds"),
        (["--phase-seconds", "ten"], "expected 0.5 to 3600 seconds"),
        (["--repeat", "0"], "0 is not in 1..=100"),
        (["--repeat", "1e3"], "--repeat"),
        (["--budget-seconds", "5"], "expected 30 to 86400 seconds"),
        (["--budget-seconds", "NaN"], "expected 30 to 86400 seconds"),
        (
            ["--rate", "fast"],
            "expected 1 to 1000000 requests per second",
        ),
        (
            ["--rate", "inf"],
            "expected 1 to 1000000 requests per second",
        ),
        (["--rate", "0"], "expected 1 to 1000000 requests per second"),
    ] {
        refuses(
            dir.path(),
            &args,
            2,
            &[args[0].split('=').next().expect("a flag"), says],
        );
    }
    let conflicting = ["--from", "a.json", "--scenario", "io"];
    refuses(dir.path(), &conflicting, 2, &["--from", "--scenario"]);
    let conflicting = ["--budget-seconds", "60", "--repeat", "2"];
    refuses(
        dir.path(),
        &conflicting,
        2,
        &["--budget-seconds", "--repeat"],
    );
}

#[test]
fn unwritable_files_fail_before_the_measurement() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    refuses(
        dir,
        &["--report", "none/a.html"],
        1,
        &["cannot write none/a.html", "No such file"],
    );
    refuses(
        dir,
        &["--json", "none/a.json"],
        1,
        &["cannot write none/a.json", "No such file"],
    );
    refuses(dir, &["--json", "."], 1, &["cannot write .", "a directory"]);
    let same_file = ["--json", "a", "--report", "./a"];
    refuses(dir, &same_file, 1, &["--json and --report both name a"]);
    // An old file is unchanged, and there is no new one.
    std::fs::write(dir.join("old.html"), "old").expect("written");
    refuses(
        dir,
        &["--report", "old.html", "--json", "none/a"],
        1,
        &["none/a"],
    );
    assert_eq!(
        std::fs::read_to_string(dir.join("old.html")).expect("read"),
        "old"
    );
    assert_eq!(std::fs::read_dir(dir).expect("listed").count(), 1);
}

#[test]
fn invalid_figures_are_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    let is = |text: &str| std::fs::write(dir.join("a.json"), text).expect("written");
    let from = ["--from", "a.json"];
    refuses(dir, &from, 1, &["cannot read a.json", "No such file"]);
    is("\n");
    refuses(dir, &from, 1, &["a.json is empty"]);
    is("{\"setup\": ");
    refuses(dir, &from, 1, &["a.json is not what", "line 1"]);
    // Written by an older version with fewer fields.
    is("{\"setup\": {\"cpus\": 2}, \"phases\": []}");
    refuses(dir, &from, 1, &["a.json is not what", "missing field"]);
    std::fs::write(dir.join("a.json"), [0xff, 0xfe]).expect("written");
    refuses(dir, &from, 1, &["cannot read a.json"]);
    let mut suite = Suite {
        complete: true,
        ..Suite::default()
    };
    is(&serde_json::to_string(&suite).expect("JSON"));
    refuses(dir, &from, 1, &["a.json has no scenario"]);
    suite.scenarios.push(ScenarioResult {
        name: "cpu".to_owned(),
        ran: true,
        ..ScenarioResult::default()
    });
    is(&serde_json::to_string(&suite).expect("JSON"));
    refuses(
        dir,
        &["--from", "a.json", "--report", "a.json"],
        1,
        &["--from and --report"],
    );
    for (overall, code) in [
        (Overall::Conclusive, 0),
        (Overall::NotMeasured, 3),
        (Overall::NotConclusive, 4),
        (Overall::Lost, 5),
    ] {
        suite.verdict.overall = overall;
        is(&serde_json::to_string(&suite).expect("JSON"));
        let shown = demo(dir, &from).output().expect("koord starts");
        assert_eq!(shown.status.code(), Some(code), "{}", text(&shown.stderr));
        assert!(dir.join("koord-demo.html").exists());
    }
}

#[test]
fn help_names_the_exit_codes() {
    let dir = tempfile::tempdir().expect("a directory");
    let help = demo(dir.path(), &["--help"])
        .output()
        .expect("koord starts");
    let help = text(&help.stdout);
    for line in [
        "0  conclusive",
        "3  not everything",
        "4  NOT CONCLUSIVE",
        "5  lost",
    ] {
        assert!(help.contains(line), "{help}");
    }
}

/// Starts it, waits until the first window is measured, interrupts it as Ctrl-C does, and returns its exit
/// code and figures.
fn interrupted(dir: &Path, mut command: Command) -> Option<(Option<i32>, Value)> {
    let mut child: Child = match command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn() {
        Ok(child) => child,
        Err(error) => {
            skip("root", error);
            return None;
        }
    };
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let mut output = Vec::new();
    let measured = lines.by_ref().map_while(Result::ok).any(|line| {
        let measured = line.contains("  p99 ");
        output.push(line);
        measured
    });
    assert!(measured, "{output:?}");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("signal");
    lines.for_each(drop);
    let code = child.wait().expect("exit status").code();
    let json = std::fs::read_to_string(dir.join("a.json")).expect("figures are written");
    assert!(dir.join("a.html").exists());
    Some((code, serde_json::from_str(&json).expect("JSON")))
}

const SHORT: [&str; 8] = [
    "--scenario",
    "nginx,cpu,io",
    "--phase-seconds",
    "0.5",
    "--json",
    "a.json",
    "--report",
    "a.html",
];

#[test]
fn interrupted_demo_reports_measured_and_skipped_scenarios() {
    let _machine = exclusive();
    if !rustix::process::geteuid().is_root() {
        return skip("root", "the other test has what is left to see");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let mut command = demo(dir.path(), &SHORT);
    command.env("PATH", dir.path());
    let Some((code, figures)) = interrupted(dir.path(), command) else {
        return;
    };
    assert_eq!(code, Some(3));
    assert_eq!(figures["complete"], false);
    assert_eq!(figures["verdict"]["overall"], "not_measured");
    assert_eq!(figures["verdict"]["not_measured"], 3);
    let [nginx, cpu, io] = figures["scenarios"].as_array().expect("rows").as_slice() else {
        panic!("{figures}")
    };
    for scenario in [nginx, cpu, io] {
        assert_eq!(scenario["ran"], false, "{scenario}");
    }
    let why = nginx["why"].as_str().expect("a reason");
    assert!(why.contains("ffmpeg not found in PATH"), "{why}");
    assert_eq!(cpu["why"], "interrupted");
    assert_eq!(cpu["phases"][0]["name"], "alone");
    assert_eq!(io["why"], "interrupted before it began");
    assert_eq!(io["phases"], Value::Array(Vec::new()));
    let page = std::fs::read_to_string(dir.path().join("a.html")).expect("a page");
    assert!(page.contains("ffmpeg not found in PATH"));
}

#[test]
fn demo_without_root_reports_missing_enforcement() {
    let _machine = exclusive();
    let dir = tempfile::tempdir().expect("a directory");
    let mut command = demo(dir.path(), &SHORT);
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(dir.path(), Some(65534), Some(65534))
            .expect("a directory of another user");
        command.uid(65534).gid(65534);
    }
    let Some((code, figures)) = interrupted(dir.path(), command) else {
        return;
    };
    assert_eq!(code, Some(3));
    assert_eq!(figures["setup"]["enforced"], false);
    let why = figures["scenarios"][2]["why"].as_str().expect("a reason");
    assert!(why.contains("needs root"), "{why}");
    assert_eq!(figures["scenarios"][1]["phases"][0]["name"], "alone");
    let page = std::fs::read_to_string(dir.path().join("a.html")).expect("a page");
    assert!(page.contains("Nothing was protected"));
}
