//! Who may use a TLS server: kube-scheduler's flags of delegated authentication and authorization.

use super::GuardOptions;
use clap::ArgAction;
use koord_app::flags;
use std::path::PathBuf;
use std::time::Duration;

/// Flags about who callers of the TLS server are and what they may do.
#[derive(Debug, Clone, clap::Args)]
pub struct AuthArgs {
    /// Kubeconfig of the API server that knows callers by their tokens; inside a pod, its service
    /// account is used without it. Without either, callers with tokens are nobody in particular.
    #[arg(long, value_name = "FILE")]
    pub authentication_kubeconfig: Option<PathBuf>,
    /// Do not look in the cluster, at ConfigMap kube-system/extension-apiserver-authentication, for
    /// the authority of client certificates when --client-ca-file is not given.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false",
          default_missing_value = "true", action = ArgAction::Set, value_parser = flags::boolean)]
    pub authentication_skip_lookup: bool,
    /// Go on when that ConfigMap cannot be read: client certificates count for nothing then.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "true",
          default_missing_value = "true", action = ArgAction::Set, value_parser = flags::boolean)]
    pub authentication_tolerate_lookup_failure: bool,
    /// How long answers about tokens are valid.
    #[arg(long, default_value = "10s", value_parser = flags::duration)]
    pub authentication_token_webhook_cache_ttl: Duration,
    /// Authorities whose client certificates say who callers are: the common name, in the groups
    /// named as organisations.
    #[arg(long, value_name = "FILE")]
    pub client_ca_file: Option<PathBuf>,
    /// Kubeconfig of the API server that decides what callers may do; inside a pod, its service
    /// account is used without it. Without either, only the paths that need no permission are shown.
    #[arg(long, value_name = "FILE")]
    pub authorization_kubeconfig: Option<PathBuf>,
    /// Paths that need no permission; one that ends in * stands for all that start so.
    #[arg(long, value_delimiter = ',', default_value = "/healthz,/readyz,/livez")]
    pub authorization_always_allow_paths: Vec<String>,
    /// How long permissions are valid.
    #[arg(long, default_value = "10s", value_parser = flags::duration)]
    pub authorization_webhook_cache_authorized_ttl: Duration,
    /// How long refusals are valid.
    #[arg(long, default_value = "10s", value_parser = flags::duration)]
    pub authorization_webhook_cache_unauthorized_ttl: Duration,
}

impl AuthArgs {
    /// What a [`super::Guard`] has to know.
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
