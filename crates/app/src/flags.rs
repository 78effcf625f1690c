//! Go-style command lines on top of clap.
//!
//! Upstream's manifests mix single-dash long options, klog's flags and booleans with values
//! (`-feature-gates=A=true --v=4 --enable-leader-election=false`). [`parse`] rewrites such a line
//! into what clap understands, so that the components can declare plain clap arguments.

pub mod accepted;

pub use crate::flag_values::{
    FlagValueError, Selection, bind_address, boolean, duration, list, map, number, selection,
};

use clap::{Arg, ArgAction, Command};
use std::ffi::OsString;

/// Reason why a command line is not run: it is invalid, or requests help or the version.
#[derive(Debug, thiserror::Error)]
pub enum FlagError {
    /// The flag does not exist.
    #[error("flag provided but not defined: {flag}")]
    Unknown {
        /// The flag as typed, without its value.
        flag: String,
    },
    /// The flag needs a value and there is none.
    #[error("flag needs an argument: {flag}")]
    NoValue {
        /// The flag as typed.
        flag: String,
    },
    /// The value does not fit the flag.
    #[error("invalid value {value:?} for flag {flag}: {problem}")]
    Value {
        /// The flag as typed.
        flag: String,
        /// The value as typed.
        value: String,
        /// The reason for the rejection.
        problem: String,
    },
    /// An argument is not text.
    #[error("argument {0:?} is not valid UTF-8")]
    NotText(OsString),
    /// An error of clap; this includes `--help` and `--version`.
    #[error(transparent)]
    Clap(#[from] clap::Error),
}

impl FlagError {
    /// Returns whether the user requested help or the version, which is not an error.
    #[must_use]
    pub fn is_help(&self) -> bool {
        matches!(self, Self::Clap(error) if !error.use_stderr())
    }
}

/// A parsed command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedFlags<A> {
    /// The component's own flags.
    pub args: A,
    /// Logging options from klog's flags.
    pub logging: crate::logging::LogOptions,
}

/// Parses a Go-style command line; the first element is the program's name.
///
/// # Errors
///
/// On unknown flags and values that do not fit; the text names flag and value.
pub fn parse<A: clap::Parser>(
    argv: impl IntoIterator<Item = OsString>,
) -> Result<ParsedFlags<A>, FlagError> {
    let mut command = command::<A>();
    let (argv, logging) = normalize(&command, argv)?;
    let args = A::from_arg_matches(&command.try_get_matches_from_mut(argv)?)
        .map_err(|error| error.format(&mut command))?;
    Ok(ParsedFlags { args, logging })
}

/// Returns the command line of a daemon, with `--version`. Each flag's help text is on lines of its own, because
/// many flags have long names.
#[must_use]
pub fn command<A: clap::Parser>() -> Command {
    A::command()
        .version(env!("CARGO_PKG_VERSION"))
        .next_line_help(true)
}

/// Flags of klog and component-base, with true for booleans. Every daemon accepts them.
const LOG_FLAGS: [(&str, bool); 18] = [
    ("v", false),
    ("vmodule", false),
    ("logtostderr", true),
    ("alsologtostderr", true),
    ("stderrthreshold", false),
    ("legacy-stderr-threshold-behavior", true),
    ("log-dir", false),
    ("log-file", false),
    ("log-file-max-size", false),
    ("log-flush-frequency", false),
    ("log-backtrace-at", false),
    ("skip-headers", true),
    ("skip-log-headers", true),
    ("one-output", true),
    ("add-dir-header", true),
    ("logging-format", false),
    ("log-json-split-stream", true),
    ("log-json-info-buffer-size", false),
];

