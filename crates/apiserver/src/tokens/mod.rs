//! The tokens of service accounts: who they are for, how long they are good, and what ends them.
//!
//! A token is signed and says all of it itself; nothing of it is stored. It is good while its
//! account and the object it is bound to exist, both with the uid that it names.

mod jwt;
#[cfg(test)]
mod tests;

use crate::authz::User;
use crate::store::{Key as ObjectKey, Store, TableId};
use jiff::Timestamp;
use jwt::{Claims, Key, Private, Ref, fingerprint};
use koord_app::Clock;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde_json::{Value, json};
use std::sync::Arc;

/// Who issues tokens, and whom they are for unless a request says otherwise: this server.
pub const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
/// How long after the beginning of its deletion an object still vouches for a token, seconds.
const LEEWAY: i64 = 60;
/// Verified tokens that are remembered, so that not each request costs a verification.
const REMEMBERED: usize = 4096;
/// What the extra information about a token's user starts with.
const EXTRA: &str = "authentication.kubernetes.io/";

/// What a token is bound to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bound {
    /// A pod of the account's namespace, with the node it is on.
    Pod {
        /// Name of the pod.
        name: String,
        /// Its uid.
        uid: String,
        /// Name and uid of the node; the uid is empty for one that is not there.
        node: Option<(String, String)>,
    },
    /// A secret of the account's namespace.
    Secret {
        /// Its name.
        name: String,
        /// Its uid.
        uid: String,
    },
    /// A node.
    Node {
        /// Its name.
        name: String,
        /// Its uid.
        uid: String,
    },
}

/// What a token shall say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request<'a> {
    /// Namespace of the account.
    pub namespace: &'a str,
    /// Its name.
    pub account: &'a str,
    /// Its uid.
    pub uid: &'a str,
    /// What else must exist.
    pub bound: Option<Bound>,
    /// Whom the token is for.
    pub audiences: Vec<String>,
    /// From when on, seconds since 1970.
    pub from: i64,
    /// How long, seconds.
    pub seconds: i64,
}

/// Issues and judges tokens.
pub struct Tokens {
    key: Key,
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
    /// Tokens signed by a P-256 key in PKCS #8, about the accounts of `store`.
    ///
    /// # Errors
    /// What is wrong with the key.
    pub(crate) fn new(key: &[u8], store: Store, clock: Clock) -> Result<Self, String> {
        Ok(Self {
            key: Key::from_pkcs8(key)?,
            store,
            clock,
            verified: Mutex::default(),
        })
    }

    /// A new token; `None` when the system has no randomness.
    #[must_use]
    pub fn issue(&self, request: Request<'_>) -> Option<String> {
        let named = |name: String, uid: String| Some(Ref { name, uid });
        let (mut pod, mut secret, mut node) = (None, None, None);
        match request.bound {
            Some(Bound::Pod {
                name,
                uid,
                node: at,
            }) => {
                pod = named(name, uid);
                node = at.and_then(|(name, uid)| named(name, uid));
            }
            Some(Bound::Secret { name, uid }) => secret = named(name, uid),
            Some(Bound::Node { name, uid }) => node = named(name, uid),
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
            kubernetes: Private {
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

    /// Who bears `token`, and for which of `audiences` it is good (without any, for this server).
    ///
    /// # Errors
    /// Why it is not good, without anything of it.
    pub fn review(&self, token: &str, audiences: &[String]) -> Result<(User, Vec<String>), String> {
        let claims = self.claims(token).ok_or("invalid bearer token")?;
        let why = |why: &str| format!("[invalid bearer token, {why}]");
        let own = [ISSUER.to_owned()];
        let wanted = if audiences.is_empty() {
            &own
        } else {
            audiences
        };
        let good_for: Vec<String> = wanted
            .iter()
            .filter(|audience| claims.aud.contains(audience))
            .cloned()
            .collect();
        if good_for.is_empty() {
            return Err(why(&format!(
                "token audiences {:?} is invalid for the target audiences {wanted:?}",
                claims.aud
            )));
        }
        let now = self.clock.now();
        if claims.exp <= now.as_second() {
            self.verified.lock().remove(&fingerprint(token));
            return Err(why("service account token has expired"));
        }
        if claims.nbf > now.as_second().saturating_add(LEEWAY) {
            return Err(why("service account token is not valid yet"));
        }
        self.check_objects(&claims.kubernetes, now)
            .map_err(|w| why(&w))?;
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

    /// The account and what the token is bound to are there, and are the ones it was issued for.
    fn check_objects(&self, claims: &Private, now: Timestamp) -> Result<(), String> {
        let namespace = claims.namespace.as_str();
        let gone = || "service account token has been invalidated".to_owned();
        self.vouches("serviceaccounts", namespace, &claims.serviceaccount, now)
            .map_err(|why| match why {
                Gone::Other(uid) => format!(
                    "service account UID ({uid}) does not match claim ({})",
                    claims.serviceaccount.uid
                ),
                Gone::Missing => {
                    format!("serviceaccounts {:?} not found", claims.serviceaccount.name)
                }
                Gone::Deleted => format!(
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
                self.vouches(plural, namespace, of, now)
                    .map_err(|_| gone())?;
            }
        }
        Ok(())
    }

    fn vouches(&self, plural: &str, namespace: &str, of: &Ref, now: Timestamp) -> Result<(), Gone> {
        let key = ObjectKey::new(namespace, of.name.as_str());
        let entry = self.store.get(&TableId::new("", plural), &key);
        let entry = entry.ok_or(Gone::Missing)?;
        if *entry.index.uid != *of.uid {
            return Err(Gone::Other(entry.index.uid.to_string()));
        }
        // Hardly any is being deleted: only those are parsed.
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
            Some(since) if since.as_second() < now.as_second() - LEEWAY => Err(Gone::Deleted),
            _ => Ok(()),
        }
    }

    /// The public key that tokens are verified with, as a JSON web key set.
    #[must_use]
    pub fn keys(&self) -> Value {
        json!({ "keys": [self.key.public()] })
    }
}

/// Why an object does not vouch for a token.
enum Gone {
    Missing,
    /// Another object, with this uid, has its name.
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
