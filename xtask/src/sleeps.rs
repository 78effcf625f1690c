//! Counts sleeps of tests: they make tests slow, and fail on a machine that is slower than their author's.
//!
//! A test should wait for an event, or run in paused time, where a sleep takes none. Remaining sleeps are
//! counted per crate in `xtask/sleeps.toml`, and the numbers only fall. A helper of tests counts even if only
//! tests in paused time call it, because callers are not tracked.

use crate::asserting::{for_tests, test_files};
use anyhow::{Context, Result};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quote::ToTokens;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};

const BUDGETS: &str = "xtask/sleeps.toml";

/// Functions that wait for time to pass.
const SLEEPS: [&str; 3] = ["sleep", "sleep_until", "park_timeout"];

/// Returns the crates whose tests sleep at more places than [`BUDGETS`] allows, or at fewer: then the number is to be
/// lowered.
///
/// # Errors
/// A table that is not `crate = number`, or a source that is no Rust.
pub(crate) fn faults(root: &Path, sources: &[(PathBuf, String)]) -> Result<Vec<String>> {
    let budgets = std::fs::read_to_string(root.join(BUDGETS)).context(BUDGETS)?;
    compare(&budgets, sources)
}

/// Compares the sleeps in tests with the budgets.
fn compare(budgets: &str, sources: &[(PathBuf, String)]) -> Result<Vec<String>> {
    let budgets: BTreeMap<String, usize> = toml::from_str(budgets).context(BUDGETS)?;
    let mut counts: BTreeMap<String, BTreeMap<&Path, usize>> = BTreeMap::new();
    let mut files = Vec::new();
    for (path, text) in sources {
        let file = syn::parse_file(text).with_context(|| format!("{}", path.display()))?;
        files.push((path.as_path(), file));
    }
    let test_files: BTreeSet<PathBuf> = files.iter().flat_map(|(p, f)| test_files(p, f)).collect();
    for (path, file) in &files {
        let mut names = path.iter().filter_map(|part| part.to_str());
        let name = match names.next() {
            Some("crates" | "bins") => names.next(),
            first => first,
        };
        let mut counter = Counter {
            in_tests: test_files.contains(*path) || path.iter().any(|part| part == "tests"),
            sleeps: 0,
        };
        counter.visit_file(file);
        if counter.sleeps > 0 {
            let of_crate = counts.entry(name.unwrap_or_default().to_owned());
            of_crate.or_default().insert(path, counter.sleeps);
        }
    }
    let names: BTreeSet<&String> = budgets.keys().chain(counts.keys()).collect();
    let mut faults = Vec::new();
    for name in names {
        let budget = budgets.get(name).copied().unwrap_or(0);
        let places = counts.get(name).cloned().unwrap_or_default();
        let count: usize = places.values().sum();
        if count > budget {
            let places: Vec<String> = places
                .iter()
                .map(|(path, count)| format!("{} ({count})", path.display()))
                .collect();
            faults.push(format!(
                "{name}: tests sleep at {count} places without paused time, {budget} are allowed: {}",
                places.join(", ")
            ));
        } else if count < budget {
            faults.push(format!(
                "{name}: tests sleep at {count} places without paused time: lower {budget} in {BUDGETS}"
            ));
        }
    }
    Ok(faults)
}

/// Counts sleeps in the test code of a file.
struct Counter {
    /// True if all visited items are for tests.
    in_tests: bool,
    sleeps: usize,
}

impl Counter {
    fn add(&mut self, attributes: &[syn::Attribute], body: &TokenStream) {
        let is_paused = |attribute: &syn::Attribute| {
            let text = attribute.meta.to_token_stream().to_string();
            text.contains("start_paused = true")
        };
        if self.in_tests && !attributes.iter().any(is_paused) {
            self.sleeps += count(body.clone());
        }
    }
}

impl<'ast> Visit<'ast> for Counter {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        let outside = self.in_tests;
        self.in_tests |= for_tests(&module.attrs);
        visit::visit_item_mod(self, module);
        self.in_tests = outside;
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.add(&function.attrs, &function.block.to_token_stream());
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.add(&function.attrs, &function.block.to_token_stream());
    }

    fn visit_item_macro(&mut self, item: &'ast syn::ItemMacro) {
        self.add(&item.attrs, &item.mac.tokens);
    }
}

/// Returns the number of calls of [`SLEEPS`], those in the arguments of macros among them.
fn count(tokens: TokenStream) -> usize {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let called = |at: usize, name: &str| {
        let defined = at > 0 && matches!(&tokens[at - 1], TokenTree::Ident(word) if *word == "fn");
        let arguments = matches!(
            tokens.get(at + 1),
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Parenthesis
        );
        SLEEPS.contains(&name) && arguments && !defined
    };
    let counts = tokens.iter().enumerate().map(|(at, token)| match token {
        TokenTree::Group(group) => count(group.stream()),
        TokenTree::Ident(word) => usize::from(called(at, &word.to_string())),
        _ => 0,
    });
    counts.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(budgets: &str, path: &str, text: &str) -> Vec<String> {
        let declared = (
            "crates/a/src/lib.rs".into(),
            "#[cfg(test)] mod only;".into(),
        );
        let sources = [declared, (path.into(), text.to_owned())];
        compare(budgets, &sources).expect("a table and Rust")
    }

    #[test]
    fn sleeps_of_tests_count_wherever_they_stand() {
        let text = "async fn f() { tokio::time::sleep(X).await; select! { () = sleep_until(y) => {} } }\n\
                    impl A { fn g() { std::thread::park_timeout(X) } }";
        let over = |path: &str| {
            vec![format!(
                "a: tests sleep at 3 places without paused time, 2 are allowed: {path} (3)"
            )]
        };
        for path in [
            "crates/a/tests/it/main.rs",
            "crates/a/src/only.rs",
            "crates/a/src/b/tests/c.rs",
        ] {
            assert_eq!(check("a = 2", path, text), over(path));
            assert_eq!(check("a = 3", path, text), [""; 0]);
        }
        let path = "crates/a/src/b.rs";
        assert_eq!(check("", path, text), [""; 0], "no test");
        let module = format!("#[cfg(test)] mod tests {{ {text} }}");
        assert_eq!(check("a = 2", path, &module), over(path));
    }

    #[test]
    fn sleeps_in_paused_time_do_not_count() {
        let path = "crates/a/tests/it/main.rs";
        let body = "async fn t() { sleep(X).await }";
        let paused = "#[tokio::test(flavor = \"current_thread\", start_paused = true)]";
        assert_eq!(check("", path, &format!("{paused} {body}")), [""; 0]);
        assert_eq!(check("", path, &format!("#[tokio::test] {body}")).len(), 1);
        let helper = "async fn sleep(seconds: u64) {}\n// sleep(X)\nstruct A { sleep: u8 }";
        assert_eq!(check("", path, helper), [""; 0]);
    }

    #[test]
    fn budget_above_the_count_is_lowered() {
        let problems = check("a = 1", "crates/a/tests/it/main.rs", "fn f() {}");
        assert_eq!(
            problems,
            ["a: tests sleep at 0 places without paused time: lower 1 in xtask/sleeps.toml"]
        );
        assert!(compare("a = \"few\"", &[]).is_err());
    }
}
