//! Query parameters.

use super::options::{FieldValidation, WriteOptions};
use super::path::percent_decode;
use koord_kinds::status::{ApiError, FieldError};
use std::time::Duration;

/// Longest duration of a request that does not stay open, as upstream's `--request-timeout`.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Decoded query parameters, in order. Unknown ones are ignored, as in every Kubernetes server.
#[derive(Debug, Clone, Default)]
pub(super) struct Query(Vec<(String, String)>);

/// Checks the `timeout` of a query string, for requests that are answered before it is parsed.
///
/// # Errors
/// 400 if it is not a duration in Go's format.
pub(crate) fn check_timeout(query: &str) -> Result<(), ApiError> {
    Query::parse(query)?.timeout().map(drop)
}

impl Query {
    /// Decodes a query string.
    ///
    /// # Errors
    /// 400 for a parameter that cannot be decoded: ignoring a selector would widen the request, for example a
    /// deletion, to everything.
    pub(super) fn parse(text: &str) -> Result<Self, ApiError> {
        let decode = |text: &str| percent_decode(&text.replace('+', " "));
        text.split('&')
            .filter(|p| !p.is_empty())
            .map(|pair| {
                let (k, v) = pair.split_once('=').unwrap_or((pair, ""));
                decode(k).zip(decode(v)).ok_or_else(|| {
                    ApiError::bad_request(format!(
                        "invalid query parameter {pair:?}: broken percent encoding"
                    ))
                })
            })
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Returns the first value of `name`; empty values count as absent.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(k, _)| k == name)
            .map(|(_, v)| v.as_str())
            .filter(|v| !v.is_empty())
    }

    /// Returns all values of a parameter that may be repeated.
    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let values = self.0.iter().filter(move |(k, _)| k == name);
        values.map(|(_, v)| v.as_str())
    }

    /// Returns the parameter `name` as a boolean in Go's spelling; `None` if it is absent. Empty is true, as in
    /// Kubernetes.
    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        let value = self
            .0
            .iter()
            .find(|(k, _)| k == name)
            .map(|(_, v)| v.as_str())?;
        Some(!matches!(
            value,
            "0" | "false" | "False" | "FALSE" | "f" | "F"
        ))
    }

    /// Returns the parameter `name` as a decimal number; `None` if it is absent.
    ///
    /// # Errors
    /// The value is not a number.
    pub(super) fn number(&self, name: &str) -> Result<Option<i64>, ApiError> {
        self.get(name)
            .map(|v| {
                v.parse().map_err(|_| {
                    ApiError::bad_request(format!(
                        "strconv.ParseInt: parsing {v:?}: invalid syntax"
                    ))
                })
            })
            .transpose()
    }

    /// Returns the timeout of the request: `timeout` if it is more than zero and less than
    /// [`REQUEST_TIMEOUT`], else that.
    ///
    /// # Errors
    /// 400 if it is not a duration in Go's format.
    pub(super) fn timeout(&self) -> Result<Duration, ApiError> {
        let provided = self.get("timeout").map(parse_duration).transpose();
        let provided = provided.map_err(|reason| {
            ApiError::bad_request(format!(
                "invalid timeout specified in the request URL - time: {reason}"
            ))
        })?;
        let provided = provided.filter(|timeout| !timeout.is_zero());
        Ok(provided.map_or(REQUEST_TIMEOUT, |timeout| timeout.min(REQUEST_TIMEOUT)))
    }

    /// Returns true for `pretty=true`.
    pub(super) fn pretty(&self) -> bool {
        self.flag("pretty").unwrap_or(false)
    }

    /// Parses the options of a create, update or patch. `kind` is the options type in errors.
    pub(super) fn write_options(
        &self,
        kind: &str,
        user_agent: Option<&str>,
    ) -> Result<WriteOptions, ApiError> {
        let validation = match self.get("fieldValidation") {
            None | Some("Warn") => FieldValidation::Warn,
            Some("Strict") => FieldValidation::Strict,
            Some("Ignore") => FieldValidation::Ignore,
            Some(other) => {
                let e = FieldError::not_supported(
                    "fieldValidation",
                    other,
                    &["", "Ignore", "Strict", "Warn"],
                );
                return Err(invalid_option(kind, e));
            }
        };
        if let Some(name) = self.get("fieldManager") {
            check_manager(name).map_err(|e| invalid_option(kind, e))?;
        }
        let manager = self
            .get("fieldManager")
            .map(str::to_owned)
            .or_else(|| user_agent.and_then(program))
            .unwrap_or_else(|| "unknown".to_owned());
        Ok(WriteOptions {
            dry_run: self.dry_run(kind)?,
            field_validation: validation,
            field_manager: manager,
            force: self.flag("force").unwrap_or(false),
            patch: kind == "PatchOptions",
            ..WriteOptions::default()
        })
    }

    /// Returns true for `dryRun=All`; other values are refused.
    pub(super) fn dry_run(&self, kind: &str) -> Result<bool, ApiError> {
        let mut dry = false;
        for (_, value) in self.0.iter().filter(|(k, _)| k == "dryRun") {
            check_dry_run(kind, value)?;
            dry |= value == "All";
        }
        Ok(dry)
    }
}

/// Longest name of a field manager, in bytes.
const MAX_MANAGER: usize = 128;

