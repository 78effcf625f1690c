use super::*;
use clap::CommandFactory;
use koord_host::root::Dirs;
use std::collections::BTreeMap;
use std::path::Path;

/// Koordinator's flags of koordlet and their defaults: from its `InitFlags` functions and
/// `cmd/koordlet/options`. Directories are those of dsMode.
const UPSTREAM: &str = "
addr :9316
enable-pprof false
pprof-addr :9317
kube-api-qps 20
kube-api-burst 30
configmap-name koordlet-config
configmap-namespace koordinator-system
feature-gates
cgroup-root-dir /host-cgroup/
sys-root-dir /host-sys/
sys-fs-root-dir /host-sys-fs/
proc-root-dir /proc/
var-run-root-dir /host-var-run/
run-root-dir /host-run/
var-lib-kubelet-dir /var/lib/kubelet/
runtime-hooks-config-path /host-etc-hookserver/
containerd-endpoint
docker-endpoint
pouch-endpoint
default-runtime-type containerd
hami-core-library-directory-path /usr/local/vgpu/libvgpu.so
pod-resources-proxy-path /var/run/koordlet/pod-resources
xpu-device-infos-dir /var/run/koordlet/xpu-device-infos/
kubelet-preferred-address-type InternalIP
kubelet-sync-interval 10s
kubelet-sync-timeout 3s
kubelet-insecure-tls false
kubelet-read-only-port 10255
node-topology-sync-interval 3s
disable-query-kubelet-config false
report-interval 0s
enable-node-metric-report true
enable-pod-taskids false
xpu-enforce-collect-from-device-infos false
collect-res-used-interval 1s
collect-sys-metric-outdated-interval 10s
collect-node-cpu-info-interval 60s
collect-node-storage-info-interval 1s
cpi-collector-interval 60s
psi-collector-interval 10s
collect-cpi-timewindow 10s
coldpage-collector-interval 5s
enable-pagecache-collector false
enable-resctrl-collector false
resctrl-collector-interval 10s
metric-gc-interval-seconds 300
metric-expire-seconds 1800
tsdb-path /metric-data/
tsdb-retention-duration 12h
tsdb-enable-prometheus-metric true
tsdb-stripe-size 16384
tsdb-max-bytes 104857600
tsdb-wal-segment-size 1048576
tsdb-max-block-chunk-segment-size 5242880
tsdb-min-block-duration 10m
tsdb-max-block-duration 10m
tsdb-head-chunks-write-buffer-size 1048576
reconcile-interval-seconds 1
cpu-suppress-interval-seconds 1
cpu-evict-interval-seconds 1
memory-evict-interval-seconds 1
memory-evict-cool-time-seconds 4
cpu-evict-cool-time-seconds 20
only-evict-by-api false
qos-extension-plugins
runtime-hooks-network unix
runtime-hooks-addr /host-var-run-koordlet/koordlet.sock
runtime-hooks-failure-policy Ignore
runtime-hooks-plugin-failure-policy Ignore
runtime-hooks-host-endpoint /var/run/koordlet/koordlet.sock
runtime-hooks-disable-stages
enable-nri-runtime-hook true
runtime-hooks-nri-connect-timeout 6s
runtime-hooks-nri-backoff-duration 1s
runtime-hooks-nri-backoff-cap 1281023h53m38.427387903s
runtime-hooks-nri-backoff-steps 2147483647
runtime-hooks-nri-backoff-factor 2
runtime-hooks-nri-socket-path nri/nri.sock
runtime-hooks-nri-plugin-name koordlet_nri
runtime-hooks-nri-plugin-index 00
runtime-hooks-reconcile-interval 10s
disable-unset-cpu-quota false
audit-log-dir /var/log/koordlet
audit-verbose 3
audit-max-disk-space-mb 16
audit-max-concurrent-readers 4
audit-max-events-limit 2048
prediction-checkpoint-filepath /prediction-checkpoints
prediction-cold-start-duration 24h
prediction-safety-margin-percent 10
prediction-memory-histogram-decay-halflife 24h
prediction-cpu-histogram-decay-halflife 12h
prediction-training-interval 1m
prediction-model-expiration-duration 30m
prediction-model-checkpoint-interval 10m
prediction-model-checkpoint-max-per-step 12
resource-force-update-seconds 60
";

/// Flags that upstream does not have.
const OURS: [&str; 20] = [
    "agent-mode",
    "be-pod-cpu-idle",
    "cpu-suppress-mode",
    "dry-run",
    "dry-run-report",
    "enable-packet-collector",
    "eviction-mode",
    "kubeconfig",
    "kubelet-certificate-authority",
    "kubelet-cgroup-root",
    "kubelet-url",
    "kubelet-verify-certificate",
    "node-name",
    "node-topology-mode",
    "nvml-library",
    "pod-source",
    "restore-on-stop",
    "runtime-hooks-mode",
    "topology-exporter",
    "topology-exporter-interval",
];

