//! The flags of kube-scheduler for delegated authentication and authorization.

use super::GuardOptions;
use clap::ArgAction;
use koord_app::flags;
use std::path::PathBuf;
use std::time::Duration;

/// Flags for authentication and authorization at a TLS server.
#[derive(Debug, Clone, clap::Args)]
pub struct AuthArgs {
    /// Kubeconfig of the API server that authenticates bearer tokens. Default: the service account of the pod;
    /// outside of a pod, clients with tokens are anonymous.
    #[arg(long, value_name = "FILE")]
    pub authentication_kubeconfig: Option<PathBuf>,
    /// Do not read the CA of client certificates from ConfigMap
    /// kube-system/extension-apiserver-authentication if --client-ca-file is not set.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false",
          default_missing_value = "true", action = ArgAction::Set, value_parser = flags::boolean)]
    pub authentication_skip_lookup: bool,
    /// Continue without client certificates when that ConfigMap cannot be read.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "true",
          default_missing_value = "true", action = ArgAction::Set, value_parser = flags::boolean)]
    pub authentication_tolerate_lookup_failure: bool,
    /// Time for which the user of a token is cached.
    #[arg(long, default_value = "10s", value_parser = flags::duration)]
    pub authentication_token_webhook_cache_ttl: Duration,
    /// CA of client certificates. The common name of a certificate is the user, its organizations are the groups.
    #[arg(long, value_name = "FILE")]
    pub client_ca_file: Option<PathBuf>,
    /// Kubeconfig of the API server that authorizes requests. Default: the service account of the pod; outside
    /// of a pod, only the paths that need no permission are served.
    #[arg(long, value_name = "FILE")]
    pub authorization_kubeconfig: Option<PathBuf>,
    /// Paths that need no permission; a * at the end matches any suffix.
    #[arg(long, value_delimiter = ',', default_value = "/healthz,/readyz,/livez")]
    pub authorization_always_allow_paths: Vec<String>,
    /// Time for which an allowed request is cached.
    #[arg(long, default_value = "10s", value_parser = flags::duration)]
    pub authorization_webhook_cache_authorized_ttl: Duration,
    /// Time for which a denied request is cached.
    #[arg(long, default_value = "10s", value_parser = flags::duration)]
    pub authorization_webhook_cache_unauthorized_ttl: Duration,
}

impl AuthArgs {
    /// Returns the settings of a [`super::Guard`].
    #[must_use]
    pub fn guard(&self) -> GuardOptions {
        GuardOptions {
            always_allow_paths: self.authorization_always_allow_paths.clone(),
            token_ttl: self.authentication_token_webhook_cache_ttl,
            authorized_ttl: self.authorization_webhook_cache_authorized_ttl,
            unauthorized_ttl: self.authorization_webhook_cache_unauthorized_ttl,
        }
    }
}
