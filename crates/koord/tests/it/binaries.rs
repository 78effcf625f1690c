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
