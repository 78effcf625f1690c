//! Webhook configurations: their manifests, and how a running server updates them.

use super::{FailurePolicy, Operation, Registration, Selector};
use crate::Api;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::Client;
use kube::api::{ApiResource, DynamicObject, PostParams};
use kube::core::GroupVersionKind;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// Annotation with the entries as they were before this server changed them (JSON). Charts do not set it, so
/// that server-side apply has no other owner of it.
const TEMPLATE: &str = "koordinator.sh/webhook-template";
/// Annotation of Koordinator's manager for the same purpose, which its chart sets, too. It is only read.
const UPSTREAM_TEMPLATE: &str = "template";
const GROUP: &str = "admissionregistration.k8s.io";

/// The Kubernetes service of a webhook server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// Namespace of the service.
    pub namespace: String,
    /// Name of the service.
    pub name: String,
}

impl Service {
    /// Returns the host name that API servers expect in the server's certificate.
    #[must_use]
    pub fn host(&self) -> String {
        format!("{}.{}.svc", self.name, self.namespace)
    }

    /// Returns the URL under which API servers reach `path`.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("https://{}:443{path}", self.host())
    }
}

/// Returns the kind of a mutating or validating configuration.
fn kind(mutating: bool) -> &'static str {
    if mutating {
        "MutatingWebhookConfiguration"
    } else {
        "ValidatingWebhookConfiguration"
    }
}

/// Returns a configuration as a manifest, without a `caBundle`.
pub fn manifest<'a>(
    name: &str,
    mutating: bool,
    entries: impl IntoIterator<Item = (&'a str, &'a Registration)>,
    service: &Service,
) -> Value {
    let entries = entries.into_iter();
    let webhooks: Vec<Value> = entries.map(|(path, of)| entry(path, of, service)).collect();
    json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": kind(mutating),
        "metadata": { "name": name }, "webhooks": webhooks,
    })
}

/// Returns the configuration entry of the webhook `of`, which is served at `path`.
fn entry(path: &str, of: &Registration, service: &Service) -> Value {
    let operations: Vec<&str> = of
        .operations
        .iter()
        .map(|o: &Operation| o.as_str())
        .collect();
    let policy = match of.failure_policy {
        FailurePolicy::Fail => "Fail",
        FailurePolicy::Ignore => "Ignore",
    };
    let mut entry = json!({
        "name": of.name,
        "admissionReviewVersions": ["v1", "v1beta1"],
        "clientConfig": { "service": {
            "namespace": service.namespace, "name": service.name, "path": path,
        } },
        "failurePolicy": policy,
        "rules": [{
            "operations": operations, "apiGroups": [of.group],
            "apiVersions": [of.version], "resources": [of.resource],
        }],
        "sideEffects": "None",
    });
    for (key, selector) in [
        ("namespaceSelector", of.namespace_selector),
        ("objectSelector", of.object_selector),
    ] {
        if let Some(selector) = selector {
            entry[key] = json!({ "matchExpressions": [match selector {
                Selector::In(key, values) => json!({
                    "key": key, "operator": "In", "values": values,
                }),
                Selector::DoesNotExist(key) => json!({ "key": key, "operator": "DoesNotExist" }),
            }] });
        }
    }
    entry
}

/// Reasons why a configuration was not updated.
#[derive(Debug, thiserror::Error)]
pub enum InjectError {
    /// The configuration does not exist. A cluster enables webhooks by installing it.
    #[error("{kind} {name} does not exist; the manifests of the manager contain it")]
    Missing {
        /// Kind of the configuration.
        kind: &'static str,
        /// Name of the configuration.
        name: String,
    },
    /// The API server rejected a request.
    #[error("{kind} {name}: {source}")]
    Api {
        /// Kind of the configuration.
        kind: &'static str,
        /// Name of the configuration.
        name: String,
        /// The error of the request.
        source: Box<kube::Error>,
    },
    /// The annotation with the template is invalid.
    #[error("{kind} {name}: annotation {annotation}: {problem}")]
    Template {
        /// Kind of the configuration.
        kind: &'static str,
        /// Name of the configuration.
        name: String,
        /// Name of the annotation.
        annotation: &'static str,
        /// The rule that the annotation violates.
        problem: String,
    },
}

/// Writes address and CA certificate of this server into the mutating and the validating configuration.
#[derive(Debug, Clone)]
pub struct Injector {
    /// Name of the MutatingWebhookConfiguration.
    pub mutating: String,
    /// Name of the ValidatingWebhookConfiguration.
    pub validating: String,
    /// Paths that the server serves; entries with other paths are left out.
    pub served: BTreeSet<&'static str>,
    /// Service through which API servers reach the server.
    pub service: Service,
    /// Host and port of the server, which API servers use instead of the service; `None` for the service.
    pub host: Option<(String, u16)>,
    /// Failure policy of the webhooks for pods; `None` for that of the template.
    pub pods: Option<FailurePolicy>,
}

