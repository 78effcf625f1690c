//! Calls of admission webhooks: selection, order and processing of responses.

use super::call::Transport;
use super::metrics::{CallOutcome, Metrics};
use super::review::{self, InProcessWebhook, WebhookRequest, WebhookResponse};
use super::{AdmissionAttributes, Operation, Options, builtin};
use crate::rest::core::Core;
use crate::rest::{DeleteOptions, FieldValidation, WriteOptions, check};
use crate::rest::{Propagation, meta};
use crate::store::{Entry, Key, Store, TableId};
use arc_swap::ArcSwap;
use futures::FutureExt as _;
use futures::future::join_all;
use http::Uri;
use koord_kinds::status::ApiError;
use koord_kinds::webhook::{self, Candidate, NamespaceLabels, Webhook};
use koord_kinds::{GroupVersionKind, Resource, patch};
use rustc_hash::FxHashMap;
use serde_json::{Value, json};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// Plurals of the webhook configurations.
const MUTATING: &str = "mutatingwebhookconfigurations";
const VALIDATING: &str = "validatingwebhookconfigurations";

/// A webhook of a stored configuration.
pub(super) struct Hook {
    webhook: Webhook,
    /// Normalized address, by which in-process webhooks are found.
    address: String,
    /// HTTPS client, created at the first call.
    transport: OnceLock<Result<Transport, String>>,
}

type HookList = Arc<Vec<Arc<Hook>>>;

/// All webhooks of the stored configurations, and those in this process.
#[derive(Default)]
pub(crate) struct Webhooks {
    mutating: ArcSwap<Vec<Arc<Hook>>>,
    validating: ArcSwap<Vec<Arc<Hook>>>,
    in_process: ArcSwap<FxHashMap<String, Arc<dyn InProcessWebhook>>>,
    /// Serializes reloads from the store, so that the later of two writes counts.
    in_turn: parking_lot::Mutex<()>,
    /// Metrics, once a registry is set.
    metrics: OnceLock<Metrics>,
}

/// Normalizes the address of a webhook: with port and without a trailing slash.
fn address(url: &str) -> String {
    let Ok(uri) = url.parse::<Uri>() else {
        return url.to_owned();
    };
    let host = uri.host().unwrap_or_default().to_ascii_lowercase();
    let port = uri.port_u16().unwrap_or(443);
    let path = uri.path().trim_end_matches('/');
    format!("https://{host}:{port}{path}")
}

impl Webhooks {
    /// Loads the stored configurations.
    pub(in crate::rest) fn load(&self, store: &Store) {
        let _in_turn = self.in_turn.lock();
        for (list, plural) in [(&self.mutating, MUTATING), (&self.validating, VALIDATING)] {
            list.store(Arc::new(hooks(store, plural)));
        }
    }

    /// Records the call to `hook` that began at `began`.
    fn count(
        &self,
        hook: &Hook,
        mutating: bool,
        operation: Operation,
        began: Instant,
        refusal: Option<&Refusal>,
    ) {
        let Some(metrics) = self.metrics.get() else {
            return;
        };
        let ending = match refusal {
            None => CallOutcome::Allowed,
            Some(Refusal::Refused(error)) => CallOutcome::Refused(error.code),
            Some(Refusal::Failed(_)) => CallOutcome::Failed {
                ignored: !hook.webhook.fail,
            },
            Some(Refusal::Unusable(_)) => CallOutcome::Unusable,
        };
        let name = &hook.webhook.name;
        metrics.observe(name, mutating, operation, began.elapsed(), ending);
    }

    /// Returns the webhooks to match against writes of a resource; `None` if there are none or it is exempt.
    fn hooks_for(&self, resource: &Resource, mutating: bool) -> Option<HookList> {
        let list = if mutating {
            &self.mutating
        } else {
            &self.validating
        };
        let list = list.load();
        if list.is_empty() || webhook::is_exempt(resource) {
            return None;
        }
        Some(Arc::clone(&list))
    }

    /// Registers the metrics of webhooks; only the first registry gets them.
    pub(crate) fn register_metrics(
        &self,
        registry: &prometheus::Registry,
    ) -> Result<(), prometheus::Error> {
        let metrics = Metrics::register(registry)?;
        let _ = self.metrics.set(metrics);
        Ok(())
    }

    /// Reloads the webhooks if the written or removed object is a configuration.
    pub(in crate::rest) fn configuration_changed(&self, store: &Store, resource: &Resource) {
        if resource.is(webhook::GROUP, MUTATING) || resource.is(webhook::GROUP, VALIDATING) {
            self.load(store);
        }
    }

