//! The explanation of an object as sentences, tables and problems.

use super::render::rows;
use koord_api::{Quantity, ResourceList};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Rows of a table in the text.
const MAX_ROWS: usize = 20;

/// An explanation that is printed as text or as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub(super) struct Outline {
    /// The object and its state.
    pub(super) title: String,
    /// Sentences about its settings and its state.
    pub(super) facts: Vec<String>,
    pub(super) tables: Vec<OutlineTable>,
    /// Reasons why it, or a pod that needs it, does not work.
    pub(super) problems: Vec<String>,
}

/// A table with a header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct OutlineTable {
    pub(super) title: &'static str,
    pub(super) header: Vec<&'static str>,
    pub(super) rows: Vec<Vec<String>>,
}

impl Outline {
    /// Adds a sentence.
    pub(super) fn add_fact(&mut self, fact: impl Into<String>) {
        self.facts.push(fact.into());
    }

    /// Adds a problem.
    pub(super) fn add_problem(&mut self, problem: impl Into<String>) {
        self.problems.push(problem.into());
    }

    /// Adds a table, unless it has no rows.
    pub(super) fn add_table(
        &mut self,
        title: &'static str,
        header: &[&'static str],
        rows: Vec<Vec<String>>,
    ) {
        if !rows.is_empty() {
            self.tables.push(OutlineTable {
                title,
                header: header.to_vec(),
                rows,
            });
        }
    }

    /// Adds a table with a row per resource and a column per list. An amount that a list lacks is `-`.
    pub(super) fn add_amounts(&mut self, columns: &[(&'static str, &ResourceList)]) {
        let resources: BTreeSet<&String> =
            columns.iter().flat_map(|(_, list)| list.keys()).collect();
        let row = |resource: &String| {
            let amounts = columns.iter().map(|(_, list)| amount(list.get(resource)));
            std::iter::once(resource.clone()).chain(amounts).collect()
        };
        let rows = resources.into_iter().map(row).collect();
        let titles = columns.iter().map(|(title, _)| *title);
        let header: Vec<_> = std::iter::once("resource").chain(titles).collect();
        self.add_table("amounts", &header, rows);
    }

    /// Formats the explanation.
    pub(super) fn render(&self) -> String {
        let mut out = format!("{}\n", self.title);
        // Writing to a String cannot fail.
        for fact in &self.facts {
            let _ = writeln!(out, "  {fact}");
        }
        for table in &self.tables {
            let header = table.header.iter().map(|cell| (*cell).to_owned()).collect();
            let shown = table.rows.iter().take(MAX_ROWS).cloned();
            rows(&mut out, table.title, std::iter::once(header).chain(shown));
            if let Some(more) = table
                .rows
                .len()
                .checked_sub(MAX_ROWS)
                .filter(|more| *more > 0)
            {
                let _ = writeln!(out, "    and {more} more");
            }
        }
        for problem in &self.problems {
            let _ = writeln!(out, "  problem: {problem}");
        }
        out
    }
}

/// Formats an amount as kubectl does; `-` without one.
fn amount(amount: Option<&Quantity>) -> String {
    amount.map_or_else(|| "-".to_owned(), Quantity::to_string)
}

/// Returns `minuend` minus `subtrahend` for each resource of `minuend`.
pub(super) fn difference(minuend: &ResourceList, subtrahend: &ResourceList) -> ResourceList {
    let rest = |(resource, amount): (&String, &Quantity)| {
        let taken = subtrahend.get(resource).copied().unwrap_or_default();
        (resource.clone(), *amount - taken)
    };
    minuend.iter().map(rest).collect()
}

/// Returns what `requests` need more than `free` has, as `cpu: needs 4, free 1`.
pub(super) fn shortfalls(requests: &ResourceList, free: &ResourceList) -> Vec<String> {
    let compared = requests
        .iter()
        .filter_map(|(resource, needed)| Some((resource, needed, free.get(resource)?)));
    compared
        .filter(|(_, needed, free)| !needed.is_zero() && needed > free)
        .map(|(resource, needed, free)| format!("{resource}: needs {needed}, free {free}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(amounts: &[(&str, &str)]) -> ResourceList {
        let parse = |(name, amount): &(&str, &str)| ((*name).to_owned(), amount.parse().unwrap());
        amounts.iter().map(parse).collect()
    }

    #[test]
    fn outline_is_printed_in_units_of_kubectl() {
        let mut outline = Outline {
            title: "quota team".to_owned(),
            ..Outline::default()
        };
        outline.add_fact("a leaf");
        let used = list(&[("cpu", "1500m"), ("kubernetes.io/batch-cpu", "4000")]);
        let max = list(&[("cpu", "4"), ("memory", "8Gi")]);
        outline.add_amounts(&[("used", &used), ("max", &max)]);
        outline.add_table("nothing", &["a"], Vec::new());
        outline.add_problem("too little");
        assert_eq!(
            outline.render(),
            "\
quota team
  a leaf
  amounts:
    resource                 used   max
    cpu                      1500m  4
    kubernetes.io/batch-cpu  4k     -
    memory                   -      8Gi
  problem: too little
"
        );
    }

    #[test]
    fn long_table_is_shortened_in_the_text() {
        let mut outline = Outline::default();
        let rows = (0..MAX_ROWS + 2).map(|row| vec![row.to_string()]);
        outline.add_table("pods", &["pod"], rows.collect());
        let text = outline.render();
        assert!(text.ends_with("    19\n    and 2 more\n"), "{text}");
    }

    #[test]
    fn shortfalls_name_needed_and_free_amounts() {
        let free = difference(
            &list(&[("cpu", "4"), ("memory", "1Gi")]),
            &list(&[("cpu", "3")]),
        );
        for (requests, expected) in [
            (list(&[("cpu", "1")]), Vec::new()),
            (list(&[("cpu", "1001m")]), vec!["cpu: needs 1001m, free 1"]),
            // A resource without a limit is not limited.
            (list(&[("nvidia.com/gpu", "8")]), Vec::new()),
        ] {
            assert_eq!(shortfalls(&requests, &free), expected);
        }
        let nothing = list(&[("cpu", "0")]);
        assert!(shortfalls(&nothing, &list(&[("cpu", "-1")])).is_empty());
    }
}
