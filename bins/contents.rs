//! What the daemons' programs contain: the test of each package below `bins`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

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

#[test]
fn daemon_refuses_an_unknown_flag() {
    let output = Command::new(program())
        .arg("--no-such-flag")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("no-such-flag"), "{text}");
}
