//! Splits a list while it arrives.
//!
//! A list of 250 pods is megabytes of text and several times that once parsed; one pod is a few kilobytes. So
//! a list is split into its items while its text arrives, and only one item is held in memory.

use koord_api::lenient::ReadError;

/// Splits the text of a JSON list into its `items`. Text outside the items is only scanned to find them; the
/// reader of an item checks it.
#[derive(Debug, Default)]
pub(super) struct Splitter {
    /// Open brackets and braces. The list's fields are at 1, its items at 2.
    depth: usize,
    in_string: bool,
    /// True after a backslash in a string.
    escaped: bool,
    state: ParserState,
    /// The last field name, or a part of it.
    name: Vec<u8>,
    /// Start of an item whose end has not arrived yet.
    item: Vec<u8>,
    found: bool,
}

/// Position in the list.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum ParserState {
    /// Before the opening brace.
    #[default]
    Start,
    /// Before a field's name or the closing brace.
    Name,
    /// Between the name and the value.
    Colon,
    /// Before a value.
    Value,
    /// In a value that is skipped.
    Other,
    /// Between the brackets of `items`.
    Items,
    /// After the closing brace.
    End,
}

/// Name of the field with the items.
const ITEMS: &[u8] = b"items";

impl Splitter {
    /// Scans the next part of the text and passes each complete item to `each`.
    ///
    /// # Errors
    /// When the text scanned so far is no list.
    pub(super) fn feed(
        &mut self,
        part: &[u8],
        mut each: impl FnMut(&[u8]),
    ) -> Result<(), ReadError> {
        // Start of the item in this part.
        let mut begin = 0;
        for (at, byte) in part.iter().copied().enumerate() {
            if self.in_string {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => {
                        self.in_string = false;
                        if self.state == ParserState::Name {
                            self.state = ParserState::Colon;
                        }
                        continue;
                    }
                    _ => {}
                }
                if self.state == ParserState::Name && self.name.len() <= ITEMS.len() {
                    self.name.push(byte);
                }
                continue;
            }
            if byte.is_ascii_whitespace() {
                continue;
            }
            match (self.state, byte) {
                (ParserState::Start, b'{') => (self.state, self.depth) = (ParserState::Name, 1),
                (ParserState::Name, b'"') => {
                    self.name.clear();
                    self.in_string = true;
                }
                (ParserState::Name, b',') => {}
                (ParserState::Name | ParserState::Other, b'}') if self.depth == 1 => {
                    (self.state, self.depth) = (ParserState::End, 0);
                }
                (ParserState::Colon, b':') => self.state = ParserState::Value,
                (ParserState::Value, _) if self.name == ITEMS => {
                    (self.state, self.found) = match byte {
                        b'[' => (ParserState::Items, true),
                        b'n' => (ParserState::Other, true),
                        _ => return Err(field("is no list")),
                    };
                    self.depth += usize::from(byte == b'[');
                    begin = at + 1;
                }
                (ParserState::Value, _) => {
                    self.state = ParserState::Other;
                    self.open_or_close(byte);
                }
                (ParserState::Other, b',') if self.depth == 1 => self.state = ParserState::Name,
                (ParserState::Items, b',' | b']') if self.depth == 2 => {
                    self.emit(part.get(begin..at).unwrap_or_default(), &mut each);
                    begin = at + 1;
                    if byte == b']' {
                        (self.state, self.depth) = (ParserState::Other, 1);
                    }
                }
                (ParserState::Other | ParserState::Items, _) => {
                    self.open_or_close(byte);
                    let least = if self.state == ParserState::Items {
                        2
                    } else {
                        1
                    };
                    if self.depth < least {
                        return Err(syntax("brackets do not fit"));
                    }
                }
                _ => return Err(syntax("this is no list")),
            }
        }
        if self.state == ParserState::Items {
            self.item.extend(part.get(begin..).unwrap_or_default());
        }
        Ok(())
    }

    /// Checks that the list is complete.
    ///
    /// # Errors
    /// When it ends early, or has no items.
    pub(super) fn finish(self) -> Result<(), ReadError> {
        match (self.state, self.found) {
            (ParserState::End, true) => Ok(()),
            (ParserState::End, false) => Err(field("is missing")),
            _ => Err(syntax("the text ends within the list")),
        }
    }

    fn open_or_close(&mut self, byte: u8) {
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
    }

    fn emit(&mut self, rest: &[u8], each: &mut impl FnMut(&[u8])) {
        let item = if self.item.is_empty() {
            rest
        } else {
            self.item.extend(rest);
            &self.item
        };
        let item = item.trim_ascii();
        if !item.is_empty() {
            each(item);
        }
        self.item.clear();
    }
}