    /// Registers `webhook` to be called instead of the address `url`.
    pub(in crate::rest) fn register(&self, url: &str, webhook: Arc<dyn InProcessWebhook>) {
        let address = address(url);
        self.in_process.rcu(|old| {
            let mut new = FxHashMap::clone(old);
            new.insert(address.clone(), Arc::clone(&webhook));
            new
        });
    }

    /// Calls the mutating webhooks in their order. If one changes the object, the built-in plugins run once
    /// more, and then the webhooks with a reinvocation policy that ran before the change.
    pub(super) async fn mutate(
        &self,
        core: &Core,
        attributes: &AdmissionAttributes<'_>,
        object: &mut Value,
        old: Option<&Value>,
        warnings: &mut Vec<String>,
    ) -> Result<(), ApiError> {
        let Some(hooks) = self.hooks_for(attributes.resource, true) else {
            return Ok(());
        };
        let webhook_calls = WebhookCalls::new(core, self, attributes);
        let (mut called, mut reinvoked, mut reinvoke) = (Vec::new(), Vec::new(), false);
        let managers = meta::at(object, &["metadata", "managedFields"]).cloned();
        for round in 0..2 {
            if round > 0 {
                if !reinvoke {
                    break;
                }
                // A copy is needed only if some webhooks are to be reinvoked.
                let before = (!called.is_empty()).then(|| object.clone());
                builtin::admit(core, attributes, object)?;
                if before.is_some_and(|before| *object != before) {
                    reinvoked.append(&mut called);
                }
            }
            for (i, hook) in hooks.iter().enumerate() {
                if round > 0 && !reinvoked.contains(&i) {
                    continue;
                }
                let shown = (!object.is_null()).then_some(&*object);
                let Some(target) = webhook_calls.matches(hook, shown, old) else {
                    continue;
                };
                let began = Instant::now();
                let answer = webhook_calls
                    .review(hook, &target, (shown, old), true, warnings)
                    .await;
                let answer = answer.and_then(|response| {
                    if !response.patches() {
                        return Ok(None);
                    }
                    let new = webhook_calls.patched(hook, &target, object, response.patch)?;
                    Ok((new != *object).then_some(new))
                });
                let refusal = answer.as_ref().err();
                let operation = attributes.operation;
                self.count(hook, true, operation, began, refusal);
                let changed = match answer {
                    Ok(changed) => changed,
                    Err(refusal) => {
                        webhook_calls.apply_failure_policy(hook, refusal)?;
                        None
                    }
                };
                if let Some(new) = changed {
                    *object = new;
                    reinvoke = true;
                    reinvoked.append(&mut called);
                }
                if hook.webhook.reinvoke {
                    called.push(i);
                }
            }
        }
        if reinvoke && let Some(fault) = patch::managed_fields_error(object) {
            warnings.push(format!(
                ".metadata.managedFields was in an invalid state after admission; this could be \
                 caused by an outdated mutating admission controller; please fix your requests: \
                 {fault}"
            ));
            let metadata = meta::section(object, "metadata");
            match managers {
                Some(managers) => metadata.insert("managedFields".to_owned(), managers),
                None => metadata.remove("managedFields"),
            };
        }
        Ok(())
    }

    /// Calls the validating webhooks concurrently. Of several refusals the first in order is returned.
    pub(super) async fn validate(
        &self,
        core: &Core,
        attributes: &AdmissionAttributes<'_>,
        object: &Value,
        old: Option<&Value>,
        warnings: &mut Vec<String>,
    ) -> Result<(), ApiError> {
        let Some(hooks) = self.hooks_for(attributes.resource, false) else {
            return Ok(());
        };
        let attributes = &AdmissionAttributes {
            name: match attributes.name {
                "" => meta::name(object),
                name => name,
            },
            ..*attributes
        };
        let webhook_calls = WebhookCalls::new(core, self, attributes);
        let shown = (!object.is_null()).then_some(object);
        let calls = hooks.iter().filter_map(|hook| {
            let target = webhook_calls.matches(hook, shown, old)?;
            let webhook_calls = &webhook_calls;
            Some(async move {
                let mut messages = Vec::new();
                let began = Instant::now();
                let answer =
                    webhook_calls.review(hook, &target, (shown, old), false, &mut messages);
                let answer = answer.await;
                let refusal = answer.as_ref().err();
                let operation = attributes.operation;
                self.count(hook, false, operation, began, refusal);
                let verdict = match answer {
                    Ok(_) => Ok(()),
                    Err(refusal) => webhook_calls.apply_failure_policy(hook, refusal),
                };
                (messages, verdict)
            })
        });
        let mut refused = Ok(());
        for (mut messages, verdict) in join_all(calls).await {
            warnings.append(&mut messages);
            refused = refused.and(verdict);
        }
        refused
    }
}

