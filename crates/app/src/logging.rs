//! Structured logs on standard error.

use std::sync::OnceLock;
use tracing_subscriber::EnvFilter;

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// Human-readable text.
    #[default]
    Text,
    /// A JSON object per line.
    Json,
}

/// Logging options.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogOptions {
    /// Verbosity of klog's `-v`: 0 to 3 is info, 4 and 5 debug, more is trace.
    pub verbosity: u8,
    /// Format of the lines.
    pub format: LogFormat,
    /// Messages about requested options without effect, for the log.
    pub notes: Vec<String>,
}

/// An error of the logging setup.
#[derive(Debug, thiserror::Error)]
pub enum LoggingError {
    /// `RUST_LOG` does not parse.
    #[error("RUST_LOG {value:?}: {source}")]
    Filter {
        /// Value of the variable.
        value: String,
        /// The parser's error.
        source: tracing_subscriber::filter::ParseError,
    },
    /// A logger is set up already.
    #[error("logging is set up already: {0}")]
    Twice(#[source] tracing_subscriber::util::TryInitError),
}

impl LogOptions {
    /// Applies one of klog's flags. Values are checked like in klog. All logs go to standard error, so flags
    /// that would change this are only noted.
    pub(crate) fn apply(&mut self, name: &str, value: &str) -> Result<(), &'static str> {
        const TO_STDERR: &str = "logs go to standard error";
        const LINES: &str = "lines always look the same";
        const PARTS: &str = "RUST_LOG chooses levels by module";
        let mut note = |why: &str| {
            self.notes
                .push(format!("--{name}={value} has no effect: {why}"))
        };
        match name {
            "v" => {
                let level: i32 = value.parse().map_err(|_| "must be a whole number")?;
                self.verbosity = u8::try_from(level.max(0)).unwrap_or(u8::MAX);
            }
            "log-file-max-size" => {
                value
                    .parse::<u64>()
                    .map_err(|_| "must be a size in megabytes")?;
            }
            "log-flush-frequency" => {
                crate::flag_values::duration(value).map_err(|_| "must be a duration")?;
            }
            "stderrthreshold" => {
                check(is_severity(value), "must be INFO, WARNING, ERROR or FATAL")?
            }
            "vmodule" => {
                check(is_vmodule(value), "must be pattern=N, comma-separated")?;
                if !value.is_empty() {
                    note(PARTS);
                }
            }
            "log-backtrace-at" => {
                check(is_trace_location(value), "must be file.go:N")?;
                if !matches!(value, "" | ":0") {
                    note("there are no backtraces of log lines");
                }
            }
            "log-dir" | "log-file" if !value.is_empty() => note(TO_STDERR),
            "logtostderr" if value == "false" => note(TO_STDERR),
            "skip-headers" | "add-dir-header" if value == "true" => note(LINES),
            "logging-format" => {
                self.format = match value {
                    "" | "text" => LogFormat::Text,
                    "json" => LogFormat::Json,
                    _ => return Err("must be text or json"),
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn filter(&self) -> String {
        filter(self.verbosity)
    }
}

fn check(is_right: bool, problem: &'static str) -> Result<(), &'static str> {
    if is_right { Ok(()) } else { Err(problem) }
}

fn is_severity(value: &str) -> bool {
    let names = ["INFO", "WARNING", "ERROR", "FATAL"];
    value.parse::<i32>().is_ok() || names.iter().any(|name| value.eq_ignore_ascii_case(name))
}

fn is_vmodule(value: &str) -> bool {
    let mut parts = value.split(',').filter(|part| !part.is_empty());
    parts.all(|part| {
        let (pattern, level) = part.split_once('=').unwrap_or_default();
        !pattern.is_empty() && level.parse::<u32>().is_ok()
    })
}

fn is_trace_location(value: &str) -> bool {
    let place = |(file, line): (&str, &str)| {
        file.contains('.') && line.parse() != Ok(0_u32) && line.parse::<u32>().is_ok()
    };
    matches!(value, "" | ":0") || value.split_once(':').is_some_and(place)
}

/// Returns the filter, in the syntax of `RUST_LOG`, for a klog verbosity: 0 to 3 is info, 4 and 5 debug, more
/// is trace.
#[must_use]
pub fn filter(verbosity: u8) -> String {
    let level = match verbosity {
        0..=3 => "info",
        4..=5 => "debug",
        _ => "trace",
    };
    // Libraries that log every request, or that print headers and bodies.
    let quiet = [
        "hyper",
        "hyper_util",
        "h2",
        "tower",
        "rustls",
        "kube_client",
        "tower_http",
    ];
    let quiet: String = quiet.iter().map(|name| format!(",{name}=warn")).collect();
    // The builder of kube_client logs each failed request, which the callers log already, with address and
    // cause.
    format!("{level}{quiet},kube_client::client::builder=off,kube_runtime=error")
}

/// Sends all logs of this process to standard error. `RUST_LOG` overrides the verbosity.
///
/// # Errors
///
/// When `RUST_LOG` does not parse, or on a second call.
pub fn init(options: &LogOptions) -> Result<(), LoggingError> {
    use tracing_subscriber::util::SubscriberInitExt;
    let text = match std::env::var("RUST_LOG") {
        Ok(value) if !value.is_empty() => value,
        _ => options.filter(),
    };
    let filter = EnvFilter::try_new(&text).map_err(|source| LoggingError::Filter {
        value: text,
        source,
    })?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    match options.format {
        LogFormat::Text => {
            let color = std::io::IsTerminal::is_terminal(&std::io::stderr());
            let builder = builder.with_ansi(color).with_filter_reloading();
            let handle = builder.reload_handle();
            let _ = RELOAD.set(Box::new(move |filter| handle.reload(filter).is_ok()));
            builder.finish().try_init()
        }
        LogFormat::Json => {
            let builder = builder.json().flatten_event(true).with_filter_reloading();
            let handle = builder.reload_handle();
            let _ = RELOAD.set(Box::new(move |filter| handle.reload(filter).is_ok()));
            builder.finish().try_init()
        }
    }
    .map_err(LoggingError::Twice)?;
    for note in &options.notes {
        tracing::warn!("{note}");
    }
    Ok(())
}

type Reload = Box<dyn Fn(EnvFilter) -> bool + Send + Sync>;

static RELOAD: OnceLock<Reload> = OnceLock::new();

/// Changes klog's verbosity while the process runs.
///
/// # Errors
///
/// The value is no verbosity, or logging was not set up by [`init`].
pub fn set_verbosity(value: &str) -> Result<(), &'static str> {
    let mut options = LogOptions::default();
    options.apply("v", value)?;
    let filter = EnvFilter::try_new(options.filter()).map_err(|_| "cannot be applied")?;
    let reload = RELOAD.get().ok_or("logging is set up elsewhere")?;
    if reload(filter) {
        Ok(())
    } else {
        Err("logging has ended")
    }
}

/// Sets the verbosity like [`set_verbosity`], and returns the text with which upstream's `/debug/flags/v`
/// responds.
///
/// # Errors
///
/// Those of [`set_verbosity`], with upstream's text.
pub fn put_verbosity(value: &str) -> Result<String, String> {
    match set_verbosity(value) {
        Ok(()) => Ok(format!(
            "successfully set klog.logging.verbosity to {value}"
        )),
        Err(why) => Err(format!(
            "failed to set klog.logging.verbosity {value}: {why}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verbosity_is_a_valid_filter_that_keeps_libraries_quiet() {
        for verbosity in [0, 4, 6, 255] {
            let options = LogOptions {
                verbosity,
                ..LogOptions::default()
            };
            let filter = options.filter();
            assert!(EnvFilter::try_new(&filter).is_ok(), "{filter}");
            assert!(filter.contains("kube_client=warn"));
            assert!(filter.contains("kube_client::client::builder=off"));
        }
    }
}
