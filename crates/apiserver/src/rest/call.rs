//! A request with its body, as handlers receive it.

use super::accept::{Encoding, Endpoint, NegotiatedFormat, PROTOBUF, negotiate};
use super::body::{self, DecodedBody};
use super::options::{DeleteOptions, WriteOptions};
use super::path::ResourcePath;
use super::query::Query;
use super::respond::{self, ResponseFormat};
use super::write::{WriteInput, WriteResult};
use super::{User, transform};
use crate::store::SendQueues;
use axum::response::Response;
use bytes::Bytes;
use http::HeaderMap;
use hyper::upgrade::OnUpgrade;
use koord_kinds::Resource;
use koord_kinds::status::ApiError;
use std::sync::Arc;

/// Media types of responses, for 406.
pub(super) const PRODUCED: &[&str] = &["application/json", "application/yaml", PROTOBUF];

/// A parsed request with its body.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) path: ResourcePath,
    pub(super) query: Query,
    pub(super) headers: HeaderMap,
    pub(super) user: User,
    pub(super) body: Bytes,
    /// Handle to take over the connection, for requests that switch the protocol.
    pub(super) upgrade: Option<OnUpgrade>,
    /// Send queues of the client, to which unsent data is charged; `None` if they are not bounded.
    pub(super) queues: Option<SendQueues>,
}

impl Call {
    /// Decodes the body by its content type.
    pub(super) fn decode(&self) -> Result<DecodedBody, ApiError> {
        body::decode(&body::content_type(&self.headers), &self.body)
    }

    /// Decodes the body as the input of a write.
    pub(super) fn input(&self) -> Result<WriteInput, ApiError> {
        let DecodedBody { value, problems } = self.decode()?;
        Ok(WriteInput {
            value,
            problems,
            ..WriteInput::default()
        })
    }

    /// Parses the options of a create, update or patch, and adds the user.
    pub(super) fn write_options(&self, kind: &str) -> Result<WriteOptions, ApiError> {
        let mut options = self.query.write_options(kind, self.user_agent())?;
        options.user = Some(Arc::new(self.user.clone()));
        Ok(options)
    }

    /// Parses the options of a delete, and adds the user.
    pub(super) fn delete_options(&self) -> Result<DeleteOptions, ApiError> {
        let mut options = DeleteOptions::parse(&self.decode()?.value, &self.query)?;
        options.user = Some(Arc::new(self.user.clone()));
        Ok(options)
    }

    /// Returns the `User-Agent` header.
    pub(super) fn user_agent(&self) -> Option<&str> {
        self.headers
            .get(http::header::USER_AGENT)
            .and_then(|v| v.to_str().ok())
    }

    /// Returns the namespace in the path, `""` without one.
    pub(super) fn namespace(&self) -> &str {
        self.path.namespace.as_deref().unwrap_or("")
    }

    /// Returns the name in the path, `""` without one.
    pub(super) fn name(&self) -> &str {
        self.path.name.as_deref().unwrap_or("")
    }

    /// Chooses the representation of the response, or fails with 406.
    pub(super) fn negotiate(&self, endpoint: Endpoint) -> Result<NegotiatedFormat, ApiError> {
        negotiate(&self.headers, endpoint).ok_or_else(|| ApiError::not_acceptable(PRODUCED))
    }

    /// Checks before a write that its response can be written in the requested format.
    pub(super) fn check_reply(&self) -> Result<(), ApiError> {
        self.negotiate(Endpoint::One)?;
        transform::include(&self.query).map(drop)
    }

    /// Builds the response to a write.
    pub(super) fn reply(
        &self,
        resource: &Arc<Resource>,
        result: &WriteResult,
        now: jiff::Timestamp,
    ) -> Result<Response, ApiError> {
        let negotiated = self.negotiate(Endpoint::One)?;
        let include = transform::include(&self.query)?;
        let bytes =
            transform::object_bytes(resource, &result.object, negotiated.form, include, now);
        let style = ResponseFormat {
            encoding: negotiated.encoding,
            pretty: self.query.pretty(),
        };
        let mut response = respond::bytes(if result.created { 201 } else { 200 }, bytes, style);
        respond::warn(&mut response, &result.warnings);
        Ok(response)
    }

    /// Returns the format of a response that has only one representation.
    pub(super) fn style(&self) -> ResponseFormat {
        let encoding =
            negotiate(&self.headers, Endpoint::One).map_or(Encoding::Json, |n| n.encoding);
        ResponseFormat {
            encoding,
            pretty: self.query.pretty(),
        }
    }
}

/// Returns 405, for a method without a verb.
pub(super) fn method_not_allowed() -> ApiError {
    ApiError::new(
        405,
        "MethodNotAllowed",
        "the server does not allow this method on the requested resource",
    )
}
