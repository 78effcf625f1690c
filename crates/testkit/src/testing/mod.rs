//! Record of skipped tests, and the container runtime that some tests need.
//!
//! The test harness swallows the output of a passing test, so a skipped test looks like a passed one. Every
//! test that lacks something therefore reports so here, and the gate (`.ci/skips`) reads the reports.

mod containerd;
mod nvml;
mod polling;

pub use containerd::{CONTAINERD, Containerd, Groups, IMAGE, containerd_for_test};
pub use nvml::{FakeGpu, FakeNvml};
pub use polling::{PATIENCE, eventually, eventually_blocking, eventually_within, poll_until};

use std::fs::OpenOptions;
use std::io::Write;
use std::panic::Location;

/// Environment variable with the file to which skipped tests are appended, one line each: test, need and
/// reason, separated by tabs.
pub const SKIPPED_FILE: &str = "KOORD_SKIPPED";

/// Records that the running test, or a part of it, is skipped because this machine lacks `need`.
///
/// `need` is a word that `.ci/skips` can check by itself: it fails the gate when the machine has it after
/// all, or when the word is unknown. `why` is for the reader.
///
/// # Panics
/// When the file named by [`SKIPPED_FILE`] cannot be appended to: a skip must not go unnoticed.
#[track_caller]
#[allow(clippy::print_stderr, reason = "a skipped test must say so")]
pub fn skip(need: &str, why: impl std::fmt::Display) {
    let thread = std::thread::current();
    // The harness names a test's thread after it, unless it runs tests one after another.
    let test = match thread.name() {
        Some(name) if name != "main" => name.to_owned(),
        _ => Location::caller().to_string(),
    };
    let why = why.to_string().replace(['\t', '\n'], " ");
    eprintln!("skipped: {test}: {need}: {why}");
    let Some(path) = std::env::var_os(SKIPPED_FILE) else {
        return;
    };
    let line = format!("{test}\t{need}\t{why}\n");
    // One write, so that the lines of concurrent tests do not mix.
    let added = OpenOptions::new()
        .append(true)
        .create(true)
        .open(&path)
        .and_then(|mut file| file.write_all(line.as_bytes()));
    if let Err(error) = added {
        panic!("{SKIPPED_FILE} ({}): {error}", path.to_string_lossy());
    }
}
