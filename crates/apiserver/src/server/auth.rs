//! Who sends a request.

use crate::authz::User;
use crate::rest::Tokens;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use jiff::{Timestamp, ToSpan};
use koord_app::Clock;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// The user a connection's client certificate stands for; in the extensions of its requests.
#[derive(Debug, Clone)]
pub(super) struct Peer(pub(super) User);

/// Expired tokens are looked for when this many are known, then at twice what is left.
const SWEEP_AT: usize = 1024;

/// The bearer tokens the server has issued. They live as long as the process.
pub(super) struct TokenStore {
    clock: Clock,
    issued: Mutex<Issued>,
}

#[derive(Default)]
struct Issued {
    by_token: FxHashMap<String, (User, Timestamp)>,
    sweep_at: usize,
}

impl std::fmt::Debug for TokenStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenStore").finish_non_exhaustive()
    }
}

impl TokenStore {
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            clock,
            issued: Mutex::default(),
        }
    }

    /// A new random token for `user` that is valid for `seconds`.
    fn issue_for(&self, user: User, seconds: i64) -> String {
        let token = random_token();
        let now = self.clock.now();
        let until = now.checked_add(seconds.seconds()).unwrap_or(Timestamp::MAX);
        let mut issued = self.issued.lock();
        if issued.by_token.len() >= issued.sweep_at.max(SWEEP_AT) {
            issued.by_token.retain(|_, (_, until)| *until > now);
            issued.sweep_at = issued.by_token.len() * 2;
        }
        issued.by_token.insert(token.clone(), (user, until));
        token
    }
}

impl Tokens for TokenStore {
    fn issue(&self, namespace: &str, account: &str, _audiences: &[String], seconds: i64) -> String {
        self.issue_for(User::service_account(namespace, account), seconds)
    }

    fn review(&self, token: &str) -> Option<User> {
        let issued = self.issued.lock();
        let (user, until) = issued.by_token.get(token)?;
        (*until > self.clock.now()).then(|| user.clone())
    }
}

/// 256 random bits as text. Empty, and so never valid, when the system has no randomness.
fn random_token() -> String {
    let mut bytes = [0u8; 32];
    match rustls::crypto::ring::default_provider()
        .secure_random
        .fill(&mut bytes)
    {
        Ok(()) => URL_SAFE_NO_PAD.encode(bytes),
        Err(_) => String::new(),
    }
}

/// The bearer token of a request. An empty one is none.
pub(super) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}
