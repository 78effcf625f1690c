//! Circles among the parts of a module or a crate: its files and folders, whose imports may go in one
//! direction only. Declarations in the module's own file are common to all of them and do not count, but a
//! name that it re-exports from a part does.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The parts of one module, and which parts each of them names.
pub(crate) type Graph = BTreeMap<String, BTreeSet<String>>;

/// Returns the circles in the module, or the crate when there is a `lib.rs`, whose files these are, as paths below
/// its folder with their text.
pub(crate) fn faults(module: &str, files: &[(&Path, &str)]) -> Vec<String> {
    let graph = graph(module, files);
    let circles: BTreeSet<Vec<String>> = graph.keys().filter_map(|p| circle(&graph, p)).collect();
    circles
        .iter()
        .map(|c| format!("{module}: the parts {} know each other", c.join(", ")))
        .collect()
}

/// Returns the imports that close a circle, as `module: a -> b`, in the module or crate whose files these are.
pub(crate) fn imports(module: &str, files: &[(&Path, &str)]) -> BTreeSet<String> {
    let graph = graph(module, files);
    let mut imports = BTreeSet::new();
    for (part, named) in &graph {
        let around = circle(&graph, part).unwrap_or_default();
        let closing = named.iter().filter(|other| around.contains(other));
        imports.extend(closing.map(|other| format!("{module}: {part} -> {other}")));
    }
    imports
}

/// Returns the parts that each part of a module, or of a crate, imports. A part is a file or directory directly
/// below it; `files` are paths relative to it, with their text.
pub(crate) fn graph(module: &str, files: &[(&Path, &str)]) -> Graph {
    let part = |path: &Path| -> Option<String> {
        let first = path.iter().next()?.to_str()?;
        Some(first.strip_suffix(".rs").unwrap_or(first).to_owned())
    };
    let parts: BTreeSet<String> = files.iter().filter_map(|(p, _)| part(p)).collect();
    let own = files
        .iter()
        .find(|(p, _)| *p == Path::new("mod.rs") || *p == Path::new("lib.rs"));
    let root = match own {
        Some((path, _)) if *path == Path::new("lib.rs") => "crate::".to_owned(),
        _ => format!("crate::{module}::"),
    };
    let reexports = own.map_or_else(BTreeMap::new, |(_, text)| reexports(text, &parts));
    let mut graph = Graph::new();
    for (path, text) in files {
        let is_test = path.iter().any(|p| p == "tests" || p == "tests.rs");
        let Some(this) = part(path).filter(|p| p != "mod" && p != "lib" && !is_test) else {
            continue;
        };
        let below = path.iter().count() - usize::from(path.ends_with("mod.rs"));
        let prefixes = [root.clone(), "super::".repeat(below)];
        for name in prefixes.iter().flat_map(|p| named(&code(text), p)) {
            let target = if parts.contains(&name) {
                Some(&name)
            } else {
                reexports.get(&name)
            };
            if let Some(target) = target.filter(|target| **target != this) {
                graph
                    .entry(this.clone())
                    .or_default()
                    .insert(target.clone());
            }
        }
    }
    graph
}

/// Returns the source without comments and tests.
fn code(text: &str) -> String {
    let end = text.find("\n#[cfg(test)]\nmod ").unwrap_or(text.len());
    let lines = text[..end].lines();
    let mut out = String::new();
    for line in lines {
        out.push_str(line.split("//").next().unwrap_or_default());
        out.push('\n');
    }
    out
}

/// Returns the names that a module's own file re-exports, with their part.
fn reexports(text: &str, parts: &BTreeSet<String>) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    for (at, _) in text.match_indices("use ") {
        let Some((path, _)) = text[at + 4..].split_once(';') else {
            continue;
        };
        let Some((part, names)) = path.split_once("::").filter(|(p, _)| parts.contains(*p)) else {
            continue;
        };
        for word in names.split(|c: char| !c.is_alphanumeric() && c != '_') {
            out.insert(word.to_owned(), part.to_owned());
        }
    }
    out
}