fn parse(flags: &[&str]) -> Args {
    // As the daemon parses them, klog's flags included.
    let argv = std::iter::once("koordlet").chain(flags.iter().copied());
    koord_app::flags::parse::<Args>(argv.map(Into::into))
        .unwrap()
        .args
}

fn options(flags: &[&str]) -> Options {
    parse(flags).options().unwrap()
}

/// A list of zones has one owner: the agent's exporter, if it is enabled.
#[test]
fn an_exporter_owns_the_zones() {
    let exports = "--topology-exporter";
    for (flags, expected) in [
        (&[][..], Some(TopologyMode::Auto)),
        (&[exports], Some(TopologyMode::AnnotationsOnly)),
        (
            &[exports, "--node-topology-mode=auto"],
            Some(TopologyMode::AnnotationsOnly),
        ),
        (
            &["--node-topology-mode=koordinator"],
            Some(TopologyMode::Koordinator),
        ),
        (&[exports, "--node-topology-sync-interval=0s"], None),
    ] {
        let topology = options(flags).topology;
        assert_eq!(topology.map(|it| it.mode), expected, "{flags:?}");
    }
    let two_owners = parse(&[exports, "--node-topology-mode=koordinator"]).options();
    let error = two_owners.unwrap_err().to_string();
    assert!(
        error.contains("node-topology-mode koordinator and topology-exporter"),
        "{error}"
    );
}

#[test]
fn every_flag_of_upstream_has_its_default() {
    let command = Args::command();
    let dirs = parse(&["--agent-mode=dsMode"]).system.dirs().unwrap();
    let mut defaults: BTreeMap<&str, String> = BTreeMap::new();
    for arg in command.get_arguments() {
        let values = arg.get_default_values().iter();
        let values: Vec<_> = values.map(|value| value.to_string_lossy()).collect();
        defaults.insert(arg.get_long().unwrap(), values.concat());
    }
    for inert in inert::IGNORED_FLAGS {
        assert_eq!(
            defaults.insert(inert.name, inert.default.to_owned()),
            Some(String::new())
        );
    }
    for (name, dir) in [
        ("cgroup-root-dir", dirs.cgroup),
        ("sys-root-dir", dirs.sys),
        ("sys-fs-root-dir", dirs.sys_fs),
        ("proc-root-dir", dirs.proc),
    ] {
        defaults.insert(name, dir.display().to_string());
    }
    let args = parse(&["--agent-mode=dsMode"]);
    let locations = args.runtime.locations(args.system.mode().unwrap());
    let names = [
        "var-run-root-dir",
        "runtime-hooks-addr",
        "runtime-hooks-config-path",
    ];
    for (name, place) in names.into_iter().zip(locations) {
        defaults.insert(name, place.display().to_string());
    }
    for line in UPSTREAM.lines().filter(|line| !line.is_empty()) {
        let (name, want) = line.split_once(' ').unwrap_or((line, ""));
        let default = defaults.remove(name);
        assert_eq!(default.as_deref(), Some(want), "{name}");
    }
    defaults.remove("realtime-priority");
    assert!(defaults.keys().copied().eq(OURS), "{:?}", defaults.keys());
}

#[test]
fn flags_become_options() {
    let options = options(&[
        "--audit-log-dir=/nonexistent",
        "-cpu-suppress-interval-seconds=2",
        "--cpu-evict-interval-seconds",
        "3",
        "--memory-evict-interval-seconds=-1",
        "--reconcile-interval-seconds=5",
        "--cpu-evict-cool-time-seconds=30",
        "--memory-evict-cool-time-seconds=6",
        "--psi-collector-interval=1m",
        "--cpi-collector-interval=2m",
        "--collect-cpi-timewindow=5s",
        "--enable-pagecache-collector",
        "--disable-unset-cpu-quota=true",
        "--addr=",
    ]);
    let settings = options.settings;
    assert_eq!(settings.interval_ms, 1000);
    assert_eq!(settings.cpu_suppress_interval_ms, 2000);
    assert_eq!(settings.cpu_evict_interval_ms, 3000);
    assert_eq!(settings.memory_evict_interval_ms, 0);
    assert_eq!(settings.qos_reconcile_interval_ms, 5000);
    assert_eq!(settings.cpu_cool_down_ms, 30_000);
    assert_eq!(settings.memory_cool_down_ms, 6000);
    assert_eq!(settings.collectors.psi_ms, 60_000);
    assert_eq!(settings.collectors.cpi_ms, 120_000);
    assert_eq!(settings.collectors.cpi_window_ms, 5000);
    assert!(settings.collectors.page_cache && !settings.unset_cpu_quota);
    assert_eq!(settings.predict.checkpoints_per_step, 12);
    assert!(matches!(options.pods, PodSource::Kubelet(_)));
}

