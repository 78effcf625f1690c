//! Words of comments, messages and documents that are unclear to newcomers, with their replacements; and type
//! names that a crate has more than once, so that a search finds several.
//!
//! Each hit is a fault. Decision records in `docs/adr` are exempt, because they are not edited later, and so are the
//! texts of [`PINNED`].

use anyhow::{Context, Result};
use regex::{Regex, RegexSet};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Part of a line that a pattern is searched in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SearchScope {
    /// Comments, and string literals.
    Text,
    /// Comments from their first slash on.
    Comment,
    /// The line outside comments and strings' contents.
    Code,
}

/// A pattern, where it is looked for, and what to write instead.
const PATTERNS: &[(&str, SearchScope, &str)] = &[
    (r"\bwhom\b", SearchScope::Text, "which pod, client or node"),
    (
        r"^//[/!] The same\b",
        SearchScope::Comment,
        "name the item: [`x`]",
    ),
    (
        r"\bThe same (of|for|with|as|in|by|where|when)\b",
        SearchScope::Text,
        "name the item: [`x`]",
    ),
    (r"^//[/!] Of\b", SearchScope::Comment, "start with the noun"),
    (r"^//[/!] As [^\[`]", SearchScope::Comment, "Like [`x`], …"),
    (
        r"^//[/!] Who\b",
        SearchScope::Comment,
        "owner, caller, victim",
    ),
    (
        r"\bwho (asks?|reads?|writes?|takes?|has|may|decides?|runs?|holds?)\b",
        SearchScope::Text,
        "which component or caller",
    ),
    (
        r"See the module documentation\.",
        SearchScope::Comment,
        "one own sentence",
    ),
    (
        r"\bas (it|they) (was|were|is|are) read\b",
        SearchScope::Text,
        "parsed",
    ),
    (
        r"\b(nobody|anybody|somebody)\b",
        SearchScope::Text,
        "no pod, any client, a user",
    ),
    (
        r"\b(spoken|speaks?|spoke) of\b",
        SearchScope::Text,
        "reported",
    ),
    (r"\banew\b", SearchScope::Text, "again"),
    (r"\bshall\b", SearchScope::Text, "must, is to"),
    (
        r"\bbeside( [^e]| e[^a]|[.,;:)]|$)",
        SearchScope::Text,
        "in addition to, next to",
    ),
    (
        r"\bin vain\b|\bto blame\b|\bat hand\b",
        SearchScope::Text,
        "without effect, cause, available",
    ),
    (
        r"\b(takes?|taken|took) in\b",
        SearchScope::Text,
        "absorbs, includes",
    ),
    (r"\bimagin(e|ed|es)\b", SearchScope::Text, "assumed"),
    (
        r"\b(gives?|given|gave) away\b",
        SearchScope::Text,
        "allocated",
    ),
    (r"\b(goes|go) for\b", SearchScope::Text, "is evicted for"),
    (
        r"\b(has|have|a) (a )?say\b",
        SearchScope::Text,
        "admits, decides",
    ),
    (
        r"\b(is|are|was|were|be|been) told\b",
        SearchScope::Text,
        "receives, is notified",
    ),
    (
        r"\b(is|are|was|were|be) said\b",
        SearchScope::Text,
        "is logged, is reported",
    ),
    (
        r"\bbeliev(e|ed|es)\b",
        SearchScope::Text,
        "accepted, trusted",
    ),
    (
        r"\binto words\b|\bso that nobody\b",
        SearchScope::Text,
        "formatted; so that no …",
    ),
    (
        r"\b(struct|enum|trait|type) (Said|Known|Seen|Asked|Ask|Kept|Wanted|Wish|Held|Told|Given|Left|Found|Gone|There|Thing|About|Desk|Room|Place|Why|How|What|One|No|Then|Trouble|Troubles|Standing|Words|Books?|Ours)\b",
        SearchScope::Code,
        "a noun that says what the value is",
    ),
    (MESSAGE_START.0, SearchScope::Code, MESSAGE_START.1),
];

/// A log message that does not start with the action, and what to write instead.
const MESSAGE_START: (&str, &str) = (
    r#"\b(error|warn|info|debug)!\((.*, )?"(the|an?|it|there|no|this|some|what) "#,
    "a message that starts with the action",
);

