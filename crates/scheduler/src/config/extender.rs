//! `extenders`: HTTP services that take part in scheduling.

use super::ConfigError;
use koord_api::duration::GoDuration;
use koord_kube::component_config::refuse;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// The default timeout of a call, in seconds.
const PATIENCE: i64 = 5;

/// Configuration of an extender, an entry of `extenders`. A step whose verb is empty is not delegated to it.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Extender {
    /// The URL that verbs are appended to; also the extender's name in messages.
    pub url_prefix: String,
    /// The verb for filtering the nodes that fit the plugins.
    pub filter_verb: String,
    /// The verb for reviewing the victims of a preemption.
    pub preempt_verb: String,
    /// The verb for scoring nodes; the scores are normally from 0 to 10.
    pub prioritize_verb: String,
    /// The factor that its scores are multiplied by.
    pub weight: i64,
    /// The verb for binding pods, instead of the scheduler.
    pub bind_verb: String,
    /// True if TLS is used; the server is not verified if no CA is configured.
    #[serde(rename = "enableHTTPS")]
    pub enable_https: bool,
    /// CA, certificate and key.
    pub tls_config: Option<ExtenderTls>,
    /// The timeout of one call; 0 for 5 s.
    pub http_timeout: GoDuration,
    /// True if the extender caches nodes itself: then it is sent names instead of objects.
    pub node_cache_capable: bool,
    /// The extender is called only for pods that request one of these; for every pod if empty.
    pub managed_resources: Vec<ManagedResource>,
    /// True if scheduling goes on if the extender fails. Such extenders are called last.
    pub ignorable: bool,
}

/// A resource that an extender manages.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ManagedResource {
    /// The name of the extended resource.
    pub name: String,
    /// True if only the extender checks the capacity of nodes.
    pub ignored_by_scheduler: bool,
}

/// `tlsConfig` of an extender. Data take precedence over files.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ExtenderTls {
    /// True if the server is not verified.
    pub insecure: bool,
    /// The server name in the server's certificate; the host of the URL if empty.
    pub server_name: String,
    /// Path of the client certificate, in PEM.
    pub cert_file: String,
    /// Path of the client key.
    pub key_file: String,
    /// Path of the CAs that verify the server's certificate.
    pub ca_file: String,
    /// The client certificate in PEM; base64 in files.
    pub cert_data: Option<String>,
    /// The client key in PEM; base64 in files.
    pub key_data: Option<String>,
    /// The CAs in PEM; base64 in files.
    pub ca_data: Option<String>,
}

impl Extender {
    /// Returns true if the extender has any verb.
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

    /// Returns the timeout of one call.
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
    /// Returns true if a CA is configured.
    pub(crate) fn has_authority(&self) -> bool {
        !self.ca_file.is_empty() || self.ca_data.is_some()
    }
}

/// Returns the extenders in call order: ignorable ones last.
pub(crate) fn sort_extenders(extenders: &[Extender]) -> Vec<Extender> {
    let mut all = extenders.to_vec();
    all.sort_by_key(|extender| extender.ignorable);
    all
}

/// Returns the names of resources whose capacity only extenders check.
pub(crate) fn ignored(extenders: &[Extender]) -> Vec<String> {
    let resources = extenders.iter().flat_map(|it| &it.managed_resources);
    resources
        .filter(|resource| resource.ignored_by_scheduler)
        .map(|resource| resource.name.clone())
        .collect()
}

/// Validates values as kube-scheduler does. Also rejects what kube-scheduler detects only at start (TLS) or
/// at every call (an invalid URL, a negative timeout).
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
