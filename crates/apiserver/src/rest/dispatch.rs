//! Dispatch of requests to the handlers of the verbs.

use super::accept::{Endpoint, ObjectForm, only_protobuf};
use super::body;
use super::call::{Call, PRODUCED, method_not_allowed};
use super::delete::DeleteOutcome;
use super::path::RequestTarget;
use super::query::Query;
use super::respond;
use super::review::Reviewer;
use super::selection::Selection;
use super::token_request::TokenIssuer;
use super::work_slots::{LIGHT, run_in_place};
use super::write::Object;
use super::{
    Api, User, binding, eviction, exec, guard, list, nonresource, path, podlog, scale, usage, watch,
};
use crate::store::SendQueues;
use axum::response::Response;
use bytes::Bytes;
use futures::FutureExt as _;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method};
use hyper::upgrade::OnUpgrade;
use koord_kinds::Resource;
use koord_kinds::status::ApiError;
use serde_json::{Value, json};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Serves a request. A panic in a handler results in 500 instead of a closed connection.
pub(super) async fn serve(api: &Api, request: axum::extract::Request) -> Response {
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let mut response = match AssertUnwindSafe(handle(api, request)).catch_unwind().await {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => respond::error(&error),
        Err(_) => {
            let path = uri.path();
            tracing::error!(%method, path, "request handler panicked, answering 500");
            respond::error(&ApiError::internal("the request handler failed"))
        }
    };
    response.headers_mut().insert(AUDIT_ID, audit_id());
    response
}

const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

/// Returns an id to trace a request by. It needs no unpredictable bytes, which would cost a system call.
fn audit_id() -> HeaderValue {
    let random = fastrand::u128(..).to_ne_bytes();
    let id = uuid::Builder::from_random_bytes(random).into_uuid();
    let mut text = uuid::Uuid::encode_buffer();
    let text = id.as_hyphenated().encode_lower(&mut text);
    HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static(""))
}

/// Authorizes a request and serves it.
async fn handle(api: &Api, request: axum::extract::Request) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let Parts {
        method,
        uri,
        headers,
        mut extensions,
        ..
    } = parts;
    let query = Query::parse(uri.query().unwrap_or(""))?;
    let target = path::parse(uri.path())
        .ok_or_else(|| ApiError::bad_request(format!("invalid path {:?}", uri.path())))?;
    let user = extensions.remove::<User>().unwrap_or_default();
    let path = match target {
        RequestTarget::Resource(path) => path,
        RequestTarget::Other(segments) => {
            let path = format!("/{}", segments.join("/"));
            guard::check_path(api.guard(), &user, &method, &path)?;
            query.timeout()?;
            let serve = || nonresource::serve(api, &method, &segments, &query, &headers);
            // Documents over all kinds are built when they are first requested.
            return if segments.first().is_some_and(|first| first == "openapi") {
                run_in_place(serve)
            } else {
                serve()
            };
        }
    };
    let verb = guard::verb(&method, &path, &query);
    // For a watch, `timeoutSeconds` applies instead.
    let received = Instant::now();
    let deadline = match verb {
        "watch" => received + MAX_WRITE_TIME,
        _ => received + query.timeout()?,
    };
    guard::check_resource(api.guard(), &user, verb, &path, &query)?;
    let resource = api
        .registry()
        .find(&path.group, &path.version, &path.plural)
        .filter(|r| r.namespaced || path.namespace.is_none())
        .ok_or_else(ApiError::unknown_path)?;
    if resource.namespaced && path.namespace.is_none() && path.name.is_some() {
        return Err(ApiError::unknown_path());
    }
    let body = match method {
        Method::POST | Method::PUT | Method::PATCH | Method::DELETE => {
            body::read(body, deadline).await?
        }
        _ => Bytes::new(),
    };
    let call = Call {
        path,
        query,
        headers,
        user,
        body,
        upgrade: extensions.remove::<OnUpgrade>(),
        queues: extensions.remove::<SendQueues>(),
    };
    check_protobuf(&resource, verb, &call)?;
    let mut response = run(api, method, verb, &resource, call, deadline).await?;
    if let Some(custom) = &resource.custom {
        respond::warn(&mut response, custom.deprecation.as_slice());
    }
    Ok(response)
}

