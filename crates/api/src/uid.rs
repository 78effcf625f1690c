//! Compact `metadata.uid`, a third of the size of its text, for objects that number in the tens of thousands.

use std::fmt;

/// UID of an object. UUIDs, which API servers generate, are stored as 16 bytes; other texts unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Uid(UidRepr);

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum UidRepr {
    /// A UUID whose text is 8-4-4-4-12 lower-case hexadecimal digits.
    Uuid([u8; 16]),
    Text(Box<str>),
}

/// Indices of the UUID bytes whose text has a hyphen before it.
const HYPHENS: [usize; 4] = [4, 6, 8, 10];

/// Returns the value of a lower-case hexadecimal digit.
fn hex_digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    }
}

/// Parses a UUID of lower-case digits, 8-4-4-4-12. Returns `None` for any other text.
fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let mut rest = text.as_bytes().iter().copied();
    let mut bytes = [0; 16];
    for (at, byte) in bytes.iter_mut().enumerate() {
        if HYPHENS.contains(&at) && rest.next() != Some(b'-') {
            return None;
        }
        *byte = hex_digit(rest.next()?)? << 4 | hex_digit(rest.next()?)?;
    }
    rest.next().is_none().then_some(bytes)
}

impl From<&str> for Uid {
    fn from(text: &str) -> Self {
        Self(parse_uuid(text).map_or_else(|| UidRepr::Text(text.into()), UidRepr::Uuid))
    }
}

impl Default for Uid {
    /// Returns the UID with the empty text.
    fn default() -> Self {
        Self(UidRepr::Text(Box::default()))
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            UidRepr::Text(text) => f.write_str(text),
            UidRepr::Uuid(bytes) => {
                for (at, byte) in bytes.iter().enumerate() {
                    let hyphen = if HYPHENS.contains(&at) { "-" } else { "" };
                    write!(f, "{hyphen}{byte:02x}")?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn uuid_is_stored_inline() {
        let is_packed = |text: &str| matches!(Uid::from(text).0, UidRepr::Uuid(_));
        let usual = "0b6d8c2e-5f0c-4c6e-8a6a-9b8e00000003";
        assert!(is_packed(usual));
        for other in [
            "",
            "1",
            "0B6D8C2E-5F0C-4C6E-8A6A-9B8E00000003",
            "0b6d8c2e5f0c4c6e8a6a9b8e00000003",
            "0b6d8c2e-5f0c-4c6e-8a6a-9b8e000000031",
            "0b6d8c2e-5f0c-4c6e-8a6a-9b8e0000000",
            "0b6d8c2e-5f0c-4c6e-8a6a_9b8e00000003",
            "é",
        ] {
            assert!(!is_packed(other), "{other}");
            assert_eq!(Uid::from(other).to_string(), other);
        }
        assert_eq!(size_of::<Uid>(), 24);
        assert_eq!(Uid::default(), Uid::from(""));
    }

    proptest! {
        #[test]
        fn text_roundtrips(text in "([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-fA-F-]{0,40}|.*)") {
            prop_assert_eq!(Uid::from(text.as_str()).to_string(), text);
        }

        #[test]
        fn only_equal_texts_are_equal(a in "[ab]{8}-[ab]{4}-[ab]{4}-[ab]{4}-[ab]{12}", b in "[ab]{8}-[ab]{4}-[ab]{4}-[ab]{4}-[ab]{12}") {
            let [first, second] = [&a, &b].map(|text| Uid::from(text.as_str()));
            prop_assert_eq!(first == second, a == b);
            prop_assert_eq!(first.cmp(&second), a.cmp(&b));
        }
    }
}