/// Parts of the texts of events and conditions: users match these, so they stay as they are.
const PINNED: [&str; 8] = [
    "in {directory} somebody else ",
    "node(s) cannot give what the pods have that the reservation takes in",
    "nobody can say how many replicas {kind} {name} wants",
    "nobody here reads key {key:?}",
    "nobody owns it, so nobody would make it anew",
    "pods are said to run, and nothing runs",
    "somebody without a name",
    "the pod is said to run, and nothing runs",
];

/// Type names that modules may share: they are used qualified.
const SHARED: [&str; 10] = [
    "Args", "Config", "Error", "Key", "Metrics", "Options", "Plan", "Report", "Snapshot", "State",
];

/// A hit: its line, counted from one, the matched text and the replacement.
pub(crate) struct Hit {
    line: usize,
    found: String,
    instead: &'static str,
}

impl Hit {
    /// Returns `path:line: "match": replacement`.
    fn at(&self, path: &Path) -> String {
        format!(
            "{}:{}: {:?}: {}",
            path.display(),
            self.line,
            self.found,
            self.instead
        )
    }
}

/// Compiled patterns.
pub(crate) struct Checker {
    patterns: Vec<(Regex, SearchScope, &'static str)>,
    /// One automaton of all patterns: few lines match any.
    set: RegexSet,
    /// A type that is declared at the top of a file.
    declaration: Regex,
    /// The macro of a log message at the end of a line.
    log_macro: Regex,
    /// [`MESSAGE_START`].
    message_start: Regex,
}

impl Checker {
    pub(crate) fn new() -> Result<Self> {
        let compile = |(pattern, place, instead): &(&str, SearchScope, &'static str)| {
            let regex = Regex::new(pattern).with_context(|| format!("pattern {pattern}"))?;
            Ok((regex, *place, *instead))
        };
        let declaration = r"^(?:pub(?:\([^)]*\))? )?(?:struct|enum|trait|type|union) (\w+)";
        Ok(Self {
            patterns: PATTERNS.iter().map(compile).collect::<Result<_>>()?,
            set: RegexSet::new(PATTERNS.iter().map(|(pattern, ..)| pattern))
                .context("set of patterns")?,
            declaration: Regex::new(declaration).context("pattern of declarations")?,
            log_macro: Regex::new(r"\b(error|warn|info|debug)!\($").context("pattern of macros")?,
            message_start: Regex::new(MESSAGE_START.0).context("pattern of messages")?,
        })
    }

    /// Returns the declarations in a source file of types that `declared` has already, and adds the others.
    fn repeated_types(&self, text: &str, declared: &mut BTreeSet<String>) -> Vec<Hit> {
        let lines = text.lines().enumerate();
        let types = lines.filter_map(|(at, line)| Some((at, self.declaration.captures(line)?)));
        types
            .filter(|(_, found)| {
                !SHARED.contains(&&found[1]) && !declared.insert(found[1].to_owned())
            })
            .map(|(at, found)| Hit {
                line: at + 1,
                found: found[0].to_owned(),
                instead: "a name that no other type of the crate has",
            })
            .collect()
    }

    /// Returns the hits in a source file, in the order of its lines.
    pub(crate) fn hits(&self, text: &str) -> Vec<Hit> {
        let mut hits = Vec::new();
        let mut splitter = Splitter::default();
        // The macro of a log message whose arguments begin on the next line.
        let mut log_macro = None;
        for (at, line) in text.lines().enumerate() {
            let Line {
                code,
                comment,
                mut strings,
            } = splitter.split(line);
            let argument = code.trim();
            if let Some(name) = log_macro
                && argument.starts_with('"')
            {
                let call = format!("{name}{argument}");
                hits.extend(self.message_start.find(&call).map(|found| Hit {
                    line: at + 1,
                    found: found.as_str().to_owned(),
                    instead: MESSAGE_START.1,
                }));
            }
            let is_call = self.log_macro.find(argument).map(|found| found.as_str());
            if is_call.is_some() || argument.starts_with(['"', ')']) {
                log_macro = is_call;
            }
            strings.retain(|text| !PINNED.iter().any(|pinned| text.contains(pinned)));
            let parts = [code, comment].into_iter().chain(strings.iter().copied());
            let matches: BTreeSet<_> = parts.flat_map(|part| self.set.matches(part)).collect();
            for (regex, place, instead) in matches.into_iter().map(|at| &self.patterns[at]) {
                let mut parts = Vec::new();
                match place {
                    SearchScope::Comment => parts.push(comment),
                    SearchScope::Code => parts.push(code),
                    SearchScope::Text => {
                        parts.push(comment);
                        parts.extend(&strings);
                    }
                }
                for found in parts.iter().flat_map(|part| regex.find_iter(part)) {
                    hits.push(Hit {
                        line: at + 1,
                        found: found.as_str().to_owned(),
                        instead,
                    });
                }
            }
        }
        hits
    }

