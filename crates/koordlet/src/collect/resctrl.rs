//! Cache occupancy and memory bandwidth of the QoS classes, monitored by resctrl (gate ResctrlCollector).

use super::slow::{Job, RoundError};
use crate::metrics::{Metrics, Resctrl};
use koord_host::{HostError, Root, resctrl};
use std::time::Duration;

/// Resctrl groups of the classes, in upstream's order.
const CLASSES: [&str; 3] = ["LSR", "LS", "BE"];

/// Reads `mon_data` of each class's resctrl group.
#[derive(Debug)]
pub struct ResctrlMonitor {
    root: Root,
    metrics: Metrics,
    every: Duration,
}

impl ResctrlMonitor {
    /// Creates a monitor that publishes in `metrics` once per `every`.
    #[must_use]
    pub fn new(root: Root, metrics: Metrics, every: Duration) -> Self {
        Self {
            root,
            metrics,
            every,
        }
    }

    fn read(&self) -> Result<Vec<Resctrl>, HostError> {
        let mut rows = Vec::new();
        for class in CLASSES {
            // A group that does not exist yet has no domains.
            for usage in resctrl::usage(&self.root, &class.parse()?)? {
                let traffic = [
                    ("mbm_local_bytes", usage.mbm_local),
                    ("mbm_total_bytes", usage.mbm_total),
                ];
                let traffic = traffic.into_iter();
                rows.push(Resctrl {
                    qos: class.to_owned(),
                    cache: usage.domain,
                    llc: usage.llc_occupancy,
                    traffic: traffic.filter_map(|(kind, n)| Some((kind, n?))).collect(),
                });
            }
        }
        Ok(rows)
    }
}

impl Job for ResctrlMonitor {
    fn name(&self) -> &'static str {
        "resctrl"
    }

    fn every(&self) -> Duration {
        self.every
    }

    fn round(&mut self) -> Result<(), RoundError> {
        let Some(info) = resctrl::info(&self.root)? else {
            return Err("resctrl is not mounted, or this processor cannot".into());
        };
        if info.monitor.is_none() {
            return Err("this processor cannot monitor the L3 cache (no info/L3_MON)".into());
        }
        self.metrics.resctrl(self.read()?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_host::fake::{ResctrlHardware, Tree};
    use koord_host::{ResctrlFile, Target};

    #[test]
    fn domains_of_the_classes() {
        let job = |tree: &Tree| {
            let metrics = Metrics::new(&prometheus::Registry::new()).unwrap();
            ResctrlMonitor::new(tree.root().clone(), metrics, Duration::ZERO)
        };
        let tree = Tree::v1("0-1").unwrap();
        let mut missing = job(&tree);
        let error = missing.round().unwrap_err().to_string();
        assert!(error.contains("not mounted"), "{error}");
        // Divides and does not measure.
        tree.mount_resctrl(ResctrlHardware::mpam()).unwrap();
        let error = missing.round().unwrap_err().to_string();
        assert!(error.contains("L3_MON"), "{error}");

        let tree = Tree::v1("0-1").unwrap();
        tree.mount_resctrl(ResctrlHardware::intel()).unwrap();
        for group in ["BE", "other"] {
            let directory = Target::Resctrl {
                group: group.parse().unwrap(),
                file: ResctrlFile::Directory,
            };
            tree.root().write_target(&directory, "1").unwrap();
        }
        let put = |cache: &str, file: &str, text: &str| {
            let path = format!("sys/fs/resctrl/BE/mon_data/mon_L3_{cache}/{file}");
            tree.put(&path, text).unwrap();
        };
        put("01", "llc_occupancy", "4096\n");
        put("01", "mbm_total_bytes", "Unavailable\n");
        put("01", "mbm_local_bytes", "7\n");
        put("00", "llc_occupancy", "Error\n");
        let mut job = job(&tree);
        let rows = job.read().unwrap();
        assert_eq!(rows.len(), 2);
        assert_eq!((rows[0].cache, rows[0].llc), (0, None));
        assert_eq!(
            rows[0].traffic,
            [("mbm_local_bytes", 0), ("mbm_total_bytes", 0)]
        );
        assert_eq!((rows[1].cache, rows[1].llc), (1, Some(4096)));
        assert_eq!(rows[1].traffic, [("mbm_local_bytes", 7)]);
        job.round().unwrap();
        put("00", "mbm_local_bytes", "many\n");
        let error = job.round().unwrap_err().to_string();
        assert!(
            error.contains("mbm_local_bytes") && error.contains("many"),
            "{error}"
        );
    }
}
