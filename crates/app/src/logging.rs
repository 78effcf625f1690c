//! Structured logs on standard error.

use std::sync::OnceLock;
use tracing_subscriber::EnvFilter;

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// What to log, and how.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogOptions {
    /// klog's `-v`: 0 to 3 is info, 4 and 5 debug, more is trace.
    pub verbosity: u8,
    /// How lines look.
    pub format: LogFormat,
}

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LoggingError {
    /// `RUST_LOG` does not parse.
    #[error("RUST_LOG {value:?}: {source}")]
    Filter {
        /// Its value.
        value: String,
        /// What is wrong with it.
        source: tracing_subscriber::filter::ParseError,
    },
    /// Somebody else set it up already.
    #[error("logging is set up already: {0}")]
    Twice(#[source] tracing_subscriber::util::TryInitError),
}

impl LogOptions {
    /// Takes over one of klog's flags. Where to write is not ours to choose, so most are ignored.
    pub(crate) fn apply(&mut self, name: &str, value: &str) -> Result<(), &'static str> {
        match name {
            "v" => {
                self.verbosity = value
                    .parse()
                    .map_err(|_| "must be a number from 0 to 255")?
            }
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

/// The filter, as of `RUST_LOG`, of a klog verbosity: 0 to 3 is info, 4 and 5 debug, more is trace.
#[must_use]
pub fn filter(verbosity: u8) -> String {
    let level = match verbosity {
        0..=3 => "info",
        4..=5 => "debug",
        _ => "trace",
    };
    // Libraries that speak for every request, or that print headers and bodies.
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
    format!("{level}{quiet},kube_runtime=error")
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
    .map_err(LoggingError::Twice)
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
        }
    }
}
