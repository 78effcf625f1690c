//! The client of a daemon, created from its flags.

use super::{ClientError, ClientOptions, RestMetrics, from_kubeconfig};
use std::path::Path;

/// The settings of a daemon's client in its flags and configuration file.
#[derive(Debug, Clone, Copy)]
pub struct Connection<'a> {
    /// Path of the kubeconfig, if one is given.
    pub kubeconfig: Option<&'a Path>,
    /// URL of the API server, which replaces that of the kubeconfig; empty for none.
    pub server: &'a str,
    /// Sustained requests per second.
    pub qps: f64,
    /// Number of requests that may be sent at once before `qps` applies.
    pub burst: u32,
    /// The daemon's name, for the `User-Agent` header.
    pub name: &'a str,
}

impl Connection<'_> {
    /// Creates the client.
    ///
    /// # Errors
    /// Fails if no configuration is found or it cannot be used.
    pub async fn open(&self, metrics: Option<RestMetrics>) -> Result<crate::Client, ClientError> {
        let options = ClientOptions {
            qps: self.qps,
            burst: self.burst,
            user_agent: self.name.to_owned(),
            server: Some(self.server.to_owned()).filter(|server| !server.is_empty()),
            context: None,
            metrics,
        };
        from_kubeconfig(self.kubeconfig, &options).await
    }
}
