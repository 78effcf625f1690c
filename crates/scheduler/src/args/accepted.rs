//! Flags of upstream's scheduler that change nothing here: accepted, so that manifests keep
//! working, and reported when they are set to something else than their default.

use clap::builder::OsStr;
use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches};
use koord_app::flags;

/// What a flag's value looks like.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Text,
    Switch,
    Number,
    Duration,
}
use Kind::{Duration, Number, Switch, Text};

/// Name, form, default, and what is done instead.
type Row = (&'static str, Kind, &'static str, &'static str);

const NO_TLS: &str = "the TLS server takes its certificate from --tls-cert-file or makes its own";
const NO_PROXY: &str = "callers are known by tokens and client certificates, not through a proxy";
const METRICS: &str = "all metrics are always served under their own names";
const AUDIT: &str = "there is no workload auditor yet";
const DUMP: &str = "refusals are always kept; see /debug/scheduler/pending and `koord explain`";
const QUICK: &str = "a decision takes micro- to milliseconds and is never abandoned";
const BARRIER: &str = "nothing is placed before every informer has delivered its list";
const VERSION: &str = "the behaviour of one Kubernetes version is implemented";
const LOG: &str = "logs go to standard error as they happen";

const ROWS: &[Row] = &[
    ("cert-dir", Text, "", NO_TLS),
    ("disable-http2-serving", Switch, "false", NO_TLS),
    ("http2-max-streams-per-connection", Number, "0", NO_TLS),
    ("permit-address-sharing", Switch, "false", NO_TLS),
    ("permit-port-sharing", Switch, "false", NO_TLS),
    ("tls-cipher-suites", Text, "", NO_TLS),
    ("tls-curve-preferences", Text, "", NO_TLS),
    ("tls-min-version", Text, "", NO_TLS),
    ("tls-sni-cert-key", Text, "", NO_TLS),
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
        "JSON is spoken",
    ),
    (
        "pod-max-in-unschedulable-pods-duration",
        Duration,
        "5m",
        "refused pods are tried again after 5m",
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
    ("allow-metric-labels", Text, "", METRICS),
    ("allow-metric-labels-manifest", Text, "", METRICS),
    ("disabled-metrics", Text, "", METRICS),
    ("show-hidden-metrics-for-version", Text, "", METRICS),
    ("async-log", Switch, "false", LOG),
    ("async-log-queue-length", Number, "10000", LOG),
    ("log-text-info-buffer-size", Text, "0", LOG),
    ("log-text-split-stream", Switch, "false", LOG),
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

/// The flags of this table that were set to something else than their default.
#[derive(Debug, Clone, Default)]
pub struct Accepted {
    set: Vec<(&'static str, String, &'static str)>,
}

impl Accepted {
    /// One line per flag that was set and changes nothing.
    pub fn notes(&self) -> impl Iterator<Item = String> + '_ {
        self.set
            .iter()
            .map(|(name, value, instead)| format!("--{name}={value} has no effect: {instead}"))
    }
}

fn check(kind: Kind, value: &str) -> Result<String, String> {
    let fits = match kind {
        Text => Ok(()),
        Switch => flags::boolean(value).map(drop).map_err(|e| e.to_string()),
        Number => value.parse::<i64>().map(drop).map_err(|e| e.to_string()),
        Duration => flags::duration(value).map(drop).map_err(|e| e.to_string()),
    };
    fits.map(|()| value.to_owned())
}

fn same(kind: Kind, value: &str, default: &str) -> bool {
    match kind {
        Switch => flags::boolean(value).ok() == flags::boolean(default).ok(),
        Duration => flags::duration(value).ok() == flags::duration(default).ok(),
        Text | Number => value == default,
    }
}

impl clap::Args for Accepted {
    fn augment_args(mut command: Command) -> Command {
        for (name, kind, default, instead) in ROWS {
            let kind = *kind;
            let mut arg = Arg::new(*name)
                .long(*name)
                .help(format!("Accepted without effect: {instead}"))
                .default_value(OsStr::from(*default))
                .action(ArgAction::Set)
                .value_parser(move |value: &str| check(kind, value));
            if kind == Switch {
                arg = arg
                    .num_args(0..=1)
                    .require_equals(true)
                    .default_missing_value("true");
            }
            command = command.arg(arg);
        }
        command
    }
    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Accepted {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let set = ROWS.iter().filter_map(|(name, kind, default, instead)| {
            let value = matches.get_one::<String>(name)?;
            (!same(*kind, value, default)).then(|| (*name, value.clone(), *instead))
        });
        Ok(Self { set: set.collect() })
    }
    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
