//! Limits on the number of methods of a type. A type whose methods are in many files can be changed from
//! everywhere; parts with an invariant should be separate types.

use anyhow::{Context, Result};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Lists, per crate and type, the methods that a type may have.
const TABLE: &str = "xtask/methods.txt";

/// Returns a sentence for each type of the table that has more methods than its row allows, or fewer: then the row
/// is to be lowered.
///
/// # Errors
/// A row that is not `crate Type max`, or a source that is no Rust.
pub(crate) fn faults(root: &Path, sources: &[(PathBuf, String)]) -> Result<Vec<String>> {
    let table = std::fs::read_to_string(root.join(TABLE)).context(TABLE)?;
    compare(&table, sources)
}

/// Compares the table with the number of methods in the sources.
fn compare(table: &str, sources: &[(PathBuf, String)]) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    let mut rows = BTreeSet::new();
    let mut parsed = BTreeMap::new();
    let lines = table.lines().map(str::trim);
    for row in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let mut columns = row.split_whitespace();
        let (name, ty) = (columns.next(), columns.next());
        let max = columns.next().and_then(|max| max.parse::<usize>().ok());
        let (Some(name), Some(ty), Some(max), None) = (name, ty, max, columns.next()) else {
            anyhow::bail!("invalid row {row:?} in {TABLE}: expected `crate Type max`");
        };
        if !rows.insert((name, ty)) {
            faults.push(format!("{TABLE}: more than one row for {name} {ty}"));
        }
        match count_methods(name, ty, sources, &mut parsed)? {
            0 => faults.push(format!("{TABLE}: {name} has no type {ty} with methods")),
            count if count > max => faults.push(format!(
                "{name}: {ty} has {count} methods, and {TABLE} allows {max}"
            )),
            count if count < max => faults.push(format!(
                "{name}: {ty} has {count} methods: lower {max} in {TABLE}"
            )),
            _ => {}
        }
    }
    Ok(faults)
}

/// Returns the number of functions with a receiver in the inherent `impl` blocks of type `ty`, or in the trait of
/// that name, in all sources of crate `name` but its tests. Files are `parsed` once for all rows.
fn count_methods<'a>(
    name: &str,
    ty: &str,
    sources: &'a [(PathBuf, String)],
    parsed: &mut BTreeMap<&'a Path, syn::File>,
) -> Result<usize> {
    let folder = Path::new("crates").join(name).join("src");
    let is_test = |path: &Path| path.iter().any(|p| p == "tests" || p == "tests.rs");
    let files = sources
        .iter()
        .filter(|(path, text)| path.starts_with(&folder) && !is_test(path) && text.contains(ty));
    let mut count = 0;
    for (path, text) in files {
        let file = match parsed.entry(path) {
            Entry::Occupied(file) => file.into_mut(),
            Entry::Vacant(file) => {
                file.insert(syn::parse_file(text).with_context(|| format!("{}", path.display()))?)
            }
        };
        count += file.items.iter().map(|i| methods_of(i, ty)).sum::<usize>();
    }
    Ok(count)
}

fn methods_of(item: &syn::Item, ty: &str) -> usize {
    let has_receiver = |sig: &syn::Signature| sig.receiver().is_some();
    match item {
        syn::Item::Impl(block) if block.trait_.is_none() => {
            let syn::Type::Path(path) = &*block.self_ty else {
                return 0;
            };
            if path.path.segments.last().is_none_or(|s| s.ident != ty) {
                return 0;
            }
            let method = |item: &&syn::ImplItem| matches!(item, syn::ImplItem::Fn(f) if has_receiver(&f.sig));
            block.items.iter().filter(method).count()
        }
        syn::Item::Trait(declared) if declared.ident == ty => {
            let method = |item: &&syn::TraitItem| matches!(item, syn::TraitItem::Fn(f) if has_receiver(&f.sig));
            declared.items.iter().filter(method).count()
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(table: &str) -> Vec<String> {
        let sources = [
            (
                "crates/apiserver/src/a.rs",
                "impl Api { fn new() -> Self { Self } pub(crate) async fn get(&self) {} fn id(&self) {} }\n\
                 impl Clone for Api { fn clone(&self) -> Self { Self } }\n\
                 impl Other { fn a(&self) {} }\n\
                 #[cfg(test)]\nmod tests { impl Api { fn t(&self) {} } }",
            ),
            (
                "crates/apiserver/src/rest/b.rs",
                "impl super::Api { fn put(self) {} }\n\
                 trait Plugin { fn name(&self) -> &str; fn build() -> Self; }\n\
                 impl<T> Table<T> { fn len(&mut self) {} }",
            ),
            (
                "crates/apiserver/src/tests.rs",
                "impl Api { fn t(&self) {} }",
            ),
            ("crates/kube/src/a.rs", "impl Api { fn t(&self) {} }"),
        ];
        let sources = sources.map(|(path, text)| (path.into(), text.to_owned()));
        compare(table, &sources).unwrap()
    }

    #[test]
    fn methods_equal_to_their_row_pass() {
        let table =
            "# comment\n\napiserver Api 3\napiserver Plugin 1\napiserver Table 1\nkube Api 1\n";
        assert_eq!(check(table), [""; 0]);
    }

    #[test]
    fn methods_other_than_their_row_fail() {
        assert_eq!(
            check("apiserver Api 2"),
            ["apiserver: Api has 3 methods, and xtask/methods.txt allows 2"]
        );
        assert_eq!(
            check("apiserver Api 4"),
            ["apiserver: Api has 3 methods: lower 4 in xtask/methods.txt"]
        );
        assert_eq!(
            check("kube Missing 4"),
            ["xtask/methods.txt: kube has no type Missing with methods"]
        );
        assert_eq!(check("kube Api 1\nkube Api 1").len(), 1);
    }

    #[test]
    fn invalid_row_is_an_error() {
        for row in ["kube Api", "kube Api many", "kube Api 1 2"] {
            assert!(compare(row, &[]).is_err(), "{row}");
        }
    }
}
