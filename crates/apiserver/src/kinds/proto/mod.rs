//! Kubernetes protobuf request bodies.

use serde_json::Value;

/// First bytes of every Kubernetes protobuf body.
pub const MAGIC: [u8; 4] = *b"k8s\0";

/// A body that cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtoError {
    /// The wire format is broken.
    #[error("protobuf body is malformed: {0}")]
    Malformed(String),
    /// No such kind here; custom resources are JSON only.
    #[error("no protobuf decoding for {kind:?} in version {api_version:?}")]
    UnknownKind {
        /// `apiVersion` of the body.
        api_version: String,
        /// `kind` of the body.
        kind: String,
    },
}

/// Decodes a body (with envelope) to the JSON object it stands for.
///
/// # Errors
/// See [`ProtoError`].
pub fn decode(_body: &[u8]) -> Result<Value, ProtoError> {
    Err(ProtoError::Malformed("not supported yet".to_owned()))
}

impl From<ProtoError> for super::ApiError {
    fn from(e: ProtoError) -> Self {
        match e {
            ProtoError::Malformed(_) => Self::bad_request(e.to_string()),
            ProtoError::UnknownKind { .. } => {
                Self::unsupported_media_type(&["application/json", "application/yaml"])
            }
        }
    }
}
