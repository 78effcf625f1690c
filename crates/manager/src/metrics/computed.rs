//! Gauges of the amounts computed for every node. A stored gauge would take a kilobyte, and metrics are
//! scraped only twice a minute, so the amounts are stored as numbers and converted to gauges on each scrape.

use koord_api::resources::{BATCH_CPU, BATCH_MEMORY, MID_CPU, MID_MEMORY};
use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{GaugeVec, Opts};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The extended resources that have a gauge.
const RESOURCES: [&str; 4] = [BATCH_CPU, BATCH_MEMORY, MID_CPU, MID_MEMORY];
/// Time after which the amount of a node that is no longer computed is dropped.
const TTL: Duration = Duration::from_secs(15 * 60);

/// Amounts and the times they were set, in the order of [`RESOURCES`].
type Amounts = [Option<(f64, Instant)>; RESOURCES.len()];

/// The computed amounts by node. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct ComputedAmounts {
    nodes: Arc<Mutex<HashMap<Box<str>, Amounts>>>,
    /// An empty vector of gauges that provides the description.
    described: GaugeVec,
}

fn gauges() -> prometheus::Result<GaugeVec> {
    let opts = Opts::new(
        "slo_controller_node_extended_resource_allocatable_internal",
        "Computed amounts of extended resources, before thresholds are applied",
    );
    GaugeVec::new(opts, &["node", "resource", "unit"])
}

impl ComputedAmounts {
    pub(super) fn new() -> prometheus::Result<Self> {
        Ok(Self {
            nodes: Arc::default(),
            described: gauges()?,
        })
    }

    /// Sets an amount: cores for CPU resources, bytes for memory. A resource without a gauge is ignored.
    pub(super) fn set(&self, node: &str, resource: &str, amount: f64) {
        let index = RESOURCES.iter().position(|name| *name == resource);
        let mut nodes = self.nodes.lock();
        if !nodes.contains_key(node) {
            nodes.insert(node.into(), Amounts::default());
        }
        let amounts = nodes.get_mut(node);
        if let Some(place) = index.and_then(|index| amounts?.get_mut(index)) {
            *place = Some((amount, Instant::now()));
        }
    }

    pub(super) fn remove_node(&self, node: &str) {
        self.nodes.lock().remove(node);
    }
}

impl Collector for ComputedAmounts {
    fn desc(&self) -> Vec<&Desc> {
        self.described.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        // The same definition was valid in `new`.
        let Ok(gauges) = gauges() else {
            return Vec::new();
        };
        let now = Instant::now();
        self.nodes.lock().retain(|node, amounts| {
            for (resource, place) in RESOURCES.iter().zip(amounts.iter_mut()) {
                *place = place.filter(|(_, since)| now.duration_since(*since) <= TTL);
                let unit = if resource.ends_with("cpu") {
                    "integer"
                } else {
                    "byte"
                };
                if let Some((amount, _)) = place {
                    gauges
                        .with_label_values(&[&**node, *resource, unit])
                        .set(*amount);
                }
            }
            amounts.iter().any(Option::is_some)
        });
        gauges.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_app::metrics::{encode, register};

    #[tokio::test(start_paused = true)]
    async fn amounts_expire_or_go_with_their_node() {
        let registry = prometheus::Registry::new();
        let computed = register(&registry, ComputedAmounts::new().unwrap()).unwrap();
        let text = || encode(&registry).unwrap();
        computed.set("a", "kubernetes.io/batch-cpu", 2.5);
        computed.set("a", "kubernetes.io/mid-memory", 1024.0);
        computed.set("b", "kubernetes.io/batch-cpu", 1.0);
        let name = "slo_controller_node_extended_resource_allocatable_internal";
        let line = |node: &str, resource: &str, rest: &str| {
            format!("{name}{{node=\"{node}\",resource=\"kubernetes.io/{resource}\",unit={rest}\n")
        };
        let cpu = line("a", "batch-cpu", "\"integer\"} 2.5");
        let memory = line("a", "mid-memory", "\"byte\"} 1024");
        assert!(
            text().contains(&cpu) && text().contains(&memory),
            "{}",
            text()
        );
        computed.remove_node("b");
        assert!(!text().contains("\"b\""));
        tokio::time::advance(TTL / 2).await;
        computed.set("a", "kubernetes.io/batch-cpu", 2.5);
        tokio::time::advance(TTL / 2 + Duration::from_secs(1)).await;
        assert!(
            text().contains(&cpu) && !text().contains(&memory),
            "{}",
            text()
        );
        tokio::time::advance(TTL).await;
        assert!(!text().contains(name));
        assert!(computed.nodes.lock().is_empty());
    }
}
