//! What the binaries contain.

/// A text of the embedded API server's store.
const STORE: &[u8] = b"koord_apiserver_wal_fsync_duration_seconds";

#[test]
fn no_daemon_contains_the_embedded_api_server() {
    for (binary, expected) in [
        (env!("CARGO_BIN_EXE_koord"), true),
        (env!("CARGO_BIN_EXE_koord-scheduler"), false),
        (env!("CARGO_BIN_EXE_koord-manager"), false),
        (env!("CARGO_BIN_EXE_koordlet"), false),
    ] {
        let bytes = std::fs::read(binary).unwrap();
        let found = bytes.windows(STORE.len()).any(|window| window == STORE);
        assert_eq!(found, expected, "{binary}");
    }
}

#[test]
fn without_a_containerd_its_bench_says_so() {
    let koord = || {
        let mut koord = std::process::Command::new(env!("CARGO_BIN_EXE_koord"));
        koord
            .args(["bench", "runtime"])
            .env_remove("KOORD_CONTAINERD");
        koord
    };
    for (mut koord, says) in [
        (koord(), "bench/containerd get DIR"),
        (
            {
                let mut koord = koord();
                koord.arg("--containerd=/nonexistent");
                koord
            },
            "/nonexistent has no containerd",
        ),
    ] {
        let done = koord.output().unwrap();
        let said = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(3), "{said}");
        assert!(said.contains(says) && said.lines().count() == 1, "{said}");
        assert!(done.stdout.is_empty());
    }
}
