//! Authentication of requests.

use crate::authz::{AUTHENTICATED, User};
use http::HeaderMap;
use http::header::AUTHORIZATION;

/// User of a connection's client certificate; in the extensions of its requests.
#[derive(Debug, Clone)]
pub(super) struct Peer(pub(super) User);

impl Peer {
    /// Returns the user of a certificate (DER) that the server's authority signed.
    pub(super) fn from_certificate(certificate: &[u8]) -> Option<Self> {
        let (name, mut groups) = koord_app::certificate::subject(certificate)?;
        groups.push(AUTHENTICATED.to_owned());
        Some(Self(User::new(name, groups)))
    }
}

/// Returns the bearer token of a request; an empty one counts as absent.
pub(super) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}
