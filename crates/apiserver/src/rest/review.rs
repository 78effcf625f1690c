//! Review APIs about users, permissions and tokens. They use the same rules as the authorization of requests.

use super::accept::Endpoint;
use super::call::Call;
use super::guard::Guard;
use super::{User, meta, respond};
use crate::authz::{Attributes, ResourceTarget, Rule, Target};
use crate::tokens::Tokens;
use axum::response::Response;
use koord_kinds::Resource;
use koord_kinds::status::{ApiError, FieldError};
use serde_json::{Value, json};
use std::sync::Arc;

fn user_info(user: &User) -> Value {
    let mut info = json!({ "username": user.name, "groups": user.groups });
    if !user.uid.is_empty() {
        info["uid"] = user.uid.as_str().into();
    }
    for (key, values) in &user.extra {
        info["extra"][key] = values.clone().into();
    }
    info
}

/// Serves review requests with the authorizer and the token issuer.
pub(super) struct Reviewer<'a> {
    pub(super) guard: &'a Guard,
    pub(super) tokens: &'a Tokens,
}

impl Reviewer<'_> {
    /// Serves the POST of a review.
    pub(super) fn serve(
        &self,
        resource: &Arc<Resource>,
        call: &Call,
    ) -> Result<Response, ApiError> {
        call.negotiate(Endpoint::Review)?;
        call.write_options("CreateOptions")?;
        let mut review = call.decode()?.value;
        super::check::check_identity(resource, &mut review, false)?;
        let metadata = meta::section(&mut review, "metadata");
        metadata.entry("creationTimestamp").or_insert(Value::Null);
        let status = match &*resource.plural {
            "selfsubjectreviews" => json!({ "userInfo": user_info(&call.user) }),
            "selfsubjectaccessreviews" => {
                check_attributes(resource, &review, false)?;
                self.review_access(&call.user, &review)
            }
            "subjectaccessreviews" => {
                check_attributes(resource, &review, true)?;
                self.review_access(&subject(&review), &review)
            }
            "localsubjectaccessreviews" => {
                check_attributes(resource, &review, true)?;
                check_local(resource, &review, call.namespace())?;
                self.review_access(&subject(&review), &review)
            }
            "selfsubjectrulesreviews" => self.review_rules(&call.user, &review)?,
            "tokenreviews" => self.review_token(&review)?,
            _ => return Err(super::call::method_not_allowed()),
        };
        meta::as_object(&mut review).insert("status".to_owned(), status);
        Ok(respond::value(201, &review, call.style()))
    }

    /// Returns the status of an access review: whether `user` may do what the review describes.
    fn review_access(&self, user: &User, review: &Value) -> Value {
        let text = |part, field| meta::text(review, &["spec", part, field]);
        let of = |field| text("resourceAttributes", field);
        let asks = meta::at(review, &["spec", "nonResourceAttributes"]);
        let attributes = if asks.is_some_and(|asks| !asks.is_null()) {
            Attributes {
                verb: text("nonResourceAttributes", "verb"),
                target: Target::Path(text("nonResourceAttributes", "path")),
            }
        } else {
            Attributes {
                verb: of("verb"),
                target: Target::Resource(ResourceTarget {
                    group: of("group"),
                    resource: of("resource"),
                    subresource: of("subresource"),
                    namespace: of("namespace"),
                    name: of("name"),
                    node: "",
                }),
            }
        };
        let (allowed, reason) = self.guard.decide(user, &attributes);
        let mut status = json!({ "allowed": allowed });
        if !reason.is_empty() {
            status["reason"] = reason.into();
        }
        status
    }

    /// Returns the status of a rules review: what `user` may do in the review's namespace.
    fn review_rules(&self, user: &User, review: &Value) -> Result<Value, ApiError> {
        let namespace = meta::text(review, &["spec", "namespace"]);
        if namespace.is_empty() {
            return Err(ApiError::bad_request("no namespace on request"));
        }
        let (rules, problem) = self.guard.rules_for(user, namespace);
        let (paths, resources): (Vec<_>, Vec<_>) =
            rules.iter().partition(|rule| rule.resources.is_empty());
        let values = |rules: Vec<&Rule>| rules.into_iter().map(Rule::to_value).collect::<Vec<_>>();
        let mut status = json!({
            "resourceRules": values(resources),
            "nonResourceRules": values(paths),
            "incomplete": false,
        });
        if !problem.is_empty() {
            status["evaluationError"] = problem.into();
        }
        Ok(status)
    }

    fn review_token(&self, review: &Value) -> Result<Value, ApiError> {
        let token = meta::text(review, &["spec", "token"]);
        if token.is_empty() {
            return Err(ApiError::bad_request(
                "token is required for TokenReview in authentication",
            ));
        }
        let audiences = meta::at(review, &["spec", "audiences"]).and_then(Value::as_array);
        let audiences = audiences.into_iter().flatten().filter_map(Value::as_str);
        let audiences: Vec<String> = audiences.map(str::to_owned).collect();
        Ok(match self.tokens.review(token, &audiences) {
            Ok((user, audiences)) => json!({
                "authenticated": true,
                "user": user_info(&user),
                "audiences": audiences,
            }),
            Err(reason) => json!({ "authenticated": false, "user": {}, "error": reason }),
        })
    }
}

/// Returns the user that a review is about.
fn subject(review: &Value) -> User {
    let groups = meta::at(review, &["spec", "groups"]).and_then(Value::as_array);
    let groups = groups.into_iter().flatten().filter_map(Value::as_str);
    User::new(meta::text(review, &["spec", "user"]), groups)
}

/// Checks that a local review is about a resource in the namespace it is sent to.
fn check_local(resource: &Resource, review: &Value, namespace: &str) -> Result<(), ApiError> {
    if meta::at(review, &["spec", "nonResourceAttributes"]).is_some_and(|asks| !asks.is_null()) {
        let error = FieldError::invalid(
            "spec.nonResourceAttributes",
            Value::Null,
            "disallowed on this kind of request",
        );
        return Err(ApiError::invalid(
            &resource.group,
            &resource.kind,
            "",
            &[error],
        ));
    }
    if meta::text(review, &["spec", "resourceAttributes", "namespace"]) == namespace {
        return Ok(());
    }
    Err(ApiError::bad_request(format!(
        "spec.resourceAttributes.namespace must match namespace: {namespace}"
    )))
}

/// Checks that a review is about either a resource or a path, and has a user unless it is about the sender.
fn check_attributes(resource: &Resource, review: &Value, subject: bool) -> Result<(), ApiError> {
    let has = |key: &str| meta::at(review, &["spec", key]).is_some_and(|v| !v.is_null());
    let mut errors = Vec::new();
    match (has("resourceAttributes"), has("nonResourceAttributes")) {
        (true, true) => errors.push(FieldError::invalid(
            "spec.nonResourceAttributes",
            Value::Null,
            "cannot be specified in combination with resourceAttributes",
        )),
        (false, false) => errors.push(FieldError::invalid(
            "spec.resourceAttributes",
            Value::Null,
            "exactly one of nonResourceAttributes or resourceAttributes must be specified",
        )),
        _ => {}
    }
    if subject && meta::text(review, &["spec", "user"]).is_empty() && !has("groups") {
        errors.push(FieldError::invalid(
            "spec.user",
            "",
            "at least one of user or group must be specified",
        ));
    }
    if errors.is_empty() {
        return Ok(());
    }
    Err(ApiError::invalid(
        &resource.group,
        &resource.kind,
        "",
        &errors,
    ))
}
