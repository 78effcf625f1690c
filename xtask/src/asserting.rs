//! Finds tests that assert nothing: they pass whatever the code does, and look like proof.
//!
//! A test asserts when it contains an asserting macro, requires an error (`unwrap_err`, `expect_err`), or
//! calls a function of its crate's tests, or of a `testing` module, that does. Functions are matched by name
//! alone, so a test can count as asserting because of a namesake; a test that asserts is never reported.

use anyhow::{Context, Result};
use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};

/// Assertions and calls of one function.
#[derive(Default)]
struct Function {
    asserts: bool,
    calls: BTreeSet<String>,
}

/// The functions of a crate's tests.
#[derive(Default)]
struct Tests {
    /// Functions by name; namesakes count as one.
    functions: BTreeMap<String, Function>,
    /// The tests themselves: file, name, and assertions and calls.
    tests: Vec<(PathBuf, String, Function)>,
}

/// Returns the tests in `sources` (paths with their text) that assert nothing, one sentence each.
///
/// # Errors
///
/// When a source is not valid Rust.
pub(crate) fn silent_tests(sources: &[(PathBuf, String)]) -> Result<Vec<String>> {
    let mut crates: BTreeMap<PathBuf, Tests> = BTreeMap::new();
    let mut shared = Tests::default();
    let mut files = Vec::new();
    for (path, text) in sources {
        let file = syn::parse_file(text).with_context(|| format!("{}", path.display()))?;
        files.push((path, file));
    }
    let for_tests: BTreeSet<PathBuf> = files.iter().flat_map(|(p, f)| test_files(p, f)).collect();
    for (path, file) in &files {
        let scope = if is_shared(path) {
            &mut shared
        } else {
            crates.entry(path.iter().take(2).collect()).or_default()
        };
        let in_tests =
            for_tests.contains(*path) || path.iter().any(|part| part == "tests") || is_shared(path);
        Reader {
            path,
            in_tests,
            tests: scope,
        }
        .visit_file(file);
    }
    let mut faults = Vec::new();
    for scope in crates.values() {
        let asserting = asserting([scope, &shared]);
        for (path, name, test) in &scope.tests {
            if !test.asserts && test.calls.is_disjoint(&asserting) {
                faults.push(format!("{}: test {name} asserts nothing", path.display()));
            }
        }
    }
    Ok(faults)
}

/// Returns true for the file of a `testing` module, whose functions tests of all crates call.
fn is_shared(path: &Path) -> bool {
    path.ends_with("src/testing.rs") || path.ends_with("src/testing/mod.rs")
}

/// Returns the names of all functions that assert, by themselves or through others.
fn asserting(of: [&Tests; 2]) -> BTreeSet<String> {
    let all = || of.iter().flat_map(|tests| &tests.functions);
    let mut names: BTreeSet<String> = BTreeSet::new();
    loop {
        let before = names.len();
        for (name, function) in all() {
            if function.asserts || !function.calls.is_disjoint(&names) {
                names.insert(name.clone());
            }
        }
        if names.len() == before {
            return names;
        }
    }
}

/// Returns the files of a file's `#[cfg(test)] mod name;`.
pub(crate) fn test_files(path: &Path, file: &syn::File) -> Vec<PathBuf> {
    let stem = path.with_extension("");
    let of_directory = ["mod", "lib", "main"]
        .iter()
        .any(|name| stem.ends_with(name));
    let inside = if of_directory {
        path.parent().map(Path::to_owned)
    } else {
        Some(stem)
    };
    let declared = file.items.iter().filter_map(|item| match item {
        syn::Item::Mod(module) if module.content.is_none() && for_tests(&module.attrs) => {
            Some(inside.as_ref()?.join(module.ident.to_string()))
        }
        _ => None,
    });
    declared
        .flat_map(|at| [at.with_extension("rs"), at.join("mod.rs")])
        .collect()
}

/// Returns true when `#[cfg(test)]` or its like stands among `attributes`.
pub(crate) fn for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute
                .meta
                .to_token_stream()
                .to_string()
                .contains("test")
    })
}

struct Reader<'a> {
    path: &'a Path,
    /// True if all items here are for tests.
    in_tests: bool,
    tests: &'a mut Tests,
}