enum FlagKind<'a> {
    Own(&'a Arg),
    Log(&'static str, bool),
}

/// Rewrites `argv` for `command`: every flag becomes `--name=value`, klog's flags are taken out.
///
/// # Errors
///
/// As [`parse`], except for what only clap can check.
pub fn normalize(
    command: &Command,
    argv: impl IntoIterator<Item = OsString>,
) -> Result<(Vec<String>, crate::logging::LogOptions), FlagError> {
    let mut argv = argv
        .into_iter()
        .map(|arg| arg.into_string().map_err(FlagError::NotText));
    let mut out = Vec::new();
    let mut logging = crate::logging::LogOptions::default();
    out.extend(argv.next().transpose()?);
    while let Some(arg) = argv.next().transpose()? {
        if arg == "--" {
            out.push(arg);
            for rest in argv {
                out.push(rest?);
            }
            break;
        }
        let Some(body) = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')) else {
            out.push(arg);
            continue;
        };
        if body.is_empty() {
            out.push(arg);
            continue;
        }
        let (name, value) = match body.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (body, None),
        };
        let flag = arg.split('=').next().unwrap_or(&arg).to_owned();
        let argument = lookup(command, name);
        let is_boolean = match &argument {
            None if matches!(name, "h" | "help") => {
                out.push("--help".to_owned());
                continue;
            }
            None if name == "version" => {
                out.push("--version".to_owned());
                continue;
            }
            None => return Err(FlagError::Unknown { flag }),
            Some(FlagKind::Own(arg)) => takes_no_value(arg),
            Some(FlagKind::Log(_, boolean)) => *boolean,
        };
        // A flag whose value is merely optional checks the value itself.
        let is_switch = match &argument {
            Some(FlagKind::Own(arg)) => {
                matches!(arg.get_action(), ArgAction::SetTrue | ArgAction::SetFalse)
            }
            _ => is_boolean,
        };
        let value = match value {
            Some(value) if is_switch => boolean(&value)
                .map_err(|error| FlagError::Value {
                    flag: flag.clone(),
                    value,
                    problem: error.to_string(),
                })?
                .to_string(),
            Some(value) => value,
            None if is_boolean => "true".to_owned(),
            None => argv
                .next()
                .transpose()?
                .ok_or_else(|| FlagError::NoValue { flag: flag.clone() })?,
        };
        match argument {
            Some(FlagKind::Own(arg)) => {
                let long = arg.get_long().unwrap_or(name);
                match arg.get_action() {
                    ArgAction::SetTrue if value == "true" => out.push(format!("--{long}")),
                    ArgAction::SetTrue => {}
                    _ => out.push(format!("--{long}={value}")),
                }
            }
            Some(FlagKind::Log(name, _)) => {
                logging
                    .apply(name, &value)
                    .map_err(|problem| FlagError::Value {
                        flag,
                        value: value.clone(),
                        problem: problem.to_owned(),
                    })?
            }
            None => {}
        }
    }
    Ok((out, logging))
}

/// Returns the flag called `name`; dashes and underscores are equal, as in pflag.
fn lookup<'a>(command: &'a Command, name: &str) -> Option<FlagKind<'a>> {
    let matches_name = |long: &str| {
        long.len() == name.len()
            && long
                .bytes()
                .zip(name.bytes())
                .all(|(a, b)| a == b || matches!((a, b), (b'-', b'_')))
    };
    let own = command.get_arguments().find(|arg| {
        arg.get_long_and_visible_aliases()
            .into_iter()
            .flatten()
            .any(matches_name)
            || arg
                .get_all_aliases()
                .into_iter()
                .flatten()
                .any(matches_name)
    });
    let log = || LOG_FLAGS.iter().find(|(long, _)| matches_name(long));
    own.map(FlagKind::Own)
        .or_else(|| log().map(|(long, boolean)| FlagKind::Log(long, *boolean)))
}

