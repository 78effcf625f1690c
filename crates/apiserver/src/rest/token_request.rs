//! The `serviceaccounts/token` subresource: issues a token for an account, optionally bound to an object.

use super::call::Call;
use super::core::{self, Core};
use super::{User, meta, respond};
use crate::store::{Entry, Key, TableId};
use crate::tokens::{BoundObject, ISSUER, TokenSpec, Tokens};
use axum::response::Response;
use koord_kinds::status::{ApiError, FieldError};
use serde_json::{Value, json};
use std::sync::Arc;

/// Shortest lifetime of a token, in seconds.
const MIN_SECONDS: i64 = 600;
/// Longest lifetime of a token, in seconds.
const MAX_SECONDS: i64 = 1 << 32;
/// Default lifetime of a token, in seconds.
const DEFAULT_SECONDS: i64 = 3600;

/// Issues tokens for stored service accounts.
pub(super) struct TokenIssuer<'a> {
    pub(super) core: &'a Core,
    pub(super) tokens: &'a Tokens,
}

impl TokenIssuer<'_> {
    /// Serves the POST of a TokenRequest for a service account.
    pub(super) fn serve(&self, call: &Call) -> Result<Response, ApiError> {
        let accounts = self.core.builtin("", "v1", "serviceaccounts")?;
        let mut request = call.decode()?.value;
        if !request.is_object() {
            return Err(ApiError::bad_request("expected a TokenRequest"));
        }
        let kind = meta::text(&request, &["kind"]);
        if !kind.is_empty() && kind != "TokenRequest" {
            return Err(ApiError::bad_request(format!(
                "expected a TokenRequest, got {kind}"
            )));
        }
        let key = core::key(&accounts, call.namespace(), call.name());
        let account = self.core.entry(&accounts, &key)?;
        let seconds = seconds(&request)?;
        let audiences = meta::at(&request, &["spec", "audiences"]).and_then(Value::as_array);
        let audiences = audiences.into_iter().flatten().filter_map(Value::as_str);
        let mut audiences: Vec<String> = audiences.map(str::to_owned).collect();
        if audiences.is_empty() {
            audiences.push(ISSUER.to_owned());
        }
        let bound = self.bound_object(call, &request)?;
        check_node(&call.user, bound.as_ref(), &request)?;
        let now = self.core.clock().now();
        let token = self.tokens.issue(TokenSpec {
            namespace: call.namespace(),
            account: call.name(),
            uid: &account.index.uid,
            bound,
            audiences: audiences.clone(),
            from: now.as_second(),
            seconds,
        });
        let token =
            token.ok_or_else(|| ApiError::internal("no randomness to sign a token with"))?;
        let expires = now
            .saturating_add(jiff::SignedDuration::from_secs(seconds))
            .unwrap_or(now);
        let root = meta::as_object(&mut request);
        root.insert("kind".to_owned(), "TokenRequest".into());
        root.insert("apiVersion".to_owned(), "authentication.k8s.io/v1".into());
        let metadata = json!({
            "name": call.name(),
            "namespace": call.namespace(),
            "creationTimestamp": meta::time(now),
        });
        root.insert("metadata".to_owned(), metadata);
        let status = json!({ "token": token, "expirationTimestamp": meta::time(expires) });
        root.insert("status".to_owned(), status);
        let spec = meta::section(&mut request, "spec");
        spec.insert("expirationSeconds".to_owned(), seconds.into());
        spec.insert("audiences".to_owned(), audiences.into());
        Ok(respond::value(201, &request, call.style()))
    }

    /// Returns the object that the token is to be bound to.
    fn bound_object(&self, call: &Call, request: &Value) -> Result<Option<BoundObject>, ApiError> {
        let reference = meta::at(request, &["spec", "boundObjectRef"]);
        let Some(reference) = reference.filter(|reference| !reference.is_null()) else {
            return Ok(None);
        };
        let text = |field| meta::text(reference, &[field]);
        let (version, kind) = (text("apiVersion"), text("kind"));
        let (name, expected_uid) = (text("name").to_owned(), text("uid"));
        let (plural, namespace) = match (version, kind) {
            ("v1" | "", "Pod") => ("pods", call.namespace()),
            ("v1" | "", "Secret") => ("secrets", call.namespace()),
            ("v1" | "", "Node") => ("nodes", ""),
            _ => {
                return Err(ApiError::bad_request(format!(
                    "cannot bind token to object of type {version}, Kind={kind}"
                )));
            }
        };
        let matches = |plural: &str, namespace: &str, name: &str| -> Option<Arc<Entry>> {
            self.core
                .store()
                .get(&TableId::new("", plural), &Key::new(namespace, name))
        };
        let entry = matches(plural, namespace, &name)
            .ok_or_else(|| ApiError::not_found("", plural, &name))?;
        let uid = entry.index.uid.to_string();
        if !expected_uid.is_empty() && expected_uid != uid {
            return Err(ApiError::conflict(
                "",
                kind,
                &name,
                &format!(
                    "the UID in the bound object reference ({expected_uid}) does not match the UID in \
                     record. The object might have been deleted and then recreated"
                ),
            ));
        }
        Ok(Some(match kind {
            "Secret" => BoundObject::Secret { name, uid },
            "Node" => BoundObject::Node { name, uid },
            _ => {
                let pod = entry.value();
                let account = call.name();
                if meta::text(&pod, &["spec", "serviceAccountName"]) != account {
                    return Err(ApiError::bad_request(format!(
                        "cannot bind token for serviceaccount {account:?} to pod running with \
                         different serviceaccount name."
                    )));
                }
                let node = meta::text(&pod, &["spec", "nodeName"]);
                let node = (!node.is_empty()).then(|| {
                    let entry = matches("nodes", "", node);
                    let uid = entry.map(|entry| entry.index.uid.to_string());
                    (node.to_owned(), uid.unwrap_or_default())
                });
                BoundObject::Pod { name, uid, node }
            }
        }))
    }
}

fn seconds(request: &Value) -> Result<i64, ApiError> {
    let seconds = match meta::at(request, &["spec", "expirationSeconds"]) {
        None | Some(Value::Null) => DEFAULT_SECONDS,
        Some(seconds) => seconds.as_i64().unwrap_or(0),
    };
    let reason = if seconds < MIN_SECONDS {
        "may not specify a duration less than 10 minutes"
    } else if seconds > MAX_SECONDS {
        "may not specify a duration larger than 2^32 seconds"
    } else {
        return Ok(seconds);
    };
    let error = FieldError::invalid("spec.expirationSeconds", seconds, reason);
    Err(ApiError::invalid(
        "authentication.k8s.io",
        "TokenRequest",
        "",
        &[error],
    ))
}

/// Checks that a node requests tokens for its own pods only.
fn check_node(user: &User, bound: Option<&BoundObject>, request: &Value) -> Result<(), ApiError> {
    let Some(node) = crate::authz::node_of(user) else {
        return Ok(());
    };
    let uid = meta::text(request, &["spec", "boundObjectRef", "uid"]);
    let reason = match bound {
        Some(BoundObject::Pod { .. }) if uid.is_empty() => {
            "node requested token with a pod binding without a uid"
        }
        Some(BoundObject::Pod {
            node: Some((at, _)),
            ..
        }) if at == node => return Ok(()),
        Some(BoundObject::Pod { .. }) => {
            "node requested token bound to a pod scheduled on a different node"
        }
        _ => "node requested token not bound to a pod",
    };
    Err(ApiError::forbidden("", "serviceaccounts/token", "", reason))
}
