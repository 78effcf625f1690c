//! Flags of upstream that change nothing here: accepted, so that manifests keep working, and reported
//! when they are set to something else than their default.

use super::{boolean, duration};
use clap::builder::OsStr;
use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches};
use std::fmt;
use std::marker::PhantomData;

/// Format of a flag's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlagFormat {
    /// A text.
    Text,
    /// A boolean in Go's format.
    Switch,
    /// A whole number.
    Number,
    /// A Go duration.
    Duration,
}
use FlagFormat::{Duration, Number, Switch, Text};

/// Name, kind, default, and the note about the replacement.
pub type Row = (&'static str, FlagFormat, &'static str, &'static str);

/// The flags of one program.
pub trait Table {
    /// Flags that the program accepts without effect: its own list and those that several programs share.
    const FLAG_LISTS: &'static [&'static [Row]];
}

const NO_TLS: &str = "the TLS server takes its certificate from --tls-cert-file or makes its own";
/// Flags of the secure port of `k8s.io/apiserver` that are accepted without effect.
pub const SERVING: &[Row] = &[
    ("cert-dir", Text, "", NO_TLS),
    ("disable-http2-serving", Switch, "false", NO_TLS),
    ("http2-max-streams-per-connection", Number, "0", NO_TLS),
    ("permit-address-sharing", Switch, "false", NO_TLS),
    ("permit-port-sharing", Switch, "false", NO_TLS),
    ("tls-cipher-suites", Text, "", NO_TLS),
    ("tls-curve-preferences", Text, "", NO_TLS),
    ("tls-min-version", Text, "", NO_TLS),
    ("tls-sni-cert-key", Text, "", NO_TLS),
];

const NO_METRICS: &str = "all metrics are always served under their own names";
/// Metrics flags of `k8s.io/component-base` that are accepted without effect.
pub const METRICS: &[Row] = &[
    ("allow-metric-labels", Text, "", NO_METRICS),
    ("allow-metric-labels-manifest", Text, "", NO_METRICS),
    ("disabled-metrics", Text, "", NO_METRICS),
    ("show-hidden-metrics-for-version", Text, "", NO_METRICS),
];

const NO_LOG: &str = "logs go to standard error as they happen";
/// Logging flags of `k8s.io/component-base` that are accepted without effect.
pub const LOG: &[Row] = &[
    ("log-text-info-buffer-size", Text, "0", NO_LOG),
    ("log-text-split-stream", Switch, "false", NO_LOG),
];

/// The flags of a [`Table`] that were set to something else than their default.
pub struct IgnoredFlags<T> {
    set: Vec<(&'static str, String, &'static str)>,
    of: PhantomData<fn() -> T>,
}

impl<T> fmt::Debug for IgnoredFlags<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("IgnoredFlags").field(&self.set).finish()
    }
}

impl<T> Clone for IgnoredFlags<T> {
    fn clone(&self) -> Self {
        Self {
            set: self.set.clone(),
            of: PhantomData,
        }
    }
}

impl<T> IgnoredFlags<T> {
    /// Returns a line for each flag that was set and has no effect.
    pub fn notes(&self) -> impl Iterator<Item = String> + '_ {
        self.set
            .iter()
            .map(|(name, value, instead)| format!("--{name}={value} has no effect: {instead}"))
    }
}

fn rows<T: Table>() -> impl Iterator<Item = &'static Row> {
    T::FLAG_LISTS.iter().copied().flatten()
}

/// Returns `value` if it has the format `kind`, else the reason why it does not.
fn check(kind: FlagFormat, value: &str) -> Result<String, String> {
    let checked = match kind {
        Text => Ok(()),
        Switch => boolean(value).map(drop).map_err(|e| e.to_string()),
        Number => value.parse::<i64>().map(drop).map_err(|e| e.to_string()),
        Duration => duration(value).map(drop).map_err(|e| e.to_string()),
    };
    checked.map(|()| value.to_owned())
}

fn is_default(kind: FlagFormat, value: &str, default: &str) -> bool {
    match kind {
        Switch => boolean(value).ok() == boolean(default).ok(),
        Duration => duration(value).ok() == duration(default).ok(),
        Text | Number => value == default,
    }
}

impl<T: Table> clap::Args for IgnoredFlags<T> {
    fn augment_args(mut command: Command) -> Command {
        for (name, kind, default, instead) in rows::<T>() {
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

impl<T: Table> FromArgMatches for IgnoredFlags<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let set = rows::<T>().filter_map(|(name, kind, default, instead)| {
            let value = matches.get_one::<String>(name)?;
            (!is_default(*kind, value, default)).then(|| (*name, value.clone(), *instead))
        });
        Ok(Self {
            set: set.collect(),
            of: PhantomData,
        })
    }
    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