fn takes_no_value(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::SetTrue | ArgAction::SetFalse)
        || arg
            .get_num_args()
            .is_some_and(|range| range.min_values() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logging::LogFormat;
    use clap::{CommandFactory as _, Parser};
    use std::time::Duration;

    #[derive(Debug, Clone, PartialEq, Eq, Parser)]
    struct Args {
        #[arg(long, default_value = "")]
        kubeconfig: String,
        #[arg(long, default_value_t = true, num_args = 0..=1, require_equals = true,
              default_missing_value = "true", action = ArgAction::Set, value_parser = boolean)]
        enable_leader_election: bool,
        #[arg(long)]
        dry_run: bool,
        #[arg(long, default_value = "30s", value_parser = duration)]
        interval: Duration,
        #[arg(long, default_value = "")]
        feature_gates: String,
        #[arg(long, num_args = 0..=1, default_missing_value = "true")]
        ignored: Option<String>,
    }

    fn run(line: &str) -> Result<ParsedFlags<Args>, FlagError> {
        parse(
            std::iter::once("prog")
                .chain(line.split_whitespace())
                .map(OsString::from),
        )
    }

    #[test]
    fn an_optional_value_may_be_any_text() {
        let ignored = |line: &str| run(line).unwrap().args.ignored;
        assert_eq!(ignored("-ignored=:9317").as_deref(), Some(":9317"));
        assert_eq!(ignored("-ignored").as_deref(), Some("true"));
    }

    #[test]
    fn go_style_lines_are_understood() {
        let parsed = run(
            "-kubeconfig=/k --enable-leader-election=false -feature_gates=A=true,B=false \
             --dry-run=t -interval 1m30s",
        )
        .unwrap();
        assert_eq!(
            parsed.args,
            Args {
                kubeconfig: "/k".to_owned(),
                enable_leader_election: false,
                dry_run: true,
                interval: Duration::from_secs(90),
                feature_gates: "A=true,B=false".to_owned(),
                ignored: None,
            }
        );
        assert!(!run("--dry-run=0").unwrap().args.dry_run);
        assert!(
            run("-enable-leader-election")
                .unwrap()
                .args
                .enable_leader_election
        );
    }

    #[test]
    fn klog_flags_are_taken_out() {
        for line in [
            "-v=4",
            "--v=4",
            "-v 4",
            "-v 4 --logtostderr=true --alsologtostderr",
        ] {
            assert_eq!(run(line).unwrap().logging.verbosity, 4, "{line}");
        }
        let line = "--stderrthreshold INFO --log_dir= --legacy_stderr_threshold_behavior=false \
                    --vmodule= --log_backtrace_at=:0 --logtostderr --log_file_max_size=1800";
        assert_eq!(
            run(line).unwrap().logging,
            crate::logging::LogOptions::default()
        );
        for flag in [
            "log-dir=/tmp",
            "log-file=/l",
            "logtostderr=false",
            "vmodule=a=1,b=2",
            "log-backtrace-at=a.go:7",
            "skip-headers=true",
            "add-dir-header=true",
        ] {
            let notes = run(&format!("--{}", flag.replace('-', "_")))
                .unwrap()
                .logging
                .notes;
            assert_eq!(notes.len(), 1, "{flag}");
            assert!(
                notes[0].starts_with(&format!("--{flag} has no effect: ")),
                "{notes:?}"
            );
        }
        let json = run("--logging-format=json").unwrap();
        assert_eq!(json.logging.format, LogFormat::Json);
    }

    #[test]
    fn mistakes_name_flag_and_value() {
        let check = |line: &str, names: &[&str]| {
            let error = run(line).unwrap_err().to_string();
            for name in names {
                assert!(error.contains(name), "{line}: {error}");
            }
        };
        check("-kube-config=/k", &["-kube-config", "not defined"]);
        check("--interval", &["--interval", "argument"]);
        check("--interval=5", &["--interval", "5", "missing unit"]);
        check(
            "--enable-leader-election=maybe",
            &["--enable-leader-election", "maybe"],
        );
        for flag in [
            "-v=high",
            "--log_file_max_size=-1",
            "--stderrthreshold=LOUD",
            "--vmodule=a",
            "--vmodule=a=b",
            "--log_backtrace_at=a.go",
            "--log_backtrace_at=a.go:0",
            "--logtostderr=maybe",
            "--log-flush-frequency=5",
        ] {
            let (name, value) = flag.split_once('=').unwrap();
            check(flag, &[name, value]);
        }
        check("--logging-format=xml", &["--logging-format", "xml"]);
    }

    #[test]
    fn help_and_version_can_be_read() {
        let FlagError::Clap(help) = run("--help").unwrap_err() else {
            panic!("not clap's")
        };
        let help = help.to_string();
        let flags = Args::command().get_arguments().count();
        assert!(help.lines().count() < 5 * (flags + 5), "{help}");
        let FlagError::Clap(version) = run("-version").unwrap_err() else {
            panic!("not clap's")
        };
        let version = version.to_string();
        assert_eq!(
            version.split(' ').nth(1),
            Some(concat!(env!("CARGO_PKG_VERSION"), "\n"))
        );
    }

    #[test]
    fn help_is_not_a_mistake() {
        for line in ["-h", "-help", "--help", "--version", "-version"] {
            assert!(run(line).unwrap_err().is_help(), "{line}");
        }
        assert!(!run("-nope").unwrap_err().is_help());
    }
}
