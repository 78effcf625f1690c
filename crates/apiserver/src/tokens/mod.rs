//! Tokens of service accounts: issuing and verification.
//!
//! A token is signed and self-contained; the server stores nothing about it. It is valid while its account
//! and the object it is bound to exist, both with the uids in the token.

mod jwt;
#[cfg(test)]
mod tests;

use crate::authz::User;
use crate::store::{Key as ObjectKey, Store, TableId};
use jiff::Timestamp;
use jwt::{Claims, KubernetesClaims, Ref, SigningKey, fingerprint};
use koord_app::Clock;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde_json::{Value, json};
use std::sync::Arc;

/// Issuer of the tokens, and their default audience: this server.
pub const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
/// Seconds that a token stays valid after the deletion of its account or bound object has begun.
const LEEWAY: i64 = 60;
/// Capacity of the cache of verified tokens, which saves a verification per request.
const REMEMBERED: usize = 4096;
/// Prefix of the extra fields of a token's user.
const EXTRA: &str = "authentication.kubernetes.io/";

/// Object that a token is bound to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BoundObject {
    /// A pod of the account's namespace, with its node.
    Pod {
        /// Name of the pod.
        name: String,
        /// Uid of the pod.
        uid: String,
        /// Name and uid of the node; the uid is empty if the node does not exist.
        node: Option<(String, String)>,
    },
    /// A secret of the account's namespace.
    Secret {
        /// Name of the secret.
        name: String,
        /// Uid of the secret.
        uid: String,
    },
    /// A node.
    Node {
        /// Name of the node.
        name: String,
        /// Uid of the node.
        uid: String,
    },
}

/// Content of a token to issue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenSpec<'a> {
    /// Namespace of the account.
    pub namespace: &'a str,
    /// Name of the account.
    pub account: &'a str,
    /// Uid of the account.
    pub uid: &'a str,
    /// Object that the token is bound to, if any.
    pub bound: Option<BoundObject>,
    /// Audiences of the token.
    pub audiences: Vec<String>,
    /// Start of validity, in seconds since 1970.
    pub from: i64,
    /// Lifetime in seconds.
    pub seconds: i64,
}

/// Issues and verifies tokens.
pub struct Tokens {
    key: SigningKey,
    store: Store,
    clock: Clock,
    verified: Mutex<FxHashMap<[u8; 32], Arc<Claims>>>,
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokens").finish_non_exhaustive()
    }
}

impl Tokens {
    /// Creates an issuer that signs with a P-256 key in PKCS #8, for the accounts in `store`.
    ///
    /// # Errors
    /// Why the key is invalid.
    pub(crate) fn new(key: &[u8], store: Store, clock: Clock) -> Result<Self, String> {
        Ok(Self {
            key: SigningKey::from_pkcs8(key)?,
            store,
            clock,
            verified: Mutex::default(),
        })
    }

    /// Issues a token; `None` if the system has no randomness.
    #[must_use]
    pub fn issue(&self, request: TokenSpec<'_>) -> Option<String> {
        let named = |name: String, uid: String| Some(Ref { name, uid });
        let (mut pod, mut secret, mut node) = (None, None, None);
        match request.bound {
            Some(BoundObject::Pod {
                name,
                uid,
                node: at,
            }) => {
                pod = named(name, uid);
                node = at.and_then(|(name, uid)| named(name, uid));
            }
            Some(BoundObject::Secret { name, uid }) => secret = named(name, uid),
            Some(BoundObject::Node { name, uid }) => node = named(name, uid),
            None => {}
        }
        let user = User::service_account(request.namespace, request.account);
        self.key.sign(&Claims {
            iss: ISSUER.to_owned(),
            sub: user.name,
            aud: request.audiences,
            exp: request.from.saturating_add(request.seconds),
            iat: request.from,
            nbf: request.from,
            jti: uuid::Uuid::new_v4().to_string(),
            kubernetes: KubernetesClaims {
                namespace: request.namespace.to_owned(),
                serviceaccount: Ref {
                    name: request.account.to_owned(),
                    uid: request.uid.to_owned(),
                },
                pod,
                secret,
                node,
            },
        })
    }

