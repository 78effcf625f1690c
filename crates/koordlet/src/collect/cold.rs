//! Cold pages, which were not accessed recently, as counted by kidled of Anolis (gate ColdPageCollector).

use super::errors::KernelErrors;
use super::slow::{Job, RoundError, SlowResults};
use crate::states::{Layout, States};
use koord_host::procfs::MemInfo;
use koord_host::{CgroupPath, Controller, HostError, Malformed, Root};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

const DIR: &str = "kernel/mm/kidled";
/// Seconds between two scans.
const PERIOD: &str = "5";
/// First of the buckets that count as cold: pages without access for 60 scans or more.
const BOUNDARY: usize = 5;

/// Result of one round, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ColdMemory {
    /// Memory in use on the node, with hot page cache: total - free - cold.
    pub node: u64,
    /// Cold memory of the node.
    pub node_cold: u64,
    /// Cold memory in each pod's cgroup, by pod UID.
    pub pods: Vec<(String, u64)>,
    /// Cold memory in each host application's cgroup, by name.
    pub apps: Vec<(String, u64)>,
}

/// Configures kidled and reads its counts.
#[derive(Debug)]
pub struct ColdPages {
    root: Root,
    states: Arc<States>,
    facts: Arc<SlowResults>,
    layout: Layout,
    rounds: u64,
}

impl ColdPages {
    /// Creates a collector that reads the pods and host applications in `states` and publishes in `facts`.
    /// Cgroups are named by `layout` until another layout is detected.
    #[must_use]
    pub fn new(root: Root, states: Arc<States>, facts: Arc<SlowResults>, layout: Layout) -> Self {
        Self {
            root,
            states,
            facts,
            layout,
            rounds: 0,
        }
    }

    /// Configures kidled, unless it is configured already.
    fn switch_on(&self) -> Result<(), HostError> {
        for (file, value) in [("scan_period_in_seconds", PERIOD), ("use_hierarchy", "1")] {
            let path = self.root.sys(&format!("{DIR}/{file}"));
            let now = self.root.read(&path)?;
            if now.as_deref().map(str::trim) != Some(value) && !self.root.is_dry_run() {
                self.root.write(&path, value)?;
            }
        }
        Ok(())
    }

    fn read_cold_bytes(&self, file: PathBuf) -> Result<Option<u64>, HostError> {
        self.root.read_with(&file, cold_bytes)
    }
}

impl Job for ColdPages {
    fn name(&self) -> &'static str {
        "cold pages"
    }

    fn every(&self) -> Duration {
        Duration::from_secs(5)
    }

    fn round(&mut self) -> Result<(), RoundError> {
        if !self.root.sys(DIR).is_dir() {
            return Err("this kernel has no kidled (/sys/kernel/mm/kidled)".into());
        }
        self.switch_on()?;
        let missing = "this kernel has no memory.idle_page_stats";
        let memory = self.root.mount_of(Controller::Memory).ok_or(missing)?;
        let node_cold = self.read_cold_bytes(memory.join(FILE))?.ok_or(missing)?;
        let info = MemInfo::read(&self.root)?.ok_or("meminfo is missing")?;
        let mut cold = ColdMemory {
            node: info.used_with_page_cache().saturating_sub(node_cold),
            node_cold,
            pods: Vec::new(),
            apps: Vec::new(),
        };
        let mut errors = KernelErrors::default();
        let mut cold_in = |group: &CgroupPath| {
            let dir = self.root.cgroup(group).dir(Controller::Memory)?;
            errors.value_of(self.read_cold_bytes(dir.join(FILE)))
        };
        let pods = self.states.pods.load_full();
        for pod in pods.iter().flat_map(|pods| pods.iter()) {
            if let Some(bytes) = cold_in(&pod.cgroup) {
                cold.pods.push((pod.uid.clone(), bytes));
            }
        }
        let layout = self.states.layout_or(&self.layout);
        for app in self.states.slo.load().host_apps.iter() {
            if let Some(bytes) = layout.host_app(app).ok().as_ref().and_then(&mut cold_in) {
                cold.apps.push((app.name.clone(), bytes));
            }
        }
        self.rounds += 1;
        self.facts.cold.store(Some(Arc::new((self.rounds, cold))));
        Ok(errors.finish()?)
    }
}

