//! An engine that follows the cluster without making decisions, for callers that predict the scheduler's
//! decisions.

use super::{Error, InformerSet, Options, watch_all};
use crate::engine::{Engine, EngineOptions};
use crate::framework::Message;
use crate::guard::guarded;
use koord_app::Clock;
use koord_kube::{Change, Client};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

/// The maximum number of events handled before the engine can be taken.
const BATCH: usize = 512;
/// The cache limit in bytes: few pods share evaluations here.
const CLASS_BYTES: usize = 64 << 20;

/// An engine that follows the cluster. Clones share the engine.
#[derive(Debug, Clone)]
pub struct Follower(Arc<FollowerState>);

#[derive(Debug)]
struct FollowerState {
    /// The engine; `None` while it is taken.
    engine: Mutex<Option<Engine>>,
    returned: Notify,
    settled: watch::Sender<bool>,
}

impl Follower {
    /// Creates a follower of an engine that the caller feeds with events.
    #[must_use]
    pub fn new(engine: Engine) -> Self {
        Self(Arc::new(FollowerState {
            engine: Mutex::new(Some(engine)),
            returned: Notify::new(),
            settled: watch::Sender::new(true),
        }))
    }

    /// Starts following the API server, until `shutdown`. Only profiles and the build context of plugins are
    /// taken from `options`; extenders are not called.
    ///
    /// # Errors
    /// Fails if the configuration is invalid.
    pub fn start(
        options: &Options,
        client: &Client,
        clock: Clock,
        shutdown: &CancellationToken,
    ) -> Result<Self, Error> {
        let (mut config, profiles) = options.resolve()?;
        config.extenders.clear();
        let leads = CancellationToken::new();
        leads.cancel();
        let gates = &options.build.gates;
        let stop = shutdown.child_token();
        let watching = watch_all(&config, gates, &profiles, client, leads, stop);
        let limits = EngineOptions {
            class_bytes: options.engine.class_bytes.min(CLASS_BYTES),
            ..options.engine
        };
        let follower = Self::new(Engine::new(&config, profiles, limits));
        follower.0.settled.send_replace(false);
        tokio::spawn(follower.clone().feed(watching, clock, shutdown.clone()));
        Ok(follower)
    }

    /// Returns true if the initial lists of all kinds were handled.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        *self.0.settled.borrow()
    }

    /// Waits until [`Self::is_settled`] is true.
    pub async fn settled(&self) {
        let mut settled = self.0.settled.subscribe();
        // The sender is as old as this handle.
        let _ = settled.wait_for(|settled| *settled).await;
    }

    /// Takes the engine, if no other caller has it. Events wait until it is returned.
    #[must_use]
    pub fn take(&self) -> Option<Engine> {
        self.0.engine.lock().take()
    }

    /// Returns the engine.
    pub fn return_engine(&self, engine: Engine) {
        *self.0.engine.lock() = Some(engine);
        self.0.returned.notify_one();
    }

    /// Applies events to the engine until `shutdown`; waits while the engine is taken.
    async fn feed(self, watching: InformerSet, clock: Clock, shutdown: CancellationToken) {
        let InformerSet {
            mut messages,
            kinds: mut unseen,
            sender: _sender,
            _stop,
        } = watching;
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                count = messages.recv_many(&mut batch, BATCH) => if count == 0 {
                    return;
                },
            }
            while !self.apply_batch(&mut batch, &mut unseen, &clock) {
                tokio::select! {
                    () = shutdown.cancelled() => return,
                    () = self.0.returned.notified() => {}
                }
            }
            if unseen.is_empty() {
                self.0
                    .settled
                    .send_if_modified(|settled| !std::mem::replace(settled, true));
            }
        }
    }

    /// Passes `batch` to the engine. Returns false if the engine is taken.
    fn apply_batch(
        &self,
        batch: &mut Vec<Message>,
        unseen: &mut BTreeSet<&'static str>,
        clock: &Clock,
    ) -> bool {
        let mut engine = self.0.engine.lock();
        let Some(engine) = &mut *engine else {
            return false;
        };
        for message in batch.drain(..) {
            if let Message::Synced(kind) = message {
                unseen.remove(kind);
            }
            guarded("handling an event", || {
                apply_message(engine, message, clock);
            });
        }
        // The outputs and measurements have no receiver here.
        drop(engine.take_outputs());
        drop(engine.telemetry.take_measures());
        drop(engine.queue.take_incoming());
        true
    }
}

fn apply_message(engine: &mut Engine, message: Message, clock: &Clock) {
    let now = clock.now();
    match message {
        Message::Pod(Change::Applied { new, .. }) => engine.apply_parsed_pod(&new, now),
        Message::Pod(Change::Deleted(last)) => engine.pod_left(last.uid(), now),
        Message::Node(Change::Applied { new, .. }) => engine.node_applied(new, now),
        Message::Node(Change::Deleted(last)) => {
            let name = last.metadata.name.as_deref().unwrap_or_default();
            engine.node_deleted(name, now);
        }
        Message::Object(change) => engine.object_changed(&change, now),
        Message::Pod(Change::Synced)
        | Message::Node(Change::Synced)
        | Message::Synced(_)
        | Message::Consulted { .. }
        | Message::Problem(_)
        | Message::NotEvicted(_)
        | Message::Bound { .. } => {}
    }
}