impl Reader<'_> {
    fn note(&mut self, name: String, test: bool, body: TokenStream) {
        let mut function = Function::default();
        read(body, &mut function);
        if test {
            self.tests
                .tests
                .push((self.path.to_owned(), name, function));
        } else if self.in_tests {
            let merged = self.tests.functions.entry(name).or_default();
            merged.asserts |= function.asserts;
            merged.calls.extend(function.calls);
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        let outside = self.in_tests;
        self.in_tests |= for_tests(&module.attrs);
        visit::visit_item_mod(self, module);
        self.in_tests = outside;
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        let test = function.attrs.iter().any(is_test);
        let name = function.sig.ident.to_string();
        self.note(name, test, function.block.to_token_stream());
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        let name = function.sig.ident.to_string();
        self.note(name, false, function.block.to_token_stream());
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_item_macro(&mut self, item: &'ast syn::ItemMacro) {
        // A macro that writes tests is a function with the macro's name; `proptest!` holds tests.
        if let Some(name) = &item.ident {
            self.note(name.to_string(), false, item.mac.tokens.clone());
        } else if item.mac.path.is_ident("proptest")
            && let Ok(file) = syn::parse2::<syn::File>(without_strategies(&item.mac.tokens))
        {
            Visit::visit_file(self, &file);
        }
    }
}

/// `proptest!` tests have `name in strategy` where Rust has parameters: they are left out.
fn without_strategies(tokens: &TokenStream) -> TokenStream {
    let mut named = 0;
    tokens
        .clone()
        .into_iter()
        .map(|token| match token {
            TokenTree::Ident(word) => {
                named = if word == "fn" { 2 } else { named.max(1) - 1 };
                TokenTree::Ident(word)
            }
            TokenTree::Group(group)
                if group.delimiter() == proc_macro2::Delimiter::Parenthesis && named <= 1 =>
            {
                TokenTree::Group(proc_macro2::Group::new(
                    group.delimiter(),
                    TokenStream::new(),
                ))
            }
            other => other,
        })
        .collect()
}

/// Matches `#[test]`, `#[tokio::test]` and similar attributes.
fn is_test(attribute: &syn::Attribute) -> bool {
    let path = attribute.path();
    path.segments
        .last()
        .is_some_and(|last| last.ident == "test")
}

/// Collects macros and calls from the tokens, including those inside other macros' arguments.
fn read(tokens: TokenStream, into: &mut Function) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    for (at, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Group(group) => read(group.stream(), into),
            TokenTree::Ident(name) => {
                let name = name.to_string();
                let next = tokens.get(at + 1);
                let bang = matches!(next, Some(TokenTree::Punct(mark)) if mark.as_char() == '!');
                let asserting = ["assert", "prop_assert", "debug_assert"];
                into.asserts |= bang && asserting.iter().any(|start| name.starts_with(start));
                into.asserts |= bang && matches!(&*name, "panic" | "unreachable");
                into.asserts |= matches!(&*name, "unwrap_err" | "expect_err" | "debug_assert");
                into.calls.insert(name);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::silent_tests;

    fn found(text: &str) -> Vec<String> {
        let of = |path: &str, text: &str| (path.into(), text.to_owned());
        let helpers = "pub fn equal(a: u8, b: u8) { assert_eq!(a, b) }\npub fn start() {}";
        let sources = [
            of("crates/a/src/lib.rs", text),
            of("crates/a/src/proof.rs", "pub fn proof() { assert!(true) }"),
            of("crates/b/src/testing.rs", helpers),
            of(
                "crates/c/tests/it/main.rs",
                "fn foreign() { assert!(true) }",
            ),
        ];
        silent_tests(&sources).expect("Rust")
    }

    #[test]
    fn tests_that_assert_nothing_are_named() {
        let module = |body: &str| {
            found(&format!(
                "fn own() {{ assert!(true) }}\n#[cfg(test)] mod proof;\n#[cfg(test)]\nmod tests {{ {body} }}"
            ))
        };
        for good in [
            "#[test] fn t() { assert_eq!(1, 1) }",
            "#[test] fn t() { for a in b { if let Err(e) = a { panic!(\"{e}\") } } }",
            "#[tokio::test(start_paused = true)] async fn t() { f().await.unwrap_err(); }",
            "#[test] fn t() { check(1) } fn check(a: u8) { deeper(a) } fn deeper(a: u8) { assert!(a > 0) }",
            "#[test] fn t() { json!({ \"a\": assert!(true) }) }",
            "#[test] fn t() { testing::equal(1, 1) }",
            "#[test] fn t() { crate::proof::proof() }",
            "#[test] fn t() { Args::command().debug_assert() }",
            "proptest! { #[test] fn t(a in 0..5u8, b in any::<(u8, u8)>()) { prop_assert!(a < 5); } }",
            "fn helper() {}",
        ] {
            assert_eq!(module(good), [""; 0], "{good}");
        }
        for bad in [
            "#[test] fn t() { run(1); }",
            "#[tokio::test] async fn t() { let a = f().await.expect(\"an answer\"); drop(a) }",
            "#[test] fn t() { testing::start() }",
            "#[test] fn t() { own() }",
            "#[test] fn t() { foreign() }",
            "#[test] fn t() { let s = \"assert!\"; } /* assert! */",
            "proptest! { #[test] fn t(a in 0..5u8) { run(a); } }",
            "mod deeper { #[test] fn t() { run(1); } }",
        ] {
            assert_eq!(
                module(bad),
                ["crates/a/src/lib.rs: test t asserts nothing"],
                "{bad}"
            );
        }
    }
}
