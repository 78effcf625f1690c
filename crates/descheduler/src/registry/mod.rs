//! The plugin registry, and the profiles built from it.
//!
//! A plugin is a row: its name, how its arguments are decoded, and how it is built from them. The rows are in
//! `in_tree`.

mod profile;

pub use profile::{CompletedConfig, CompletedProfile};

use crate::config::{API_VERSION, ConfigError, Configuration, check_selectors, decode, refuse};
use crate::framework::PluginHandles;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Configuration that a plugin can read in addition to its arguments.
#[derive(Debug, Clone, Copy)]
pub struct PluginContext<'a> {
    /// The whole configuration.
    pub config: &'a Configuration,
    /// Name of the profile.
    pub profile: &'a str,
}

/// Decoded arguments of a plugin.
pub(crate) struct DecodedArgs {
    /// Arguments with defaults.
    pub(crate) args: Value,
    /// Validation result.
    pub(crate) checked: Result<(), String>,
    /// Builds the plugin.
    pub(crate) make: Box<Make>,
}

type Make = dyn FnOnce(PluginContext<'_>) -> Result<PluginHandles, String>;
type Read = dyn Fn(&str, Value) -> Result<DecodedArgs, ConfigError> + Send + Sync;

#[derive(Clone)]
struct Plugin {
    read: Arc<Read>,
    /// True if an unknown field in selectors or delete options is an error.
    strict: bool,
}

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Plugin");
        shown.field("strict", &self.strict).finish_non_exhaustive()
    }
}

/// Registry of plugins.
#[derive(Debug, Clone, Default)]
pub struct Registry {
    plugins: BTreeMap<&'static str, Plugin>,
}

impl Registry {
    /// Adds a plugin, replacing any of the same name. `A` are its arguments with their defaults, `check`
    /// validates them, `make` builds the plugin. If `strict`, label selectors and delete options in its
    /// arguments must not have unknown fields; `A` has to check its own fields.
    #[must_use]
    pub fn with<A>(
        mut self,
        name: &'static str,
        strict: bool,
        check: fn(&A) -> Result<(), String>,
        make: fn(A, PluginContext<'_>) -> Result<PluginHandles, String>,
    ) -> Self
    where
        A: Serialize + DeserializeOwned + 'static,
    {
        let read = move |path: &str, value: Value| {
            let args: A = decode(path, value)?;
            let written = serde_json::to_value(&args).map_err(|error| ConfigError::Field {
                path: path.to_owned(),
                message: error.to_string(),
            })?;
            Ok(DecodedArgs {
                args: with_type(name, written),
                checked: check(&args),
                make: Box::new(move |context| make(args, context)),
            })
        };
        let read = Arc::new(read);
        self.plugins.insert(name, Plugin { read, strict });
        self
    }

    /// Returns the names of all plugins, sorted.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.plugins.keys().copied()
    }

    /// Decodes `args` of plugin `name`, which are at `path`. Returns `None` for an unknown plugin, whose
    /// arguments cannot be decoded.
    pub(crate) fn read(
        &self,
        name: &str,
        path: &str,
        args: &Value,
    ) -> Result<Option<DecodedArgs>, ConfigError> {
        let Some((name, plugin)) = self.plugins.get_key_value(name) else {
            return Ok(None);
        };
        let args = without_type(name, path, args)?;
        check_selectors(path, &args, plugin.strict)?;
        (plugin.read)(path, args).map(Some)
    }
}

fn kind(plugin: &str) -> String {
    format!("{plugin}Args")
}

/// Removes `apiVersion` and `kind`, which may be absent but must otherwise be the plugin's.
fn without_type(plugin: &str, path: &str, args: &Value) -> Result<Value, ConfigError> {
    let mut members = match args {
        Value::Null => Map::new(),
        Value::Object(members) => members.clone(),
        other => return refuse(path, format!("{other} is not an object")),
    };
    for (field, wanted) in [("apiVersion", API_VERSION), ("kind", &kind(plugin))] {
        match members.remove(field) {
            None => {}
            Some(Value::String(value)) if value == wanted || value.is_empty() => {}
            Some(value) => {
                let message = format!("{value} is not {wanted:?}");
                return refuse(format!("{path}.{field}"), message);
            }
        }
    }
    Ok(Value::Object(members))
}

fn with_type(plugin: &str, args: Value) -> Value {
    let mut all = Map::new();
    all.insert("apiVersion".to_owned(), API_VERSION.into());
    all.insert("kind".to_owned(), kind(plugin).into());
    if let Value::Object(members) = args {
        all.extend(members);
    }
    Value::Object(all)
}

#[cfg(test)]
mod tests;