/// Number of writes that another replica may undo before this one accepts its content.
const MAX_OVERWRITES: u32 = 3;
/// Number of resyncs without a change after which this replica writes again.
const QUIET_RESYNCS: u32 = 60;

/// Detects replicas that write different configurations: they may have other feature gates, or be of
/// Koordinator, which has no failure policy of its own for pods. They must not overwrite each other
/// endlessly.
#[derive(Debug, Default)]
pub struct ConflictDetector {
    mutating: ConflictState,
    validating: ConflictState,
}

#[derive(Debug, Default)]
struct ConflictState {
    writes: u32,
    accepts_other: bool,
    quiet_resyncs: u32,
}

impl ConflictDetector {
    /// Records that the configurations have not changed since the last resync.
    pub fn record_quiet_resync(&mut self) {
        for state in [&mut self.mutating, &mut self.validating] {
            state.quiet_resyncs += 1;
            if !state.accepts_other || state.quiet_resyncs >= QUIET_RESYNCS {
                *state = ConflictState::default();
            }
        }
    }
}

impl ConflictState {
    /// Returns whether to write `desired`, which differs from `current`.
    fn should_write(&mut self, current: &Value, desired: &Value) -> bool {
        self.accepts_other = self.writes >= MAX_OVERWRITES && differs_in_coverage(current, desired);
        if !self.accepts_other {
            self.writes += 1;
        }
        !self.accepts_other
    }
}

/// Returns whether `current` differs from `desired` only in that it leaves out entries or has other failure
/// policies: its webhooks still reach a server with a valid certificate.
fn differs_in_coverage(current: &Value, desired: &Value) -> bool {
    let without_policy = |entry: &Value| {
        let mut entry = entry.clone();
        if let Some(entry) = entry.as_object_mut() {
            entry.remove("failurePolicy");
        }
        entry
    };
    let entries = |list: &Value| -> Vec<Value> {
        let list = list.as_array().into_iter().flatten();
        list.map(without_policy).collect()
    };
    let desired = entries(desired);
    entries(current).iter().all(|entry| desired.contains(entry))
}

impl Injector {
    /// Updates both webhook configurations, if they differ. If another replica repeatedly overwrites them
    /// with fewer entries or other failure policies, its content is accepted.
    ///
    /// # Errors
    /// See [`InjectError`]. A write conflict is an error, too, although another replica may have written the
    /// same content.
    pub async fn ensure(
        &self,
        client: &Client,
        ca: &[u8],
        conflicts: &mut ConflictDetector,
    ) -> Result<(), InjectError> {
        let ConflictDetector {
            mutating,
            validating,
        } = conflicts;
        self.ensure_one(client, true, ca, mutating).await?;
        self.ensure_one(client, false, ca, validating).await
    }

