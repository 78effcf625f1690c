//! State of the cluster as received: the node, its pods and its settings, in compact, immutable snapshots.
//!
//! Everything is parsed once, on arrival. A malformed value is reported (see [`malformed`]), and the last
//! valid one, or the default, is used.

pub mod claims;
pub mod kubelet;
pub mod layout;
pub(crate) mod layout_detection;
pub(crate) mod lifecycle;
mod listing;
pub mod malformed;
pub mod metric_policy;
mod missing_pods;
pub mod node;
pub mod pod;
mod reader;
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

/// The newest snapshots. Informers replace them; the agent loop reads them once per tick.
#[derive(Debug, Default)]
pub struct States {
    /// The pods bound to this node; `None` until a first list arrived.
    pub pods: ArcSwapOption<Vec<PodInfo>>,
    /// The Node object.
    pub node: ArcSwapOption<NodeInfo>,
    /// The settings; defaults until a NodeSLO arrives.
    pub slo: ArcSwap<Slo>,
    /// The NodeMetric's collection policy; `None` without one.
    pub policy: ArcSwapOption<MetricPolicy>,
    /// CPU pools and the kubelet's CPU manager, from the NodeResourceTopology; `None` without one.
    pub topology: ArcSwapOption<TopologyInfo>,
    /// The kubelet's configuration; `None` if it is unknown.
    pub kubelet: ArcSwapOption<kubelet::Config>,
    /// Volumes of persistent volume claims that pods' block I/O settings refer to.
    pub claims: ArcSwap<Claims>,
    /// The detected cgroup layout; `None` until then, when the agent's setting is used.
    pub layout: ArcSwapOption<Layout>,
    /// Malformed input that is present.
    pub malformed_inputs: MalformedInputs,
    /// Lasting problems that an operator has to look at.
    pub conditions: Conditions,
    /// True if the list of pods is complete.
    settled: AtomicBool,
    /// Wakes the reader of pods; stores one wake-up.
    resync: Notify,
    /// Wakes the layout detection.
    relook: Notify,
}

impl States {
    /// Returns whether a pod that is not listed is certainly not on this node. That is not so shortly after
    /// the kubelet has started: its first lists may be partial.
    #[must_use]
    pub fn pods_settled(&self) -> bool {
        self.settled.load(Ordering::Relaxed)
    }

    /// Sets whether the list of pods is complete.
    pub(crate) fn set_pods_settled(&self, settled: bool) {
        self.settled.store(settled, Ordering::Relaxed);
    }

    /// Triggers a read of the pods now.
    pub fn resync_pods(&self) {
        self.resync.notify_one();
    }

    /// Waits until a read of the pods is requested.
    pub(crate) async fn resync_requested(&self) {
        self.resync.notified().await;
    }

    /// Triggers a layout detection now, because the kubelet's configuration changed.
    pub(crate) fn request_layout_detection(&self) {
        self.relook.notify_one();
    }

    /// Waits until a layout detection is requested.
    pub(crate) async fn layout_requested(&self) {
        self.relook.notified().await;
    }

    /// Returns the layout in force: the detected one, else `setting`.
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
