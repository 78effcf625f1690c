//! Schedulers in this process that can be killed by dropping them.

use super::PATIENCE;
use super::wire::{Fuse, Wire};
use super::world::FailoverWorld;
use koord_app::Context;
use koord_host::testing::eventually_within;
use koord_scheduler::Options;
use std::sync::Arc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Scheduler that takes part in leader election.
pub(super) struct Contender {
    stop: CancellationToken,
    task: JoinHandle<Result<(), koord_scheduler::Error>>,
}

impl Contender {
    /// Kills the scheduler without a graceful shutdown.
    pub(super) async fn kill(self, fuse: &Fuse) {
        fuse.blow();
        self.stop.cancel();
        self.task.abort();
        let _ = self.task.await;
    }

    pub(super) async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap().unwrap();
    }

    /// Waits until it ends by itself because it lost the lease.
    pub(super) async fn loses(self) {
        let ended = self.task.await.unwrap();
        assert!(
            matches!(ended, Err(koord_scheduler::Error::Election(_))),
            "{ended:?}"
        );
    }
}

impl FailoverWorld {
    /// Starts a leader and a standby.
    pub(super) async fn pair(&self, fuse: &Arc<Fuse>) -> (Contender, Contender) {
        let first = self.schedule("one", fuse.clone());
        self.leader("one").await;
        (first, self.schedule("two", Fuse::endless()))
    }

    /// Waits until `identity` is the leader.
    pub(super) async fn leader(&self, identity: &str) {
        let leads = async || self.holder().await.filter(|holder| holder == identity);
        eventually_within(PATIENCE, identity, leads).await;
    }

    pub(super) fn schedule(&self, identity: &str, fuse: Arc<Fuse>) -> Contender {
        let context = Context {
            clock: self.clock(),
            ..Context::new()
        };
        let mut options = Options::new(koord_plugins::registry());
        options.identity = identity.to_owned();
        options.write_concurrency = 4;
        let inner = self.server().service();
        let client = koord_kube::client::in_process(Wire { inner, fuse });
        let stop = context.shutdown.clone();
        let task = tokio::spawn(koord_scheduler::run(options, client, context));
        Contender { stop, task }
    }
}
