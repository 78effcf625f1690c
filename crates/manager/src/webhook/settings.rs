//! Address and names of the webhook server, from the same environment variables as upstream.

use crate::OptionsError;
use koord_kube::certs::CertManager;
use koord_kube::webhook::configuration::{Injector, Service};
use koord_kube::webhook::run::Server;
use koord_kube::webhook::{FailurePolicy, Page};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

/// Default name of the MutatingWebhookConfiguration; `MUTATING_WEBHOOK_NAME` overrides it.
pub const MUTATING: &str = "koordinator-mutating-webhook-configuration";
/// Default name of the ValidatingWebhookConfiguration; `VALIDATING_WEBHOOK_NAME` overrides it.
pub const VALIDATING: &str = "koordinator-validating-webhook-configuration";

/// Settings of the webhook server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Listen address; port from `WEBHOOK_PORT`.
    pub address: SocketAddr,
    /// Name of the MutatingWebhookConfiguration; `MUTATING_WEBHOOK_NAME`.
    pub mutating: String,
    /// Name of the ValidatingWebhookConfiguration; `VALIDATING_WEBHOOK_NAME`.
    pub validating: String,
    /// The service in front of the server; `POD_NAMESPACE` and `SERVICE_NAME`.
    pub service: Service,
    /// Name of the Secret with the certificates; `SECRET_NAME`.
    pub secret: String,
    /// Host that API servers connect to instead of the service; `WEBHOOK_HOST`.
    pub host: Option<String>,
    /// Directory of certificate files that are used instead of the Secret; `WEBHOOK_CERT_WRITER=fs` and
    /// `WEBHOOK_CERT_DIR`.
    pub directory: Option<PathBuf>,
    /// Failure policy of the pod webhooks; `None` keeps that of the configurations.
    /// `WEBHOOK_CONFIGURATION_FAILURE_POLICY_PODS`.
    pub pods: Option<FailurePolicy>,
}

impl Settings {
    /// Reads the environment through `variable`.
    ///
    /// # Errors
    /// Names the variable and its value.
    pub fn from_env(variable: impl Fn(&str) -> Option<String>) -> Result<Self, OptionsError> {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let or = |name: &str, default: &str| variable(name).unwrap_or_else(|| default.to_owned());
        let invalid = |name: &str, value: String, expected: &str| {
            OptionsError::variable(name, format!("{value:?}: expected {expected}"))
        };
        let port = match variable("WEBHOOK_PORT") {
            None => 9876,
            Some(text) => text
                .parse()
                .map_err(|_| invalid("WEBHOOK_PORT", text, "a port, 0..65535"))?,
        };
        let pods = match variable("WEBHOOK_CONFIGURATION_FAILURE_POLICY_PODS") {
            None => None,
            Some(text) => Some(match text.as_str() {
                "Fail" => FailurePolicy::Fail,
                "Ignore" => FailurePolicy::Ignore,
                _ => {
                    let name = "WEBHOOK_CONFIGURATION_FAILURE_POLICY_PODS";
                    return Err(invalid(name, text, "Fail or Ignore"));
                }
            }),
        };
        let host = variable("WEBHOOK_HOST");
        let files = match variable("WEBHOOK_CERT_WRITER") {
            None => host.is_some(),
            Some(text) => match text.as_str() {
                "fs" => true,
                "secret" => false,
                _ => return Err(invalid("WEBHOOK_CERT_WRITER", text, "fs or secret")),
            },
        };
        let directory = or("WEBHOOK_CERT_DIR", "/tmp/koordinator-webhook-certs");
        Ok(Self {
            address: SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port),
            mutating: or("MUTATING_WEBHOOK_NAME", MUTATING),
            validating: or("VALIDATING_WEBHOOK_NAME", VALIDATING),
            service: Service {
                namespace: or("POD_NAMESPACE", "koordinator-system"),
                name: or("SERVICE_NAME", "koordinator-webhook-service"),
            },
            secret: or("SECRET_NAME", "koordinator-webhook-certs"),
            host,
            directory: files.then(|| directory.into()),
            pods,
        })
    }

    /// Creates a server of the paths `served`. Its configurations contain the port that it listens on.
    pub(crate) fn server(
        &self,
        client: &koord_kube::Client,
        served: BTreeSet<&'static str>,
        pages: Vec<Page>,
    ) -> Server {
        let host = self.host.clone().unwrap_or_else(|| self.service.host());
        let keeper = match &self.directory {
            Some(directory) => CertManager::in_directory(directory.clone(), &host),
            None => {
                let namespace = &self.service.namespace;
                CertManager::in_secret(client.clone(), namespace, &self.secret, &host)
            }
        };
        let port = self.address.port();
        Server {
            address: self.address,
            keeper,
            pages,
            expiry: None,
            injector: Injector {
                mutating: self.mutating.clone(),
                validating: self.validating.clone(),
                served,
                service: self.service.clone(),
                host: self.host.clone().map(|host| (host, port)),
                pods: self.pods,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Settings, String> {
        let variable = |name: &str| {
            let pair = pairs.iter().find(|(key, _)| *key == name);
            pair.map(|(_, value)| (*value).to_owned())
        };
        Settings::from_env(variable).map_err(|error| error.to_string())
    }

    #[test]
    fn environment_overrides_upstream_names() {
        let settings = read(&[]).unwrap();
        assert_eq!(settings.address, "0.0.0.0:9876".parse().unwrap());
        assert_eq!(
            settings.service.host(),
            "koordinator-webhook-service.koordinator-system.svc"
        );
        assert_eq!(settings.secret, "koordinator-webhook-certs");
        assert_eq!((settings.directory, settings.pods), (None, None));
        // The values in upstream's manifests.
        let settings = read(&[
            (
                "MUTATING_WEBHOOK_NAME",
                "koord-mutating-webhook-configuration",
            ),
            ("SERVICE_NAME", "koord-webhook-service"),
            ("WEBHOOK_CONFIGURATION_FAILURE_POLICY_PODS", "Ignore"),
            ("WEBHOOK_PORT", "9443"),
        ])
        .unwrap();
        assert_eq!(settings.mutating, "koord-mutating-webhook-configuration");
        assert_eq!(settings.pods, Some(FailurePolicy::Ignore));
        assert_eq!(settings.address.port(), 9443);
        // With a host, certificates are files by default.
        let host = ("WEBHOOK_HOST", "10.0.0.1");
        assert!(read(&[host]).unwrap().directory.is_some());
        let secret = ("WEBHOOK_CERT_WRITER", "secret");
        assert_eq!(read(&[host, secret]).unwrap().directory, None);
    }

    #[test]
    fn mistakes_name_the_variable_and_its_value() {
        for (name, value) in [
            ("WEBHOOK_PORT", "70000"),
            ("WEBHOOK_CONFIGURATION_FAILURE_POLICY_PODS", "ignore"),
            ("WEBHOOK_CERT_WRITER", "vault"),
        ] {
            let error = read(&[(name, value)]).unwrap_err();
            assert!(error.contains(name) && error.contains(value), "{error}");
        }
    }
}