#[test]
fn the_defaults_of_flags_and_options_agree() {
    let mut settings = options(&["--addr=127.0.0.1:0"]).settings;
    settings.predict.dir = None;
    let samples = settings.snapshot.take();
    assert_eq!(
        samples.as_deref(),
        Some(Path::new("/metric-data/koordlet-samples"))
    );
    let default = Settings::default();
    assert_eq!(format!("{settings:?}"), format!("{default:?}"));
}

#[test]
fn kubelet_certificate_is_verified_unless_refused() {
    let trust = |flags: &[&str]| match options(flags).pods {
        PodSource::Kubelet(kubelet) => kubelet.trust,
        PodSource::ApiServer => panic!("not asked for"),
    };
    let files = |names: &[&str]| Trust::Files(names.iter().map(Into::into).collect());
    let cluster = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt";
    let own = ["/k/pki/kubelet.crt", "/k/pki/kubelet-server-current.pem"];
    assert_eq!(
        trust(&["--var-lib-kubelet-dir=/k"]),
        files(&[cluster, own[0], own[1]])
    );
    assert_eq!(trust(&[]), Kubelet::default().trust);
    assert_eq!(
        trust(&["--kubelet-certificate-authority=/a.pem"]),
        files(&["/a.pem"])
    );
    assert_eq!(trust(&["--kubelet-verify-certificate=false"]), Trust::Any);
}

#[test]
fn the_mode_decides_where_the_host_is() {
    let dirs = |flags: &[&str]| parse(flags).system.dirs().unwrap();
    let host = dirs(&["--agent-mode=hostMode"]);
    let usual = Dirs::below(Path::new("/"));
    assert_eq!(host, usual);
    let moved = dirs(&["--agent-mode=hostMode", "--sys-root-dir=/tmp/sys"]);
    assert_eq!(
        moved.sys_fs,
        Path::new("/tmp/sys/fs"),
        "resctrl moves along"
    );
    assert_eq!(moved.cgroup, usual.cgroup);
    let mixed = dirs(&[
        "--agent-mode=dsMode",
        "--cgroup-root-dir=/cg",
        "--sys-fs-root-dir=/x",
    ]);
    assert_eq!(mixed.cgroup, Path::new("/cg"));
    assert_eq!(mixed.sys_fs, Path::new("/x"));
    assert_eq!(mixed.sys, Path::new("/host-sys/"));
}

#[test]
fn only_evict_by_api_flag_sets_eviction_mode_api() {
    use evictor::EvictionMode;
    for (flags, want) in [
        (&[][..], EvictionMode::ApiThenKill),
        (&["--only-evict-by-api"], EvictionMode::Api),
        (
            &["--only-evict-by-api=true", "--eviction-mode=kill"],
            EvictionMode::Api,
        ),
        (&["--eviction-mode=kill"], EvictionMode::Kill),
    ] {
        assert_eq!(options(flags).evict.mode, want, "{flags:?}");
    }
}

#[test]
fn the_stock_manifest_is_accepted() {
    let args = parse(&[
        "-cgroup-root-dir=/host-cgroup/",
        "-feature-gates=AllAlpha=true,AllBeta=true,AuditEvents=false",
        "-runtime-hooks-network=unix",
        "-runtime-hooks-addr=/host-var-run-koordlet/koordlet.sock",
        "-runtime-hooks-host-endpoint=/var/run/koordlet//koordlet.sock",
        "--logtostderr=true",
        "--v=4",
    ]);
    let gates = args.options().unwrap().settings.gates;
    assert!(gates.is_on(Gate::BEMemoryEvict));
    assert!(args.inert.set_flags().is_empty());
}

