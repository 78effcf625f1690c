//! Checks links and commits that documents name: each relative link has a target, each anchor a heading, each
//! path below `docs` in a comment of a source a file, and each commit an object of this repository.

use crate::git;
use anyhow::Result;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Component, Path, PathBuf};

/// Commits of other projects that documents name.
const UPSTREAM: [&str; 3] = ["a7a1b76b", "903da7df", "76e6cc8c"];

/// Returns the faults of `documents` and of comments in `sources`, whose paths are relative to `root`.
pub(crate) fn faults(
    root: &Path,
    documents: &[(PathBuf, String)],
    sources: &[(PathBuf, String)],
) -> Result<Vec<String>> {
    let exists = |path: &Path| root.join(path).exists();
    let mut faults = broken_links(documents, &exists);
    faults.extend(missing_documents(sources, &exists));
    faults.extend(missing_commits(documents)?);
    Ok(faults)
}

/// Replaces code by spaces: fenced blocks, and text between backquotes.
fn without_code(text: &str) -> String {
    let mut fenced = false;
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            out.push('\n');
        } else if fenced {
            out.push('\n');
        } else if line.matches('`').count() % 2 == 0 {
            for (part, piece) in line.split('`').enumerate() {
                out.push_str(if part % 2 == 0 { piece } else { " " });
            }
        } else {
            // Code that goes on in the next line: prose with a backquote is read as it is.
            out.push_str(line);
        }
    }
    out
}

/// Returns the anchor that GitHub gives a heading, without the number of a repeated one.
fn anchor(heading: &str) -> String {
    let mut text = String::new();
    let mut rest = heading;
    // Of a link only its text counts.
    while let Some((before, after)) = rest.split_once("](") {
        text.push_str(before);
        rest = after.split_once(')').map_or("", |(_, after)| after);
    }
    text.push_str(rest);
    text.trim()
        .to_lowercase()
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

fn anchors(text: &str) -> HashSet<String> {
    let mut names = HashSet::new();
    let mut counts: HashMap<String, usize> = HashMap::new();
    let mut fenced = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        let heading = line.trim_start_matches('#');
        let level = line.len() - heading.len();
        if fenced || !(1..=6).contains(&level) || !heading.starts_with(' ') {
            continue;
        }
        let name = anchor(heading);
        let count = counts.entry(name.clone()).or_default();
        names.insert(if *count == 0 {
            name
        } else {
            format!("{name}-{count}")
        });
        *count += 1;
    }
    names
}

/// Resolves `target` from the directory of `document`; `None` when it leaves the repository.
fn resolve(document: &Path, target: &str) -> Option<PathBuf> {
    let mut path = PathBuf::new();
    let from = document.parent().unwrap_or(Path::new(""));
    for part in from.join(target).components() {
        match part {
            Component::ParentDir if !path.pop() => return None,
            Component::ParentDir | Component::CurDir => {}
            part => path.push(part),
        }
    }
    Some(path)
}

fn broken_links(documents: &[(PathBuf, String)], exists: &dyn Fn(&Path) -> bool) -> Vec<String> {
    let anchors_by_path: BTreeMap<&Path, HashSet<String>> = documents
        .iter()
        .map(|(path, text)| (path.as_path(), anchors(text)))
        .collect();
    let mut faults = Vec::new();
    for (path, text) in documents {
        let text = without_code(text);
        let mut number = 1;
        for (part, piece) in text.split("](").enumerate() {
            if part > 0 {
                let target = piece.split([')', ' ', '\n']).next().unwrap_or_default();
                if let Err(why) = check_link(path, target, &anchors_by_path, exists) {
                    faults.push(format!("{}:{number}: {why}: {target}", path.display()));
                }
            }
            number += piece.matches('\n').count();
        }
    }
    faults
}

fn check_link(
    document: &Path,
    target: &str,
    known: &BTreeMap<&Path, HashSet<String>>,
    exists: &dyn Fn(&Path) -> bool,
) -> Result<(), &'static str> {
    if target.contains("://") || target.starts_with("mailto:") {
        return Ok(());
    }
    let (file, fragment) = target.split_once('#').unwrap_or((target, ""));
    let path = if file.is_empty() {
        document.to_owned()
    } else {
        resolve(document, file).ok_or("link out of the repository")?
    };
    if !exists(&path) {
        return Err("link without a target");
    }
    match known.get(path.as_path()) {
        Some(anchors) if !fragment.is_empty() && !anchors.contains(fragment) => {
            Err("link to a heading that does not exist")
        }
        _ => Ok(()),
    }
}