/// Returns the stored webhooks in order: configurations by name, then their own order.
fn hooks(store: &Store, plural: &str) -> Vec<Arc<Hook>> {
    let table = TableId::new(webhook::GROUP, plural);
    let mut entries = store.all(&table, None, &|_| true);
    entries.sort_by(|a, b| a.key.name.cmp(&b.key.name));
    let mut out = Vec::new();
    for entry in entries {
        let configuration = entry.value();
        let list = configuration.get("webhooks").and_then(Value::as_array);
        for hook in list.into_iter().flatten() {
            match Webhook::parse(hook) {
                Ok(webhook) => out.push(Arc::new(Hook {
                    address: address(&webhook.endpoint.url()),
                    webhook,
                    transport: OnceLock::new(),
                })),
                // Validation keeps invalid webhooks out of the store.
                Err(why) => tracing::warn!(
                    configuration = %entry.key.name,
                    webhook = meta::name(hook),
                    why,
                    "skipping invalid stored webhook"
                ),
            }
        }
    }
    out
}

/// Reason why a webhook did not allow a write.
enum Refusal {
    /// The call failed or the response is invalid: the failure policy applies.
    Failed(String),
    /// The webhook refused the write.
    Refused(ApiError),
    /// The call is not possible, or the response cannot be applied.
    Unusable(ApiError),
}

/// Context of the webhook calls for one write.
struct WebhookCalls<'a> {
    core: &'a Core,
    webhooks: &'a Webhooks,
    attributes: &'a AdmissionAttributes<'a>,
    kind: GroupVersionKind,
    /// Stored namespace of the write.
    namespace: Option<Arc<Entry>>,
    equivalents: Vec<Arc<Resource>>,
    options: Value,
}

fn review_kind(resource: &Resource, subresource: &str) -> GroupVersionKind {
    resource
        .subresource(subresource)
        .map_or_else(|| resource.gvk(), |s| s.response.clone())
}

/// Returns the options of a write as an object.
fn options_of(attributes: &AdmissionAttributes<'_>) -> Value {
    let mut options = match attributes.options {
        Options::Write(given) => write_options(attributes.operation, given),
        Options::Delete(given) => delete_options(given),
    };
    options["apiVersion"] = "meta.k8s.io/v1".into();
    if attributes.dry_run() {
        options["dryRun"] = json!(["All"]);
    }
    options
}

fn write_options(operation: Operation, source: &WriteOptions) -> Value {
    let kind = match operation {
        Operation::Create => "CreateOptions",
        _ if source.patch => "PatchOptions",
        _ => "UpdateOptions",
    };
    let mut options = json!({ "kind": kind });
    if !source.field_manager.is_empty() {
        options["fieldManager"] = source.field_manager.as_str().into();
    }
    if source.field_validation == FieldValidation::Strict {
        options["fieldValidation"] = "Strict".into();
    }
    if kind == "PatchOptions" && source.force {
        options["force"] = true.into();
    }
    options
}

fn delete_options(source: &DeleteOptions) -> Value {
    let mut options = json!({ "kind": "DeleteOptions" });
    if let Some(seconds) = source.grace_period_seconds {
        options["gracePeriodSeconds"] = seconds.into();
    }
    for (key, text) in [
        ("uid", &source.uid),
        ("resourceVersion", &source.resource_version),
    ] {
        if let Some(text) = text {
            options["preconditions"][key] = text.as_str().into();
        }
    }
    if let Some(propagation) = source.propagation {
        let policy = match propagation {
            Propagation::Orphan => "Orphan",
            Propagation::Background => "Background",
            Propagation::Foreground => "Foreground",
        };
        options["propagationPolicy"] = policy.into();
    }
    options
}

