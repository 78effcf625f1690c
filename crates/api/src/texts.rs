//! Compact immutable maps of text for labels, annotations and amounts.
//!
//! A `BTreeMap<String, String>` allocates half a kilobyte for its first entry, and each entry has its own
//! copy of the key.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Lookup of a text by its key.
pub trait Lookup {
    /// Returns the value of `key`.
    fn text(&self, key: &str) -> Option<&str>;
}

impl Lookup for BTreeMap<String, String> {
    fn text(&self, key: &str) -> Option<&str> {
        self.get(key).map(String::as_str)
    }
}

impl<T: Lookup> Lookup for Option<&T> {
    fn text(&self, key: &str) -> Option<&str> {
        self.and_then(|all| all.text(key))
    }
}

/// Compact map of text to text, sorted by key. Several maps can share their keys.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Texts(Box<[(Arc<str>, Box<str>)]>);

impl Texts {
    /// Creates a copy of `map`, with `text` applied to its values. `None` gives an empty map.
    #[must_use]
    pub fn from_map<V>(map: Option<&BTreeMap<String, V>>, text: impl Fn(&V) -> &str) -> Self {
        let all = map.into_iter().flatten();
        let all = all.map(|(key, value)| (Arc::from(key.as_str()), Box::from(text(value))));
        Self(all.collect())
    }

    /// Converts to a `BTreeMap`, with `value` applied to the texts; `None` if the map is empty.
    #[must_use]
    pub fn to_map<V>(&self, value: impl Fn(String) -> V) -> Option<BTreeMap<String, V>> {
        let own = |(key, text): (&str, &str)| (key.to_owned(), value(text.to_owned()));
        (!self.is_empty()).then(|| self.iter().map(own).collect())
    }

    /// Returns the value of `key`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        let index = self.0.binary_search_by(|(other, _)| (**other).cmp(key));
        let (_, text) = self.0.get(index.ok()?)?;
        Some(text)
    }

    /// Returns an iterator over the entries in order of the keys.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, text)| (&**key, &**text))
    }

    /// Returns true if the map has no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes the entries whose key `keep` rejects.
    pub fn retain(&mut self, mut keep: impl FnMut(&str) -> bool) {
        if !self.0.iter().all(|(key, _)| keep(key)) {
            let mut all = std::mem::take(&mut self.0).into_vec();
            all.retain(|(key, _)| keep(key));
            self.0 = all.into();
        }
    }

    /// Replaces every key by an equal one that `shared` returns, so that maps can share their keys.
    pub fn share_keys(&mut self, mut shared: impl FnMut(Arc<str>) -> Arc<str>) {
        for (key, _) in &mut self.0 {
            *key = shared(std::mem::take(key));
        }
    }
}

impl Lookup for Texts {
    fn text(&self, key: &str) -> Option<&str> {
        self.get(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::identity;

    fn map(keys: &[&str]) -> BTreeMap<String, String> {
        let all = keys
            .iter()
            .map(|key| ((*key).to_owned(), format!("of {key}")));
        all.collect()
    }

    #[test]
    fn texts_roundtrip_and_retain() {
        let all = map(&["b", "a.example/x", "", "c"]);
        let mut texts = Texts::from_map(Some(&all), String::as_str);
        for key in all.keys() {
            assert_eq!(texts.get(key), Some(all[key].as_str()));
        }
        assert_eq!((texts.get("bb"), texts.iter().len()), (None, 4));
        assert_eq!(texts.to_map(identity), Some(all));
        texts.retain(|key| key != "b");
        assert_eq!(texts.to_map(identity), Some(map(&["", "a.example/x", "c"])));
        texts.retain(|_| false);
        assert_eq!((&texts, texts.to_map(identity)), (&Texts::default(), None));
        assert_eq!(Texts::from_map(None, String::as_str), texts);
    }

    #[test]
    fn share_keys_replaces_equal_keys() {
        let mut texts = Texts::from_map(Some(&map(&["a", "b"])), String::as_str);
        let (before, key) = (texts.clone(), Arc::<str>::from("b"));
        texts.share_keys(|own| if own == key { key.clone() } else { own });
        assert_eq!((&texts, Arc::strong_count(&key)), (&before, 2));
    }
}
