//! Repository chores. `cargo xtask types` rewrites the table of Kubernetes' types (see [`types`]),
//! `cargo xtask crds` the summary of Koordinator's definitions (see [`crds`]); `cargo xtask tidy`
//! checks what the compiler does not:
//!
//! * crates depend on each other only along the edges of docs/architecture.md, no product on a lab crate, and each
//!   program is built of the packages that xtask/trees lists (see [`packages`]);
//! * the modules of the API server import each other only along the edges of its `lib.rs`; the parts of such a
//!   module do not import each other in circles (see [`circles`]);
//! * modules of a crate do not import each other in circles (see [`circles`]);
//! * types with many methods get no more (see [`methods`]);
//! * no plugin of the scheduler imports another plugin (see [`plugins`]), and each lists the roles that it implements
//!   (see [`roles`]);
//! * `unsafe` stands only in crates/host;
//! * every member inherits the workspace's lints;
//! * dependencies have licenses, sources and versions that deny.toml allows (see [`deny`]);
//! * subjects of commits are `area: imperative subject` (see [`commits`]);
//! * no source and no document has unclear words, and no crate two types of one name (see [`words`]);
//! * no ignored tests, none that skips itself unseen, none that asserts nothing (see [`asserting`]),
//!   no file that is too long;
//! * tests of no crate sleep at more places than its budget (see [`sleeps`]);
//! * sources use the dependencies that their manifests name, and the gate has a rule for each need of a skipped
//!   test (see [`dependencies`]);
//! * features that serve tests and tools are off by default, and on only in packages of the lab (see [`features`]);
//! * links of documents have targets, and commits that they name exist (see [`links`]);
//! * figures of documents are the recorded ones (see [`figures`]).
//!
//! `cargo xtask test` runs the tests (see [`test_run`]); `cargo xtask trees` writes xtask/trees; `cargo xtask figures`
//! lists those figures with commit, machine, date and command, and repeats them with `--run`.

use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

mod asserting;
mod circles;
mod commits;
mod crds;
mod deny;
mod dependencies;
mod features;
mod figures;
mod git;
mod links;
mod methods;
mod packages;
mod plugins;
mod roles;
mod sleeps;
mod test_run;
mod types;
mod words;

/// Names that the modules of crates/apiserver may use of each other, as `module` or `module::Item`; `kinds`
/// is the crate of that name.
const MODULES: &[(&str, &[&str])] = &[
    ("kinds", &[]),
    ("store", &["kinds::Index", "kinds::TableId"]),
    ("authz", &["kinds::status"]),
    ("tokens", &["authz", "store"]),
    ("rest", &["authz", "kinds", "store", "tokens"]),
    ("controllers", &["authz", "kinds", "rest", "store"]),
    ("server", &["authz", "kinds", "rest", "store"]),
];

/// The modules of crates/apiserver whose parts must not import each other in a circle, and a crate. A log,
/// its tables and their watchers are one thing: the store is not among them.
const NO_CIRCLES: [&str; 7] = [
    "object/src",
    "kinds/src",
    "apiserver/src/authz",
    "apiserver/src/tokens",
    "apiserver/src/rest",
    "apiserver/src/controllers",
    "apiserver/src/server",
];

/// Most lines of a source file, without tests; generated files are exempt. A longer one must be split by
/// meaning.
const LONG: usize = 900;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let task = args.next().unwrap_or_default();
    match task.as_str() {
        "tidy" => tidy(),
        "types" => {
            let from = args.next().context("types DIR [VERSION]")?;
            types::run(&workspace_root()?, from.into(), args.next())
        }
        "crds" => {
            let from = args.next().context("crds DIR [VERSION]")?;
            crds::run(&workspace_root()?, from.as_ref(), args.next())
        }
        "test" => test_run::run(&workspace_root()?, args),
        "trees" => packages::write_trees(&workspace_root()?),
        "figures" => figures::run(&workspace_root()?, args),
        other => {
            bail!("unknown task {other:?}; there are: tidy, test, types, crds, trees, figures")
        }
    }
}

