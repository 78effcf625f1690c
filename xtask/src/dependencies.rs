//! Finds dependencies that a manifest names and the package's sources do not use, and needs of skipped tests
//! without a rule in the gate.

use std::path::{Path, PathBuf};

/// The part of a package that may use a dependency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DependencyKind {
    Normal,
    Dev,
    Build,
}

/// Returns true if one of `sources`, given relative to the package, uses the dependency `name` as its kind
/// allows.
pub(crate) fn is_used(name: &str, kind: DependencyKind, sources: &[(&Path, &str)]) -> bool {
    let name = name.replace('-', "_");
    sources.iter().any(|(path, text)| {
        let may_use = match kind {
            DependencyKind::Normal => path.starts_with("src"),
            DependencyKind::Build => *path == Path::new("build.rs"),
            DependencyKind::Dev => true,
        };
        may_use && names_crate(text, &name)
    })
}

/// Returns true if `text` has `name` outside of comments as the start of a path or in a `use`.
fn names_crate(text: &str, name: &str) -> bool {
    let in_word = |c: char| c.is_alphanumeric() || c == '_';
    text.lines().any(|line| {
        let code = line.split("//").next().unwrap_or_default();
        code.match_indices(name).any(|(at, _)| {
            let (before, after) = (&code[..at], &code[at + name.len()..]);
            let starts_path = after.trim_start().starts_with("::");
            let imported =
                before.trim_end().ends_with("use") || before.trim_end().ends_with("crate");
            // `axum::http` is another crate's; `::http` is the crate itself.
            let of_other = before
                .strip_suffix("::")
                .is_some_and(|outer| outer.ends_with(in_word) || outer.ends_with('>'));
            let whole = !before.ends_with(in_word) && !after.starts_with(in_word);
            whole && !of_other && (starts_path || imported)
        })
    })
}

/// Returns the needs of `.ci/skips` (its text is `rules`) that tests name and it has no rule for.
pub(crate) fn unknown_needs(rules: &str, sources: &[(PathBuf, String)]) -> Vec<String> {
    let names: Vec<&str> = rules
        .lines()
        .skip_while(|line| !line.starts_with("has()"))
        .take_while(|line| !line.trim_start().starts_with("*)"))
        .filter_map(|line| line.trim_start().split_once(") "))
        .map(|(need, _)| need)
        .collect();
    let mut faults = Vec::new();
    for (path, text) in sources {
        let skips = text.contains("koord_host::testing")
            || path.starts_with("crates/host")
            || path.starts_with("crates/testkit");
        if !skips || path.starts_with("xtask") {
            continue;
        }
        for (at, _) in text.match_indices("skip(") {
            let called = !text[..at].ends_with(|c: char| c.is_alphanumeric() || "._".contains(c));
            let argument = text[at + "skip(".len()..].trim_start();
            let need = argument
                .strip_prefix('"')
                .and_then(|rest| rest.split('"').next());
            if let Some(need) = need.filter(|need| called && !names.contains(need)) {
                let line = text[..at].matches('\n').count() + 1;
                let place = format!("{}:{line}", path.display());
                faults.push(format!(
                    "{place}: .ci/skips has no rule for the need {need:?}"
                ));
            }
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependency_is_used_by_paths_and_imports() {
        let used = |name: &str, kind, path: &str, text: &str| {
            is_used(name, kind, &[(Path::new(path), text)])
        };
        for text in [
            "use serde_json::json;",
            "let a = serde_json ::to_string(b);",
            "use serde_json as j;",
            "let a = ::serde_json::to_string(b);",
        ] {
            assert!(
                used("serde-json", DependencyKind::Normal, "src/lib.rs", text),
                "{text}"
            );
        }
        for text in [
            "// serde_json::json",
            "let serde_json = 1;",
            "my_serde_json::f()",
            "serde_json_x::f()",
            "use x::serde_json::f;",
        ] {
            assert!(
                !used("serde-json", DependencyKind::Normal, "src/lib.rs", text),
                "{text}"
            );
        }
        assert!(!used(
            "rand",
            DependencyKind::Normal,
            "tests/it/main.rs",
            "use rand;"
        ));
        assert!(used(
            "rand",
            DependencyKind::Dev,
            "tests/it/main.rs",
            "use rand;"
        ));
        assert!(!used(
            "cc",
            DependencyKind::Build,
            "src/lib.rs",
            "cc::Build"
        ));
        assert!(used("cc", DependencyKind::Build, "build.rs", "cc::Build"));
    }

    #[test]
    fn need_without_a_rule_is_a_fault() {
        let rules = "group_has() {\nhas() {\n  case $1 in\n    root) x ;;\n    bpf) # why\n    *)\n    other) y ;;\n";
        let text = "use koord_host::testing::skip;\nskip(\"root\", a);\nskip(\n  \"two clusters\", b);\n\
            it.skip(\"x\");\nskip(\"other\", c);\nskip(need);";
        let source = |text: &str| (PathBuf::from("crates/a/tests/b.rs"), text.to_owned());
        assert_eq!(
            unknown_needs(rules, &[source(text)]),
            [
                "crates/a/tests/b.rs:3: .ci/skips has no rule for the need \"two clusters\"",
                "crates/a/tests/b.rs:6: .ci/skips has no rule for the need \"other\"",
            ]
        );
        assert!(unknown_needs(rules, &[source("skip(\"x\")")]).is_empty());
    }
}