/// Longest duration of a write, as upstream, even if the request has a longer timeout.
const MAX_WRITE_TIME: Duration = Duration::from_secs(34);

/// Subresources whose requests stay open and have no deadline.
const STREAMS: [&str; 5] = ["attach", "exec", "log", "portforward", "proxy"];

/// Runs a request's handler: off the runtime's workers if it handles much data, and until `deadline` unless
/// the request stays open.
async fn run(
    api: &Api,
    method: Method,
    verb: &'static str,
    resource: &Arc<Resource>,
    call: Call,
    deadline: Instant,
) -> Result<Response, ApiError> {
    let subresource = call.path.subresource.as_deref().unwrap_or_default();
    let stays_open = verb == "watch" || STREAMS.contains(&subresource);
    let is_long = !stays_open && request_weight(api, verb, resource, &call) > LIGHT;
    let (api, resource) = (api.clone(), Arc::clone(resource));
    let mut work = Box::pin(async move {
        let serve = async {
            if call.path.subresource.is_some() {
                Box::pin(serve_subresource(&api, &method, &resource, &call)).await
            } else {
                Box::pin(serve_resource(&api, &method, &resource, &call)).await
            }
        };
        if is_long {
            api.inner.work.run(&call.user, serve).await?
        } else {
            serve.await
        }
    });
    if stays_open {
        return work.await;
    }
    if matches!(verb, "get" | "list") {
        let result = tokio::time::timeout_at(deadline, work).await;
        return result.unwrap_or_else(|_| {
            let reason = "Timeout: request did not complete within the allotted timeout";
            Err(ApiError::timeout(reason))
        });
    }
    let deadline = deadline.min(Instant::now() + MAX_WRITE_TIME);
    match tokio::time::timeout_at(deadline, &mut work).await {
        Ok(result) => result,
        Err(_) => {
            // The effects of a write must take place even if the write takes too long.
            tokio::spawn(work);
            let reason = "Timeout: request did not complete within requested timeout - context \
                       deadline exceeded";
            Err(ApiError::timeout(reason))
        }
    }
}

/// Returns 406 for protobuf requests of custom resources, which have no protobuf form except for metadata and
/// scale.
fn check_protobuf(resource: &Resource, verb: &str, call: &Call) -> Result<(), ApiError> {
    let scale = call.path.subresource.as_deref() == Some("scale");
    if !resource.is_custom() || scale || !only_protobuf(&call.headers) {
        return Ok(());
    }
    let endpoint = match verb {
        "list" => Endpoint::List,
        "watch" => Endpoint::Watch,
        // The response is usually a Status.
        "delete" | "deletecollection" => return Ok(()),
        _ => Endpoint::One,
    };
    match call.negotiate(endpoint)?.form {
        ObjectForm::Metadata(_) => Ok(()),
        _ => Err(ApiError::not_acceptable(PRODUCED)),
    }
}

/// Returns the bytes that a request handles: its body, and the stored size of its object or collection.
fn request_weight(api: &Api, verb: &str, resource: &Resource, call: &Call) -> usize {
    let stored = match verb {
        "list" | "deletecollection" => api.store().table_bytes(&resource.table),
        _ if call.path.name.is_some() => {
            let key = Api::key(resource, call.namespace(), call.name());
            let entry = api.store().get(&resource.table, &key);
            entry.map_or(0, |entry| entry.bytes.len())
        }
        _ => 0,
    };
    call.body.len().saturating_add(stored)
}