    /// Returns the hits in the prose of a Markdown document, in the order of its lines.
    fn document_hits(&self, text: &str) -> Vec<Hit> {
        let mut hits = Vec::new();
        for paragraph in paragraphs(text) {
            for at in self.set.matches(&paragraph.prose) {
                let (regex, scope, instead) = &self.patterns[at];
                if *scope != SearchScope::Text {
                    continue;
                }
                hits.extend(regex.find_iter(&paragraph.prose).map(|found| Hit {
                    line: paragraph.line(found.start()),
                    found: found.as_str().to_owned(),
                    instead,
                }));
            }
        }
        hits.sort_by_key(|hit| hit.line);
        hits
    }
}

/// A paragraph or a table row of a Markdown document, in one line and without code.
#[derive(Default)]
struct Paragraph {
    prose: String,
    /// Offset in `prose` of each line of the document, with its number, counted from one.
    lines: Vec<(usize, usize)>,
}

impl Paragraph {
    fn new(lines: &[(usize, &str)]) -> Self {
        let quotes = |line: &str| line.matches('`').count();
        let total: usize = lines.iter().map(|(_, line)| quotes(line)).sum();
        // A backquote without its counterpart quotes nothing.
        let mut paired = total - total % 2;
        let mut is_code = false;
        let mut paragraph = Self::default();
        for (number, line) in lines {
            if !paragraph.prose.is_empty() {
                paragraph.prose.push(' ');
            }
            paragraph.lines.push((paragraph.prose.len(), *number));
            for c in line.chars() {
                if c == '`' && paired > 0 {
                    paired -= 1;
                    is_code = !is_code;
                    paragraph.prose.push(c);
                } else if !is_code {
                    paragraph.prose.push(c);
                }
            }
        }
        paragraph
    }

    /// Returns the number of the document's line at an offset in the prose.
    fn line(&self, offset: usize) -> usize {
        let after = self.lines.partition_point(|(start, _)| *start <= offset);
        self.lines[after.saturating_sub(1)].1
    }
}

/// Splits a Markdown document at empty lines, table rows and fenced code, which is left out.
fn paragraphs(text: &str) -> Vec<Paragraph> {
    let mut paragraphs = Vec::new();
    let mut lines: Vec<(usize, &str)> = Vec::new();
    let mut is_fenced = false;
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        let is_fence = line.starts_with("```");
        if (is_fence || is_fenced || line.is_empty() || line.starts_with('|')) && !lines.is_empty()
        {
            paragraphs.push(Paragraph::new(&lines));
            lines.clear();
        }
        if is_fence {
            is_fenced = !is_fenced;
        } else if !is_fenced && !line.is_empty() {
            lines.push((at + 1, line));
        }
    }
    if !lines.is_empty() {
        paragraphs.push(Paragraph::new(&lines));
    }
    paragraphs
}

/// Parts of a line of source.
struct Line<'a> {
    /// The line up to its comment, with string literals.
    code: &'a str,
    /// The line from `//` on.
    comment: &'a str,
    /// Contents of string literals.
    strings: Vec<&'a str>,
}

/// Quotes of a string literal.
#[derive(Clone, Copy)]
enum Quotes {
    /// Backslashes escape.
    Plain,
    /// Raw, with this number of hashes after the closing quote.
    Raw(usize),
}

/// Splits the lines of a source file, one after the other.
#[derive(Default)]
struct Splitter {
    /// The string literal in which the next line begins.
    open: Option<Quotes>,
}

