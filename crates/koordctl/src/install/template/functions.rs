//! The functions of Go templates, sprig and Helm that the chart uses.

use super::value::Datum;
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Calls `.Files.Get` or `.Files.Glob` of the chart's `files`. A glob has one `*`, which matches no `/`.
pub(super) fn file(
    files: &BTreeMap<String, String>,
    base: &Datum,
    method: &str,
    argument: &Datum,
) -> Result<Datum> {
    ensure!(
        matches!(base, Datum::Files),
        "{method} is no method of a value"
    );
    let pattern = argument.display();
    if method == "Get" {
        return Ok(Datum::text(
            files.get(&pattern).cloned().unwrap_or_default(),
        ));
    }
    let (start, end) = pattern
        .split_once('*')
        .with_context(|| format!("pattern {pattern:?} has no *"))?;
    let matching = files.iter().filter(|(path, _)| {
        let rest = path.strip_prefix(start).and_then(|it| it.strip_suffix(end));
        rest.is_some_and(|it| !it.contains('/'))
    });
    Ok(Datum::map(matching.map(|(path, text)| {
        (path.clone(), Datum::text(text.as_str()))
    })))
}

/// Calls a function. The last argument of a pipeline is the last one here.
pub(super) fn call(name: &str, arguments: &[Datum]) -> Result<Datum> {
    if let Some(result) = texts(name, arguments)
        .or_else(|| collections(name, arguments))
        .or_else(|| logic(name, arguments))
    {
        return result;
    }
    if let Some(result) = formats(name, arguments) {
        return result;
    }
    bail!("{name} is not supported with {} arguments", arguments.len())
}

/// Calls a function of texts; `None` if there is none of this name and number of arguments.
fn texts(name: &str, arguments: &[Datum]) -> Option<Result<Datum>> {
    let text = |index: usize| arguments.get(index).map(Datum::display).unwrap_or_default();
    Some(Ok(match (name, arguments.len()) {
        ("trim", 1) => Datum::text(text(0).trim()),
        ("toString", 1) => Datum::text(text(0)),
        ("quote", 1) => match &arguments[0] {
            Datum::Null => Datum::text(""),
            value => Datum::text(quoted(&value.display())),
        },
        ("trimSuffix", 2) => {
            let whole = text(1);
            Datum::text(whole.strip_suffix(text(0).as_str()).unwrap_or(&whole))
        }
        ("trimPrefix", 2) => {
            let whole = text(1);
            Datum::text(whole.strip_prefix(text(0).as_str()).unwrap_or(&whole))
        }
        ("hasPrefix", 2) => Datum::Bool(text(1).starts_with(text(0).as_str())),
        ("hasSuffix", 2) => Datum::Bool(text(1).ends_with(text(0).as_str())),
        ("contains", 2) => Datum::Bool(text(1).contains(text(0).as_str())),
        ("replace", 3) => Datum::text(text(2).replace(text(0).as_str(), &text(1))),
        ("base", 1) => {
            let path = text(0);
            Datum::text(path.rsplit('/').next().unwrap_or_default())
        }
        ("splitList", 2) => {
            let whole = text(1);
            let parts = whole.split(text(0).as_str()).map(Datum::text).collect();
            Datum::list(parts)
        }
        ("splitn", 3) => {
            let count = arguments[1].number().unwrap_or_default();
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a small number in a template"
            )]
            let count = count as usize;
            let (separator, whole) = (text(0), text(2));
            let parts = whole.splitn(count, separator.as_str()).map(Datum::text);
            Datum::map(
                parts
                    .enumerate()
                    .map(|(index, part)| (format!("_{index}"), part)),
            )
        }
        ("indent" | "nindent", 2) => {
            let width = match &arguments[0] {
                Datum::Int(width) => usize::try_from(*width).unwrap_or_default(),
                _ => return Some(Err(anyhow!("expected a number of spaces"))),
            };
            let pad = " ".repeat(width);
            let start = if name == "nindent" { "\n" } else { "" };
            let lines = text(1).replace('\n', &format!("\n{pad}"));
            Datum::text(format!("{start}{pad}{lines}"))
        }
        ("sha256sum", 1) => {
            let digest = ring::digest::digest(&ring::digest::SHA256, text(0).as_bytes());
            let mut hex = String::new();
            for byte in digest.as_ref() {
                // Writing to a String cannot fail.
                let _ = write!(hex, "{byte:02x}");
            }
            Datum::text(hex)
        }
        ("fail", 1) => return Some(Err(anyhow!(text(0)))),
        ("required", 2) => {
            let value = &arguments[1];
            if matches!(value, Datum::Null) || value.display().is_empty() {
                return Some(Err(anyhow!(text(0))));
            }
            value.clone()
        }
        ("printf", 1..) => return Some(print_formatted(&text(0), &arguments[1..])),
        _ => return None,
    }))
}

