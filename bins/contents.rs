//! Tests what the daemons' programs contain and how they start. Each package below `bins` includes this file.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::{Command, Output};

/// A text of the embedded API server's store.
const STORE: &[u8] = b"koord_apiserver_wal_fsync_duration_seconds";

/// Returns the path of the package's program.
fn program() -> &'static str {
    let programs = [
        option_env!("CARGO_BIN_EXE_koord-scheduler"),
        option_env!("CARGO_BIN_EXE_koord-descheduler"),
        option_env!("CARGO_BIN_EXE_koord-manager"),
        option_env!("CARGO_BIN_EXE_koordlet"),
        option_env!("CARGO_BIN_EXE_koord-runtime-proxy"),
    ];
    programs.into_iter().flatten().next().unwrap()
}

#[test]
fn daemon_does_not_contain_the_embedded_api_server() {
    let bytes = std::fs::read(program()).unwrap();
    assert!(!bytes.windows(STORE.len()).any(|window| window == STORE));
}

fn run(arguments: &[&str]) -> Output {
    Command::new(program()).args(arguments).output().unwrap()
}

/// Returns what the program prints before it ends well.
fn printed(arguments: &[&str]) -> String {
    let output = run(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn name() -> &'static str {
    let name = Path::new(program()).file_name();
    name.unwrap().to_str().unwrap()
}

#[test]
fn daemon_prints_its_version_and_its_flags() {
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(printed(&["--version"]), format!("{} {version}\n", name()));
    let help = printed(&["--help"]);
    assert!(help.contains(&format!("Usage: {} ", name())), "{help}");
    // Each daemon has flags of its own.
    let own = match name() {
        "koord-scheduler" => "--scheduling-timeout",
        "koord-descheduler" => "--find-targets",
        "koord-manager" => "--noderesource-plugins",
        "koordlet" => "--cgroup-root-dir",
        _ => "--remote-runtime-service-endpoint",
    };
    assert!(help.contains(own), "{help}");
}

#[test]
fn component_writes_its_configuration_and_reads_it() {
    let (kind, plugin) = match name() {
        "koord-scheduler" => ("KubeSchedulerConfiguration", "LoadAwareScheduling"),
        "koord-descheduler" => ("DeschedulerConfiguration", "MigrationController"),
        _ => return,
    };
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let [first, second] = ["first", "second"].map(|file| {
        let path = directory.join(format!("{}-{file}.yaml", name()));
        path.to_str().unwrap().to_owned()
    });
    printed(&["--write-config-to", &first, "--leader-elect=false"]);
    let text = std::fs::read_to_string(&first).unwrap();
    assert!(text.contains("leaderElect: false"), "{text}");
    assert!(text.contains(&format!("kind: {kind}")), "{text}");
    assert!(text.contains(plugin), "{text}");
    printed(&["--config", &first, "--write-config-to", &second]);
    assert_eq!(std::fs::read_to_string(&second).unwrap(), text);
}

#[test]
fn daemon_refuses_an_unknown_flag() {
    let output = run(&["--no-such-flag"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("no-such-flag"), "{text}");
}
