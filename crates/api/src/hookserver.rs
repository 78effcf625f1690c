//! Registrations of hook servers: one file each, in [`DIRECTORY`], by which koord-runtime-proxy knows
//! whom to ask.
//!
//! Source: Koordinator `pkg/runtimeproxy/config`.

use crate::lenient::{self, ReadError};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::str::FromStr;

/// Where the files are. Those that count end in [`SUFFIX`].
pub const DIRECTORY: &str = "/etc/runtime/hookserver.d";

/// How the name of a file ends.
pub const SUFFIX: &str = "json";

/// koordlet's file.
pub const KOORDLET: &str = "koordlet.json";

/// The failure policy by which a call fails when its hook does.
pub const FAIL: &str = "Fail";

/// The failure policy by which a call goes on as it was when its hook fails; the one of a file that
/// has none.
pub const IGNORE: &str = "Ignore";

/// What becomes of a call whose hook fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// It goes on as the kubelet wanted it.
    Ignore,
    /// It fails.
    Fail,
}

/// A policy that there is not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("must be Fail or Ignore, got {0:?}")]
pub struct UnknownPolicy(String);

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        match text {
            FAIL => Ok(Self::Fail),
            IGNORE => Ok(Self::Ignore),
            other => Err(UnknownPolicy(other.to_owned())),
        }
    }
}

impl Policy {
    /// Its name in flags and files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ignore => IGNORE,
            Self::Fail => FAIL,
        }
    }
}

/// A hook server.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct HookServer {
    /// The path of its socket.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub remote_endpoint: String,
    /// [`FAIL`] or [`IGNORE`]; see [`HookServer::policy`] for anything else.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub failure_policy: String,
    /// The hooks it wants to be asked for, such as `PreCreateContainer`; names that nobody knows are
    /// kept, and never match.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub runtime_hooks: Vec<String>,
}

impl HookServer {
    /// What a file says, read as Go reads it: what is missing or `null` is empty, what is unknown is
    /// left out, keys match without regard to case.
    ///
    /// # Errors
    /// The text is no JSON object, or a field has another type; the error names it.
    pub fn from_json(text: &[u8]) -> Result<Self, ReadError> {
        let text = std::str::from_utf8(text);
        lenient::from_json(text.map_err(|error| ReadError::Syntax(error.to_string()))?)
    }

    /// The socket's path, which may be written with the scheme `unix`; `None` when it is not absolute.
    #[must_use]
    pub fn socket(&self) -> Option<&Path> {
        let endpoint = &self.remote_endpoint;
        let path = Path::new(endpoint.strip_prefix("unix://").unwrap_or(endpoint));
        path.is_absolute().then_some(path)
    }

    /// Its policy. None, and one that there is not, is [`Policy::Ignore`], as upstream's proxy has it.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.failure_policy.parse().unwrap_or(Policy::Ignore)
    }

    /// The file's text, indented by tabs as Go writes it.
    ///
    /// # Errors
    /// Never for this type; JSON is fallible.
    pub fn to_json(&self) -> serde_json::Result<Vec<u8>> {
        let mut text = Vec::new();
        let tabs = serde_json::ser::PrettyFormatter::with_indent(b"\t");
        self.serialize(&mut serde_json::Serializer::with_formatter(&mut text, tabs))?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_as_upstreams() {
        let server = HookServer {
            remote_endpoint: "/var/run/koordlet/koordlet.sock".to_owned(),
            failure_policy: IGNORE.to_owned(),
            runtime_hooks: vec!["PreCreateContainer".to_owned()],
        };
        let text = String::from_utf8(server.to_json().unwrap()).unwrap();
        assert_eq!(
            text,
            "{\n\t\"remote-endpoint\": \"/var/run/koordlet/koordlet.sock\",\n\
             \t\"failure-policy\": \"Ignore\",\n\
             \t\"runtime-hooks\": [\n\t\t\"PreCreateContainer\"\n\t]\n}"
        );
        assert_eq!(HookServer::from_json(text.as_bytes()).unwrap(), server);
        // All of upstream's fields are omitted when empty.
        assert_eq!(HookServer::default().to_json().unwrap(), b"{}");
    }

    #[test]
    fn what_is_missing_null_or_unknown_is_harmless() {
        for (text, socket, policy, hooks) in [
            ("{}", None, Policy::Ignore, &[][..]),
            ("null", None, Policy::Ignore, &[]),
            (
                r#"{"remote-endpoint":null,"failure-policy":null,"runtime-hooks":null}"#,
                None,
                Policy::Ignore,
                &[],
            ),
            (
                r#"{"remote-endpoint":"/a","failure-policy":"Fail","runtime-hooks":["New", "PreCreateContainer"]}"#,
                Some("/a"),
                Policy::Fail,
                &["New", "PreCreateContainer"],
            ),
            (
                r#"{"remote-endpoint":"unix:///a","failure-policy":"","new":[1]}"#,
                Some("/a"),
                Policy::Ignore,
                &[],
            ),
            (
                r#"{"Remote-Endpoint":"/a","failure-policy":"fail"}"#,
                Some("/a"),
                Policy::Ignore,
                &[],
            ),
            (r#"{"remote-endpoint":"a"}"#, None, Policy::Ignore, &[]),
            (
                r#"{"remote-endpoint":"tcp://1"}"#,
                None,
                Policy::Ignore,
                &[],
            ),
        ] {
            let server = HookServer::from_json(text.as_bytes()).unwrap();
            assert_eq!(server.socket(), socket.map(Path::new), "{text}");
            assert_eq!(server.policy(), policy, "{text}");
            assert_eq!(server.runtime_hooks, hooks, "{text}");
        }
        for (text, says) in [
            (&b""[..], "EOF"),
            (br#"{"remote-endpoint":"#, "EOF"),
            (b"\xff", "utf-8"),
            (b"[]", "field .: invalid type"),
            (
                br#"{"remote-endpoint":5}"#,
                "field remote-endpoint: invalid type: integer `5`",
            ),
            (
                br#"{"runtime-hooks":["a",{}]}"#,
                "field runtime-hooks[1]: invalid type: map",
            ),
        ] {
            let error = HookServer::from_json(text).unwrap_err().to_string();
            assert!(error.contains(says), "{text:?}: {error}");
        }
    }

    #[test]
    fn flags_know_two_policies() {
        for policy in [Policy::Fail, Policy::Ignore] {
            assert_eq!(policy.name().parse(), Ok(policy));
        }
        let error = "fail".parse::<Policy>().unwrap_err().to_string();
        assert_eq!(error, r#"must be Fail or Ignore, got "fail""#);
    }
}