/// Serves a request to a stored resource itself, not to a subresource.
async fn serve_resource(
    api: &Api,
    method: &Method,
    resource: &Arc<Resource>,
    call: &Call,
) -> Result<Response, ApiError> {
    if !resource.stored {
        return serve_virtual(api, method, resource, call).await;
    }
    let verb = guard::verb(method, &call.path, &call.query);
    let named = call.path.name.is_some();
    let fits = match verb {
        "" => false,
        "create" => !named,
        "update" | "patch" => named,
        _ => true,
    };
    if !fits {
        return Err(method_not_allowed());
    }
    // Discovery hides verbs of custom resources that admission refuses.
    if !resource.is_custom() && !resource.verbs.contains(&verb) {
        return Err(ApiError::method_not_allowed(
            &resource.group,
            &resource.plural,
            verb,
        ));
    }
    if verb == "create" && exec::runs_pods(api) && exec::is_debug_pod(resource, call) {
        return Err(exec::debug_refused());
    }
    if matches!(verb, "create" | "update" | "patch") {
        call.check_reply()?;
    }
    let (namespace, name) = (call.namespace(), call.name());
    match verb {
        "get" => {
            let negotiated = call.negotiate(Endpoint::One)?;
            list::serve_get(api, resource, namespace, name, &call.query, negotiated)
        }
        "list" => {
            let negotiated = call.negotiate(Endpoint::List)?;
            let selection = Selection::parse(resource, &call.path, &call.query)?;
            list::serve_list(api, resource, &selection, &call.query, negotiated)
        }
        "watch" => {
            let negotiated = call.negotiate(Endpoint::Watch)?;
            let selection = Selection::parse(resource, &call.path, &call.query)?;
            watch::serve(api, resource, selection, call, negotiated)
        }
        "create" => {
            if resource.namespaced && namespace.is_empty() {
                return Err(method_not_allowed());
            }
            let options = call.write_options("CreateOptions")?;
            let result = api
                .create_object(resource, namespace, call.input()?, &options)
                .await?;
            call.reply(resource, &result, api.clock().now())
        }
        "update" => {
            let options = call.write_options("UpdateOptions")?;
            let input = call.input()?;
            let key = Api::key(resource, namespace, name);
            let result = api
                .modify(resource, None, &key, &options, |_| Ok(input.clone()))
                .await;
            let result = match result {
                Err(e) if e.code == 404 && resource.allows_create_on_update() => {
                    let mut input = input;
                    super::meta::section(&mut input.value, "metadata").remove("resourceVersion");
                    api.create_object(resource, namespace, input, &options)
                        .await?
                }
                other => other?,
            };
            call.reply(resource, &result, api.clock().now())
        }
        "patch" => {
            let result = api.patch_object(resource, None, call).await?;
            call.reply(resource, &result, api.clock().now())
        }
        "delete" => {
            let options = call.delete_options()?;
            let key = Api::key(resource, namespace, name);
            let mut warnings = Vec::new();
            let deleted = api
                .delete_and_warn(resource, &key, &options, &mut warnings)
                .await?;
            warnings.extend(options.warning(resource));
            let mut response = reply_deleted(resource, call, &deleted);
            respond::warn(&mut response, &warnings);
            Ok(response)
        }
        _ => delete_collection(api, resource, call).await,
    }
}

/// Deletes the selected objects of a resource.
async fn delete_collection(
    api: &Api,
    resource: &Arc<Resource>,
    call: &Call,
) -> Result<Response, ApiError> {
    let options = call.delete_options()?;
    let selection = Selection::parse(resource, &call.path, &call.query)?;
    let mut items = Vec::new();
    let mut warnings = Vec::from_iter(options.warning(resource));
    for entry in list::select_entries(api, resource, &selection) {
        let mut messages = Vec::new();
        let deleted = api
            .delete_and_warn(resource, &entry.key, &options, &mut messages)
            .await;
        warnings.append(&mut messages);
        match deleted {
            Ok(DeleteOutcome::Gone(e) | DeleteOutcome::Pending(e)) => {
                items.push(resource.from_storage(e.value()));
            }
            Err(e) if e.code == 404 => {}
            Err(e) => return Err(e),
        }
    }
    let list = json!({
        "kind": &*resource.list_kind,
        "apiVersion": resource.api_version(),
        "metadata": { "resourceVersion": api.store().revision().to_string() },
        "items": items,
    });
    let mut response = respond::value(200, &list, call.style());
    respond::warn(&mut response, &warnings);
    Ok(response)
}

