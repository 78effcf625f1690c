//! Label selectors: the query-string grammar and the `LabelSelector` of API objects.

use std::collections::{BTreeSet, HashMap};

use serde_json::Value;

use super::SelectorError;
use crate::Index;
use crate::meta;
use crate::names;
use crate::status::quoted;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Operator {
    In(BTreeSet<String>),
    NotIn(BTreeSet<String>),
    Exists,
    Absent,
    Greater(i64),
    Less(i64),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    key: String,
    operator: Operator,
}

impl Requirement {
    fn matches(&self, value: Option<&str>) -> bool {
        match (&self.operator, value) {
            (Operator::In(set), Some(v)) => set.contains(v),
            (Operator::NotIn(set), Some(v)) => !set.contains(v),
            (Operator::Exists, v) => v.is_some(),
            (Operator::NotIn(_) | Operator::Absent, None) => true,
            (Operator::Greater(n), Some(v)) => v.parse::<i64>().is_ok_and(|v| v > *n),
            (Operator::Less(n), Some(v)) => v.parse::<i64>().is_ok_and(|v| v < *n),
            (Operator::Absent, Some(_)) | (_, None) => false,
        }
    }
}

/// Number of requirements times labels up to which labels are searched linearly.
const MAX_SEARCHED: usize = 1024;

/// A conjunction of requirements on labels.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
    /// True if no object matches (a null `LabelSelector` field in an API object).
    nothing: bool,
}

impl LabelSelector {
    /// Returns the selector that every object matches.
    #[must_use]
    pub fn everything() -> Self {
        Self::default()
    }

    /// Returns the selector that no object matches.
    #[must_use]
    pub fn nothing() -> Self {
        Self {
            nothing: true,
            ..Self::default()
        }
    }

    /// Returns true if every object matches.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty() && !self.nothing
    }

    /// Parses the query-string form, e.g. `a=b,c in (d,e),!f`.
    ///
    /// # Errors
    /// The message names the invalid part.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut parser = SelectorParser {
            tokens: tokenize(text),
            at: 0,
        };
        let mut requirements = Vec::new();
        loop {
            match parser.peek() {
                Token::End => break,
                Token::Word(_) | Token::Not => requirements.push(parser.requirement()?),
                other => {
                    return Err(parse_error(&format!(
                        "found '{}', expected: !, identifier, or 'end of string'",
                        other.text()
                    )));
                }
            }
            match parser.next() {
                Token::End => break,
                Token::Comma => match parser.peek() {
                    Token::Word(_) | Token::Not => {}
                    other => {
                        return Err(parse_error(&format!(
                            "found '{}', expected: identifier after ','",
                            other.text()
                        )));
                    }
                },
                other => {
                    return Err(parse_error(&format!(
                        "found '{}', expected: ',' or 'end of string'",
                        other.text()
                    )));
                }
            }
        }
        Ok(Self {
            requirements,
            nothing: false,
        })
    }

    /// Converts a `metav1.LabelSelector` JSON object. `Null` or absent selects nothing, `{}` everything.
    ///
    /// # Errors
    /// The message names the invalid expression.
    pub fn from_json(value: Option<&Value>) -> Result<Self, SelectorError> {
        let Some(map) = value.and_then(Value::as_object) else {
            return Ok(Self::nothing());
        };
        let mut out = Self::from_map(map.get("matchLabels").unwrap_or(&Value::Null));
        let expressions = map.get("matchExpressions").and_then(Value::as_array);
        for e in expressions.into_iter().flatten() {
            let key = meta::str_at(e, &["key"]).to_owned();
            let values: BTreeSet<String> = e
                .get("values")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .filter_map(|v| v.as_str().map(str::to_owned))
                .collect();
            let operator = match meta::str_at(e, &["operator"]) {
                "In" => Operator::In(values),
                "NotIn" => Operator::NotIn(values),
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::Absent,
                other => {
                    return Err(SelectorError(format!(
                        "{} is not a valid label selector operator",
                        quoted(other)
                    )));
                }
            };
            out.requirements.push(Requirement { key, operator });
        }
        Ok(out)
    }

    /// Converts a map of labels (`spec.selector` of a Service or ReplicationController).
    #[must_use]
    pub fn from_map(labels: &Value) -> Self {
        let requirements = labels
            .as_object()
            .into_iter()
            .flatten()
            .map(|(k, v)| Requirement {
                key: k.clone(),
                operator: Operator::In(BTreeSet::from([v.as_str().unwrap_or_default().to_owned()])),
            })
            .collect();
        Self {
            requirements,
            nothing: false,
        }
    }

    /// Returns true if the labels of an indexed object match.
    #[must_use]
    pub fn matches(&self, index: &Index) -> bool {
        if self.requirements.len().saturating_mul(index.labels.len()) <= MAX_SEARCHED {
            return self.matches_labels(|key| index.label(key));
        }
        let labels: HashMap<&str, &str> = index.labels.iter().map(|(k, v)| (&**k, &**v)).collect();
        self.matches_labels(|key| labels.get(key).copied())
    }

    /// Returns true if `metadata.labels` of a JSON object match.
    #[must_use]
    pub fn matches_object(&self, object: &Value) -> bool {
        let labels = meta::at(object, &["metadata", "labels"]);
        self.matches_labels(|key| labels.and_then(|l| l.get(key)).and_then(Value::as_str))
    }

    /// Returns true if the labels that `lookup` returns match.
    #[must_use]
    pub fn matches_labels<'a>(&self, lookup: impl Fn(&str) -> Option<&'a str>) -> bool {
        !self.nothing && self.requirements.iter().all(|r| r.matches(lookup(&r.key)))
    }
}