/// Runs all checks of the sources and fails with the faults.
fn tidy() -> Result<()> {
    let root = workspace_root()?;
    let mut faults = packages::faults(&root)?;
    faults.extend(deny::faults(&root)?);
    faults.extend(commits::faults()?);
    let texts = sources(&root)?;
    for (path, text) in &texts {
        faults.extend(source_faults(path, text));
    }
    faults.extend(asserting::silent_tests(&texts)?);
    faults.extend(sleeps::faults(&root, &texts)?);
    faults.extend(module_circles(&texts));
    faults.extend(crate_circles(&texts));
    faults.extend(methods::faults(&root, &texts)?);
    faults.extend(roles::faults(&root, &texts)?);
    let folder = Path::new("crates/plugins/src");
    faults.extend(plugins::faults(&files_below(&texts, folder)));
    faults.extend(words::faults(&texts)?);
    let rules = std::fs::read_to_string(root.join(".ci/skips")).context("cannot read .ci/skips")?;
    faults.extend(dependencies::unknown_needs(&rules, &texts));
    let documents = documents(&root)?;
    faults.extend(words::document_faults(&documents)?);
    faults.extend(links::faults(&root, &documents, &texts)?);
    faults.extend(figures::faults(&root, &documents)?);
    let differences = root.join("docs/compat.md");
    let text = std::fs::read_to_string(&differences)
        .with_context(|| format!("cannot read {}", differences.display()))?;
    faults.extend(rows_without_end(&text));
    for fault in &faults {
        complain(fault);
    }
    if faults.is_empty() {
        Ok(())
    } else {
        bail!("{} faults", faults.len())
    }
}

/// Reads the sources of all crates: paths below `root`, with their text.
fn sources(root: &Path) -> Result<Vec<(PathBuf, String)>> {
    let mut paths = Vec::new();
    for directory in ["crates", "bins", "xtask"] {
        collect(&root.join(directory), "rs", &mut paths)?;
    }
    read(root, paths)
}

/// Reads files; the paths that it returns are relative to `root`.
fn read(root: &Path, paths: Vec<PathBuf>) -> Result<Vec<(PathBuf, String)>> {
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        Ok((path.strip_prefix(root).unwrap_or(&path).to_owned(), text))
    };
    paths.into_iter().map(read).collect()
}

/// Returns the Markdown files of the repository with their texts; their paths are relative to `root`.
fn documents(root: &Path) -> Result<Vec<(PathBuf, String)>> {
    let mut paths = Vec::new();
    collect(root, "md", &mut paths)?;
    paths.sort();
    read(root, paths)
}

fn module_circles(texts: &[(PathBuf, String)]) -> Vec<String> {
    let mut faults = Vec::new();
    for module in NO_CIRCLES {
        let folder = Path::new("crates").join(module);
        let files = files_below(texts, &folder);
        let name = module.rsplit('/').next().unwrap_or(module);
        faults.extend(circles::faults(name, &files));
    }
    faults
}

/// Returns the files below `folder`, as paths below it, with their text.
fn files_below<'a>(texts: &'a [(PathBuf, String)], folder: &Path) -> Vec<(&'a Path, &'a str)> {
    texts
        .iter()
        .filter_map(|(path, text)| Some((path.strip_prefix(folder).ok()?, text.as_str())))
        .collect()
}

/// Returns the imports by which modules of a crate import each other in a circle.
fn crate_circles(texts: &[(PathBuf, String)]) -> Vec<String> {
    let crates: BTreeSet<&str> = texts
        .iter()
        .filter_map(|(path, _)| path.strip_prefix("crates").ok()?.iter().next()?.to_str())
        .collect();
    let mut faults = Vec::new();
    for name in crates {
        let folder = Path::new("crates").join(name).join("src");
        let imports = circles::imports(name, &files_below(texts, &folder));
        faults.extend(
            imports
                .iter()
                .map(|i| format!("{i} closes a circle of modules")),
        );
    }
    faults
}

