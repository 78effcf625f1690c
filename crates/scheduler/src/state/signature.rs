//! What tells one shape of pod from another.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use twox_hash::xxhash3_128::Hasher;

/// Whether pods that signed the same may share verdicts and scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signable {
    /// Everything of the pod that the plugin reads was written to the signature.
    Yes,
    /// The plugin's answers cannot be shared; the pod is placed exhaustively.
    No,
}

/// Drawn at start: whoever writes pods cannot prepare two that are taken for one another.
static SEED: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(0));

/// Everything of a pod that somebody reads, as it is written down. What is written is not kept:
/// [`Signature::finish`] is its hash (XXH3, 128 bits), the same within one process.
#[derive(Clone)]
pub struct Signature(Hasher);

/// The identity of what was written to a [`Signature`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShapeId(u128);

impl Default for Signature {
    fn default() -> Self {
        Self(Hasher::with_seed(*SEED))
    }
}

impl std::fmt::Debug for Signature {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Signature({:?})", self.finish())
    }
}

impl Signature {
    /// Appends a text, delimited.
    pub fn text(&mut self, text: &str) {
        self.count(text.len());
        self.0.write(text.as_bytes());
    }

    /// Appends texts, delimited as a list.
    pub fn texts<T: AsRef<str>>(&mut self, texts: &[T]) {
        self.count(texts.len());
        for text in texts {
            self.text(text.as_ref());
        }
    }

    /// Appends a number.
    pub fn number(&mut self, number: i64) {
        self.0.write(&number.to_le_bytes());
    }

    /// Appends how many there are of what follows.
    pub fn count(&mut self, count: usize) {
        self.number(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Appends yes or no.
    pub fn flag(&mut self, flag: bool) {
        self.number(i64::from(flag));
    }

    /// Appends resource amounts.
    pub fn amounts(&mut self, amounts: &koord_model::resources::Amounts) {
        for (id, amount) in amounts.iter() {
            self.number(i64::from(id.0));
            self.number(amount);
        }
        self.number(-1);
    }

    /// Appends what has been written elsewhere.
    pub fn shape(&mut self, shape: ShapeId) {
        self.0.write(&shape.0.to_le_bytes());
    }

    /// The identity of what was written so far.
    #[must_use]
    pub fn finish(&self) -> ShapeId {
        ShapeId(self.0.finish_128())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signed(write: impl Fn(&mut Signature)) -> ShapeId {
        let mut signature = Signature::default();
        write(&mut signature);
        signature.finish()
    }

    #[test]
    fn what_is_written_otherwise_has_another_identity() {
        let all = [
            signed(|_| ()),
            signed(|s| s.text("")),
            signed(|s| s.text("ab")),
            signed(|s| ["a", "b"].into_iter().for_each(|text| s.text(text))),
            signed(|s| s.texts(&["a", "b"])),
            signed(|s| s.texts(&["ab"])),
            // Longer than the hash's own buffer, and other in its first byte only.
            signed(|s| s.text(&"x".repeat(5_000))),
            signed(|s| s.text(&format!("y{}", "x".repeat(4_999)))),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(!all[..at].contains(one), "{at}");
        }
        let twice = || signed(|s| s.text("ab"));
        assert_eq!(twice(), all[2]);
        assert_eq!(twice(), twice());
    }
}
