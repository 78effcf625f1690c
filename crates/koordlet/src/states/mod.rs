//! What the agent knows about its node, its pods and its settings: compact, immutable snapshots.
//!
//! Everything is read once, when it arrives. A value that does not fit its format is reported (see
//! [`malformed`]); the last good one stays, or the default.

pub mod claims;
pub mod kubelet;
pub mod layout;
pub(crate) mod lifecycle;
mod listing;
pub mod malformed;
pub mod metric_policy;
pub mod node;
pub mod pod;
mod reader;
mod roster;
pub(crate) mod settle;
pub mod slo;
pub mod topology;

pub use claims::Claims;
pub use layout::{Driver, Layout};
pub use malformed::{Malformed, MalformedInputs};
pub use node::NodeInfo;
pub(crate) use pod::is_config_hash;
pub use pod::{ContainerInfo, Phase, PodInfo};
pub use slo::Slo;
pub use topology::TopologyInfo;

use crate::conditions::Conditions;
use arc_swap::{ArcSwap, ArcSwapOption};
use k8s_openapi::api::core::v1::Pod;
use listing::{Listing, PodTextCache};
use metric_policy::MetricPolicy;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;

/// The newest snapshots. Informers replace them; the agent loop looks at them once per tick.
#[derive(Debug, Default)]
pub struct States {
    /// The pods bound to this node; `None` until a first list arrived.
    pub pods: ArcSwapOption<Vec<PodInfo>>,
    /// The Node object.
    pub node: ArcSwapOption<NodeInfo>,
    /// The settings; defaults until a NodeSLO arrives.
    pub slo: ArcSwap<Slo>,
    /// What the NodeMetric asks for; `None` without one.
    pub policy: ArcSwapOption<MetricPolicy>,
    /// CPU pools and the kubelet's CPU manager, from the NodeResourceTopology; `None` without one.
    pub topology: ArcSwapOption<TopologyInfo>,
    /// The kubelet's configuration, when it tells it.
    pub kubelet: ArcSwapOption<kubelet::Config>,
    /// Which volumes claims are bound to, as far as pods' block I/O settings speak of them.
    pub claims: ArcSwap<Claims>,
    /// How groups are named, once somebody found out; until then the agent's setting holds.
    pub layout: ArcSwapOption<Layout>,
    /// Input that was not understood and stands.
    pub malformed_inputs: MalformedInputs,
    /// What lasts and an operator has to look at.
    pub conditions: Conditions,
    /// Whether the list of pods is surely complete.
    settled: AtomicBool,
    /// Wakes whoever reads pods; keeps one wake-up.
    resync: Notify,
    /// Wakes whoever looks for the layout.
    relook: Notify,
}

impl States {
    /// Returns whether a pod that is not listed surely is not on this node. It is not while the kubelet has
    /// just started: its first lists may be partial.
    #[must_use]
    pub fn pods_settled(&self) -> bool {
        self.settled.load(Ordering::Relaxed)
    }

    /// Tells whether the list of pods is surely complete.
    pub(crate) fn set_pods_settled(&self, settled: bool) {
        self.settled.store(settled, Ordering::Relaxed);
    }

    /// Asks whoever reads pods to do so now.
    pub fn resync_pods(&self) {
        self.resync.notify_one();
    }

    /// Waits until pods shall be read.
    pub(crate) async fn resync_requested(&self) {
        self.resync.notified().await;
    }

    /// Asks for the layout to be looked for now: the kubelet said something new about itself.
    pub(crate) fn request_layout_detection(&self) {
        self.relook.notify_one();
    }

    /// Waits until the layout shall be looked for.
    pub(crate) async fn layout_requested(&self) {
        self.relook.notified().await;
    }

    /// Returns the layout in force: what was found, else `setting`.
    #[must_use]
    pub fn layout_or(&self, setting: &Layout) -> Arc<Layout> {
        let detected = self.layout.load_full();
        detected.unwrap_or_else(|| Arc::new(setting.clone()))
    }

    /// Publishes a new list of pods.
    pub(crate) fn publish_pods<'a>(&self, pods: impl Iterator<Item = &'a Pod>, layout: &Layout) {
        let old = self.pods.load_full();
        let old = old.as_deref().map_or(&[][..], Vec::as_slice);
        let mut listing = Listing::new(self, old, Arc::new(layout.clone()));
        for pod in pods {
            listing.add(pod);
        }
        listing.publish(&mut PodTextCache::default(), |_| false);
    }
}
