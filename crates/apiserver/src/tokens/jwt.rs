//! JSON web tokens with ES256 (RFC 7515, 7518).

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use ring::digest;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _,
    UnparsedPublicKey,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Prefix of a P-256 key in its SubjectPublicKeyInfo (RFC 5480).
const SPKI_PREFIX: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
/// Longest accepted token in bytes.
const MAX_BYTES: usize = 16 << 10;

/// Name and uid of an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ref {
    pub(super) name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) uid: String,
}

/// Kubernetes claims of a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KubernetesClaims {
    pub(super) namespace: String,
    pub(super) serviceaccount: Ref,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) pod: Option<Ref>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) secret: Option<Ref>,
    /// Node of the pod; without a pod, the node that the token is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) node: Option<Ref>,
}

/// Claims of a token. Times are seconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Claims {
    pub(super) iss: String,
    pub(super) sub: String,
    pub(super) aud: Vec<String>,
    pub(super) exp: i64,
    pub(super) iat: i64,
    pub(super) nbf: i64,
    pub(super) jti: String,
    #[serde(rename = "kubernetes.io")]
    pub(super) kubernetes: KubernetesClaims,
}

#[derive(Debug, Serialize, Deserialize)]
struct JwtHeader {
    alg: String,
    #[serde(default)]
    kid: String,
}

/// Key that signs tokens.
pub(super) struct SigningKey {
    pair: EcdsaKeyPair,
    random: SystemRandom,
    id: String,
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SigningKey")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl SigningKey {
    /// Parses a P-256 key in PKCS #8.
    ///
    /// # Errors
    /// Why the key is invalid.
    pub(super) fn from_pkcs8(der: &[u8]) -> Result<Self, String> {
        let random = SystemRandom::new();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der, &random)
            .map_err(|reason| format!("not a P-256 key: {reason}"))?;
        let spki = [&SPKI_PREFIX, pair.public_key().as_ref()].concat();
        let id = BASE64.encode(digest::digest(&digest::SHA256, &spki));
        Ok(Self { pair, random, id })
    }

    /// Signs the claims and returns the token; `None` if the system has no randomness.
    pub(super) fn sign(&self, claims: &Claims) -> Option<String> {
        let header = JwtHeader {
            alg: "ES256".to_owned(),
            kid: self.id.clone(),
        };
        let encode = |json: serde_json::Result<Vec<u8>>| json.ok().map(|json| BASE64.encode(json));
        let header = encode(serde_json::to_vec(&header))?;
        let claims = encode(serde_json::to_vec(claims))?;
        let mut token = format!("{header}.{claims}");
        let signature = self.pair.sign(&self.random, token.as_bytes()).ok()?;
        token.push('.');
        BASE64.encode_string(signature.as_ref(), &mut token);
        Some(token)
    }

    /// Returns the claims of a token if this key has signed it.
    pub(super) fn verify(&self, token: &str) -> Option<Claims> {
        if token.len() > MAX_BYTES {
            return None;
        }
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        let header: JwtHeader = serde_json::from_slice(&BASE64.decode(header).ok()?).ok()?;
        if header.alg != "ES256" || header.kid != self.id {
            return None;
        }
        let signature = BASE64.decode(signature).ok()?;
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, self.pair.public_key().as_ref())
            .verify(signed.as_bytes(), &signature)
            .ok()?;
        serde_json::from_slice(&BASE64.decode(claims).ok()?).ok()
    }

    /// Returns the public key (RFC 7517).
    pub(super) fn public(&self) -> Value {
        // The first byte is 4, followed by the two coordinates.
        let point = self.pair.public_key().as_ref();
        let (x, y) = point.get(1..).unwrap_or_default().split_at(32);
        json!({
            "use": "sig",
            "kty": "EC",
            "kid": self.id,
            "crv": "P-256",
            "alg": "ES256",
            "x": BASE64.encode(x),
            "y": BASE64.encode(y),
        })
    }
}

/// Returns the hash of a token, the key of the cache of verified tokens.
pub(super) fn fingerprint(token: &str) -> [u8; 32] {
    let hash = digest::digest(&digest::SHA256, token.as_bytes());
    let mut bytes = [0; 32];
    bytes.copy_from_slice(hash.as_ref());
    bytes
}
