//! Kernel errors of collectors and strategies: counted, logged once while they last, and shown in the status.

use crate::log_on_change::LogOnChange;
use crate::metrics::Metrics;
use koord_host::{HostError, Result as HostResult};
use rustc_hash::FxHashMap;

/// Kernel errors of one round of a collector. The collector used what it could read.
#[derive(Debug, thiserror::Error)]
#[error("{first}")]
pub struct CollectError {
    first: HostError,
    count: u64,
}

impl CollectError {
    /// Returns the number of errors.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }
}

/// Kernel errors of the current round.
#[derive(Debug, Default)]
pub struct KernelErrors(Option<CollectError>);

impl KernelErrors {
    /// Adds an error, unless the file, cgroup or process has been removed or this kernel has no such file:
    /// then the value is just missing.
    pub fn add(&mut self, error: HostError) {
        if error.is_gone() || error.is_unsupported() {
            return;
        }
        match &mut self.0 {
            Some(error) => error.count = error.count.saturating_add(1),
            none => {
                *none = Some(CollectError {
                    first: error,
                    count: 1,
                });
            }
        }
    }

    /// Returns the value that was read. An error is added and gives the default value.
    pub fn value_of<T: Default>(&mut self, read: HostResult<T>) -> T {
        read.unwrap_or_else(|error| {
            self.add(error);
            T::default()
        })
    }

    /// Ends the round.
    ///
    /// # Errors
    /// When there were kernel errors in the round.
    pub fn finish(&mut self) -> Result<(), CollectError> {
        self.0.take().map_or(Ok(()), Err)
    }
}

/// Counts and logs the errors of all collectors and strategies, by their unique names.
#[derive(Debug)]
pub struct CollectErrorLog {
    metrics: Metrics,
    log: LogOnChange,
    /// Number of rounds without an error since the last one, by collector.
    clean: FxHashMap<&'static str, u32>,
}

impl CollectErrorLog {
    /// Creates a log that counts in `metrics`.
    #[must_use]
    pub fn new(metrics: Metrics) -> Self {
        Self {
            metrics,
            log: LogOnChange::default(),
            clean: FxHashMap::default(),
        }
    }

    /// Counts and logs the outcome of a round of `collector`. In `turns` rounds the collector reads each of its files
    /// at least once, so the error ends after as many rounds without one.
    pub fn record(&mut self, collector: &'static str, turns: u32, round: Result<(), CollectError>) {
        let clean = self.clean.entry(collector).or_default();
        match round {
            Err(error) => {
                *clean = 0;
                self.metrics.collect_errors(collector, error.count);
                self.log.log_first_failure(collector, &error);
            }
            Ok(()) => {
                *clean = clean.saturating_add(1);
                if *clean == turns {
                    self.log.clear(collector);
                }
            }
        }
    }

    /// Ends the error of `collector`, which has no demand any more.
    pub fn end(&mut self, collector: &str) {
        self.clean.remove(collector);
        self.log.clear(collector);
    }

    /// Returns whether a round of `collector` was recorded since it last had demand.
    #[cfg(test)]
    pub(crate) fn has_run(&self, collector: &str) -> bool {
        self.clean.contains_key(collector)
    }

    /// Returns the current error of `collector`.
    #[must_use]
    pub fn current_error(&self, collector: &str) -> Option<&str> {
        self.log.text(collector)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_host::fake::Tree;
    use std::fs;

    fn error(path: &str) -> HostError {
        let malformed = koord_host::Malformed::new("a number", "x");
        HostError::Malformed {
            path: path.into(),
            malformed,
        }
    }

    fn round(errors: &[&str]) -> Result<(), CollectError> {
        let mut all = KernelErrors::default();
        errors.iter().for_each(|path| all.add(error(path)));
        all.finish()
    }

    #[test]
    fn missing_files_are_no_kernel_errors() {
        let tree = Tree::v2("0-1").unwrap();
        let group = tree.group("kubepods/a").unwrap();
        let mut errors = KernelErrors::default();
        errors.add(HostError::Unsupported {
            resource: "a file",
            version: "this test",
        });
        tree.vanish(&group).unwrap();
        let vanished = tree.root().cgroup(&group).cpu_usage_reader();
        assert!(errors.value_of(vanished).is_none());
        assert!(errors.finish().is_ok());
        fs::create_dir_all(tree.dir().join("proc/unreadable")).unwrap();
        let unreadable = tree.root().read(&tree.root().proc("unreadable"));
        assert_eq!(errors.value_of(unreadable), None);
        let error = errors.finish().unwrap_err();
        assert!(error.to_string().contains("proc/unreadable"), "{error}");
        assert!(errors.finish().is_ok(), "the next round begins without");
    }

    #[test]
    fn error_stands_until_all_turns_are_clean() {
        let registry = prometheus::Registry::new();
        let metrics = Metrics::new(&registry).unwrap();
        metrics.record_start("n1", 0);
        let mut log = CollectErrorLog::new(metrics);
        log.record("pods", 2, round(&["/a", "/b"]));
        log.record("numa", 1, round(&["/c"]));
        log.record("pods", 2, Ok(()));
        log.record("pods", 2, round(&["/a"]));
        assert_eq!(
            log.current_error("pods"),
            Some(error("/a").to_string().as_str())
        );
        log.record("pods", 2, Ok(()));
        assert!(log.current_error("pods").is_some(), "one of two turns");
        log.record("pods", 2, Ok(()));
        assert_eq!(
            (log.current_error("pods"), log.current_error("node")),
            (None, None)
        );
        log.record("numa", 1, Ok(()));
        assert_eq!(log.current_error("numa"), None);
        let text = koord_app::metrics::encode(&registry).unwrap();
        for line in [
            r#"koordlet_collect_errors_total{collector="pods",node="n1"} 3"#,
            r#"koordlet_collect_errors_total{collector="numa",node="n1"} 1"#,
        ] {
            assert!(text.contains(line), "{text}");
        }
    }
}
