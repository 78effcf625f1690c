//! Files that koordlet finds at its start: a model's checkpoint, and the samples of its last run. Any
//! bytes are an error, or a model that can be asked, taught, written and read again.

#![no_main]

use koordlet::predict::{Config, Predictor, fuzzed};
use koordlet::store::Snapshot;
use libfuzzer_sys::fuzz_target;
use std::path::PathBuf;
use std::sync::LazyLock;

/// In memory, where there is such a directory.
static DIR: LazyLock<PathBuf> = LazyLock::new(|| {
    let shared = PathBuf::from("/dev/shm");
    let below = if shared.is_dir() {
        shared
    } else {
        std::env::temp_dir()
    };
    let dir = below.join(format!("koord-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    dir
});

/// In May 2025.
const NOW: i64 = 1_748_000_000_000;

fn hash(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

fuzz_target!(|data: &[u8]| {
    let Some((which, rest)) = data.split_first() else {
        return;
    };
    let file = DIR.join("x");
    if which % 2 == 0 {
        std::fs::write(&file, rest).expect("a file");
        let predictor = Predictor::new(Config::default());
        fuzzed::load_and_save(&predictor, &DIR, "x", NOW);
        return;
    }
    // With magic, time and sum as they should be, so that the rest is read.
    let head = [b"KOORDTS1", &(NOW as u64).to_le_bytes()[..]].concat();
    let body = [&head, rest].concat();
    let all = [&body[..], &hash(&body).to_le_bytes()].concat();
    std::fs::write(&file, all).expect("a file");
    if let Ok(Some(snapshot)) = Snapshot::load(&file, NOW as u64 + 1000, 0) {
        assert!(snapshot.len() <= rest.len());
    }
});