fn syntax(problem: &str) -> ReadError {
    ReadError::Syntax(problem.to_owned())
}

fn field(message: &str) -> ReadError {
    ReadError::Field {
        path: "items".to_owned(),
        message: message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    /// Returns the items of `text` when it arrives in parts of `size` bytes.
    fn split(text: &str, size: usize) -> Result<Vec<String>, String> {
        let (mut splitter, mut items) = (Splitter::default(), Vec::new());
        for part in text.as_bytes().chunks(size) {
            splitter
                .feed(part, |item| {
                    items.push(String::from_utf8(item.to_vec()).unwrap());
                })
                .map_err(|error| error.to_string())?;
        }
        splitter.finish().map_err(|error| error.to_string())?;
        Ok(items)
    }

    #[test]
    fn items_wherever_they_are() {
        for (text, want) in [
            (r#"{"items":[]}"#, vec![]),
            (r#"{"items":null}"#, vec![]),
            (
                r#" {"kind" : "List", "items" : [ {"a":"]},{"} , 7, "x\"," ] } "#,
                vec![r#"{"a":"]},{"}"#, "7", r#""x\",""#],
            ),
            // Names that only look like it.
            (
                r#"{"a":{"items":[1]},"b":["items"],"itemsx":[2],"items":[3],"c":"items"}"#,
                vec!["3"],
            ),
        ] {
            for size in [1, 2, 3, 7, 1000] {
                assert_eq!(split(text, size).unwrap(), want, "{size}: {text}");
            }
        }
    }

    #[test]
    fn invalid_list_is_an_error() {
        for (text, want) in [
            ("", "not JSON: the text ends within the list"),
            ("<html>", "not JSON: this is no list"),
            ("[]", "not JSON: this is no list"),
            (r#"{"kind":"PodList"}"#, "field items: is missing"),
            ("{}", "field items: is missing"),
            (r#"{"items":7}"#, "field items: is no list"),
            (r#"{"items":{}}"#, "field items: is no list"),
            (
                r#"{"items":[{"a":1}"#,
                "not JSON: the text ends within the list",
            ),
            (
                r#"{"items":[{}]"#,
                "not JSON: the text ends within the list",
            ),
            (r#"{"items":[}]}"#, "not JSON: brackets do not fit"),
            (r#"{"items":[]} x"#, "not JSON: this is no list"),
        ] {
            assert_eq!(split(text, 3).unwrap_err(), want, "{text}");
        }
    }

    fn value() -> impl Strategy<Value = Value> {
        let text = "[a-z\"\\\\,\\[\\]{}: é\n]{0,8}";
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<i32>().prop_map(Value::from),
            text.prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(text, inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn as_a_parser_of_the_whole_finds_them(
            items in prop::collection::vec(value(), 0..5),
            (before, after) in (value(), value()),
            size in 1_usize..40,
            pretty in any::<bool>(),
        ) {
            let list = json!({"a": before, "items": items, "z": after});
            let text = if pretty {
                serde_json::to_string_pretty(&list).unwrap()
            } else {
                list.to_string()
            };
            let texts = split(&text, size).unwrap();
            let values: Vec<Value> =
                texts.iter().map(|item| serde_json::from_str(item).unwrap()).collect();
            prop_assert_eq!(values, items);
        }

        #[test]
        fn any_text_is_handled(text in "[\\[\\]{}\":,a\\\\ items]{0,40}", size in 1_usize..9) {
            let _ = split(&text, size);
        }
    }
}
