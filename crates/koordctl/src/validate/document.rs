//! A YAML or JSON document: its value, and the position of each part.

use super::text::{Position, Scalar, Text, position_in_message};
use granit_parser::{Event, Marker, Parser, Span};
use serde_json::Value;

/// A part of a document.
#[derive(Debug)]
struct SourceNode {
    start: Position,
    content: Content,
}

#[derive(Debug)]
enum Content {
    /// A scalar with its value.
    Scalar(Scalar, String),
    List(Vec<SourceNode>),
    /// Members with the position of each name.
    Object(Vec<(String, Position, SourceNode)>),
    /// A reference to another part.
    Alias,
}

/// A document.
#[derive(Debug)]
pub(super) struct SourceDocument {
    pub(super) value: Value,
    text: Text,
    root: Option<SourceNode>,
}

/// The error of a text that is no document.
#[derive(Debug, PartialEq)]
pub(super) struct SyntaxError {
    /// Position in the file.
    pub(super) position: Position,
    /// Position in the text.
    pub(super) local: Position,
    pub(super) message: String,
}

/// The result of a search for a path.
struct PathMatch<'a> {
    /// Position of the name of the last member, or of the list's item.
    name: Position,
    node: &'a SourceNode,
    /// True if the path is in the document; otherwise this is the closest part that contains it.
    is_complete: bool,
}

/// The place of a fault in a document.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct FaultPlace {
    /// Paths of strings, each in the text of the one before, that hold the text with the fault.
    pub(super) texts: Vec<String>,
    pub(super) target: PlaceTarget,
}

/// The place of a fault in a text.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum PlaceTarget {
    /// The first of these paths that the document has.
    Paths(Vec<String>),
    /// The name of the member at this path.
    Name(String),
    /// A position in the text.
    Position(Position),
}

impl FaultPlace {
    /// Returns the place of the value at `path`.
    pub(super) fn value(path: impl Into<String>) -> Self {
        Self::from(PlaceTarget::Paths(vec![path.into()]))
    }

    /// Returns the place of the name of the member at `path`.
    pub(super) fn name(path: impl Into<String>) -> Self {
        Self::from(PlaceTarget::Name(path.into()))
    }

    /// Returns this place in the string at `path`.
    pub(super) fn inside(mut self, path: impl Into<String>) -> Self {
        self.texts.insert(0, path.into());
        self
    }

    /// Returns this place in an object that is at `prefix`.
    pub(super) fn below(mut self, prefix: &str) -> Self {
        let prepend = |path: &mut String| *path = join(prefix, path);
        match (self.texts.first_mut(), &mut self.target) {
            (Some(path), _) | (None, PlaceTarget::Name(path)) => prepend(path),
            (None, PlaceTarget::Paths(paths)) => paths.iter_mut().for_each(prepend),
            (None, PlaceTarget::Position(_)) => {}
        }
        self
    }
}

impl From<PlaceTarget> for FaultPlace {
    fn from(target: PlaceTarget) -> Self {
        Self {
            texts: Vec::new(),
            target,
        }
    }
}

/// Returns the path of `path` below `prefix`.
pub(super) fn join(prefix: &str, path: &str) -> String {
    match (prefix, path) {
        ("", path) => path.to_owned(),
        (prefix, "" | ".") => prefix.to_owned(),
        (prefix, path) if path.starts_with('[') => format!("{prefix}{path}"),
        (prefix, path) => format!("{prefix}.{path}"),
    }
}

impl SourceDocument {
    /// Parses a text with one document; `None` if it is empty.
    pub(super) fn parse(text: Text) -> Result<Option<Self>, SyntaxError> {
        let mut text = text;
        let is_json = text.content.trim_start().starts_with(['{', '[']);
        let strict = is_json.then(|| serde_json::from_str(&text.content));
        let value = match strict {
            Some(Ok(value)) => value,
            // JSON with comments or without quotes is YAML.
            strict => match parse_yaml(&mut text.content) {
                Ok(value) => value,
                Err(error) => return Err(syntax_error(&text, &error, strict)),
            },
        };
        if value.is_null() {
            return Ok(None);
        }
        let root = parse_nodes(&text.content);
        Ok(Some(Self { value, text, root }))
    }