/// Returns comments' mentions of files below `docs` that do not exist.
fn missing_documents(sources: &[(PathBuf, String)], exists: &dyn Fn(&Path) -> bool) -> Vec<String> {
    let in_path = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '-' | '_');
    let mut faults = Vec::new();
    for (path, text) in sources
        .iter()
        .filter(|(path, _)| !path.starts_with("xtask"))
    {
        for (at, line) in text.lines().enumerate() {
            let Some((_, comment)) = line.split_once("//") else {
                continue;
            };
            for token in comment.split(|c| !in_path(c)) {
                let token = token.trim_end_matches('.').trim_start_matches("../");
                if token.starts_with("docs/") && !exists(Path::new(token)) {
                    let place = format!("{}:{}", path.display(), at + 1);
                    faults.push(format!("{place}: no such document: {token}"));
                }
            }
        }
    }
    faults
}

/// Returns true if `word` looks like an abbreviated commit: hexadecimal, with digits and letters.
fn is_commit(word: &str) -> bool {
    let hex = |c: char| matches!(c, '0'..='9' | 'a'..='f');
    (7..=40).contains(&word.len())
        && word.chars().all(hex)
        && word.contains(|c: char| c.is_ascii_digit())
        && word.contains(|c: char| c.is_ascii_alphabetic())
}

/// Returns the words of `text` that look like commits, each with its line.
fn commits(text: &str) -> Vec<(usize, &str)> {
    let mut references = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let words = line.split(|c: char| !c.is_alphanumeric());
        references.extend(
            words
                .filter(|word| is_commit(word))
                .map(|word| (at + 1, word)),
        );
    }
    references
}

fn missing_commits(documents: &[(PathBuf, String)]) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    let mut checked: HashMap<&str, bool> = HashMap::new();
    for (path, text) in documents {
        for (line, commit) in commits(text) {
            if UPSTREAM.contains(&commit) {
                continue;
            }
            let exists = match checked.get(commit) {
                Some(exists) => *exists,
                None => git::age(commit)? != git::CommitAge::Missing,
            };
            checked.insert(commit, exists);
            if !exists {
                let place = format!("{}:{line}", path.display());
                faults.push(format!("{place}: no such commit: {commit}"));
            }
        }
    }
    Ok(faults)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links(text: &str) -> Vec<String> {
        let documents = [
            (PathBuf::from("docs/a.md"), text.to_owned()),
            (
                PathBuf::from("README.md"),
                "# Two `x --y` words\n```\n# no heading\n```\n## Same\n## Same\n".to_owned(),
            ),
        ];
        broken_links(&documents, &|path: &Path| {
            ["README.md", "docs/a.md", "docs/a.png", "bench"]
                .iter()
                .any(|known| path == Path::new(known))
        })
    }

    #[test]
    fn link_with_a_target_is_no_fault() {
        let text = "# Top\n[a](a.md) ![p](a.png) [b](../bench)\n[c](../README.md#two-x---y-words)\n\
            [d](#top) [e](https://x/y#z) [f](../README.md#same-1)\n`[g](none.md)`\n```\n[h](none.md)\n```\n";
        assert_eq!(links(text), [""; 0]);
    }

    #[test]
    fn link_without_a_target_is_a_fault() {
        assert_eq!(
            links(
                "x\n[a](b.md)\n[c](../README.md#no-heading) [d](#none)\n[e](../../x) [f](../README.md#same-2)"
            ),
            [
                "docs/a.md:2: link without a target: b.md",
                "docs/a.md:3: link to a heading that does not exist: ../README.md#no-heading",
                "docs/a.md:3: link to a heading that does not exist: #none",
                "docs/a.md:4: link out of the repository: ../../x",
                "docs/a.md:4: link to a heading that does not exist: ../README.md#same-2",
            ]
        );
    }

    #[test]
    fn comment_with_a_missing_document_is_a_fault() {
        let text = "// see docs/a.md. And\n//! [x](../../../docs/adr/0007.md), https://h/docs/b.md\nlet a = \"docs/c\";";
        let sources = [(PathBuf::from("crates/x.rs"), text.to_owned())];
        assert_eq!(
            missing_documents(&sources, &|path: &Path| path == Path::new("docs/a.md")),
            ["crates/x.rs:2: no such document: docs/adr/0007.md"]
        );
    }

    #[test]
    fn commits_are_hexadecimal_words() {
        let text = "after 2753f40 (d1042a30, 786c39c5):\n1000000 defaced 0xdeadbee1 a7a1b76bg 12345678901e";
        let names: Vec<_> = commits(text).into_iter().map(|(_, word)| word).collect();
        assert_eq!(names, ["2753f40", "d1042a30", "786c39c5", "12345678901e"]);
    }

    #[test]
    fn missing_commit_is_a_fault() {
        let text = "x\n(0000000a) a7a1b76b".to_owned();
        let problems = missing_commits(&[(PathBuf::from("a.md"), text)]).expect("git answers");
        // A shallow clone, or a copy without a history, cannot be checked.
        if git::is_complete() {
            assert_eq!(problems, ["a.md:2: no such commit: 0000000a"]);
        } else {
            assert!(problems.is_empty());
        }
    }
}
