//! Compares the committed definitions and schemas with those derived from the types.

use std::path::{Path, PathBuf};

/// Environment variable that makes the test write the files.
const UPDATE: &str = "UPDATE_EXPECT";

#[test]
fn committed_schemas_equal_derived_ones() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for definition in koord_api::derived::definitions() {
        let name = |pointer: &str| definition.pointer(pointer).unwrap().as_str().unwrap();
        let (group, plural) = (name("/spec/group"), name("/spec/names/plural"));
        let text = format!("{}\n", serde_json::to_string_pretty(&definition).unwrap());
        files.push((
            package.join("crds").join(format!("{group}_{plural}.json")),
            text,
        ));
    }
    let sections = koord_api::derived::section_schemas();
    let text = format!("{}\n", serde_json::to_string_pretty(&sections).unwrap());
    files.push((package.join("src/configmap/schemas.json"), text));
    assert_eq!(
        std::fs::read_dir(package.join("crds")).unwrap().count() + 1,
        files.len(),
        "a definition without a kind, or a kind without one"
    );
    assert_written(files);
}

/// Asserts that `files` have these texts, or writes them if [`UPDATE`] is set.
///
/// # Panics
/// If a file has another text.
pub(crate) fn assert_written(files: Vec<(PathBuf, String)>) {
    if std::env::var_os(UPDATE).is_some() {
        for (path, text) in &files {
            std::fs::write(path, text).unwrap();
        }
    }
    let stale: Vec<PathBuf> = files
        .into_iter()
        .filter(|(path, text)| std::fs::read_to_string(path).ok().as_ref() != Some(text))
        .map(|(path, _)| path)
        .collect();
    assert!(
        stale.is_empty(),
        "not what the types give: {stale:?}; `{UPDATE}=1 cargo test -p koord-api --test it` writes them"
    );
}