    /// Returns the position of `place` in the file.
    pub(super) fn position(&self, place: &FaultPlace) -> Position {
        position_in(&self.text, self.root.as_ref(), &place.texts, &place.target)
    }

    /// Returns the string at `path` as a text.
    pub(super) fn nested(&self, path: &str, content: &str) -> Option<Text> {
        let found = find(self.root.as_ref()?, path);
        match (found.is_complete, &found.node.content) {
            (true, Content::Scalar(scalar, _)) => Some(self.text.nested(*scalar, content)),
            _ => None,
        }
    }
}

fn position_in(
    text: &Text,
    root: Option<&SourceNode>,
    texts: &[String],
    target: &PlaceTarget,
) -> Position {
    let at = |position| text.position(position);
    if let (PlaceTarget::Position(position), []) = (target, texts) {
        return at(*position);
    }
    let Some(root) = root else {
        return at(Position::START);
    };
    if let [first, rest @ ..] = texts {
        let found = find(root, first);
        let (Content::Scalar(scalar, content), true) = (&found.node.content, found.is_complete)
        else {
            return at(found.name);
        };
        let is_whole = |path: &String| matches!(path.as_str(), "" | ".");
        if let (PlaceTarget::Paths(paths), []) = (target, rest)
            && paths.iter().all(is_whole)
        {
            return at(found.node.start);
        }
        let nested = text.nested(*scalar, content);
        let root = parse_nodes(content);
        return position_in(&nested, root.as_ref(), rest, target);
    }
    match target {
        PlaceTarget::Position(position) => at(*position),
        PlaceTarget::Name(path) => at(find(root, path).name),
        PlaceTarget::Paths(paths) => {
            let mut last = root.start;
            for path in paths {
                let found = find(root, path);
                if found.is_complete {
                    return at(found.node.start);
                }
                last = found.name;
            }
            at(last)
        }
    }
}

/// Returns the value at `path`, such as `spec.owners[0]`. Of several names that fit, the longest is meant.
pub(super) fn lookup<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    let mut value = value;
    let mut rest = path;
    while !rest.is_empty() {
        let (next, after) = match value {
            Value::Array(items) => {
                let (index, after) = split_index(rest)?;
                (items.get(index)?, after)
            }
            Value::Object(members) => {
                let names = members.keys().map(String::as_str);
                let (name, after) = split_name(rest, names)?;
                (members.get(name)?, after)
            }
            _ => return None,
        };
        value = next;
        rest = after;
    }
    Some(value)
}

/// Splits `[3].name` into 3 and the rest.
fn split_index(path: &str) -> Option<(usize, &str)> {
    let (index, after) = path.strip_prefix('[')?.split_once(']')?;
    let after = after.strip_prefix('.').unwrap_or(after);
    Some((index.parse().ok()?, after))
}

/// Returns the longest of `names` that begins `path`, and the rest. A name may be in brackets.
fn split_name<'a, 'p>(
    path: &'p str,
    names: impl Iterator<Item = &'a str>,
) -> Option<(&'a str, &'p str)> {
    let (inner, close) = match path.strip_prefix('[') {
        Some(inner) => (inner, "]"),
        None => (path, ""),
    };
    let fitting = names.filter_map(|name| {
        let after = inner.strip_prefix(name)?.strip_prefix(close)?;
        match after.strip_prefix('.') {
            Some(after) => Some((name, after)),
            None if after.is_empty() || after.starts_with('[') => Some((name, after)),
            None => None,
        }
    });
    fitting.max_by_key(|(name, _)| name.len())
}

