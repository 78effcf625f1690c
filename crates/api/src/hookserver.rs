//! Registrations of hook servers: one file each, in [`DIRECTORY`], by which koord-runtime-proxy knows
//! whom to ask.
//!
//! Source: Koordinator `pkg/runtimeproxy/config`.

use serde::{Deserialize, Serialize};

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

/// A hook server.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct HookServer {
    /// The path of its socket.
    pub remote_endpoint: String,
    /// [`FAIL`] or [`IGNORE`].
    pub failure_policy: String,
    /// The hooks it wants to be asked for, such as `PreCreateContainer`.
    pub runtime_hooks: Vec<String>,
}

impl HookServer {
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
        assert_eq!(serde_json::from_str::<HookServer>(&text).unwrap(), server);
    }
}