/// Returns the rows of the differences from upstream whose last column, the reason, is empty.
fn rows_without_end(text: &str) -> Vec<String> {
    let empty = |line: &str| {
        let row = line.strip_prefix('|').and_then(|l| l.strip_suffix('|'));
        row.and_then(|row| row.rsplit('|').next())
            .is_some_and(|last| last.trim().is_empty())
    };
    text.lines()
        .enumerate()
        .filter(|(_, line)| empty(line.trim_end()))
        .map(|(at, _)| format!("docs/compat.md:{}: a row without its reason", at + 1))
        .collect()
}

#[allow(clippy::print_stderr, reason = "this is a command-line tool")]
fn complain(fault: &str) {
    eprintln!("tidy: {fault}");
}

fn workspace_root() -> Result<PathBuf> {
    let manifest = std::env::var("CARGO_MANIFEST_DIR").context("run it as `cargo xtask`")?;
    Ok(Path::new(&manifest)
        .parent()
        .context("no workspace root")?
        .to_path_buf())
}

/// Adds the files below `directory` whose names end with `extension`, other than hidden and built ones.
fn collect(directory: &Path, extension: &str, files: &mut Vec<PathBuf>) -> Result<()> {
    let entries = std::fs::read_dir(directory)
        .with_context(|| format!("cannot list {}", directory.display()))?;
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            let name = entry.file_name();
            // Output of cargo; a module may have the name.
            let is_built = name == "target" && !directory.ends_with("src");
            if !is_built && !name.as_encoded_bytes().starts_with(b".") {
                collect(&path, extension, files)?;
            }
        } else if path.extension().is_some_and(|own| own == extension) {
            files.push(path);
        }
    }
    Ok(())
}

