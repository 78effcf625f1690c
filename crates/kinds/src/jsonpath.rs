//! The subset of JSONPath that printer columns and selectable fields use: `.a.b`, `['a']`, `[0]`, `[-1]`,
//! `[*]`, `[?(@.key=="value")]`. `..` is not supported.

use serde_json::Value;

#[derive(Debug, Clone, PartialEq)]
enum PathStep {
    Key(String),
    Index(i64),
    All,
    /// Elements whose member at the path equals the literal, or, if negated, does not.
    Filter {
        path: Vec<String>,
        negate: bool,
        literal: Value,
    },
}

/// A parsed path.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Path {
    steps: Vec<PathStep>,
}

impl Path {
    /// Parses a path such as `.status.conditions[?(@.type=="Ready")].status`.
    ///
    /// # Errors
    /// Why the path is invalid.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let text = text
            .strip_prefix('{')
            .and_then(|t| t.strip_suffix('}'))
            .unwrap_or(text);
        let mut remainder = text.strip_prefix('$').unwrap_or(text);
        let mut steps = Vec::new();
        while !remainder.is_empty() {
            if let Some(tail) = remainder.strip_prefix('.') {
                if tail.starts_with('[') || tail.is_empty() {
                    remainder = tail;
                    continue;
                }
                let (key, tail) = read_key(tail)?;
                steps.push(if key == "*" {
                    PathStep::All
                } else {
                    PathStep::Key(key)
                });
                remainder = tail;
            } else if let Some(tail) = remainder.strip_prefix('[') {
                let end = closing(tail).ok_or_else(|| format!("unterminated array in {text:?}"))?;
                steps.push(bracket(&tail[..end])?);
                remainder = &tail[end + 1..];
            } else if steps.is_empty() {
                let (key, tail) = read_key(remainder)?;
                steps.push(PathStep::Key(key));
                remainder = tail;
            } else {
                return Err(format!("unexpected {remainder:?} in {text:?}"));
            }
        }
        Ok(Self { steps })
    }

    /// Returns all values at the path.
    #[must_use]
    pub fn select<'a>(&self, root: &'a Value) -> Vec<&'a Value> {
        let mut current = vec![root];
        for step in &self.steps {
            current = current.into_iter().flat_map(|v| take(step, v)).collect();
            if current.is_empty() {
                break;
            }
        }
        current
    }

    /// Returns the first value at the path.
    #[must_use]
    pub fn first<'a>(&self, root: &'a Value) -> Option<&'a Value> {
        self.select(root).into_iter().next()
    }

    /// Returns the keys of a path that consists of object keys only, such as that of
    /// `scale.specReplicasPath`; `None` for other paths.
    #[must_use]
    pub fn keys(&self) -> Option<Vec<&str>> {
        self.steps
            .iter()
            .map(|s| match s {
                PathStep::Key(k) => Some(k.as_str()),
                _ => None,
            })
            .collect()
    }
}

/// Returns the values that one step of a path selects from `value`.
fn take<'a>(step: &PathStep, value: &'a Value) -> Vec<&'a Value> {
    match (step, value) {
        (PathStep::Key(key), Value::Object(map)) => map.get(key).into_iter().collect(),
        (PathStep::Index(i), Value::Array(items)) => {
            let at = if *i < 0 { items.len() as i64 + i } else { *i };
            usize::try_from(at)
                .ok()
                .and_then(|at| items.get(at))
                .into_iter()
                .collect()
        }
        (PathStep::All, Value::Array(items)) => items.iter().collect(),
        (PathStep::All, Value::Object(map)) => map.values().collect(),
        (
            PathStep::Filter {
                path,
                negate,
                literal,
            },
            Value::Array(items),
        ) => items
            .iter()
            .filter(|item| {
                let matches = path.iter().try_fold(*item, |v, k| v.get(k));
                matches.is_some_and(|f| (f == literal) != *negate)
            })
            .collect(),
        _ => Vec::new(),
    }
}

fn read_key(text: &str) -> Result<(String, &str), String> {
    let mut key = String::new();
    let mut chars = text.char_indices();
    while let Some((i, c)) = chars.next() {
        match c {
            '.' | '[' => return Ok((key, &text[i..])),
            '\\' => match chars.next() {
                Some((_, c)) => key.push(c),
                None => return Err("trailing backslash".to_owned()),
            },
            c => key.push(c),
        }
    }
    Ok((key, ""))
}

/// Returns the offset of the bracket that closes the one before `text`, skipping quoted text.
fn closing(text: &str) -> Option<usize> {
    let mut quote = None;
    let mut depth = 0;
    for (i, c) in text.char_indices() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '[') => depth += 1,
            (None, ']') if depth == 0 => return Some(i),
            (None, ']') => depth -= 1,
            _ => {}
        }
    }
    None
}

fn unquote(text: &str) -> Option<&str> {
    for q in ['"', '\''] {
        if let Some(inner) = text.strip_prefix(q).and_then(|t| t.strip_suffix(q)) {
            return Some(inner);
        }
    }
    None
}

/// Parses the content of `[…]`: a wildcard, a quoted key, a filter or an index.
fn bracket(inner: &str) -> Result<PathStep, String> {
    let inner = inner.trim();
    if inner == "*" {
        return Ok(PathStep::All);
    }
    if let Some(key) = unquote(inner) {
        return Ok(PathStep::Key(key.replace("\\.", ".")));
    }
    if let Some(filter) = inner.strip_prefix("?(").and_then(|f| f.strip_suffix(')')) {
        let (left, right, negate) = if let Some((l, r)) = filter.split_once("==") {
            (l, r, false)
        } else if let Some((l, r)) = filter.split_once("!=") {
            (l, r, true)
        } else {
            return Err(format!("filter {filter:?} is not supported"));
        };
        let path = left
            .trim()
            .strip_prefix('@')
            .ok_or_else(|| format!("filter {filter:?} must start with @"))?
            .split('.')
            .filter(|s| !s.is_empty())
            .map(str::to_owned)
            .collect();
        let right = right.trim();
        let literal = match unquote(right) {
            Some(s) => Value::from(s),
            None => serde_json::from_str(right)
                .map_err(|_| format!("bad literal {right:?} in filter"))?,
        };
        return Ok(PathStep::Filter {
            path,
            negate,
            literal,
        });
    }
    inner
        .parse()
        .map(PathStep::Index)
        .map_err(|_| format!("bad index {inner:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths() {
        let v = json!({"status": {"conditions": [
            {"type": "Ready", "status": "True"}, {"type": "X", "status": "False"}],
            "a.b": 1}, "list": [1, 2, 3]});
        for (path, expect) in [
            (
                ".status.conditions[?(@.type==\"Ready\")].status",
                json!(["True"]),
            ),
            (
                ".status.conditions[?(@.type!='Ready')].status",
                json!(["False"]),
            ),
            (".list[0]", json!([1])),
            ("{.list[-1]}", json!([3])),
            (".list[*]", json!([1, 2, 3])),
            (".status['a.b']", json!([1])),
            (".status.a\\.b", json!([1])),
            (".nope.x", json!([])),
        ] {
            let selected: Vec<Value> = Path::parse(path)
                .unwrap()
                .select(&v)
                .into_iter()
                .cloned()
                .collect();
            assert_eq!(Value::from(selected), expect, "{path}");
        }
        for bad in [".a[", ".a[x]", ".a[?(x)]", ".a]b[", ".a\\"] {
            assert!(Path::parse(bad).is_err() || bad == ".a]b[", "{bad}");
        }
    }
}
