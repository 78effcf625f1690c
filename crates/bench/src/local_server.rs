//! The API server of a benchmark's cluster.

use anyhow::{Context as _, Result};
use koord_apiserver::{ApiServer, Config};
use koord_app::Clock;
use koord_kube::Client;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const MERGE_PATCH: &str = "application/merge-patch+json";

/// Starts an API server in memory on a free loopback port, with the CRDs and without controllers, that serves until
/// `stop`; `kubeconfig` is written for its clients.
pub(crate) async fn serve(
    kubeconfig: &Path,
    stop: &CancellationToken,
) -> Result<(Arc<ApiServer>, JoinHandle<()>)> {
    let mut config = Config::memory(Clock::system());
    config.controllers = koord_app::flags::Selection::none();
    config.bind = ([127, 0, 0, 1], 0).into();
    let server = ApiServer::open(config).await?;
    server.install_crds(koord_api::crd_values()).await?;
    let listener = server.listen().await?;
    server.write_kubeconfig(kubeconfig)?;
    let serving = tokio::spawn({
        let (server, stop) = (server.clone(), stop.clone());
        async move {
            if let Err(error) = server.serve(listener, stop).await {
                tracing::error!(%error, "API server failed");
            }
        }
    });
    Ok((server, serving))
}

/// An API server of [`serve`], with a client in this process; it ends on drop.
pub(crate) struct LocalServer {
    pub(crate) kubeconfig: PathBuf,
    pub(crate) client: Client,
    pub(crate) server: Arc<ApiServer>,
    pub(crate) stop: CancellationToken,
    serving: JoinHandle<()>,
}

impl Drop for LocalServer {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl LocalServer {
    /// Starts an API server in this process, and writes its kubeconfig to `directory`.
    ///
    /// # Errors
    /// The directory cannot be created, or the server does not start.
    pub(crate) async fn start(directory: &Path) -> Result<Self> {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
        let kubeconfig = directory.join("kubeconfig");
        let stop = CancellationToken::new();
        let (server, serving) = serve(&kubeconfig, &stop).await?;
        Ok(Self {
            client: koord_kube::client::in_process(server.service()),
            kubeconfig,
            server,
            stop,
            serving,
        })
    }

    /// Creates an object, and writes its status where it has one.
    ///
    /// # Errors
    /// The server refuses it.
    pub(crate) async fn create(&self, path: &str, mut object: Value) -> Result<()> {
        let status = object.get_mut("status").map(Value::take);
        self.post(path, &object).await?;
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        match status {
            Some(status) => {
                let path = format!("{path}/{name}/status");
                self.patch(&path, &json!({"status": status})).await
            }
            None => Ok(()),
        }
    }

    /// Creates an object as it is, and returns its uid.
    ///
    /// # Errors
    /// The server refuses it.
    pub(crate) async fn post(&self, path: &str, object: &Value) -> Result<String> {
        let post = http::Request::post(path).header("content-type", "application/json");
        let post = post.body(object.to_string().into_bytes())?;
        let response: Result<Value, _> = self.client.request(post).await;
        let name = &object["metadata"]["name"];
        let response = response.with_context(|| format!("failed to create {name} at {path}"))?;
        let uid = response["metadata"]["uid"].as_str();
        Ok(uid.unwrap_or_default().to_owned())
    }

    /// Changes an object by a merge patch.
    ///
    /// # Errors
    /// The server refuses it.
    pub(crate) async fn patch(&self, path: &str, patch: &Value) -> Result<()> {
        let request = http::Request::patch(path).header("content-type", MERGE_PATCH);
        let request = request.body(patch.to_string().into_bytes())?;
        let patched = self.client.request_text(request).await;
        patched
            .map(drop)
            .with_context(|| format!("failed to patch {path}"))
    }

    /// Stops serving, and waits a moment for clients to close their connections.
    pub(crate) async fn stop(mut self) {
        self.stop.cancel();
        let _ = tokio::time::timeout(Duration::from_secs(2), &mut self.serving).await;
    }
}