/// Calls a function of lists and maps.
fn collections(name: &str, arguments: &[Datum]) -> Option<Result<Datum>> {
    Some(Ok(match (name, arguments) {
        ("list", items) => Datum::list(items.to_vec()),
        ("dict", entries) if entries.len().is_multiple_of(2) => {
            let pairs = entries.chunks_exact(2);
            Datum::map(pairs.map(|pair| (pair[0].display(), pair[1].clone())))
        }
        ("get", [Datum::Map(map), key]) => {
            let value = map.borrow().get(&key.display()).cloned();
            value.unwrap_or_else(|| Datum::text(""))
        }
        ("set", [Datum::Map(map), key, value]) => {
            map.borrow_mut().insert(key.display(), value.clone());
            arguments[0].clone()
        }
        ("hasKey", [Datum::Map(map), key]) => {
            Datum::Bool(map.borrow().contains_key(&key.display()))
        }
        ("has", [_, Datum::Null]) => Datum::Bool(false),
        ("has", [item, Datum::List(items)]) => Datum::Bool(items.iter().any(|it| it.equals(item))),
        ("append", [Datum::List(items), item]) => {
            let mut items = items.to_vec();
            items.push(item.clone());
            Datum::list(items)
        }
        ("prepend", [Datum::List(items), item]) => {
            let mut items = items.to_vec();
            items.insert(0, item.clone());
            Datum::list(items)
        }
        ("without", [Datum::List(items), removed @ ..]) => {
            let kept = items
                .iter()
                .filter(|item| !removed.iter().any(|it| it.equals(item)));
            Datum::list(kept.cloned().collect())
        }
        ("first", [Datum::List(items)]) => items.first().cloned().unwrap_or(Datum::Null),
        ("join", [separator, Datum::List(items)]) => {
            let texts: Vec<String> = items.iter().map(Datum::display).collect();
            Datum::text(texts.join(&separator.display()))
        }
        ("len", [Datum::List(items)]) => Datum::Int(i64::try_from(items.len()).unwrap_or(i64::MAX)),
        _ => return None,
    }))
}

/// Calls a function of conditions and numbers.
fn logic(name: &str, arguments: &[Datum]) -> Option<Result<Datum>> {
    Some(Ok(match (name, arguments) {
        ("not", [value]) => Datum::Bool(!value.is_true()),
        ("eq", [first, others @ ..]) if !others.is_empty() => {
            Datum::Bool(others.iter().any(|it| it.equals(first)))
        }
        ("ne", [first, second]) => Datum::Bool(!first.equals(second)),
        ("lt" | "gt", [first, second]) => {
            let (Some(first), Some(second)) = (first.number(), second.number()) else {
                return Some(Err(anyhow!("only numbers are compared")));
            };
            Datum::Bool(if name == "lt" {
                first < second
            } else {
                first > second
            })
        }
        ("default", [fallback, value]) => {
            if value.is_true() {
                value.clone()
            } else {
                fallback.clone()
            }
        }
        ("default", [fallback]) => fallback.clone(),
        ("ternary", [yes, no, condition]) => {
            if condition.is_true() {
                yes.clone()
            } else {
                no.clone()
            }
        }
        ("int", [value]) => match value {
            #[allow(clippy::cast_possible_truncation, reason = "Helm truncates too")]
            Datum::Float(number) => Datum::Int(*number as i64),
            Datum::Int(number) => Datum::Int(*number),
            other => Datum::Int(other.display().parse().unwrap_or_default()),
        },
        ("kindIs", [kind, value]) => Datum::Bool(kind.display() == value.kind()),
        ("semverCompare", [constraint, version]) => {
            return Some(is_at_least(&constraint.display(), &version.display()).map(Datum::Bool));
        }
        _ => return None,
    }))
}