impl<'a> WebhookCalls<'a> {
    fn new(
        core: &'a Core,
        webhooks: &'a Webhooks,
        attributes: &'a AdmissionAttributes<'a>,
    ) -> Self {
        let resource = attributes.resource;
        let namespaces = TableId::new("", "namespaces");
        let namespace = (!attributes.namespace.is_empty())
            .then(|| {
                core.store()
                    .get(&namespaces, &Key::cluster(attributes.namespace))
            })
            .flatten();
        let equivalents = core
            .registry()
            .versions_of(resource)
            .into_iter()
            .filter(|r| {
                r.stored
                    && (attributes.subresource.is_empty()
                        || r.subresource(attributes.subresource).is_some())
            });
        Self {
            core,
            webhooks,
            attributes,
            kind: review_kind(resource, attributes.subresource),
            namespace,
            equivalents: equivalents.collect(),
            options: options_of(attributes),
        }
    }

    /// Returns the version of the resource to send to `hook`; `None` if it does not match.
    fn matches(
        &self,
        hook: &Hook,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Option<Arc<Resource>> {
        let a = self.attributes;
        let is_namespace = a.resource.is("", "namespaces");
        let written = is_namespace && a.subresource.is_empty() && a.operation != Operation::Delete;
        let namespace_labels = match (&self.namespace, object) {
            (_, Some(object)) if written => NamespaceLabels::Object(object),
            _ if a.namespace.is_empty() && !is_namespace => NamespaceLabels::None,
            (Some(entry), _) => NamespaceLabels::Stored(&entry.index),
            (None, _) => NamespaceLabels::Missing,
        };
        hook.webhook.matches(&Candidate {
            operation: a.operation.as_str(),
            resource: a.resource,
            subresource: a.subresource,
            namespace: a.namespace,
            namespace_labels,
            object,
            old,
            equivalents: &self.equivalents,
        })
    }

    /// Converts `object` to the version of `target`; `None` if no conversion is needed.
    fn convert_to(&self, object: &Value, target: &Arc<Resource>) -> Option<Value> {
        let own = Arc::ptr_eq(target, self.attributes.resource);
        (!own && self.is_whole_object())
            .then(|| self.attributes.resource.convert(object.clone(), target))
    }

    /// Returns true if the object itself is admitted, not a Binding or a Scale.
    fn is_whole_object(&self) -> bool {
        self.kind == self.attributes.resource.gvk()
    }

    /// Calls one webhook.
    async fn review(
        &self,
        hook: &Hook,
        target: &Arc<Resource>,
        (object, old): (Option<&Value>, Option<&Value>),
        mutating: bool,
        warnings: &mut Vec<String>,
    ) -> Result<WebhookResponse, Refusal> {
        let Hook { webhook, .. } = hook;
        let a = self.attributes;
        if a.dry_run() && !webhook.dry_run {
            return Err(Refusal::Unusable(ApiError::bad_request(format!(
                "admission webhook {:?} does not support dry run",
                webhook.name
            ))));
        }
        let converted = object.and_then(|o| self.convert_to(o, target));
        let converted_old = old.and_then(|o| self.convert_to(o, target));
        let request = WebhookRequest {
            uid: uuid::Uuid::new_v4().to_string(),
            kind: review_kind(target, a.subresource).into(),
            resource: (&**target).into(),
            sub_resource: a.subresource,
            request_kind: self.kind.clone().into(),
            request_resource: (&**a.resource).into(),
            request_sub_resource: a.subresource,
            name: a.name,
            namespace: a.namespace,
            operation: a.operation,
            user_info: a.user(),
            object: converted.as_ref().or(object),
            old_object: converted_old.as_ref().or(old),
            dry_run: a.dry_run(),
            options: &self.options,
        };
        let mut response = self
            .call(hook, &request, mutating)
            .await
            .map_err(Refusal::Failed)?;
        if !response.audit_annotations.is_empty() {
            tracing::debug!(
                webhook = webhook.name,
                annotations = ?response.audit_annotations,
                "audit annotations"
            );
        }
        warnings.append(&mut response.warnings);
        if response.allowed {
            Ok(response)
        } else {
            Err(Refusal::Refused(response.refusal(&webhook.name)))
        }
    }

    /// Sends a review to the webhook, over HTTPS or by a function call if it runs in this process.
    ///
    /// # Errors
    /// The reason why there is no valid response, in upstream's words.
    async fn call(
        &self,
        hook: &Hook,
        request: &WebhookRequest<'_>,
        mutating: bool,
    ) -> Result<WebhookResponse, String> {
        let Hook {
            webhook, address, ..
        } = hook;
        let version = webhook.review.ok_or(
            "could not create admission objects: webhook does not accept known AdmissionReview \
             versions (v1, v1beta1)",
        )?;
        let overdue = |_| {
            format!(
                "failed to call webhook: Post \"{}?timeout={}s\": context deadline exceeded",
                webhook.endpoint.url(),
                webhook.timeout.as_secs()
            )
        };
        let in_process = &self.webhooks.in_process;
        let local = in_process.load().get(address).cloned();
        if let Some(local) = local {
            let answer = AssertUnwindSafe(local.review(request)).catch_unwind();
            let answer = tokio::time::timeout(webhook.timeout, answer);
            let answer = answer.await.map_err(overdue)?;
            let answer = answer.map_err(|_| "failed to call webhook: it panicked".to_owned())?;
            let answer = answer.map_err(|reason| format!("failed to call webhook: {reason}"))?;
            if !mutating && !answer.patch.is_null() {
                return Err(
                    "received invalid webhook response: validating webhook may not return \
                     response.patch"
                        .to_owned(),
                );
            }
            return Ok(answer);
        }
        let transport = hook
            .transport
            .get_or_init(|| Transport::new(&webhook.endpoint, &webhook.ca_bundle));
        let transport = transport
            .as_ref()
            .map_err(|reason| format!("failed to call webhook: {reason}"))?;
        let body = review::body(version, request);
        let answer = transport.post(self.core.store(), body, webhook.timeout);
        let answer = tokio::time::timeout(webhook.timeout, answer);
        let answer = answer.await.map_err(overdue)?.map_err(|reason| {
            format!(
                "failed to call webhook: Post \"{}\": {reason}",
                webhook.endpoint.url()
            )
        })?;
        review::parse(version, &request.uid, mutating, &answer)
    }

    /// Applies the failure policy. `Ok`: the request continues without the webhook.
    fn apply_failure_policy(&self, hook: &Hook, refusal: Refusal) -> Result<(), ApiError> {
        let Webhook { name, fail, .. } = &hook.webhook;
        match refusal {
            Refusal::Failed(why) if *fail => Err(ApiError::internal(format!(
                "failed calling webhook {name:?}: {why}"
            ))),
            Refusal::Failed(why) => {
                tracing::warn!(webhook = name, why, "failed calling webhook, failing open");
                Ok(())
            }
            Refusal::Refused(error) | Refusal::Unusable(error) => Err(error),
        }
    }

    /// Applies a webhook's patch, which is relative to the object in the version of `target`.
    fn patched(
        &self,
        hook: &Hook,
        target: &Arc<Resource>,
        object: &Value,
        operations: Value,
    ) -> Result<Value, Refusal> {
        let refused = |reason: String| Refusal::Unusable(ApiError::internal(reason));
        let name = &hook.webhook.name;
        if object.is_null() {
            return Err(refused(format!(
                "admission webhook {name:?} attempted to modify the object, which is not supported \
                 for this operation"
            )));
        }
        let observed = self.convert_to(object, target);
        let patched = patch::json_patch_value(observed.as_ref().unwrap_or(object), operations);
        let mut new = match patched {
            Ok(new) => new,
            Err(patch::PatchError::Malformed(reason)) => {
                return Err(Refusal::Failed(format!(
                    "received undecodable patch in webhook response: {reason}"
                )));
            }
            Err(e) => return Err(refused(e.to_string())),
        };
        if self.is_whole_object() {
            check::check_identity(target, &mut new, false).map_err(|e| refused(e.message))?;
            target.prune(&mut new);
            target.default_object(&mut new);
            if observed.is_some() {
                new = target.convert(new, self.attributes.resource);
            }
        } else if !new.is_object() {
            return Err(refused(format!("webhook {name:?} left no object")));
        }
        Ok(new)
    }
}

/// Adds warnings about fields of a webhook configuration that this server does not support.
pub(super) fn advise(
    attributes: &AdmissionAttributes<'_>,
    object: &Value,
    warnings: &mut Vec<String>,
) {
    let resource = attributes.resource;
    if !(resource.is(webhook::GROUP, MUTATING) || resource.is(webhook::GROUP, VALIDATING)) {
        return;
    }
    let hooks = object.get("webhooks").and_then(Value::as_array);
    for (i, hook) in hooks.into_iter().flatten().enumerate() {
        let conditions = hook.get("matchConditions").and_then(Value::as_array);
        if conditions.is_some_and(|c| !c.is_empty()) {
            warnings.push(format!(
                "webhooks[{i}].matchConditions: not evaluated by this server; webhook {:?} is \
                 called for everything that its rules and selectors match",
                meta::text(hook, &["name"])
            ));
        }
    }
}
