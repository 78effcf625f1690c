//! Log lines about lasting conditions.

use rustc_hash::FxHashMap;
use std::fmt::Display;

/// Logs a lasting condition once, and again when its text changes. Each key has one text.
#[derive(Debug, Default)]
pub(crate) struct LogOnChange(FxHashMap<&'static str, String>);

impl LogOnChange {
    /// Logs at warn level that `part` of the agent failed.
    pub(crate) fn log_failure(&mut self, part: &'static str, error: &dyn Display) {
        if let Some(error) = self.store(part, error) {
            tracing::warn!(part, %error, "part of the agent failed");
        }
    }

    /// Logs at warn level that `part` of the agent failed, unless it is failing already. For errors whose
    /// text contains one of many file names or file content, and so differs from round to round.
    pub(crate) fn log_first_failure(&mut self, part: &'static str, error: &dyn Display) {
        let is_failing = self.text(part).is_some();
        if let Some(error) = self.store(part, error).filter(|_| !is_failing) {
            tracing::warn!(part, %error, "part of the agent failed");
        }
    }

    /// Logs at warn level that `feature` is disabled because of `error`.
    pub(crate) fn log_off(&mut self, feature: &'static str, error: &dyn Display) {
        if let Some(error) = self.store(feature, error) {
            tracing::warn!(feature, error, "feature disabled: invalid settings");
        }
    }

    /// Logs at debug level that `feature` is disabled because a setting without a default is missing.
    pub(crate) fn log_unset(&mut self, feature: &'static str, setting: &dyn Display) {
        if let Some(setting) = self.store(feature, setting) {
            tracing::debug!(feature, setting, "feature disabled: setting missing");
        }
    }

    /// Logs at info level that `feature` is disabled because this machine lacks something.
    pub(crate) fn log_lack(&mut self, feature: &'static str, lack: &dyn Display) {
        if let Some(lack) = self.store(feature, lack) {
            tracing::info!(
                feature,
                lack,
                "feature disabled: not supported by this machine"
            );
        }
    }

    /// Returns the text logged last for `key`, until it is cleared.
    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// Ends the condition of `key`: the next one is logged whatever its text.
    pub(crate) fn clear(&mut self, key: &str) {
        self.0.remove(key);
    }

    /// Stores the text of `key`; returns it if it is new or changed.
    fn store(&mut self, key: &'static str, text: &dyn Display) -> Option<&str> {
        let text = text.to_string();
        if self.text(key) == Some(&text) {
            return None;
        }
        self.0.insert(key, text);
        self.text(key)
    }
}

#[cfg(test)]
pub(crate) mod tests;
