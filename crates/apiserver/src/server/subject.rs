//! Reads the subject of a client certificate: who it says the client is.
//!
//! Only certificates that our own authority signed get here; this finds the names in them.

use crate::authz::{AUTHENTICATED, User};

const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const OID: u8 = 0x06;
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
const ORGANIZATION: &[u8] = &[0x55, 0x04, 0x0a];

/// The user a certificate (DER) stands for: the common name, in the groups of its organisations.
pub(super) fn user(certificate: &[u8]) -> Option<User> {
    let (certificate, _) = element(certificate, SEQUENCE)?;
    let (mut fields, _) = element(certificate, SEQUENCE)?;
    if fields.first() == Some(&VERSION) {
        (_, fields) = any(fields)?;
    }
    // Serial number, signature algorithm, issuer, validity.
    for _ in 0..4 {
        (_, fields) = any(fields)?;
    }
    let (mut subject, _) = element(fields, SEQUENCE)?;
    let mut name = None;
    let mut groups = Vec::new();
    while !subject.is_empty() {
        let (mut set, rest) = any(subject)?;
        subject = rest;
        while !set.is_empty() {
            let (attribute, rest) = element(set, SEQUENCE)?;
            set = rest;
            let (kind, value) = element(attribute, OID)?;
            let (value, _) = any(value)?;
            let value = std::str::from_utf8(value).ok()?.to_owned();
            match kind {
                COMMON_NAME => name = Some(value),
                ORGANIZATION => groups.push(value),
                _ => {}
            }
        }
    }
    groups.push(AUTHENTICATED.to_owned());
    Some(User::new(name?, groups))
}

/// The contents of the element with `tag` at the start of `input`, and what follows it.
fn element(input: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    if input.first() == Some(&tag) {
        any(input)
    } else {
        None
    }
}

/// The contents of the element at the start of `input`, and what follows it.
fn any(input: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&first, rest) = input.get(1..)?.split_first()?;
    let (length, rest) = if first < 0x80 {
        (usize::from(first), rest)
    } else {
        let count = usize::from(first & 0x7f);
        if count > 4 {
            return None;
        }
        let (digits, rest) = rest.split_at_checked(count)?;
        (
            digits
                .iter()
                .fold(0, |length, digit| length << 8 | usize::from(*digit)),
            rest,
        )
    };
    rest.split_at_checked(length)
}
