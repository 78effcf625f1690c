//! Contents of the binaries.

/// A text of the embedded API server's store.
const STORE: &[u8] = b"koord_apiserver_wal_fsync_duration_seconds";

/// `bins/contents.rs` checks for the same text that the daemons' programs do not contain it.
#[test]
fn koord_contains_the_embedded_api_server() {
    let bytes = std::fs::read(env!("CARGO_BIN_EXE_koord")).unwrap();
    assert!(bytes.windows(STORE.len()).any(|window| window == STORE));
}

#[test]
fn bench_without_containerd_reports_it() {
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
        let output = koord.output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(3), "{stderr}");
        assert!(
            stderr.contains(says) && stderr.lines().count() == 1,
            "{stderr}"
        );
        assert!(output.stdout.is_empty());
    }
}

/// Covers the comparison with Koordinator's scheduler: an API server accepts the objects that only these
/// scenarios have, and all pods are placed.
#[test]
fn bench_measures_pods_through_an_api_server() {
    for scenario in ["deployment", "daemonset"] {
        let directory = tempfile::tempdir().unwrap();
        let figures = directory.path().join("figures.json");
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_koord"))
            .args("bench scheduler --path api --no-baseline --nodes 4 --pods 8".split(' '))
            .args(["--scenario", scenario, "--json"])
            .arg(&figures)
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{scenario}: {stderr}");
        let text = std::fs::read_to_string(&figures).unwrap();
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(report["podCount"], 8, "{text}");
        assert_eq!(report["schedulingFailureCount"], 0, "{text}");
    }
}
