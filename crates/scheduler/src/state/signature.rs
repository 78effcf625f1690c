//! Signatures of pod shapes: pods with equal signatures share an evaluation.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use twox_hash::xxhash3_128::Hasher;

/// Scope of a signature: if pods with equal signatures may share verdicts and scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signable {
    /// Everything of the pod that the plugin reads was written to the signature.
    Yes,
    /// The plugin's results cannot be shared; all nodes are evaluated for the pod alone.
    No,
}

/// Drawn at start, so that users cannot construct two pods whose signatures collide.
static SEED: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(0));

/// A hash of everything that plugins read of a pod. The input is not stored: [`Signature::finish`] returns
/// its hash (XXH3, 128 bits), which is stable within one process.
#[derive(Clone)]
pub struct Signature(Hasher);

/// The result of a [`Signature`]; pods with equal ids have the same shape.
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
    /// Appends a string, with its length.
    pub fn text(&mut self, text: &str) {
        self.count(text.len());
        self.0.write(text.as_bytes());
    }

    /// Appends a list of strings, with its length.
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

    /// Appends the length of the list that follows.
    pub fn count(&mut self, count: usize) {
        self.number(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Appends a flag.
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

    /// Appends the result of another signature.
    pub fn shape(&mut self, shape: ShapeId) {
        self.0.write(&shape.0.to_le_bytes());
    }

    /// Returns the id of what was written so far.
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
    fn different_input_has_different_shape_id() {
        let all = [
            signed(|_| ()),
            signed(|s| s.text("")),
            signed(|s| s.text("ab")),
            signed(|s| ["a", "b"].into_iter().for_each(|text| s.text(text))),
            signed(|s| s.texts(&["a", "b"])),
            signed(|s| s.texts(&["ab"])),
            // Longer than the hash's own buffer, and different in the first byte only.
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
