//! Registrations of hook servers: one file each in [`DIRECTORY`], from which koord-runtime-proxy reads which
//! servers to call.
//!
//! Source: Koordinator `pkg/runtimeproxy/config`.

use crate::lenient::{self, ReadError};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::str::FromStr;

/// Directory of the registration files. Only files that end in [`SUFFIX`] are used.
pub const DIRECTORY: &str = "/etc/runtime/hookserver.d";

/// Extension of registration files, without the dot.
pub const SUFFIX: &str = "json";

/// Name of koordlet's registration file.
pub const KOORDLET: &str = "koordlet.json";

/// Failure policy: a CRI call fails if its hook fails.
pub const FAIL: &str = "Fail";

/// Failure policy: a CRI call proceeds unchanged if its hook fails. The default of a file without a policy.
pub const IGNORE: &str = "Ignore";

/// Effect of a failed hook on its CRI call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// The call proceeds as the kubelet sent it.
    Ignore,
    /// The call fails.
    Fail,
}

/// Error for an unknown failure policy.
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
    /// Returns the name of the policy in flags and files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ignore => IGNORE,
            Self::Fail => FAIL,
        }
    }
}

/// Registration of a hook server.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct HookServer {
    /// Path of the server's Unix socket.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub remote_endpoint: String,
    /// Failure policy: [`FAIL`] or [`IGNORE`]; see [`HookServer::policy`] for other values.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub failure_policy: String,
    /// Names of the hooks the server handles, such as `PreCreateContainer`. Unknown names are kept and never
    /// match.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub runtime_hooks: Vec<String>,
}

impl HookServer {
    /// Parses a registration file as Go does: missing and `null` fields are empty, unknown fields are
    /// ignored, keys match without regard to case.
    ///
    /// # Errors
    /// The text is not a JSON object, or a field has another type; the error names the field.
    pub fn from_json(text: &[u8]) -> Result<Self, ReadError> {
        let text = std::str::from_utf8(text);
        lenient::from_json(text.map_err(|error| ReadError::Syntax(error.to_string()))?)
    }

    /// Returns the path of the socket, without the scheme `unix://` if it has one. Returns `None` if the path
    /// is not absolute.
    #[must_use]
    pub fn socket(&self) -> Option<&Path> {
        let endpoint = &self.remote_endpoint;
        let path = Path::new(endpoint.strip_prefix("unix://").unwrap_or(endpoint));
        path.is_absolute().then_some(path)
    }

    /// Returns the failure policy. An empty or unknown one is [`Policy::Ignore`], as in upstream's proxy.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.failure_policy.parse().unwrap_or(Policy::Ignore)
    }

    /// Serializes the registration to JSON, indented by tabs as Go does.
    ///
    /// # Errors
    /// Serialization of this type cannot fail.
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
    fn from_json_accepts_missing_null_and_unknown_fields() {
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
    fn policy_parses_two_names() {
        for policy in [Policy::Fail, Policy::Ignore] {
            assert_eq!(policy.name().parse(), Ok(policy));
        }
        let error = "fail".parse::<Policy>().unwrap_err().to_string();
        assert_eq!(error, r#"must be Fail or Ignore, got "fail""#);
    }
}