    /// Updates the mutating or the validating configuration if it differs.
    async fn ensure_one(
        &self,
        client: &Client,
        mutating: bool,
        ca: &[u8],
        conflict: &mut ConflictState,
    ) -> Result<(), InjectError> {
        let kind = kind(mutating);
        let name = if mutating {
            &self.mutating
        } else {
            &self.validating
        };
        let failed = |source| InjectError::Api {
            kind,
            name: name.to_owned(),
            source: Box::new(source),
        };
        let api = api(client, mutating);
        let Some(mut object) = api.get_opt(name).await.map_err(failed)? else {
            let name = name.to_owned();
            return Err(InjectError::Missing { kind, name });
        };
        let annotations = object.metadata.annotations.get_or_insert_default();
        let template = |annotation: &'static str| {
            let text = annotations.get(annotation).map_or("", String::as_str);
            parse_template(text).ok_or_else(|| InjectError::Template {
                kind,
                name: name.to_owned(),
                annotation,
                problem: "is no JSON list of webhooks".to_owned(),
            })
        };
        let (stored, upstream) = (template(TEMPLATE)?, template(UPSTREAM_TEMPLATE)?);
        let current = object.data.get("webhooks").cloned().unwrap_or(json!([]));
        let mut entries = current.as_array().cloned().unwrap_or_default();
        restore_addresses(&mut entries, &stored);
        add_missing_entries(&mut entries, &stored);
        add_missing_entries(&mut entries, &upstream);
        let mut template = stored;
        let is_new = add_missing_entries(&mut template, &entries);
        // A stable order, whatever order a merge leaves them in.
        entries.sort_by_key(|entry| {
            let is_same = |stored: &Value| stored["name"] == entry["name"];
            template.iter().position(is_same)
        });
        let template = is_new.then(|| json!(without_bundles(&template)).to_string());
        let desired = self.desired_entries(entries, ca);
        if template.is_none() && current == desired {
            return Ok(());
        }
        let accepted_before = conflict.accepts_other;
        if template.is_none() && !conflict.should_write(&current, &desired) {
            if !accepted_before {
                tracing::warn!(
                    kind,
                    name,
                    "accepting the webhooks and failure policies that another replica wrote"
                );
            }
            return Ok(());
        }
        if let Some(template) = template {
            annotations.insert(TEMPLATE.to_owned(), template);
        }
        if let Some(data) = object.data.as_object_mut() {
            data.insert("webhooks".to_owned(), desired);
        }
        let replaced = api.replace(name, &PostParams::default(), &object).await;
        replaced.map_err(failed)?;
        tracing::info!(kind, name, "updated webhook configuration");
        Ok(())
    }

    /// Returns the entries with the settings of this server.
    pub(super) fn desired_entries(&self, entries: Vec<Value>, ca: &[u8]) -> Value {
        let mut desired = Vec::new();
        for mut entry in entries {
            let Some(client) = entry.get_mut("clientConfig").and_then(Value::as_object_mut) else {
                continue;
            };
            let path = path(client);
            if !self.served.contains(path.as_str()) {
                tracing::debug!(path, "skipping a webhook that is not served");
                continue;
            }
            client.insert("caBundle".to_owned(), STANDARD.encode(ca).into());
            match (&self.host, client.get_mut("service")) {
                (Some((host, port)), Some(_)) => {
                    client.remove("service");
                    let url = format!("https://{host}:{port}{path}");
                    client.insert("url".to_owned(), url.into());
                }
                (None, Some(service)) => {
                    service["namespace"] = self.service.namespace.clone().into();
                    service["name"] = self.service.name.clone().into();
                }
                (_, None) => {}
            }
            if let Some(policy) = self.pods.filter(|_| path.ends_with("-pod")) {
                let policy = match policy {
                    FailurePolicy::Fail => "Fail",
                    FailurePolicy::Ignore => "Ignore",
                };
                entry["failurePolicy"] = policy.into();
            }
            desired.push(entry);
        }
        Value::Array(desired)
    }
}

/// Returns the entries in the text of a template, none if it is empty; `None` if it is invalid.
fn parse_template(text: &str) -> Option<Vec<Value>> {
    if text.is_empty() {
        return Some(Vec::new());
    }
    serde_json::from_str(text).ok()
}

/// Adds entries of `template` that are missing: those that a server left out because it does not serve them,
/// and those that were removed by mistake. Entries that exist stay as the manifests have them. Returns whether
/// any were missing.
pub(super) fn add_missing_entries(entries: &mut Vec<Value>, template: &[Value]) -> bool {
    let before = entries.len();
    for entry in template {
        if !entries
            .iter()
            .any(|existing| existing["name"] == entry["name"])
        {
            entries.push(entry.clone());
        }
    }
    entries.len() > before
}

/// Replaces URLs, which a server with an address of its own wrote, by the services of `template`.
pub(super) fn restore_addresses(entries: &mut [Value], template: &[Value]) {
    for entry in entries {
        let service = template
            .iter()
            .find(|stored| stored["name"] == entry["name"])
            .and_then(|stored| stored["clientConfig"].get("service"))
            .filter(|service| !service.is_null());
        if let Some(service) = service
            && let Some(client) = entry.get_mut("clientConfig").and_then(Value::as_object_mut)
            && client.remove("url").is_some()
        {
            client.insert("service".to_owned(), service.clone());
        }
    }
}

/// Returns the entries without certificates, which are no part of a template.
fn without_bundles(entries: &[Value]) -> Vec<Value> {
    let without_bundle = |entry: &Value| {
        let mut entry = entry.clone();
        if let Some(client) = entry.get_mut("clientConfig").and_then(Value::as_object_mut) {
            client.remove("caBundle");
        }
        entry
    };
    entries.iter().map(without_bundle).collect()
}

/// Returns the URL path of an entry.
fn path(client: &Map<String, Value>) -> String {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
    if let Some(service) = client.get("service") {
        return text(service.get("path")).unwrap_or_default();
    }
    let url = text(client.get("url")).unwrap_or_default();
    let url = url.parse::<http::Uri>();
    url.map(|url| url.path().to_owned()).unwrap_or_default()
}

/// Returns the API for mutating or validating configurations.
pub(super) fn api(client: &Client, mutating: bool) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk(GROUP, "v1", kind(mutating));
    Api::all_with(client.clone(), &ApiResource::from_gvk(&kind))
}