impl Splitter {
    fn split<'a>(&mut self, line: &'a str) -> Line<'a> {
        let bytes = line.as_bytes();
        let (mut start, mut at) = (0, 0);
        let mut strings = Vec::new();
        while let Some(byte) = bytes.get(at) {
            let rest = &bytes[at..];
            match (self.open, byte) {
                (Some(Quotes::Plain), b'\\') => at += 1,
                (Some(quotes), b'"') => {
                    let hashes = rest[1..].iter().take_while(|byte| **byte == b'#').count();
                    if matches!(quotes, Quotes::Raw(expected) if hashes < expected) {
                        at += 1;
                        continue;
                    }
                    strings.push(&line[start..at]);
                    self.open = None;
                }
                (None, b'"') => {
                    let before = line[..at].trim_end_matches('#');
                    let hashes = at - before.len();
                    let prefix = before.trim_end_matches(|c: char| c.is_alphanumeric() || c == '_');
                    let is_raw = matches!(&before[prefix.len()..], "r" | "br" | "cr");
                    self.open = Some(if is_raw {
                        Quotes::Raw(hashes)
                    } else {
                        Quotes::Plain
                    });
                    start = at + 1;
                }
                (None, b'/') if rest.starts_with(b"//") => {
                    let (code, comment) = line.split_at(at);
                    return Line {
                        code,
                        comment,
                        strings,
                    };
                }
                (None, b'\'') if rest.starts_with(b"'\"'") => at += 2,
                (None, b'\'') if rest.starts_with(b"'\\\"'") => at += 3,
                _ => {}
            }
            at += 1;
        }
        if self.open.is_some() {
            strings.push(line.get(start..).unwrap_or_default());
        }
        Line {
            code: line,
            comment: "",
            strings,
        }
    }
}

/// Returns each hit in the sources, and each type whose name another one of its crate has.
pub(crate) fn faults(texts: &[(std::path::PathBuf, String)]) -> Result<Vec<String>> {
    let checker = Checker::new()?;
    let mut faults = Vec::new();
    let mut declared: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for (path, text) in texts {
        // The table of patterns matches itself.
        if text.starts_with("// This file is @generated") || path.ends_with("xtask/src/words.rs") {
            continue;
        }
        let mut hits = checker.hits(text);
        let is_test = path
            .iter()
            .any(|part| part == "tests" || part == "tests.rs");
        if !is_test {
            let mut parts = path.iter().filter_map(|part| part.to_str());
            let name = match parts.next() {
                Some("crates") => parts.next(),
                first => first,
            };
            let declared = declared.entry(name.unwrap_or_default()).or_default();
            hits.extend(checker.repeated_types(text, declared));
        }
        faults.extend(hits.into_iter().map(|hit| hit.at(path)));
    }
    Ok(faults)
}

