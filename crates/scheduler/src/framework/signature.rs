//! What tells one shape of pod from another.

/// Whether pods that signed the same may share verdicts and scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signable {
    /// Everything of the pod that the plugin reads was written to the signature.
    Yes,
    /// The plugin's answers cannot be shared; the pod is placed exhaustively.
    No,
}

/// Everything of a pod that the plugins of its profile read: the identity of its shape.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Signature(Vec<u8>);

impl Signature {
    /// Appends a text, delimited.
    pub fn text(&mut self, text: &str) {
        self.number(text.len() as i64);
        self.0.extend_from_slice(text.as_bytes());
    }

    /// Appends a number.
    pub fn number(&mut self, number: i64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    /// Appends resource amounts.
    pub fn amounts(&mut self, amounts: &koord_model::resources::Amounts) {
        for (id, amount) in amounts.iter() {
            self.number(i64::from(id.0));
            self.number(amount);
        }
        self.number(-1);
    }

    /// Appends a value in a canonical text form.
    pub fn debug(&mut self, value: &impl std::fmt::Debug) {
        self.text(&format!("{value:?}"));
    }
}