/// Searches a path, as [`lookup`] does.
fn find<'a>(root: &'a SourceNode, path: &str) -> PathMatch<'a> {
    let mut found = PathMatch {
        name: root.start,
        node: root,
        is_complete: true,
    };
    let mut rest = path;
    while !matches!(rest, "" | ".") {
        let next = match &found.node.content {
            Content::List(items) => split_index(rest).and_then(|(index, after)| {
                let item = items.get(index)?;
                Some((item.start, item, after))
            }),
            Content::Object(members) => {
                let names = members.iter().map(|(name, ..)| name.as_str());
                split_name(rest, names).and_then(|(name, after)| {
                    let member = members.iter().find(|member| member.0 == name)?;
                    Some((member.1, &member.2, after))
                })
            }
            Content::Scalar(..) | Content::Alias => None,
        };
        let Some((name, node, after)) = next else {
            found.is_complete = false;
            return found;
        };
        (found.name, found.node, rest) = (name, node, after);
    }
    found
}

/// A list or object that is not complete.
enum Open {
    List(Position, Vec<SourceNode>),
    /// The last name has no value yet if it is set.
    Object(
        Position,
        Vec<(String, Position, SourceNode)>,
        Option<(String, Position)>,
    ),
}

/// Parses the first document of a text; `None` if it is invalid, or has no parts.
fn parse_nodes(text: &str) -> Option<SourceNode> {
    // JSON may be indented by tabs, YAML may not.
    let spaced;
    let text = match text.trim_start().starts_with(['{', '[']) && text.contains('\t') {
        true => {
            spaced = text.replace('\t', " ");
            &spaced
        }
        false => text,
    };
    let mut open = Vec::new();
    for event in Parser::new_from_str(text) {
        let (event, span) = event.ok()?;
        let start = position(span.start);
        let node = match event {
            Event::SequenceStart(..) => {
                open.push(Open::List(start, Vec::new()));
                continue;
            }
            Event::MappingStart(..) => {
                open.push(Open::Object(start, Vec::new(), None));
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => close(open.pop()?),
            Event::Scalar(value, style, ..) => {
                if let Some(Open::Object(_, _, name @ None)) = open.last_mut() {
                    *name = Some((value.into_owned(), start));
                    continue;
                }
                SourceNode {
                    start,
                    content: Content::Scalar(scalar(span, style), value.into_owned()),
                }
            }
            Event::Alias(_) | Event::UnresolvedAlias(_) => SourceNode {
                start,
                content: Content::Alias,
            },
            Event::DocumentEnd | Event::StreamEnd => return None,
            _ => continue,
        };
        match open.last_mut() {
            None => return Some(node),
            Some(Open::List(_, items)) => items.push(node),
            Some(Open::Object(_, members, name)) => match name.take() {
                Some((name, at)) => members.push((name, at, node)),
                // A name that is a list or an object, which a Kubernetes object never has.
                None => *name = Some((String::new(), node.start)),
            },
        }
    }
    None
}

fn close(open: Open) -> SourceNode {
    let (start, content) = match open {
        Open::List(start, items) => (start, Content::List(items)),
        Open::Object(start, members, _) => (start, Content::Object(members)),
    };
    SourceNode { start, content }
}

fn position(marker: Marker) -> Position {
    Position {
        line: marker.line(),
        column: marker.col() + 1,
    }
}

fn scalar(span: Span, style: granit_parser::ScalarStyle) -> Scalar {
    Scalar {
        start: position(span.start),
        offset: span.start.byte_offset().unwrap_or_default(),
        style,
        is_on_one_line: span.start.line() == span.end.line(),
    }
}

/// Returns the error of a text that is not YAML; `json` is the result of a parser of JSON, if the text looks so.
fn syntax_error(
    text: &Text,
    yaml: &serde_saphyr::Error,
    json: Option<serde_json::Result<Value>>,
) -> SyntaxError {
    let (local, message) = match json {
        Some(Err(error)) => {
            let text = error.to_string();
            let message = format!("not JSON: {}", without_position(&text));
            (position_in_message(&text), message)
        }
        _ => (yaml_position(yaml), yaml_message(yaml)),
    };
    SyntaxError {
        position: text.position(local),
        local,
        message,
    }
}

fn yaml_position(error: &serde_saphyr::Error) -> Position {
    let location = error.without_snippet().location();
    location.map_or(Position::START, |at| Position {
        line: usize::try_from(at.line()).unwrap_or(1).max(1),
        column: usize::try_from(at.column()).unwrap_or(1).max(1),
    })
}

/// Returns the message of an error, without the position and what is for programmers.
fn yaml_message(error: &serde_saphyr::Error) -> String {
    let text = error.without_snippet().to_string();
    let message = without_position(text.lines().next().unwrap_or_default());
    if let Some(rest) = message.strip_prefix("duplicate mapping key: ") {
        let name = rest.split(',').next().unwrap_or_default();
        return format!("{name} is given twice");
    }
    if message.starts_with("multiple YAML documents") {
        return "not YAML: there is text after the end of the document".to_owned();
    }
    format!("not YAML: {message}")
}

/// Removes the position at the end of a message of a parser.
pub(super) fn without_position(message: &str) -> &str {
    message.rsplit_once(" at line ").map_or(message, |it| it.0)
}

/// The error about a line of a quoted text that is not indented. kubectl accepts it.
const QUOTED_INDENT: &str = "invalid indentation in multiline quoted scalar";
/// Maximum number of such lines that are indented: each costs a parse.
const MAX_INDENTED: usize = 200;

/// Parses YAML. Lines of quoted texts that must be indented more are, which does not change the texts.
fn parse_yaml(content: &mut String) -> Result<Value, serde_saphyr::Error> {
    let mut indented = 0;
    loop {
        let error = match serde_saphyr::from_str::<Value>(content) {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        let is_indent = error.without_snippet().to_string().contains(QUOTED_INDENT);
        let lines = content.split_inclusive('\n');
        let start = lines
            .take(yaml_position(&error).line - 1)
            .map(str::len)
            .sum();
        if !is_indent || indented == MAX_INDENTED || !content.is_char_boundary(start) {
            return Err(error);
        }
        content.insert_str(start, &" ".repeat(80));
        indented += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(text: &str) -> SourceDocument {
        let text = Text::new(text.to_owned(), 1);
        SourceDocument::parse(text).unwrap().unwrap()
    }

    fn at(document: &SourceDocument, place: FaultPlace) -> (usize, usize) {
        let Position { line, column } = document.position(&place);
        (line, column)
    }

    #[test]
    fn longest_name_is_meant() {
        let document = document("a:\n  x.io/b: [1, {c: 2}]\n  x: 3\n");
        assert_eq!(at(&document, FaultPlace::value("a.x.io/b[1].c")), (2, 19));
        assert_eq!(at(&document, FaultPlace::value("a[x.io/b]")), (2, 11));
        assert_eq!(at(&document, FaultPlace::name("a.x")), (3, 3));
        // The closest part that contains it.
        assert_eq!(at(&document, FaultPlace::value("a.y")), (1, 1));
        assert_eq!(lookup(&document.value, "a.x.io/b[1].c"), Some(&2.into()));
        assert_eq!(lookup(&document.value, "a.y"), None);
    }

    #[test]
    fn quoted_text_without_indentation_is_accepted() {
        let document = document("a:\n  b: '{\n  \"c\": 1\n}'\n  d: 2\n");
        assert_eq!(document.value["a"]["b"], "{ \"c\": 1 }");
        assert_eq!(at(&document, FaultPlace::value("a.d")), (5, 6));
    }

    #[test]
    fn texts_in_strings_have_positions() {
        let document = document(
            "l: |\n    {\n      \"a\": {\"b\": 1}\n    }\nq: '{\"a\": {\"it''s\": 2}}'\n\
             d: \"{\\\"a\\\": \\\"\\u00e4\\\", \\\"b\\\": 3}\"\nf: >\n  {\"a\":\n  1}\n\
             y: |\n  k: |\n    c: d\n",
        );
        let inside = |path: &str, inner: &str| at(&document, FaultPlace::value(inner).inside(path));
        assert_eq!(inside("l", "a.b"), (3, 18));
        assert_eq!(inside("q", "a.it's"), (5, 21));
        assert_eq!(inside("d", "b"), (6, 32));
        assert_eq!(inside("f", "a"), (8, 3));
        let deep = FaultPlace::value("c").inside("k").inside("y");
        assert_eq!(at(&document, deep), (12, 8));
    }
}
