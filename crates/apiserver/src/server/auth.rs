//! Who sends a request.

use crate::authz::{AUTHENTICATED, User};
use http::HeaderMap;
use http::header::AUTHORIZATION;

/// The user a connection's client certificate stands for; in the extensions of its requests.
#[derive(Debug, Clone)]
pub(super) struct Peer(pub(super) User);

impl Peer {
    /// Of a certificate (DER) that our own authority signed.
    pub(super) fn of(certificate: &[u8]) -> Option<Self> {
        let (name, mut groups) = koord_app::certificate::subject(certificate)?;
        groups.push(AUTHENTICATED.to_owned());
        Some(Self(User::new(name, groups)))
    }
}

/// The bearer token of a request. An empty one is none.
pub(super) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}