fn parse_error(reason: &str) -> SelectorError {
    SelectorError(format!("unable to parse requirement: {reason}"))
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Word(String),
    Not,
    Equal,
    DoubleEqual,
    NotEqual,
    Greater,
    Less,
    Open,
    Close,
    Comma,
    End,
}

impl Token {
    fn text(&self) -> &str {
        match self {
            Self::Word(w) => w,
            Self::Not => "!",
            Self::Equal => "=",
            Self::DoubleEqual => "==",
            Self::NotEqual => "!=",
            Self::Greater => ">",
            Self::Less => "<",
            Self::Open => "(",
            Self::Close => ")",
            Self::Comma => ",",
            Self::End => "",
        }
    }
}

/// Splits a selector into tokens.
fn tokenize(text: &str) -> Vec<Token> {
    let mut out = Vec::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let token = match c {
            ' ' | '\t' | '\r' | '\n' => continue,
            '(' => Token::Open,
            ')' => Token::Close,
            ',' => Token::Comma,
            '>' => Token::Greater,
            '<' => Token::Less,
            '!' if chars.next_if_eq(&'=').is_some() => Token::NotEqual,
            '!' => Token::Not,
            '=' if chars.next_if_eq(&'=').is_some() => Token::DoubleEqual,
            '=' => Token::Equal,
            first => {
                let mut word = String::from(first);
                while let Some(c) = chars.next_if(|c| !" \t\r\n(),><!=".contains(*c)) {
                    word.push(c);
                }
                Token::Word(word)
            }
        };
        out.push(token);
    }
    out.push(Token::End);
    out
}

struct SelectorParser {
    tokens: Vec<Token>,
    at: usize,
}

impl SelectorParser {
    fn peek(&self) -> Token {
        self.tokens.get(self.at).cloned().unwrap_or(Token::End)
    }

    fn next(&mut self) -> Token {
        let token = self.peek();
        self.at += 1;
        token
    }

    fn key(&mut self) -> Result<String, SelectorError> {
        match self.next() {
            Token::Word(key) => {
                if let Some(reason) = names::qualified_name(&key).into_iter().next() {
                    return Err(parse_error(&format!(
                        "<nil>: Invalid value: {}: {reason}",
                        quoted(&key)
                    )));
                }
                Ok(key)
            }
            other => Err(parse_error(&format!(
                "found '{}', expected: identifier",
                other.text()
            ))),
        }
    }

    /// Parses one requirement of a selector.
    fn requirement(&mut self) -> Result<Requirement, SelectorError> {
        if self.peek() == Token::Not {
            self.next();
            return Ok(Requirement {
                key: self.key()?,
                operator: Operator::Absent,
            });
        }
        let key = self.key()?;
        if matches!(self.peek(), Token::End | Token::Comma) {
            return Ok(Requirement {
                key,
                operator: Operator::Exists,
            });
        }
        let operator = match self.next() {
            Token::Equal | Token::DoubleEqual => Operator::In(BTreeSet::from([self.value(&key)?])),
            Token::NotEqual => Operator::NotIn(BTreeSet::from([self.value(&key)?])),
            Token::Greater => Operator::Greater(self.integer(&key)?),
            Token::Less => Operator::Less(self.integer(&key)?),
            Token::Word(w) if w == "in" => Operator::In(self.values(&key)?),
            Token::Word(w) if w == "notin" => Operator::NotIn(self.values(&key)?),
            other => {
                return Err(parse_error(&format!(
                    "found '{}', expected: in, notin, =, ==, !=, gt, lt",
                    other.text()
                )));
            }
        };
        Ok(Requirement { key, operator })
    }

