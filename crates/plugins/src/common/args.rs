//! Strict decoding of plugin arguments. Errors name the invalid field.

use koord_scheduler::framework::BuildError;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Type information (`apiVersion`, `kind`) that any plugin args object may carry.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct TypeMeta {
    api_version: String,
    kind: String,
}

/// Decodes `args` of `plugin`; returns the defaults when `args` is absent or null.
pub(crate) fn decode<T: DeserializeOwned + Default>(
    plugin: &str,
    args: Option<&Value>,
) -> Result<T, BuildError> {
    let Some(Value::Object(fields)) = args else {
        return match args {
            None | Some(Value::Null) => Ok(T::default()),
            Some(other) => Err(invalid(plugin, format!("args: {other} is not an object"))),
        };
    };
    let mut fields = fields.clone();
    let mut meta = serde_json::Map::new();
    for key in ["apiVersion", "kind"] {
        if let Some(value) = fields.remove(key) {
            meta.insert(key.to_owned(), value);
        }
    }
    let meta: TypeMeta = serde_json::from_value(Value::Object(meta))
        .map_err(|error| invalid(plugin, format!("args: {error}")))?;
    let expected = format!("{plugin}Args");
    if !meta.kind.is_empty() && meta.kind != expected {
        return Err(invalid(
            plugin,
            format!("args.kind: {:?} is not {expected:?}", meta.kind),
        ));
    }
    if !meta.api_version.is_empty() && !meta.api_version.starts_with("kubescheduler.config.k8s.io/")
    {
        let message = format!("args.apiVersion: {:?} is not supported", meta.api_version);
        return Err(invalid(plugin, message));
    }
    koord_api::field::decode(Value::Object(fields))
        .map_err(|error| invalid(plugin, format!("args.{error}")))
}

/// Builds an error about the arguments of `plugin`.
pub(crate) fn invalid(plugin: &str, message: String) -> BuildError {
    BuildError {
        plugin: plugin.to_owned(),
        message,
    }
}

/// Logs that `setting` of `profile` has no effect: the setting applies to the pods of all profiles, so the
/// first profile with this plugin sets it.
pub(crate) fn warn_set_by_first_profile(plugin: &'static str, profile: &str, setting: &str) {
    tracing::warn!(
        plugin,
        profile,
        setting,
        "setting has no effect: it applies to the pods of all profiles, and the first profile with \
         this plugin sets it"
    );
}