/// Returns the module of crates/apiserver that a file belongs to, and the names that it may use.
fn module_of(path: &Path) -> Option<(&'static str, &'static [&'static str])> {
    let path = path.strip_prefix("crates/apiserver/src").ok()?;
    let first = path.iter().next()?.to_str()?;
    let name = first.strip_suffix(".rs").unwrap_or(first);
    let entry = MODULES.iter().find(|(module, _)| *module == name)?;
    Some(*entry)
}

/// Returns the names of the crate's modules in a line: `crate::store::{Index, Key}` is `store::Index` and
/// `store::Key`.
fn named_of_crate(code: &str) -> Vec<String> {
    let first_identifier = |text: &str| -> String {
        let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
        text[..end.unwrap_or(text.len())].to_owned()
    };
    let mut modules = Vec::new();
    let code = code.replace("koord_kinds::", "crate::kinds::");
    for rest in code.split("crate::").skip(1) {
        let module = first_identifier(rest);
        let rest = &rest[module.len()..];
        let Some(rest) = rest.strip_prefix("::") else {
            modules.push(module);
            continue;
        };
        let items = match rest.strip_prefix('{') {
            Some(list) => list.split('}').next().unwrap_or_default(),
            None => rest,
        };
        let is_list = rest.starts_with('{');
        for item in items.split(',').take(if is_list { usize::MAX } else { 1 }) {
            match first_identifier(item.trim()) {
                // The list goes on in the next line.
                item if item.is_empty() => modules.push(module.clone()),
                item => modules.push(format!("{module}::{item}")),
            }
        }
    }
    modules
}

/// Returns the faults of a source file that can be found line by line.
fn source_faults(path: &Path, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let shown = path.display();
    let module = module_of(path);
    let in_host = path.starts_with("crates/host");
    let is_tidy = path.starts_with("xtask");
    for (number, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        let place = format!("{shown}:{}", number + 1);
        if let Some((own, allowed)) = module {
            let foreign = named_of_crate(code).into_iter().find(|named| {
                let of = named.split("::").next().unwrap_or_default();
                let is_module = MODULES.iter().any(|(module, _)| *module == of);
                is_module
                    && of != own
                    && !allowed.contains(&of)
                    && !allowed.contains(&named.as_str())
            });
            if let Some(named) = foreign {
                faults.push(format!("{place}: {own} must not know {named}"));
            }
        }
        if !in_host && !is_tidy && has_word(code, "unsafe") && !code.contains("unsafe_code") {
            faults.push(format!("{place}: unsafe code stands only in crates/host"));
        }
        if !is_tidy && code.trim_start().starts_with("#[ignore") {
            faults.push(format!("{place}: an ignored test hides a failure"));
        }
        if !is_tidy && code.contains("\"skipped: ") && !path.ends_with("testkit/src/testing/mod.rs")
        {
            faults.push(format!(
                "{place}: skip with koord_host::testing::skip, which counts"
            ));
        }
    }
    let tests_start = text
        .find("\n#[cfg(test)]\nmod tests {")
        .unwrap_or(text.len());
    let lines = text[..tests_start].lines().count();
    let generated = text.starts_with("// This file is @generated");
    if lines > LONG && !generated && !path.components().any(|part| part.as_os_str() == "tests") {
        faults.push(format!("{shown}: {lines} lines; split it by meaning"));
    }
    faults
}

/// Returns true if `code` has `word` outside string literals, as a whole word.
fn has_word(code: &str, word: &str) -> bool {
    let outside: String = code
        .split('"')
        .enumerate()
        .filter(|(part, _)| part % 2 == 0)
        .map(|(_, s)| s)
        .collect();
    outside
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .any(|token| token == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_is_found_as_code_and_not_as_prose() {
        let fault_count = |path: &str, text: &str| source_faults(Path::new(path), text).len();
        assert_eq!(
            fault_count("crates/api/src/lib.rs", "let x = unsafe { y() };"),
            1
        );
        assert_eq!(
            fault_count("crates/host/src/lib.rs", "let x = unsafe { y() };"),
            0
        );
        assert_eq!(
            fault_count(
                "crates/api/src/lib.rs",
                "// unsafe is banned\nlet s = \"unsafe\";"
            ),
            0
        );
        assert_eq!(
            fault_count("crates/api/src/lib.rs", "#[ignore = \"slow\"]"),
            1
        );
        let skips = "eprintln!(\"skipped: no kubectl\");";
        assert_eq!(fault_count("crates/api/tests/it/main.rs", skips), 1);
        assert_eq!(fault_count("crates/testkit/src/testing/mod.rs", skips), 0);
    }

    #[test]
    fn api_server_modules_use_allowed_modules() {
        let fault_count = |module: &str, text: &str| {
            let path = format!("crates/apiserver/src/{module}");
            source_faults(Path::new(&path), text).len()
        };
        assert_eq!(
            fault_count("store/a.rs", "use koord_kinds::{Index, TableId};"),
            0
        );
        assert_eq!(
            fault_count("store/a.rs", "use koord_kinds::{Index, meta};"),
            1
        );
        assert_eq!(
            fault_count("store/a.rs", "fn f(k: &koord_kinds::Resource) {}"),
            1
        );
        assert_eq!(fault_count("authz.rs", "use crate::rest::Api;"), 1);
        assert_eq!(fault_count("store/a.rs", "use crate::rest::Api;"), 1);
        assert_eq!(fault_count("store/a.rs", "// see crate::rest"), 0);
        assert_eq!(
            fault_count("rest/a.rs", "use koord_kinds::{Resource, patch};"),
            0
        );
        assert_eq!(fault_count("rest/a.rs", "use crate::server::Server;"), 1);
        assert_eq!(
            fault_count("api_server.rs", "use crate::server::Server;"),
            0
        );
    }

    #[test]
    fn long_files_are_named_and_their_tests_do_not_count() {
        let long = "let a = 1;\n".repeat(LONG + 1);
        assert_eq!(
            source_faults(Path::new("crates/api/src/a.rs"), &long).len(),
            1
        );
        let tested = format!("fn a() {{}}\n#[cfg(test)]\nmod tests {{\n{long}}}\n");
        assert!(source_faults(Path::new("crates/api/src/a.rs"), &tested).is_empty());
    }

    #[test]
    fn every_difference_has_a_reason() {
        let text = "| a | b | why |\n|---|---|---|\n| a | b | |\ntext |\n| a | b |  |\n";
        assert_eq!(
            rows_without_end(text),
            [
                "docs/compat.md:3: a row without its reason",
                "docs/compat.md:5: a row without its reason"
            ]
        );
    }
}
