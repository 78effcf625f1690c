//! What resctrl monitors for the QoS classes (gate ResctrlCollector).

use super::slow::{Failure, Job};
use crate::metrics::{Metrics, Resctrl};
use koord_host::reader::number;
use koord_host::{HostError, Root};
use std::fs;
use std::time::Duration;

/// The groups of the classes, in the order of upstream.
const CLASSES: [&str; 3] = ["LSR", "LS", "BE"];
const TRAFFIC: [&str; 2] = ["mbm_local_bytes", "mbm_total_bytes"];

/// Reads `mon_data` of each class's group.
#[derive(Debug)]
pub struct ResctrlMonitor {
    root: Root,
    metrics: Metrics,
    every: Duration,
}

impl ResctrlMonitor {
    /// A monitor that publishes as `metrics`, `every` so often.
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
            let dir = self.root.sys(&format!("fs/resctrl/{class}/mon_data"));
            // A group that is not there yet has no domains.
            let Ok(entries) = fs::read_dir(&dir) else {
                continue;
            };
            for entry in entries.flatten() {
                let name = entry.file_name();
                let cache = name
                    .to_str()
                    .and_then(|name| name.strip_prefix("mon_L3_")?.parse().ok());
                let Some(cache) = cache else { continue };
                // "Unavailable" or "Error" instead of a number is the kernel's way to say: not now.
                let value = |file: &str| match self.root.read(&entry.path().join(file))? {
                    Some(text) if !text.starts_with(['U', 'E']) => match number(&text) {
                        Ok(value) => Ok(Some(value)),
                        Err(malformed) => Err(HostError::Malformed {
                            path: entry.path().join(file),
                            malformed,
                        }),
                    },
                    _ => Ok(None),
                };
                let mut traffic = Vec::new();
                for kind in TRAFFIC {
                    traffic.extend(value(kind)?.map(|bytes| (kind, bytes)));
                }
                rows.push(Resctrl {
                    qos: class.to_owned(),
                    cache,
                    llc: value("llc_occupancy")?,
                    traffic,
                });
            }
        }
        rows.sort_by(|a, b| (&a.qos, a.cache).cmp(&(&b.qos, b.cache)));
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

    fn round(&mut self) -> Result<(), Failure> {
        if !self.root.sys("fs/resctrl/info").is_dir() {
            return Err("resctrl is not mounted, or this processor cannot".into());
        }
        if !self.root.sys("fs/resctrl/info/L3_MON").is_dir() {
            return Err("this processor cannot monitor the L3 cache (no info/L3_MON)".into());
        }
        self.metrics.resctrl(self.read()?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_host::fake::Tree;

    #[test]
    fn domains_of_the_classes() {
        let tree = Tree::v1("0-1").unwrap();
        let metrics = Metrics::new(&prometheus::Registry::new()).unwrap();
        let mut job = ResctrlMonitor::new(tree.root().clone(), metrics, Duration::ZERO);
        assert!(job.round().unwrap_err().to_string().contains("not mounted"));
        tree.put("sys/fs/resctrl/info/L3/cbm_mask", "7ff\n")
            .unwrap();
        assert!(job.round().unwrap_err().to_string().contains("L3_MON"));
        tree.put("sys/fs/resctrl/info/L3_MON/num_rmids", "32\n")
            .unwrap();
        let put = |class: &str, cache: &str, file: &str, text: &str| {
            let path = format!("sys/fs/resctrl/{class}/mon_data/mon_L3_{cache}/{file}");
            tree.put(&path, text).unwrap();
        };
        put("BE", "01", "llc_occupancy", "4096\n");
        put("BE", "01", "mbm_total_bytes", "Unavailable\n");
        put("BE", "01", "mbm_local_bytes", "7\n");
        put("BE", "00", "llc_occupancy", "Error\n");
        put("other", "00", "llc_occupancy", "1\n");
        let rows = job.read().unwrap();
        assert_eq!(rows.len(), 2);
        assert_eq!(
            (rows[0].cache, rows[0].llc, rows[0].traffic.len()),
            (0, None, 0)
        );
        assert_eq!((rows[1].cache, rows[1].llc), (1, Some(4096)));
        assert_eq!(rows[1].traffic, [("mbm_local_bytes", 7)]);
        job.round().unwrap();
        put("BE", "00", "mbm_local_bytes", "many\n");
        let error = job.round().unwrap_err().to_string();
        assert!(
            error.contains("mbm_local_bytes") && error.contains("many"),
            "{error}"
        );
    }
}