    /// Verifies `token` and returns its user, and for which of `audiences` (without any, this server) it is
    /// valid.
    ///
    /// # Errors
    /// Why the token is invalid; the text contains nothing of the token.
    pub fn review(&self, token: &str, audiences: &[String]) -> Result<(User, Vec<String>), String> {
        let claims = self.claims(token).ok_or("invalid bearer token")?;
        let message = |message: &str| format!("[invalid bearer token, {message}]");
        let own = [ISSUER.to_owned()];
        let audiences_to_check = if audiences.is_empty() {
            &own
        } else {
            audiences
        };
        let good_for: Vec<String> = audiences_to_check
            .iter()
            .filter(|audience| claims.aud.contains(audience))
            .cloned()
            .collect();
        if good_for.is_empty() {
            return Err(message(&format!(
                "token audiences {:?} is invalid for the target audiences {audiences_to_check:?}",
                claims.aud
            )));
        }
        let now = self.clock.now();
        if claims.exp <= now.as_second() {
            self.verified.lock().remove(&fingerprint(token));
            return Err(message("service account token has expired"));
        }
        if claims.nbf > now.as_second().saturating_add(LEEWAY) {
            return Err(message("service account token is not valid yet"));
        }
        self.check_objects(&claims.kubernetes, now)
            .map_err(|w| message(&w))?;
        Ok((user(&claims), good_for))
    }

    fn claims(&self, token: &str) -> Option<Arc<Claims>> {
        let print = fingerprint(token);
        if let Some(known) = self.verified.lock().get(&print) {
            return Some(Arc::clone(known));
        }
        let claims = Arc::new(self.key.verify(token)?);
        if claims.iss != ISSUER {
            return None;
        }
        let mut verified = self.verified.lock();
        if verified.len() >= REMEMBERED {
            verified.clear();
        }
        verified.insert(print, Arc::clone(&claims));
        Some(claims)
    }

    /// Checks that the account and the bound object exist with the uids in the token.
    fn check_objects(&self, claims: &KubernetesClaims, now: Timestamp) -> Result<(), String> {
        let namespace = claims.namespace.as_str();
        let removed = || "service account token has been invalidated".to_owned();
        self.check_bound_object("serviceaccounts", namespace, &claims.serviceaccount, now)
            .map_err(|reason| match reason {
                BoundObjectError::Other(uid) => format!(
                    "service account UID ({uid}) does not match claim ({})",
                    claims.serviceaccount.uid
                ),
                BoundObjectError::Missing => {
                    format!("serviceaccounts {:?} not found", claims.serviceaccount.name)
                }
                BoundObjectError::Deleted => format!(
                    "service account {namespace}/{} has been deleted",
                    claims.serviceaccount.name
                ),
            })?;
        let node = claims.node.as_ref().filter(|_| claims.pod.is_none());
        for (plural, namespace, of) in [
            ("pods", namespace, claims.pod.as_ref()),
            ("secrets", namespace, claims.secret.as_ref()),
            ("nodes", "", node),
        ] {
            if let Some(of) = of {
                self.check_bound_object(plural, namespace, of, now)
                    .map_err(|_| removed())?;
            }
        }
        Ok(())
    }

    fn check_bound_object(
        &self,
        plural: &str,
        namespace: &str,
        of: &Ref,
        now: Timestamp,
    ) -> Result<(), BoundObjectError> {
        let key = ObjectKey::new(namespace, of.name.as_str());
        let entry = self.store.get(&TableId::new("", plural), &key);
        let entry = entry.ok_or(BoundObjectError::Missing)?;
        if *entry.index.uid != *of.uid {
            return Err(BoundObjectError::Other(entry.index.uid.to_string()));
        }
        // Few objects are being deleted: only those are parsed.
        let field = b"\"deletionTimestamp\"";
        if !entry
            .bytes
            .windows(field.len())
            .any(|window| window == field)
        {
            return Ok(());
        }
        let value = entry.value();
        let since = value["metadata"]["deletionTimestamp"].as_str();
        let since: Option<Timestamp> = since.and_then(|text| text.parse().ok());
        match since {
            Some(since) if since.as_second() < now.as_second() - LEEWAY => {
                Err(BoundObjectError::Deleted)
            }
            _ => Ok(()),
        }
    }

    /// Returns the public key for verification as a JSON web key set.
    #[must_use]
    pub fn keys(&self) -> Value {
        json!({ "keys": [self.key.public()] })
    }
}

/// Reason why an object does not validate a token.
enum BoundObjectError {
    Missing,
    /// Another object with the same name has this uid.
    Other(String),
    Deleted,
}

fn user(claims: &Claims) -> User {
    let of = &claims.kubernetes;
    let mut extra = vec![(
        format!("{EXTRA}credential-id"),
        vec![format!("JTI={}", claims.jti)],
    )];
    for (what, of) in [("node", &of.node), ("pod", &of.pod)] {
        let Some(of) = of else { continue };
        extra.push((format!("{EXTRA}{what}-name"), vec![of.name.clone()]));
        if !of.uid.is_empty() {
            extra.push((format!("{EXTRA}{what}-uid"), vec![of.uid.clone()]));
        }
    }
    User {
        uid: of.serviceaccount.uid.clone(),
        extra,
        ..User::service_account(&of.namespace, &of.serviceaccount.name)
    }
}