/// Returns each hit in the Markdown files, other than decision records.
pub(crate) fn document_faults(documents: &[(std::path::PathBuf, String)]) -> Result<Vec<String>> {
    let checker = Checker::new()?;
    let faults = |(path, text): &(std::path::PathBuf, String)| {
        let hits = checker.document_hits(text).into_iter();
        hits.map(|hit| hit.at(path)).collect::<Vec<_>>()
    };
    let checked = documents
        .iter()
        .filter(|(path, _)| !path.starts_with("docs/adr"));
    Ok(checked.flat_map(faults).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(usize, String)> {
        let checker = Checker::new().expect("the patterns compile");
        let hits = checker.hits(text).into_iter();
        hits.map(|hit| (hit.line, hit.found)).collect()
    }

    #[test]
    fn words_count_in_comments_and_strings_only() {
        assert_eq!(found("let nobody = anew(\"x\");"), []);
        assert_eq!(found("// for nobody"), [(1, "nobody".to_owned())]);
        let text = "let x = 1;\nlet y = \"made anew\"; // nobody";
        assert_eq!(
            found(text),
            [(2, "nobody".to_owned()), (2, "anew".to_owned())]
        );
        assert_eq!(found("let url = \"http://nobody\";").len(), 1);
        assert_eq!(found("f(\"a \\\" // b\"); // shall").len(), 1);
    }

    #[test]
    fn first_words_count_in_comments_that_begin_so() {
        assert_eq!(found("    /// The same as [`x`].").len(), 2);
        assert_eq!(found("/// Of a node."), [(1, "/// Of".to_owned())]);
        assert_eq!(found("// Of a node."), []);
        assert_eq!(found("/// As [`x`] does."), []);
        assert_eq!(found("/// As it does.").len(), 1);
        assert_eq!(found("// beside each other"), []);
        assert_eq!(found("// beside a node").len(), 1);
    }

    #[test]
    fn types_and_messages_count_in_code() {
        assert_eq!(found("struct Said;").len(), 1);
        assert_eq!(found("// the struct Said"), []);
        assert_eq!(found("warn!(node, \"the node is gone\");").len(), 1);
        assert_eq!(found("warn!(node, \"failed to read the node\");"), []);
        let over_lines = "warn!(\n    node,\n    \"the node is gone: {}\",\n    \"the rest\"\n);";
        assert_eq!(found(over_lines), [(3, "warn!(\"the ".to_owned())]);
        assert_eq!(found("warn!(\n    node,\n    \"no_node\"\n);"), []);
    }

    #[test]
    fn types_of_one_name_in_a_crate_count_but_for_the_first() {
        let checker = Checker::new().expect("the patterns compile");
        let mut declared = BTreeSet::new();
        let mut repeated = |text: &str| {
            let hits = checker.repeated_types(text, &mut declared).into_iter();
            hits.map(|hit| (hit.line, hit.found)).collect::<Vec<_>>()
        };
        assert_eq!(
            repeated("struct Pod;\nenum Args {}\n    type Item = u8;"),
            []
        );
        assert_eq!(
            repeated("use x;\npub(crate) enum Pod {\npub struct Args;\ntype Item = u8;"),
            [(2, "pub(crate) enum Pod".to_owned())]
        );
    }

    fn found_in_document(text: &str) -> Vec<(usize, String)> {
        let checker = Checker::new().expect("the patterns compile");
        let hits = checker.document_hits(text).into_iter();
        hits.map(|hit| (hit.line, hit.found)).collect()
    }

    #[test]
    fn words_of_documents_count_outside_of_code() {
        let text = "# Pods\n\nMade anew for `nobody`.\n```\nnobody\n```\nFor nobody.\n";
        assert_eq!(
            found_in_document(text),
            [(3, "anew".to_owned()), (7, "nobody".to_owned())]
        );
        assert_eq!(found_in_document("Run `koord\nnobody` again."), []);
        assert_eq!(found_in_document("A ` and nobody").len(), 1);
        assert_eq!(
            found_in_document("| a | `x` nobody |\n| shall | b |").len(),
            2
        );
        assert_eq!(found_in_document("| one ` |\n| `nobody` |"), []);
        // Patterns for comments and code do not apply.
        assert_eq!(found_in_document("/// Of a node. struct Said;"), []);
    }

    #[test]
    fn words_of_documents_count_across_lines() {
        assert_eq!(
            found_in_document("- The pod takes\n  in the rest, beside\n  each other."),
            [(1, "takes in".to_owned())]
        );
        assert_eq!(found_in_document("It takes\n\nin."), []);
    }

    #[test]
    fn faults_of_documents_name_path_line_and_replacement() {
        let text = "Made\nanew.";
        let document = |path: &str| (std::path::PathBuf::from(path), text.to_owned());
        let documents = [document("docs/adr/0001-x.md"), document("README.md")];
        assert_eq!(
            document_faults(&documents).expect("the patterns compile"),
            ["README.md:2: \"anew\": again"]
        );
    }

    #[test]
    fn words_count_in_strings_over_several_lines() {
        let text = "f(\n    \"text \\\n     nobody\",\n    nobody,\n);";
        assert_eq!(found(text), [(3, "nobody".to_owned())]);
        let text = "let x = r#\"{\n\"a\": \"anew\"}\"#; let nobody = '\"'; // shall";
        assert_eq!(
            found(text),
            [(2, "anew".to_owned()), (2, "shall".to_owned())]
        );
        assert_eq!(found("let quote = '\\\"'; let nobody = 1;"), []);
    }

    #[test]
    fn texts_of_events_are_exempt() {
        assert_eq!(
            found("\"nobody owns it, so nobody would make it anew\""),
            []
        );
        assert_eq!(found("\"nobody owns it\"").len(), 1);
    }

    #[test]
    fn faults_of_sources_name_path_line_and_replacement() {
        let source = |path: &str, text: &str| (std::path::PathBuf::from(path), text.to_owned());
        let sources = [
            source("crates/a/src/lib.rs", "// made anew\nstruct Pod;"),
            source("crates/a/src/pod.rs", "struct Pod;"),
            source("crates/b/src/lib.rs", "struct Pod;"),
        ];
        assert_eq!(
            faults(&sources).expect("the patterns compile"),
            [
                "crates/a/src/lib.rs:1: \"anew\": again",
                "crates/a/src/pod.rs:1: \"struct Pod\": a name that no other type of the crate has",
            ]
        );
    }
}
