//! A daemon's client, from its flags.

use super::{ClientError, ClientOptions, RestMetrics, from_kubeconfig};
use std::path::Path;

/// What a daemon's flags and configuration say of its client.
#[derive(Debug, Clone, Copy)]
pub struct Connection<'a> {
    /// The kubeconfig, if one is given.
    pub kubeconfig: Option<&'a Path>,
    /// The API server's address in place of the kubeconfig's; empty for none.
    pub server: &'a str,
    /// Sustained requests per second.
    pub qps: f64,
    /// How many requests may go out at once before `qps` applies.
    pub burst: u32,
    /// The daemon's name, for the `User-Agent` header.
    pub name: &'a str,
}

impl Connection<'_> {
    /// Makes the client.
    ///
    /// # Errors
    /// When no configuration is found or the one found cannot be used.
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
