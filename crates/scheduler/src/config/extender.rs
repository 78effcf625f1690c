//! `extenders`: others that have a say in where pods go, over HTTP.

use super::ConfigError;
use koord_api::duration::GoDuration;
use koord_kube::component_config::refuse;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// How long a call may take where `httpTimeout` does not say, in seconds.
const PATIENCE: i64 = 5;

/// One entry of `extenders`. A step whose verb is empty is not the extender's.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Extender {
    /// What the verbs are appended to, and the extender's name in messages.
    pub url_prefix: String,
    /// Says which of the nodes that fit the plugins it refuses.
    pub filter_verb: String,
    /// Says which victims of a preemption it agrees with.
    pub preempt_verb: String,
    /// Scores nodes, normally from 0 to 10.
    pub prioritize_verb: String,
    /// What its scores are multiplied with.
    pub weight: i64,
    /// Binds pods, in place of the scheduler.
    pub bind_verb: String,
    /// Whether TLS is spoken; then, without an authority, the server is not verified.
    #[serde(rename = "enableHTTPS")]
    pub enable_https: bool,
    /// Whom to trust, and what to show.
    pub tls_config: Option<ExtenderTls>,
    /// How long one call may take; 0 for 5 s.
    pub http_timeout: GoDuration,
    /// Whether it knows the nodes itself: then it is sent names and not objects.
    pub node_cache_capable: bool,
    /// It is asked only about pods that want one of these; about every pod when there are none.
    pub managed_resources: Vec<ManagedResource>,
    /// Whether pods go their way when it fails. Those that are go last.
    pub ignorable: bool,
}

/// A resource that an extender manages.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ManagedResource {
    /// Its name, that of an extended resource.
    pub name: String,
    /// Whether only the extender knows how much of it a node has.
    pub ignored_by_scheduler: bool,
}

/// `tlsConfig` of an extender. Data go before files.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ExtenderTls {
    /// Whether the server is not verified.
    pub insecure: bool,
    /// The name that the server's certificate is for; that of the URL when empty.
    pub server_name: String,
    /// A file with the certificate to show, in PEM.
    pub cert_file: String,
    /// A file with its key.
    pub key_file: String,
    /// A file with the authorities that the server's certificate may be from.
    pub ca_file: String,
    /// The content of such a file in base64, as for the two below.
    pub cert_data: Option<String>,
    /// See `cert_data`.
    pub key_data: Option<String>,
    /// See `cert_data`.
    pub ca_data: Option<String>,
}

impl Extender {
    /// Whether any step is its.
    fn is_called(&self) -> bool {
        let verbs = [
            &self.filter_verb,
            &self.preempt_verb,
            &self.prioritize_verb,
            &self.bind_verb,
        ];
        verbs.iter().any(|verb| !verb.is_empty())
    }

    fn validate_tls(&self, path: &str) -> Result<(), ConfigError> {
        let Some(tls) = &self.tls_config else {
            return Ok(());
        };
        let path = format!("{path}.tlsConfig");
        if tls.insecure && tls.has_authority() {
            let message = "true, and yet there is an authority to verify the server with";
            return refuse(format!("{path}.insecure"), message);
        }
        let cert = !tls.cert_file.is_empty() || tls.cert_data.is_some();
        let key = !tls.key_file.is_empty() || tls.key_data.is_some();
        if cert != key {
            let message = "a certificate and its key must be given together";
            return refuse(path, message);
        }
        Ok(())
    }

    /// How long one call may take.
    #[must_use]
    pub fn timeout(&self) -> std::time::Duration {
        let unset = self.http_timeout == GoDuration::default();
        let patience = if unset {
            GoDuration::from_secs(PATIENCE)
        } else {
            self.http_timeout
        };
        patience.to_std().unwrap_or_default()
    }
}

impl ExtenderTls {
    /// Whether it says whom to trust.
    pub(crate) fn has_authority(&self) -> bool {
        !self.ca_file.is_empty() || self.ca_data.is_some()
    }
}

/// The extenders in the order in which they are asked: those that may be ignored last.
pub(crate) fn in_order(extenders: &[Extender]) -> Vec<Extender> {
    let mut all = extenders.to_vec();
    all.sort_by_key(|extender| extender.ignorable);
    all
}

/// The names of the resources that only extenders know about.
pub(crate) fn ignored(extenders: &[Extender]) -> Vec<String> {
    let resources = extenders.iter().flat_map(|it| &it.managed_resources);
    resources
        .filter(|resource| resource.ignored_by_scheduler)
        .map(|resource| resource.name.clone())
        .collect()
}

/// Checks values, as kube-scheduler does. What it finds out at start (TLS) or at every call (an address
/// that is none, a timeout below 0) is refused here, too.
pub(super) fn validate(extenders: &[Extender]) -> Result<(), ConfigError> {
    let mut managed = HashSet::new();
    for (at, extender) in extenders.iter().enumerate() {
        let path = format!("extenders[{at}]");
        let url: Option<http::Uri> = extender.url_prefix.parse().ok();
        let scheme = url.as_ref().and_then(http::Uri::scheme_str);
        if extender.is_called() && !matches!(scheme, Some("http" | "https")) {
            let message = format!("{:?} is not an http or https URL", extender.url_prefix);
            return refuse(format!("{path}.urlPrefix"), message);
        }
        if extender.http_timeout < GoDuration::default() {
            let message = format!("{} must not be below 0", extender.http_timeout);
            return refuse(format!("{path}.httpTimeout"), message);
        }
        if !extender.prioritize_verb.is_empty() && extender.weight <= 0 {
            let message = format!("{} must be above 0", extender.weight);
            return refuse(format!("{path}.weight"), message);
        }
        extender.validate_tls(&path)?;
        for (entry, resource) in extender.managed_resources.iter().enumerate() {
            let field = || format!("{path}.managedResources[{entry}].name");
            if !koord_api::resources::is_extended(&resource.name) {
                let message = format!("{:?} is not an extended resource", resource.name);
                return refuse(field(), message);
            }
            if !managed.insert(&resource.name) {
                return refuse(field(), format!("{:?} is managed twice", resource.name));
            }
        }
    }
    let binders = extenders.iter().filter(|it| !it.bind_verb.is_empty());
    match binders.count() {
        0 | 1 => Ok(()),
        binders => refuse(
            "extenders",
            format!("{binders} implement bind, at most one may"),
        ),
    }
}