/// Calls a function that reads or writes JSON or YAML.
fn formats(name: &str, arguments: &[Datum]) -> Option<Result<Datum>> {
    let [value] = arguments else {
        return None;
    };
    Some(match name {
        "toJson" => Ok(Datum::text(value.to_json().to_string())),
        "toYaml" => serde_saphyr::to_string(&value.to_json())
            .context("failed to write YAML")
            .map(|text| Datum::text(text.trim_end_matches('\n'))),
        "fromJson" => serde_json::from_str(&value.display())
            .context("invalid JSON")
            .map(|value: Value| Datum::from_json(&value)),
        "fromYaml" => from_yaml(&value.display()).map(|value| Datum::from_json(&value)),
        _ => return None,
    })
}

/// Parses a YAML document; one without content is an empty map.
fn from_yaml(text: &str) -> Result<Value> {
    let mut lines = text.lines().map(str::trim_start);
    if lines.all(|line| line.is_empty() || line.starts_with('#')) {
        return Ok(Value::Object(serde_json::Map::new()));
    }
    serde_saphyr::from_str(text).context("invalid YAML")
}

/// Returns a text in double quotes.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// Formats as Go's `printf`, with the verbs `s`, `v`, `d` and `q`.
fn print_formatted(format: &str, arguments: &[Datum]) -> Result<Datum> {
    let mut arguments = arguments.iter();
    let mut text = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            text.push(character);
            continue;
        }
        let verb = characters.next();
        if verb == Some('%') {
            text.push('%');
            continue;
        }
        let argument = arguments.next().context("too few arguments")?;
        match verb {
            Some('s' | 'v' | 'd') => text.push_str(&argument.display()),
            Some('q') => text.push_str(&quoted(&argument.display())),
            other => bail!("unsupported verb {other:?}"),
        }
    }
    ensure!(arguments.next().is_none(), "too many arguments");
    Ok(Datum::text(text))
}

/// Returns true if a version fulfills a constraint `>= MAJOR.MINOR.PATCH-0`, which pre-releases fulfill too.
///
/// # Errors
/// Another constraint, or no version.
pub(crate) fn is_at_least(constraint: &str, version: &str) -> Result<bool> {
    let minimum = constraint
        .strip_prefix(">=")
        .and_then(|it| it.trim().strip_suffix("-0"))
        .with_context(|| format!("unsupported constraint {constraint:?}"))?;
    Ok(numbers(version)? >= numbers(minimum)?)
}

/// Returns major, minor and patch of a version.
fn numbers(version: &str) -> Result<[u32; 3]> {
    let plain = version.trim().trim_start_matches('v');
    let plain = plain.split(['-', '+']).next().unwrap_or_default();
    let mut numbers = [0; 3];
    let mut count = 0;
    for (index, part) in plain.split('.').enumerate() {
        let number = numbers
            .get_mut(index)
            .with_context(|| format!("invalid version {version:?}"))?;
        *number = part
            .parse()
            .with_context(|| format!("invalid version {version:?}"))?;
        count = index + 1;
    }
    ensure!(
        count >= 2,
        "invalid version {version:?}: expected MAJOR.MINOR.PATCH"
    );
    Ok(numbers)
}