/// Builds the response to a delete: the object if it still exists (and for pods always), else a Status.
fn reply_deleted(resource: &Arc<Resource>, call: &Call, deleted: &DeleteOutcome) -> Response {
    match deleted {
        DeleteOutcome::Gone(entry) if !resource.is("", "pods") => {
            let details = json!({
                "name": &*entry.key.name,
                "group": &*resource.group,
                "kind": &*resource.plural,
                "uid": &*entry.index.uid,
            });
            respond::value(
                200,
                &respond::success(without_empty_strings(details)),
                call.style(),
            )
        }
        DeleteOutcome::Gone(entry) | DeleteOutcome::Pending(entry) => {
            let bytes = Object::Stored(entry.clone()).bytes(resource);
            respond::bytes(200, bytes, call.style())
        }
    }
}

/// Serves a request to a subresource.
async fn serve_subresource(
    api: &Api,
    method: &Method,
    resource: &Arc<Resource>,
    call: &Call,
) -> Result<Response, ApiError> {
    let sub = call.path.subresource.as_deref().unwrap_or("");
    if resource.subresource(sub).is_none() {
        return Err(ApiError::unknown_path());
    }
    match (sub, method.as_str()) {
        ("scale", _) => scale::serve(api, method, resource, call).await,
        ("binding", "POST") => binding::serve(api, call.name(), call).await,
        ("eviction", "POST") => eviction::serve(api, call).await,
        ("token", "POST") => {
            let issuer = TokenIssuer {
                core: api.core(),
                tokens: api.tokens(),
            };
            issuer.serve(call)
        }
        ("log", "GET" | "HEAD") => podlog::serve(api, call).await,
        ("exec", "GET" | "POST") => exec::serve(api, call).await,
        ("attach" | "portforward", "GET" | "POST") => exec::refuse_stream(api, call, sub),
        ("ephemeralcontainers", "PUT" | "PATCH") if exec::runs_pods(api) => {
            Err(exec::debug_refused())
        }
        (_, "GET" | "HEAD") => {
            let negotiated = call.negotiate(Endpoint::One)?;
            list::serve_get(
                api,
                resource,
                call.namespace(),
                call.name(),
                &call.query,
                negotiated,
            )
        }
        (_, "PUT") => {
            call.check_reply()?;
            let options = call.write_options("UpdateOptions")?;
            let input = call.input()?;
            let key = Api::key(resource, call.namespace(), call.name());
            let result = api
                .modify(resource, Some(sub), &key, &options, |_| Ok(input.clone()))
                .await?;
            call.reply(resource, &result, api.clock().now())
        }
        (_, "PATCH") => {
            call.check_reply()?;
            let result = api.patch_object(resource, Some(sub), call).await?;
            call.reply(resource, &result, api.clock().now())
        }
        _ => Err(method_not_allowed()),
    }
}

/// Serves resources that are computed and not stored: reviews, bindings and metrics.
async fn serve_virtual(
    api: &Api,
    method: &Method,
    resource: &Arc<Resource>,
    call: &Call,
) -> Result<Response, ApiError> {
    if &*resource.group == usage::GROUP {
        return usage::serve(api, method, resource, call);
    }
    if *method != Method::POST || call.path.name.is_some() {
        return Err(method_not_allowed());
    }
    if resource.is("", "bindings") {
        let name = super::meta::name(&call.decode()?.value).to_owned();
        return binding::serve(api, &name, call).await;
    }
    let reviewer = Reviewer {
        guard: api.guard(),
        tokens: api.tokens(),
    };
    reviewer.serve(resource, call)
}

/// Removes the empty strings of an object.
fn without_empty_strings(mut details: Value) -> Value {
    if let Some(map) = details.as_object_mut() {
        map.retain(|_, v| v.as_str() != Some(""));
    }
    details
}
