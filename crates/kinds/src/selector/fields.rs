//! Field selectors.

use super::SelectorError;
use crate::Index;
use crate::resource::Resource;
use crate::status::quoted;

/// A conjunction of comparisons of selectable fields.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSelector {
    terms: Vec<FieldTerm>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct FieldTerm {
    field: String,
    value: String,
    equal: bool,
}

impl FieldSelector {
    /// Parses `a=b,c!=d`; `\` escapes `,`, `=` and itself in values.
    ///
    /// # Errors
    /// The invalid term.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut terms = Vec::new();
        for term in split_terms(text).into_iter().filter(|t| !t.is_empty()) {
            let bad = || {
                SelectorError(format!(
                    "invalid selector: {}; can't understand {}",
                    quoted(text),
                    quoted(&term)
                ))
            };
            let at = term.find(['=', '!']).ok_or_else(bad)?;
            let (field, rest) = term.split_at(at);
            let (equal, raw) = if let Some(raw) = rest.strip_prefix("==") {
                (true, raw)
            } else if let Some(raw) = rest.strip_prefix('=') {
                (true, raw)
            } else {
                (false, rest.strip_prefix("!=").ok_or_else(bad)?)
            };
            terms.push(FieldTerm {
                field: field.to_owned(),
                value: unescape(raw)?,
                equal,
            });
        }
        Ok(Self { terms })
    }

    /// Creates a selector for one object name.
    #[must_use]
    pub fn name(name: &str) -> Self {
        let term = FieldTerm {
            field: "metadata.name".to_owned(),
            value: name.to_owned(),
            equal: true,
        };
        Self { terms: vec![term] }
    }

    /// Adds the terms of another selector.
    pub fn and(&mut self, other: Self) {
        self.terms.extend(other.terms);
    }

    /// Returns true if every object matches.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        self.terms.is_empty()
    }

    /// Checks that the resource supports all fields, and converts their names to those of its index.
    ///
    /// # Errors
    /// The first unsupported field.
    pub fn check(&mut self, resource: &Resource) -> Result<(), SelectorError> {
        if resource.is("events.k8s.io", "events") {
            // Stored as core events, whose fields have other names.
            for term in &mut self.terms {
                if let Some(field) = term.field.strip_prefix("regarding.") {
                    term.field = format!("involvedObject.{field}");
                } else if term.field == "reportingController" {
                    "reportingComponent".clone_into(&mut term.field);
                }
            }
        }
        match self
            .terms
            .iter()
            .find(|t| !resource.supports_field(&t.field))
        {
            None => Ok(()),
            Some(t) => Err(SelectorError(format!(
                "field label not supported: {}",
                t.field
            ))),
        }
    }

    /// Returns the value that `field` must equal if the selector requires one; for lookups by index.
    #[must_use]
    pub fn required(&self, field: &str) -> Option<&str> {
        self.terms
            .iter()
            .find(|t| t.equal && t.field == field)
            .map(|t| t.value.as_str())
    }

    /// Returns true if an indexed object matches. Fields that the index lacks count as empty.
    #[must_use]
    pub fn matches(&self, namespace: &str, name: &str, index: &Index) -> bool {
        self.terms.iter().all(|t| {
            let value = match t.field.as_str() {
                "metadata.name" => name,
                "metadata.namespace" => namespace,
                field => index
                    .fields
                    .iter()
                    .find(|(f, _)| &**f == field)
                    .map_or("", |(_, v)| v),
            };
            (value == t.value) == t.equal
        })
    }
}

fn split_terms(text: &str) -> Vec<String> {
    let mut out = vec![String::new()];
    let mut escaped = false;
    for c in text.chars() {
        match c {
            ',' if !escaped => out.push(String::new()),
            _ => {
                if let Some(last) = out.last_mut() {
                    last.push(c);
                }
            }
        }
        escaped = c == '\\' && !escaped;
    }
    out
}

fn unescape(raw: &str) -> Result<String, SelectorError> {
    let mut out = String::with_capacity(raw.len());
    let mut chars = raw.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => out.push(c),
                other => {
                    let shown = other.map_or_else(|| "\\".to_owned(), |c| format!("\\{c}"));
                    return Err(SelectorError(format!(
                        "invalid field selector: invalid escape sequence: {shown}"
                    )));
                }
            },
            '=' | ',' => {
                return Err(SelectorError(format!(
                    "invalid field selector: unescaped character in value: {c}"
                )));
            }
            c => out.push(c),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn field_grammar() {
        let index = Index {
            fields: vec![
                ("spec.nodeName".into(), "n1".into()),
                ("reason".into(), "a,b".into()),
            ],
            ..Index::default()
        };
        for (text, expect) in [
            ("", true),
            ("spec.nodeName=n1", true),
            ("spec.nodeName==n1,metadata.name=p", true),
            ("spec.nodeName!=n1", false),
            ("involvedObject.namespace=", true),
            ("reason=a\\,b", true),
            ("metadata.namespace=other", false),
        ] {
            let s = FieldSelector::parse(text).unwrap();
            assert_eq!(s.matches("default", "p", &index), expect, "{text}");
        }
        assert!(FieldSelector::parse("abc").is_err());
        assert!(FieldSelector::parse("a=b\\x").is_err());
        assert!(FieldSelector::parse("a=b=c").is_err());
        assert_eq!(
            FieldSelector::parse("a!=x,spec.nodeName=n1")
                .unwrap()
                .required("spec.nodeName"),
            Some("n1")
        );
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in "[a-z0-9 ,=!<>()/.\\\\é-]{0,40}") {
            match FieldSelector::parse(&text) {
                Ok(fields) => {
                    let nothing = text.chars().all(|c| c == ',');
                    prop_assert_eq!(fields.is_everything(), nothing, "{}", text);
                }
                Err(e) => prop_assert!(e.0.starts_with("invalid "), "{text}: {e}"),
            }
            if let Err(e) = crate::jsonpath::Path::parse(&text) {
                prop_assert!(!e.to_string().is_empty(), "{text}");
            }
        }
    }
}