/// Returns the first words after `prefix`; of a list, those of all its elements.
fn named(code: &str, prefix: &str) -> Vec<String> {
    let first_identifier = |text: &str| -> String {
        let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
        text[..end.unwrap_or(text.len())].to_owned()
    };
    let mut out = Vec::new();
    for (at, _) in code.match_indices(prefix) {
        // A longer `super::super::`, or the end of another name.
        let before = code[..at].chars().next_back();
        if before.is_some_and(|c| c == ':' || c.is_alphanumeric() || c == '_') {
            continue;
        }
        let rest = &code[at + prefix.len()..];
        let Some(list) = rest.strip_prefix('{') else {
            out.push(first_identifier(rest));
            continue;
        };
        let (mut depth, mut from) = (0, 0);
        for (i, c) in list.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth > 0 => depth -= 1,
                ',' | '}' if depth == 0 => {
                    out.push(first_identifier(list[from..i].trim()));
                    from = i + 1;
                    if c == '}' {
                        break;
                    }
                }
                _ => {}
            }
        }
    }
    out
}

/// Returns the parts that `start` reaches and that reach it, if there are any.
fn circle(graph: &Graph, start: &str) -> Option<Vec<String>> {
    let reached = |from: &str| -> BTreeSet<String> {
        let mut visited = BTreeSet::new();
        let mut next: Vec<&str> = vec![from];
        while let Some(part) = next.pop() {
            for other in graph.get(part).into_iter().flatten() {
                if visited.insert(other.clone()) {
                    next.push(other);
                }
            }
        }
        visited
    };
    let around: Vec<String> = reached(start)
        .into_iter()
        .filter(|other| reached(other).contains(start))
        .collect();
    (!around.is_empty()).then_some(around)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<(&Path, &str)> = files.iter().map(|(p, t)| (Path::new(*p), *t)).collect();
        faults("rest", &files)
    }

    #[test]
    fn parts_refer_to_each_other_in_one_direction() {
        let (a, b) = (("a.rs", "use super::b::B;"), ("b.rs", "struct B;"));
        assert_eq!(found(&[a, b]), [""; 0]);
        let back = ["use super::a::A;", "fn f(a: &crate::rest::a::A) {}"];
        for back in back {
            assert_eq!(
                found(&[a, ("b.rs", back)]),
                ["rest: the parts a, b know each other"]
            );
        }
        // A list, over lines; a file further down; a name that the module passes on.
        let list = "use super::{\n    c::{D, E},\n    a,\n};";
        assert_eq!(found(&[a, ("b.rs", list)]).len(), 1);
        let below = ("b/x.rs", "use super::super::a;");
        assert_eq!(found(&[a, ("b/mod.rs", ""), below]).len(), 1);
        let module = ("mod.rs", "pub(crate) use a::{self, A};");
        assert_eq!(found(&[module, a, ("b.rs", "use super::A;")]).len(), 1);
        let far = ("c.rs", "use super::a::A;");
        assert_eq!(
            found(&[a, ("b.rs", "use super::c;"), far]),
            ["rest: the parts a, b, c know each other"]
        );
    }

    #[test]
    fn imports_on_a_circle_are_listed_by_part() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "use crate::b::B; use crate::c::C;"),
            ("b.rs", "use crate::a::A;"),
            ("c.rs", "struct C;"),
        ];
        let files: Vec<_> = files.iter().map(|(p, t)| (Path::new(*p), *t)).collect();
        let imports: Vec<_> = imports("node", &files).into_iter().collect();
        assert_eq!(imports, ["node: a -> b", "node: b -> a"]);
    }

    #[test]
    fn tests_comments_and_other_modules_do_not_count() {
        let a = ("a.rs", "use super::b::B;");
        for text in [
            "// see super::a",
            "fn f() {}\n#[cfg(test)]\nmod tests {\n    use super::super::a;\n}",
            "use crate::kinds::a;",
            "mod a { use super::x; }",
        ] {
            assert_eq!(found(&[a, ("b.rs", text)]), [""; 0], "{text}");
        }
        assert_eq!(found(&[a, ("b/tests.rs", "use super::super::a;")]), [""; 0]);
        assert_eq!(
            found(&[("mod.rs", "use a::A;"), ("a.rs", "use super::Api;")]),
            [""; 0]
        );
    }
}
