//! Tests that the installed units fit the program.

use koord_runtime_proxy::{Args, Options};
use std::process::Command;
use std::time::Duration;

const SERVICE: &str = include_str!("../../../../deploy/runtime-proxy/koord-runtime-proxy.service");
const SOCKET: &str = include_str!("../../../../deploy/runtime-proxy/koord-runtime-proxy.socket");
const KUBELET: &str = include_str!("../../../../deploy/runtime-proxy/kubelet-config.yaml");

fn value<'a>(unit: &'a str, key: &str) -> &'a str {
    let lines = unit.lines();
    let mut values = lines.filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    values.next_back().unwrap()
}

fn options() -> Options {
    let argv = value(SERVICE, "ExecStart").split(' ');
    let parsed = koord_app::flags::parse::<Args>(argv.map(Into::into)).unwrap();
    parsed.args.options().unwrap()
}

#[test]
fn socket_service_and_kubelet_mean_the_same_path() {
    let listen = options().listen;
    let listen = listen.to_str().unwrap();
    assert_eq!(value(SOCKET, "ListenStream"), listen);
    let endpoint = format!("containerRuntimeEndpoint: unix://{listen}");
    assert!(KUBELET.lines().any(|line| line == endpoint));
}

#[test]
fn unit_supports_draining_and_hot_restart() {
    let stop: u64 = value(SERVICE, "TimeoutStopSec").parse().unwrap();
    assert!(Duration::from_secs(stop) > options().drain_timeout);
    assert_eq!(value(SERVICE, "StandardInput"), "socket");
    assert_eq!(
        (value(SERVICE, "Type"), value(SERVICE, "NotifyAccess")),
        ("notify", "all")
    );
    // Not only the main process: the successor would go with it.
    assert_eq!(value(SERVICE, "KillMode"), "process");
    // A runtime that is away for five starts (`bench/units` has one) is no reason to give up.
    assert_eq!(value(SERVICE, "StartLimitIntervalSec"), "0");
}

/// Verifies the units with systemd, if the machine has it.
#[test]
fn systemd_finds_nothing_wrong_with_the_units() {
    let dir = tempfile::tempdir().unwrap();
    let program = value(SERVICE, "ExecStart").split(' ').next().unwrap();
    // The program is installed on nodes only.
    let service = SERVICE.replace(program, "/bin/true");
    let units = [
        ("koord-runtime-proxy.service", service.as_str()),
        ("koord-runtime-proxy.socket", SOCKET),
    ]
    .map(|(name, text)| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    });
    let mut verify = Command::new("systemd-analyze");
    let Ok(output) = verify.arg("verify").args(units).output() else {
        koord_host::testing::skip("systemd-analyze", "there is none");
        return;
    };
    let text = String::from_utf8_lossy(&output.stderr);
    // The output may have lines for other units of the machine.
    let lines_of_units = text
        .lines()
        .filter(|line| line.contains("koord-runtime-proxy"));
    assert_eq!(lines_of_units.collect::<Vec<_>>(), [""; 0]);
}
