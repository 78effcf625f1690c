//! Parses annotations and labels of an object, with the last valid values as fallback.

use super::malformed::Malformed;
use koord_api::extension;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fmt;

/// Parses the annotations of one object and collects malformed ones.
pub(super) struct Reader<'a> {
    annotations: Option<&'a BTreeMap<String, String>>,
    pub(super) malformed: Vec<Malformed>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(annotations: Option<&'a BTreeMap<String, String>>) -> Self {
        Self {
            annotations,
            malformed: Vec::new(),
        }
    }

    pub(super) fn annotations(&self) -> Option<&'a BTreeMap<String, String>> {
        self.annotations
    }

    /// Returns the text of `key`; `None` if missing or empty.
    pub(super) fn text(&self, key: &str) -> Option<&'a str> {
        let text = self.annotations?.get(key)?.as_str();
        (!text.is_empty()).then_some(text)
    }

    /// Returns the value of `key`, parsed by `parse`; `last` if it is malformed.
    pub(super) fn with<T, E: fmt::Display>(
        &mut self,
        key: &str,
        last: Option<T>,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        match parse(self.text(key)?) {
            Ok(value) => Some(value),
            Err(error) => {
                let text = self.text(key).unwrap_or_default();
                self.malformed.push(Malformed::new(key, text, &error));
                last
            }
        }
    }

    /// Returns the value of `key`, parsed as JSON; `last` if it is malformed.
    pub(super) fn json<T: DeserializeOwned>(&mut self, key: &str, last: Option<T>) -> Option<T> {
        let read = extension::read(self.annotations, key);
        self.checked(read, last)
    }

    /// Returns the result of an `extension` codec; `last` if it failed.
    pub(super) fn checked<T>(
        &mut self,
        read: Result<Option<T>, extension::AnnotationError>,
        last: Option<T>,
    ) -> Option<T> {
        read.unwrap_or_else(|error| {
            self.malformed.push(error.into());
            last
        })
    }
}
