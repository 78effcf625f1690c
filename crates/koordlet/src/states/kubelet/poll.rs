//! Polls the kubelet.

use super::client::{KubeletClient, KubeletError};
use super::metrics::KubeletMetrics;
use super::options::Kubelet as Options;
use super::rate_limit::RequestLimiter;
use crate::states::listing::{Listing, PodTextCache};
use crate::states::missing_pods::{self, MissingPods};
use crate::states::{Layout, States};
use koord_host::Root;
use koord_kube::Client;
use koord_kube::failure_log::FailureLog;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

/// Interval of reading the configuration of a kubelet that responds, in milliseconds.
const CONFIG_EVERY_MS: u64 = 300_000;

/// Polls the kubelet and publishes its pods and configuration.
pub(crate) struct KubeletPoller {
    pub(super) interval: Duration,
    query_config: bool,
    root: Root,
    /// Layout to use while none was detected.
    layout: Layout,
    states: Arc<States>,
    kubelet: KubeletClient,
    origin: Instant,
    limiter: RequestLimiter,
    /// Time since which all requests have succeeded, in milliseconds.
    answers_since: Option<u64>,
    missing: MissingPods,
    /// Pods of the newest list, by their text.
    text_cache: PodTextCache,
    config_at: Option<u64>,
    failures: FailureLog,
    last_config_error: String,
}

impl KubeletPoller {
    /// Creates the poller. `api` and `node` are for the Node object, if it was not received yet.
    pub(crate) fn new(
        options: Options,
        layout: Layout,
        root: Root,
        states: Arc<States>,
        (api, node): (Client, String),
        metrics: KubeletMetrics,
    ) -> Self {
        let interval = options.interval;
        let query_config = options.query_config;
        let kubelet = KubeletClient::new(options, states.clone(), api, node, metrics);
        Self::with_client(kubelet, interval, query_config, layout, root, states)
    }

    pub(super) fn with_client(
        kubelet: KubeletClient,
        interval: Duration,
        query_config: bool,
        layout: Layout,
        root: Root,
        states: Arc<States>,
    ) -> Self {
        Self {
            interval,
            query_config,
            root,
            layout,
            states,
            kubelet,
            origin: Instant::now(),
            limiter: RequestLimiter::new(),
            answers_since: None,
            missing: MissingPods::new(),
            text_cache: PodTextCache::default(),
            config_at: None,
            failures: FailureLog::default(),
            last_config_error: String::new(),
        }
    }

    /// Polls until `shutdown`: every interval, and on request (when a pod's directory appeared). A failure
    /// keeps the last known pods.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        if self.interval.is_zero() {
            tracing::warn!(
                field = "kubelet-sync-interval",
                "kubelet sync interval is 0, not reading pods"
            );
            return;
        }
        let states = self.states.clone();
        let work = async {
            let mut timer = interval(self.interval);
            timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    _ = timer.tick() => {}
                    () = states.resync_requested() => timer.reset(),
                }
                let wait = self.limiter.take(self.now_ms());
                if wait > 0 {
                    sleep(Duration::from_millis(wait)).await;
                }
                self.once(self.now_ms()).await;
            }
        };
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = work => {}
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Polls once, at `now` milliseconds of the monotonic clock.
    pub(super) async fn once(&mut self, now: u64) {
        let was_connected = self.kubelet.is_connected();
        if let Err(error) = self.pods(now).await {
            self.answers_since = None;
            self.states.set_pods_settled(false);
            let text = error.to_string();
            if self.failures.record(&text) {
                tracing::warn!(error = %text, "failed to read pods from the kubelet");
            }
            return;
        }
        if self.failures.clear() {
            tracing::info!("kubelet responds again");
        }
        let due = self
            .config_at
            .is_none_or(|last_read| now.saturating_sub(last_read) >= CONFIG_EVERY_MS);
        if self.query_config && (due || !was_connected) {
            self.config_at = Some(now);
            self.config().await;
        }
    }

    /// Reads the list of pods from the kubelet and publishes it.
    async fn pods(&mut self, now: u64) -> Result<(), KubeletError> {
        let states = self.states.clone();
        let before = states.pods.load_full();
        let old = before.as_deref().map_or(&[][..], Vec::as_slice);
        let layout = states.layout_or(&self.layout);
        let mut listing = Listing::new(&states, old, layout);
        let cache = &self.text_cache;
        let read = |text: &[u8]| listing.add_text(text, cache);
        self.kubelet.pods(read).await?;
        self.answers_since.get_or_insert(now);
        let settled = missing_pods::is_settled(self.answers_since, now);
        if listing.is_empty() && before.is_none() && !settled {
            // The kubelet has probably just started; a node without any pod is rare.
            return Ok(());
        }
        let missing = missing_pods::retained_pods(
            old.iter().map(|pod| pod.uid.as_str()),
            |uid| listing.has(uid),
            &self.missing,
            settled,
            now,
            |uid| {
                let pod = old.iter().find(|pod| pod.uid == uid);
                pod.is_some_and(|pod| self.root.cgroup(&pod.cgroup).exists())
            },
        );
        if missing.len() > self.missing.len() {
            tracing::debug!(
                pods = missing.len(),
                "keeping pods that the kubelet does not list"
            );
        }
        self.missing = missing;
        listing.publish(&mut self.text_cache, |uid| self.missing.contains_key(uid));
        states.set_pods_settled(settled);
        Ok(())
    }

    async fn config(&mut self) {
        match self.kubelet.config().await {
            Ok(config) => {
                let config = Some(Arc::new(config));
                if *self.states.kubelet.load() != config {
                    self.states.kubelet.store(config);
                    self.states.request_layout_detection();
                }
            }
            // Pods are more important, and some kubelets do not allow this request.
            Err(error) => {
                let text = error.to_string();
                if text != self.last_config_error {
                    tracing::info!(error = %text, "failed to read the kubelet's configuration");
                    self.last_config_error = text;
                }
            }
        }
    }
}
