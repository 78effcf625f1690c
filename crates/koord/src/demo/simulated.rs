//! A cluster of simulated nodes, with an API server and other components in this process.

use crate::console;
use anyhow::{Context as _, Result, bail};
use koord_apiserver::{ApiServer, Config};
use koord_app::{Clock, Context};
use koord_kube::Client;
use std::sync::Arc;
use tokio::task::JoinSet;

/// Returns the results of `demo`, unless the user interrupts it.
///
/// # Errors
/// The demo fails or is interrupted.
pub(super) fn measure<T>(demo: impl Future<Output = Result<T>>) -> Result<T> {
    koord_app::daemon::runtime()?.block_on(async {
        tokio::select! {
            outcome = demo => outcome,
            _ = tokio::signal::ctrl_c() => bail!("interrupted before everything was measured"),
        }
    })
}

/// An API server in memory, and components that run for the whole time.
pub(super) struct SimulatedCluster {
    server: Arc<ApiServer>,
    pub(super) client: Client,
    pub(super) context: Context,
    /// Names of the components, with their results.
    parts: JoinSet<(&'static str, Result<()>)>,
}

impl SimulatedCluster {
    /// Starts the API server.
    ///
    /// # Errors
    /// It does not start.
    pub(super) async fn start() -> Result<Self> {
        let server = ApiServer::open(Config::memory(Clock::system())).await?;
        server.install_crds(koord_api::crd_values()).await?;
        let client = koord_kube::client::in_process(server.service());
        Ok(Self {
            server,
            client,
            context: Context::new(),
            parts: JoinSet::new(),
        })
    }

    /// Starts a component; errors name it `name`.
    pub(super) fn spawn<F, E>(
        &mut self,
        name: &'static str,
        part: impl FnOnce(Client, Context) -> F,
    ) where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<anyhow::Error>,
    {
        let running = part(self.client.clone(), self.context.clone());
        self.parts
            .spawn(async move { (name, running.await.map_err(Into::into)) });
    }

    /// Runs `work`, and fails if a component ends before: results without it mean nothing.
    ///
    /// # Errors
    /// When the work fails, or a component ends.
    pub(super) async fn during<T>(&mut self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            biased;
            Some(ended) = self.parts.join_next() => match ended {
                Ok((name, Ok(()))) => bail!("the {name} ended before everything was measured"),
                Ok((name, Err(error))) => Err(error.context(name)),
                Err(error) => Err(error).context("a part of the cluster"),
            },
            done = work => done,
        }
    }

    /// Stops all components and the API server.
    pub(super) async fn stop(mut self) {
        self.context.shutdown.cancel();
        while let Some(ended) = self.parts.join_next().await {
            if let Ok((name, Err(error))) = ended {
                console::warn(console::chain(&error.context(name)));
            }
        }
        self.server.close().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;

    /// A scheduler that ends early binds nothing, and no request fails.
    #[tokio::test]
    async fn nothing_is_measured_without_all_parts() {
        async fn died() -> Result<()> {
            Err(anyhow::anyhow!("lost its lease"))
        }
        async fn ended() -> Result<()> {
            Ok(())
        }
        async fn panicked() -> Result<()> {
            panic!("of a test");
        }
        for (at, why) in [
            "scheduler: lost its lease",
            "the simulation of nodes ended before everything was measured",
            "a part of the cluster: task",
        ]
        .into_iter()
        .enumerate()
        {
            let mut cluster = SimulatedCluster::start().await.unwrap();
            cluster.spawn("descheduler", |_, _| pending::<Result<()>>());
            match at {
                0 => cluster.spawn("scheduler", |_, _| died()),
                1 => cluster.spawn("simulation of nodes", |_, _| ended()),
                _ => cluster.spawn("scheduler", |_, _| panicked()),
            }
            let result = cluster.during(pending::<Result<()>>()).await;
            let error = format!("{:#}", result.unwrap_err());
            assert!(error.starts_with(why), "{error}");
        }
        let mut cluster = SimulatedCluster::start().await.unwrap();
        cluster.spawn("scheduler", |_, _| pending::<Result<()>>());
        assert_eq!(cluster.during(async { Ok(5) }).await.unwrap(), 5);
    }
}
