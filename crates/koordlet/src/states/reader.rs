//! Reading annotations and labels of one object, with the last good values at hand.

use super::malformed::Malformed;
use koord_api::extension;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fmt;

/// Reads the annotations of one object and remembers what it could not read.
pub(super) struct Reader<'a> {
    notes: Option<&'a BTreeMap<String, String>>,
    pub(super) malformed: Vec<Malformed>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(notes: Option<&'a BTreeMap<String, String>>) -> Self {
        Self {
            notes,
            malformed: Vec::new(),
        }
    }

    pub(super) fn notes(&self) -> Option<&'a BTreeMap<String, String>> {
        self.notes
    }

    /// Returns the text of `key`; `None` when absent or empty.
    pub(super) fn text(&self, key: &str) -> Option<&'a str> {
        let text = self.notes?.get(key)?.as_str();
        (!text.is_empty()).then_some(text)
    }

    /// `key` read by `parse`; `last` when it does not fit.
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

    /// `key` read as JSON; `last` when it does not fit.
    pub(super) fn json<T: DeserializeOwned>(&mut self, key: &str, last: Option<T>) -> Option<T> {
        let read = extension::read(self.notes, key);
        self.checked(read, last)
    }

    /// What an `extension` codec read; `last` when it could not.
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
