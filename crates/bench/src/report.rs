//! Output of every benchmark's figures.

use anyhow::{Context as _, Result};
use koord_app::console;
use serde::Serialize;
use std::path::Path;

/// A benchmark's outcome: its figures as JSON and, where it has one, a table of them.
#[derive(Debug)]
pub(crate) struct Report {
    json: String,
    table: Option<String>,
}

impl Report {
    /// Returns a report of `figures`, which are printed as JSON.
    ///
    /// # Errors
    /// The figures have no JSON.
    pub(crate) fn from_figures(figures: &impl Serialize) -> Result<Self> {
        Ok(Self {
            json: serde_json::to_string_pretty(figures).context("figures as JSON")?,
            table: None,
        })
    }

    /// Returns the same report with a table, which is printed in place of the JSON.
    pub(crate) fn with_table(self, table: String) -> Self {
        Self {
            table: Some(table),
            ..self
        }
    }

    /// Returns the text that is printed.
    fn text(&self) -> &str {
        self.table
            .as_deref()
            .map_or(self.json.as_str(), str::trim_end)
    }

    /// Prints the report, and writes its JSON to `file`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn publish(&self, file: Option<&Path>) -> Result<()> {
        console::print_line(self.text());
        file.map_or(Ok(()), |path| {
            std::fs::write(path, &self.json)
                .with_context(|| format!("cannot write {}", path.display()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Figures {
        node_count: u32,
        latency: f64,
    }

    #[test]
    fn table_is_printed_and_the_file_has_json() {
        let figures = Figures {
            node_count: 3,
            latency: 0.5,
        };
        let json = "{\n  \"nodeCount\": 3,\n  \"latency\": 0.5\n}";
        let report = Report::from_figures(&figures).unwrap();
        assert_eq!(report.text(), json);
        let report = report.with_table("| nodes |\n".to_owned());
        assert_eq!(report.text(), "| nodes |");
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("figures.json");
        report.publish(Some(&file)).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), json);
        let missing = dir.path().join("no/figures.json");
        let error = report.publish(Some(&missing)).unwrap_err();
        assert!(error.to_string().starts_with("cannot write "), "{error}");
    }
}
