//! Flags of upstream's scheduler that are accepted without effect.

use koord_app::flags::accepted::{
    FlagFormat::{Duration, Number, Switch, Text},
    LOG, METRICS, Row, SERVING, Table,
};

/// The table of upstream's flags that are accepted without effect.
#[derive(Debug, Clone)]
pub struct Upstreams;

impl Table for Upstreams {
    const FLAG_LISTS: &'static [&'static [Row]] = &[SERVING, METRICS, LOG, ROWS];
}

const NO_PROXY: &str = "clients authenticate with tokens and certificates, not through a proxy";
const AUDIT: &str = "there is no workload auditor yet";
const DUMP: &str = "refusals are always recorded; see /debug/scheduler/pending and `koord explain`";
const QUICK: &str = "a decision takes micro- to milliseconds and is never aborted";
const BARRIER: &str = "no pod is scheduled before every informer has delivered its list";
const VERSION: &str = "the behavior of one Kubernetes version is implemented";
const AT_ONCE: &str = "logs go to standard error as they happen";

const ROWS: &[Row] = &[
    ("requestheader-allowed-names", Text, "", NO_PROXY),
    ("requestheader-client-ca-file", Text, "", NO_PROXY),
    (
        "requestheader-extra-headers-prefix",
        Text,
        "x-remote-extra-",
        NO_PROXY,
    ),
    (
        "requestheader-group-headers",
        Text,
        "x-remote-group",
        NO_PROXY,
    ),
    ("requestheader-uid-headers", Text, "", NO_PROXY),
    (
        "requestheader-username-headers",
        Text,
        "x-remote-user",
        NO_PROXY,
    ),
    (
        "kube-api-content-type",
        Text,
        "application/vnd.kubernetes.protobuf",
        "the JSON encoding is used",
    ),
    (
        "pod-max-in-unschedulable-pods-duration",
        Duration,
        "5m",
        "refused pods are retried after 5m",
    ),
    ("profiling", Switch, "true", "there are no Go profiles"),
    (
        "contention-profiling",
        Switch,
        "true",
        "there are no Go profiles",
    ),
    ("emulated-version", Text, "", VERSION),
    ("emulation-forward-compatible", Switch, "false", VERSION),
    ("min-compatibility-version", Text, "", VERSION),
    ("async-log", Switch, "false", AT_ONCE),
    ("async-log-queue-length", Number, "10000", AT_ONCE),
    ("scheduling-drop-unhandled-timeout", Duration, "5s", QUICK),
    ("debug-diagnosis-blocking", Switch, "false", DUMP),
    ("debug-diagnosis-queue-size", Number, "1000", DUMP),
    ("debug-diagnosis-worker-count", Number, "10", DUMP),
    ("sync-barrier-pod-namespace", Text, "kube-system", BARRIER),
    (
        "sync-barrier-pod-name",
        Text,
        "koord-scheduler-sync-barrier",
        BARRIER,
    ),
    ("sync-hard-timeout", Duration, "1m", BARRIER),
    ("enable-workload-auditor", Switch, "false", AUDIT),
    ("workload-auditor-metric-labels", Text, "", AUDIT),
    (
        "workload-auditor-victim-reschedule-duration",
        Duration,
        "10s",
        AUDIT,
    ),
    (
        "workload-auditor-victim-deletion-duration",
        Duration,
        "30s",
        AUDIT,
    ),
    (
        "workload-auditor-victim-deleting-retries",
        Number,
        "3",
        AUDIT,
    ),
    (
        "workload-auditor-scheduling-event-interval",
        Duration,
        "5m",
        AUDIT,
    ),
];