#[test]
fn one_mode_delivers() {
    use runtime::{Mode, Policy};
    let mode = |flags: &[&str]| options(flags).runtime.mode;
    assert_eq!(mode(&[]), Mode::Nri);
    assert_eq!(mode(&["--enable-nri-runtime-hook=false"]), Mode::Proxy);
    assert_eq!(mode(&["--runtime-hooks-mode=standalone"]), Mode::Standalone);
    assert_eq!(mode(&["--runtime-hooks-mode=proxy"]), Mode::Proxy);
    let flags = [
        "--runtime-hooks-plugin-failure-policy=Fail",
        "--runtime-hooks-disable-stages=PreRunPodSandbox,PreCreateContainer",
        "--runtime-hooks-nri-backoff-duration=3s",
        "--agent-mode=hostMode",
    ];
    let runtime = options(&flags).runtime;
    assert_eq!(runtime.policy, Policy::Fail);
    assert_eq!(runtime.server.policy, Policy::Ignore);
    assert_eq!(runtime.disabled, ["PreRunPodSandbox", "PreCreateContainer"]);
    assert_eq!(runtime.nri.backoff, Duration::from_secs(3));
    assert_eq!(runtime.nri.backoff_cap, Duration::from_secs(30));
    let [nri, socket] = [&runtime.nri.socket, &runtime.server.socket];
    assert_eq!(nri, Path::new("/var/run/nri/nri.sock"));
    assert_eq!(socket, Path::new("/var/run/koordlet/koordlet.sock"));
    let directory = &runtime.server.directory;
    assert_eq!(directory, Path::new("/etc/runtime/hookserver.d"));
}

#[test]
fn bad_values_name_the_flag() {
    for (flag, want) in [
        ("--feature-gates=X=true", "feature-gates: "),
        ("--cpu-suppress-mode=fast", "cpu-suppress-mode must be"),
        ("--eviction-mode=nicely", "eviction-mode must be"),
        ("--agent-mode=ds", "agent_mode must be"),
        ("--pod-source=file", "pod-source must be"),
        (
            "--collect-res-used-interval=10ms",
            "collect-res-used-interval must be",
        ),
        (
            "--prediction-safety-margin-percent=-5",
            "prediction-safety-margin-percent must be",
        ),
        ("--runtime-hooks-mode=both", "runtime-hooks-mode must be"),
        (
            "--runtime-hooks-network=tcp",
            "runtime-hooks-network must be",
        ),
        (
            "--runtime-hooks-failure-policy=fail",
            "runtime-hooks-failure-policy must be",
        ),
        (
            "--runtime-hooks-plugin-failure-policy=",
            "runtime-hooks-plugin-failure-policy must be",
        ),
        (
            "--runtime-hooks-nri-plugin-index=1",
            "runtime-hooks-nri-plugin-index must be",
        ),
        (
            "--runtime-hooks-nri-plugin-name=a/b",
            "runtime-hooks-nri-plugin-name must be",
        ),
        ("--kubelet-cgroup-root=/abs", "cgroup path \"/abs\""),
    ] {
        let error = parse(&[flag]).options().unwrap_err().to_string();
        assert!(error.starts_with(want), "{error}");
    }
}

#[test]
fn an_empty_url_is_none() {
    let url = |flags: &[&str]| match options(flags).pods {
        PodSource::Kubelet(kubelet) => kubelet.url,
        PodSource::ApiServer => panic!("not asked for"),
    };
    assert_eq!(url(&["--kubelet-url="]), None);
    let configured = url(&["--kubelet-url=https://k:1"]);
    assert_eq!(configured.as_deref(), Some("https://k:1"));
}

#[test]
fn audit_files_and_memory_follow_their_gates() {
    for (gates, file, kept) in [
        ("AuditEvents=true,AuditEventsHTTPHandler=true", true, 100),
        ("AuditEvents=true,AuditEventsHTTPHandler=false", true, 64),
        ("AuditEvents=false,AuditEventsHTTPHandler=true", false, 100),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let to = format!("--audit-log-dir={}", dir.path().display());
        let gates = format!("--feature-gates={gates}");
        let log = options(&[&to, &gates]).audit;
        for _ in 0..100 {
            let entry = audit::Entry::new(audit::Subject::Node, 1, "r", String::new());
            log.record(jiff::Timestamp::UNIX_EPOCH, entry);
        }
        let outcome = (dir.path().join("audit.log").exists(), log.entries().len());
        assert_eq!(outcome, (file, kept), "{gates}");
    }
}

#[test]
fn dry_run_leaves_ports_and_sockets_to_another_koordlet() {
    let dry = options(&["--dry-run"]);
    assert!(dry.dry_run && !dry.report);
    assert_eq!(dry.address.map(|address| address.port()), Some(9319));
    assert_eq!(dry.runtime.mode, runtime::Mode::Standalone);
    let chosen = options(&[
        "--dry-run=true",
        "--dry-run-report",
        "--addr=:9400",
        "--runtime-hooks-mode=nri",
    ]);
    assert!(chosen.report);
    assert_eq!(chosen.address.map(|address| address.port()), Some(9400));
    assert_eq!(chosen.runtime.mode, runtime::Mode::Nri);
    let usual = options(&["--dry-run-report"]);
    assert!(usual.report && !usual.dry_run);
    assert_eq!(usual.address.map(|address| address.port()), Some(9316));
}
