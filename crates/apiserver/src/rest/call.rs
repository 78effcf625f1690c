//! A request on its way to the verb that answers it.

use super::accept::{Encoding, Endpoint, Negotiated, PROTOBUF, negotiate};
use super::body::{self, Decoded};
use super::options::{DeleteOptions, WriteOptions};
use super::path::ResourcePath;
use super::query::Query;
use super::respond::{self, Style};
use super::write::{Input, Outcome};
use super::{User, transform};
use crate::store::SendQueues;
use axum::response::Response;
use bytes::Bytes;
use http::HeaderMap;
use hyper::upgrade::OnUpgrade;
use koord_kinds::Resource;
use koord_kinds::status::ApiError;
use std::sync::Arc;

/// The representations we write, for 406.
pub(super) const PRODUCED: &[&str] = &["application/json", "application/yaml", PROTOBUF];

/// Everything a handler may look at, with the body read.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) path: ResourcePath,
    pub(super) query: Query,
    pub(super) headers: HeaderMap,
    pub(super) user: User,
    pub(super) body: Bytes,
    /// The connection itself, for requests that want to speak something else on it.
    pub(super) upgrade: Option<OnUpgrade>,
    /// What the client has not read counts there, when it is bounded.
    pub(super) queues: Option<SendQueues>,
}

impl Call {
    /// Decodes the body by its content type.
    pub(super) fn decode(&self) -> Result<Decoded, ApiError> {
        body::decode(&body::content_type(&self.headers), &self.body)
    }

    /// The decoded body as the input of a write.
    pub(super) fn input(&self) -> Result<Input, ApiError> {
        let Decoded { value, problems } = self.decode()?;
        Ok(Input {
            value,
            problems,
            ..Input::default()
        })
    }

    /// The options of a create, update or patch, with who asks.
    pub(super) fn write_options(&self, kind: &str) -> Result<WriteOptions, ApiError> {
        let mut options = self.query.write_options(kind, self.user_agent())?;
        options.user = Some(Arc::new(self.user.clone()));
        Ok(options)
    }

    /// The options of a delete, with who asks.
    pub(super) fn delete_options(&self) -> Result<DeleteOptions, ApiError> {
        let mut options = DeleteOptions::parse(&self.decode()?.value, &self.query)?;
        options.user = Some(Arc::new(self.user.clone()));
        Ok(options)
    }

    /// The client program.
    pub(super) fn user_agent(&self) -> Option<&str> {
        self.headers
            .get(http::header::USER_AGENT)
            .and_then(|v| v.to_str().ok())
    }

    /// Namespace of the path, `""` without.
    pub(super) fn namespace(&self) -> &str {
        self.path.namespace.as_deref().unwrap_or("")
    }

    /// Name in the path, `""` without.
    pub(super) fn name(&self) -> &str {
        self.path.name.as_deref().unwrap_or("")
    }

    /// What representation the reply has.
    pub(super) fn negotiate(&self, endpoint: Endpoint) -> Result<Negotiated, ApiError> {
        negotiate(&self.headers, endpoint).ok_or_else(|| ApiError::not_acceptable(PRODUCED))
    }

    /// Refuses, before anything is written, what could not be answered afterwards.
    pub(super) fn check_reply(&self) -> Result<(), ApiError> {
        self.negotiate(Endpoint::One)?;
        transform::include(&self.query).map(drop)
    }

    /// The reply to a write.
    pub(super) fn reply(
        &self,
        resource: &Arc<Resource>,
        done: &Outcome,
        now: jiff::Timestamp,
    ) -> Result<Response, ApiError> {
        let negotiated = self.negotiate(Endpoint::One)?;
        let include = transform::include(&self.query)?;
        let bytes = transform::one(resource, &done.object, negotiated.form, include, now);
        let style = Style {
            encoding: negotiated.encoding,
            pretty: self.query.pretty(),
        };
        let mut response = respond::bytes(if done.created { 201 } else { 200 }, bytes, style);
        respond::warn(&mut response, &done.warnings);
        Ok(response)
    }

    /// How a reply without other representations is written.
    pub(super) fn style(&self) -> Style {
        let encoding =
            negotiate(&self.headers, Endpoint::One).map_or(Encoding::Json, |n| n.encoding);
        Style {
            encoding,
            pretty: self.query.pretty(),
        }
    }
}

/// 405 for a method that no verb stands for.
pub(super) fn method_not_allowed() -> ApiError {
    ApiError::new(
        405,
        "MethodNotAllowed",
        "the server does not allow this method on the requested resource",
    )
}