    /// Parses the value after `=`; a missing one is the empty value.
    fn value(&mut self, key: &str) -> Result<String, SelectorError> {
        match self.peek() {
            Token::End | Token::Comma => Ok(String::new()),
            Token::Word(value) => {
                self.next();
                check_value(key, value)
            }
            other => Err(parse_error(&format!(
                "found '{}', expected: identifier",
                other.text()
            ))),
        }
    }

    fn integer(&mut self, key: &str) -> Result<i64, SelectorError> {
        let text = self.value(key)?;
        text.parse().map_err(|_| {
            parse_error(&format!(
                "values[0][{key}]: Invalid value: {}: for 'Gt', 'Lt' operators, the value must be an integer",
                quoted(&text)
            ))
        })
    }

    /// Parses the parenthesized values of a set-based requirement.
    fn values(&mut self, key: &str) -> Result<BTreeSet<String>, SelectorError> {
        match self.next() {
            Token::Open => {}
            other => {
                return Err(parse_error(&format!(
                    "found '{}', expected: '('",
                    other.text()
                )));
            }
        }
        let mut out = BTreeSet::new();
        loop {
            match self.next() {
                Token::Word(value) => {
                    out.insert(check_value(key, value)?);
                    match self.next() {
                        Token::Comma => {
                            if self.peek() == Token::Close {
                                out.insert(String::new());
                            }
                        }
                        Token::Close => return Ok(out),
                        other => {
                            return Err(parse_error(&format!(
                                "found '{}', expected: ',' or ')'",
                                other.text()
                            )));
                        }
                    }
                }
                Token::Comma => {
                    out.insert(String::new());
                }
                Token::Close => {
                    if out.is_empty() {
                        out.insert(String::new());
                    }
                    return Ok(out);
                }
                other => {
                    return Err(parse_error(&format!(
                        "found '{}', expected: ',', ')' or identifier",
                        other.text()
                    )));
                }
            }
        }
    }
}

fn check_value(key: &str, value: String) -> Result<String, SelectorError> {
    match names::label_value(&value) {
        None => Ok(value),
        Some(reason) => Err(parse_error(&format!(
            "values[0][{key}]: Invalid value: {}: {reason}",
            quoted(&value)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;
    use std::sync::Arc;

    fn labels(pairs: &[(&str, &str)]) -> Index {
        Index {
            labels: pairs
                .iter()
                .map(|(k, v)| (Arc::from(*k), Arc::from(*v)))
                .collect(),
            ..Index::default()
        }
    }

    #[test]
    fn label_grammar() {
        let web = labels(&[("app", "web"), ("n", "7")]);
        for (text, expect) in [
            ("", true),
            ("app", true),
            ("!app", false),
            ("!missing", true),
            ("app=web", true),
            ("app == web , n", true),
            ("app!=web", false),
            ("missing!=x", true),
            ("app in (web, db)", true),
            ("app notin (web)", false),
            ("missing notin (web)", true),
            ("n>5,n<8", true),
            ("n>7", false),
            ("missing=", false),
            ("app in (db,)", false),
            ("in", false),
        ] {
            let s = LabelSelector::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(s.matches(&web), expect, "{text}");
        }
        for bad in [
            "app=(", "=x", "a b", "a in b", "a in (b", "a,,b", "a>x", "a=b,", "-a=b", "a=-",
        ] {
            let e = LabelSelector::parse(bad).expect_err(bad);
            assert!(
                e.0.starts_with("unable to parse requirement: "),
                "{bad}: {e}"
            );
        }
    }

    #[test]
    fn label_selector_objects() {
        let object = json!({"metadata": {"labels": {"a": "b"}}});
        let s = |v: Value| LabelSelector::from_json(Some(&v)).unwrap();
        assert!(s(json!({})).matches_object(&object));
        assert!(!s(Value::Null).matches_object(&object));
        assert!(s(json!({"matchLabels": {"a": "b"}})).matches_object(&object));
        let e = json!({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["b"]}]});
        assert!(!s(e).matches_object(&object));
        assert!(
            LabelSelector::from_json(Some(&json!({"matchExpressions": [{"operator": "X"}]})))
                .is_err()
        );
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in "[a-z0-9 ,=!<>()/.\\\\é-]{0,40}") {
            if let Err(e) = LabelSelector::parse(&text) {
                prop_assert!(e.0.starts_with("unable to parse requirement: "), "{text}: {e}");
            }
        }
    }
}