const FILE: &str = "memory.idle_page_stats";

/// Returns the bytes of file pages, clean and dirty, of user processes in the cold buckets.
fn cold_bytes(text: &str) -> Result<u64, Malformed> {
    let bad = || Malformed::new("idle page statistics with cfei, dfei, cfui and dfui", text);
    let mut sum = 0_u64;
    for key in ["cfei", "dfei", "cfui", "dfui"] {
        let mut lines = text.lines().map(str::split_ascii_whitespace);
        let fields = lines.find_map(|mut fields| (fields.next() == Some(key)).then_some(fields));
        for field in fields.ok_or_else(bad)?.skip(BOUNDARY) {
            let bytes: u64 = field.parse().map_err(|_| bad())?;
            sum = sum.saturating_add(bytes);
        }
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::states::{Driver, PodInfo};
    use koord_host::fake::Tree;
    use serde_json::json;

    fn stats(cold: u64) -> String {
        let row = |key: &str, last: u64| format!("  {key} 1 2 3 4 5 {cold} 7 {last}\n");
        format!(
            "# version: 1.0\n# page_scans: 24\n# buckets: 1,2,5,15,30,60,120,240\n\
             \n#   _-----=> clean/dirty\n{}{}{}{}{}",
            row("csei", 100),
            row("dfei", 0),
            row("cfei", 8),
            row("cfui", 0),
            row("dfui", 0),
        )
    }

    #[test]
    fn cold_buckets_of_file_pages_count() {
        assert_eq!(cold_bytes(&stats(10)).unwrap(), 4 * 17 + 8);
        for bad in ["", "cfei 1 2", &stats(1).replace(" 7 ", " x ")] {
            assert!(cold_bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn node_and_pods() {
        let tree = Tree::v1("0-1").unwrap();
        let states = Arc::new(States::default());
        let facts = Arc::new(SlowResults::default());
        let layout = Layout::new(Driver::Cgroupfs, CgroupPath::root());
        let (root, known) = (tree.root().clone(), states.clone());
        let mut job = ColdPages::new(root, known, facts.clone(), layout.clone());
        let error = job.round().unwrap_err().to_string();
        assert!(error.contains("kidled"), "{error}");
        for (file, value) in [("scan_period_in_seconds", "0\n"), ("use_hierarchy", "1\n")] {
            tree.put(&format!("sys/{DIR}/{file}"), value).unwrap();
        }
        tree.put("proc/meminfo", "MemTotal: 100 kB\nMemFree: 40 kB\n")
            .unwrap();
        let pod = json!({"metadata": {"uid": "u"}, "spec": {"containers": [{"name": "c"}]},
            "status": {"phase": "Running"}});
        let pod = PodInfo::from_pod(&serde_json::from_value(pod).unwrap(), &layout).unwrap();
        tree.group(pod.cgroup.as_str()).unwrap();
        let memory = "sys/fs/cgroup/memory";
        tree.put(&format!("{memory}/{FILE}"), &stats(1000)).unwrap();
        tree.put(&format!("{memory}/{}/{FILE}", pod.cgroup), &stats(10))
            .unwrap();
        states.pods.store(Some(Arc::new(vec![pod])));
        job.round().unwrap();
        let newest = facts.cold.load_full().unwrap();
        let cold = 4 * 1007 + 8;
        assert_eq!(newest.1.node_cold, cold);
        assert_eq!(newest.1.node, 60 * 1024 - cold);
        assert_eq!(newest.1.pods, [("u".to_owned(), 76)]);
        let period = tree.root().sys(&format!("{DIR}/scan_period_in_seconds"));
        assert_eq!(std::fs::read_to_string(period).unwrap().trim(), PERIOD);
    }
}