fn check_manager(name: &str) -> Result<(), FieldError> {
    if name.len() > MAX_MANAGER {
        return Err(FieldError::too_long("fieldManager", MAX_MANAGER));
    }
    match name.chars().enumerate().find(|(_, c)| c.is_control()) {
        None => Ok(()),
        Some((at, c)) => {
            let code = u32::from(c);
            Err(FieldError::invalid(
                "fieldManager",
                name,
                format!("invalid character U+{code:04X} (at position {at})"),
            ))
        }
    }
}

/// Parses a duration in Go's format (`1h30m`, `-1.5s`, `0`); a negative one becomes zero. Errors have Go's
/// text.
fn parse_duration(text: &str) -> Result<Duration, String> {
    let invalid = || format!("invalid duration {text:?}");
    let mut remainder = text.strip_prefix(['+', '-']).unwrap_or(text);
    if remainder == "0" {
        return Ok(Duration::ZERO);
    }
    let mut seconds = 0.0;
    if remainder.is_empty() {
        return Err(invalid());
    }
    while !remainder.is_empty() {
        let end = remainder
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(remainder.len());
        let (number, tail) = remainder.split_at(end);
        let dots = number.matches('.').count();
        if dots > 1 || number.len() == dots {
            return Err(invalid());
        }
        let end = tail
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        let unit = match unit {
            "" => return Err(format!("missing unit in duration {text:?}")),
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            unit => return Err(format!("unknown unit {unit:?} in duration {text:?}")),
        };
        seconds += number.parse::<f64>().map_err(|_| invalid())? * unit;
        remainder = tail;
    }
    if text.starts_with('-') {
        return Ok(Duration::ZERO);
    }
    Ok(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
}

/// Returns the name of the client program in its user agent.
fn program(user_agent: &str) -> Option<String> {
    let mut name = String::new();
    for c in user_agent.split('/').next()?.chars() {
        if name.len() + c.len_utf8() > MAX_MANAGER {
            break;
        }
        if !c.is_control() {
            name.push(c);
        }
    }
    (!name.is_empty()).then_some(name)
}

/// Refuses every `dryRun` value but `All`.
pub(super) fn check_dry_run(kind: &str, value: &str) -> Result<(), ApiError> {
    if value.is_empty() || value == "All" {
        return Ok(());
    }
    Err(invalid_option(
        kind,
        FieldError::not_supported("dryRun", value, &["All"]),
    ))
}

/// Returns 422 for an options object, with the group of the options types.
pub(super) fn invalid_option(kind: &str, error: FieldError) -> ApiError {
    ApiError::invalid("meta.k8s.io", kind, "", &[error])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(text: &str) -> Query {
        Query::parse(text).unwrap()
    }

    #[test]
    fn undecodable_parameters_are_refused() {
        for bad in [
            "labelSelector=%zz",
            "a=b&labelSelector=%2",
            "%ff=x",
            "x=%+f",
        ] {
            let e = Query::parse(bad).unwrap_err();
            assert_eq!(e.code, 400, "{bad}");
            assert!(
                e.message.contains("invalid query parameter"),
                "{}",
                e.message
            );
        }
    }

    #[test]
    fn parameters_are_form_decoded() {
        let q = query("labelSelector=app%3Dweb%2Cx+in+%28a%29&limit=5&watch=1&empty=&&z");
        assert_eq!(q.get("labelSelector"), Some("app=web,x in (a)"));
        assert_eq!(q.number("limit").unwrap(), Some(5));
        assert_eq!(q.flag("watch"), Some(true));
        assert_eq!(q.get("empty"), None);
        assert!(query("limit=x").number("limit").is_err());
    }

    #[test]
    fn a_timeout_is_a_duration() {
        for good in [
            "",
            "timeout=",
            "timeout=0",
            "timeout=-1s",
            "timeout=1h2.5m",
            "timeout=.5s",
        ] {
            assert!(query(good).timeout().is_ok(), "{good}");
        }
        for (text, millis) in [
            ("timeout=5s", 5_000),
            ("timeout=1.5s", 1_500),
            ("timeout=20ms", 20),
            ("timeout=60s", 60_000),
            ("timeout=1h", 60_000),
            ("timeout=99999999999999999999999h", 60_000),
            ("timeout=0", 60_000),
            ("timeout=-5s", 60_000),
            ("", 60_000),
        ] {
            let timeout = query(text).timeout().unwrap();
            assert_eq!(timeout, Duration::from_millis(millis), "{text}");
        }
        for (bad, reason) in [
            ("soon", "invalid duration \"soon\""),
            ("5", "missing unit in duration \"5\""),
            ("5x", "unknown unit \"x\" in duration \"5x\""),
            ("1..5s", "invalid duration \"1..5s\""),
            ("-", "invalid duration \"-\""),
        ] {
            let e = query(&format!("timeout={bad}")).timeout().unwrap_err();
            assert_eq!(e.code, 400);
            assert!(e.message.ends_with(reason), "{}", e.message);
        }
    }

    #[test]
    fn unknown_dry_run_and_validation_values_are_refused() {
        let e = query("dryRun=Some")
            .write_options("CreateOptions", None)
            .unwrap_err();
        assert_eq!(e.code, 422);
        let e = query("fieldValidation=Hard")
            .write_options("CreateOptions", None)
            .unwrap_err();
        assert!(
            e.message.contains("Unsupported value: \"Hard\""),
            "{}",
            e.message
        );
        let o = query("")
            .write_options("CreateOptions", Some("kubectl/v1"))
            .unwrap();
        assert_eq!(o.field_manager, "kubectl");
    }
}
