//! CPU and memory of host applications: services outside Kubernetes that the NodeSLO names.

use super::errors::KernelErrors;
use super::pod::{GroupCollector, SampleOptions};
use crate::store::{Metric, SeriesSubject, Store};
use koord_host::{CgroupPath, Root, Scratch};

/// A host application with its open files.
#[derive(Debug)]
struct TrackedHostApp {
    name: String,
    group: CgroupPath,
    id: u64,
    usage: GroupCollector,
}

/// The host applications of the NodeSLO.
#[derive(Debug, Default)]
pub struct HostApps {
    apps: Vec<TrackedHostApp>,
    last_id: u64,
}

impl HostApps {
    /// Returns the series of the application `name`; `None` if it is not followed.
    #[must_use]
    pub fn subject(&self, name: &str) -> Option<SeriesSubject> {
        let app = self.apps.iter().find(|app| app.name == name)?;
        Some(SeriesSubject::HostApp(app.id))
    }

    /// Returns the series of the application `name` and its newest memory usage with page cache, in bytes.
    #[must_use]
    pub fn with_page_cache(&self, name: &str) -> Option<(SeriesSubject, f64)> {
        let app = self.apps.iter().find(|app| app.name == name)?;
        Some((SeriesSubject::HostApp(app.id), app.usage.memory_with_cache?))
    }

    /// Replaces the followed applications, each given by name and cgroup. An application that keeps both
    /// keeps its series; of two with the same name the first counts.
    pub fn follow<'a>(
        &mut self,
        apps: impl Iterator<Item = (&'a str, CgroupPath)>,
        store: &mut Store,
    ) {
        let mut old = std::mem::take(&mut self.apps);
        for (name, group) in apps {
            if self.apps.iter().any(|app| app.name == name) {
                continue;
            }
            let position = old
                .iter()
                .position(|app| app.name == name && app.group == group);
            self.apps.push(match position {
                Some(at) => old.swap_remove(at),
                None => {
                    self.last_id += 1;
                    TrackedHostApp {
                        name: name.to_owned(),
                        group,
                        id: self.last_id,
                        usage: GroupCollector::default(),
                    }
                }
            });
        }
        for app in old {
            store.remove(SeriesSubject::HostApp(app.id));
        }
    }

    /// Takes samples at `now_ns` and stores them in `store`; with page cache if `page_cache`. Returns the sum
    /// of all: CPU in milli-cores and memory in bytes without page cache.
    pub fn sample(
        &mut self,
        root: &Root,
        now_ns: u64,
        page_cache: bool,
        scratch: &mut Scratch,
        store: &mut Store,
        errors: &mut KernelErrors,
    ) -> (f64, f64) {
        let (mut all_cpu, mut all_memory) = (0.0, 0.0);
        for app in &mut self.apps {
            let options = SampleOptions {
                memory: true,
                throttling: None,
            };
            (app.usage).sample(root, &app.group, now_ns, options, scratch, errors);
            let cpu = app.usage.cpu.map(|cores| cores * 1000.0);
            let with_cache = app.usage.memory_with_cache.filter(|_| page_cache);
            for (metric, value) in [
                (Metric::CpuUsage, cpu),
                (Metric::MemoryUsage, app.usage.memory),
                (Metric::MemoryUsageWithPageCache, with_cache),
            ] {
                if let Some(value) = value {
                    store.push(
                        (SeriesSubject::HostApp(app.id), metric),
                        now_ns / 1_000_000,
                        value,
                    );
                }
            }
            all_cpu += cpu.unwrap_or(0.0);
            all_memory += app.usage.memory.unwrap_or(0.0);
        }
        (all_cpu, all_memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_host::Resource;
    use koord_host::fake::Tree;

    #[test]
    fn series_follow_the_list() {
        let tree = Tree::v2("0-1").unwrap();
        let group = tree.group("host-latency-sensitive/web").unwrap();
        let (mut apps, mut store, mut scratch) =
            (HostApps::default(), Store::new(), Scratch::new());
        apps.follow([("web", group.clone())].into_iter(), &mut store);
        let feed = |usec: u64| {
            let text = format!("usage_usec {usec}\n");
            tree.feed(&group, Resource::CpuacctUsage, &text).unwrap();
            let stat = "inactive_anon 1\nactive_anon 2\nunevictable 3\n\
                        inactive_file 10\nactive_file 20\n";
            tree.feed(&group, Resource::MemoryStat, stat).unwrap();
        };
        let mut sample = |apps: &mut HostApps, store: &mut Store, second: u64| {
            apps.sample(
                tree.root(),
                second * 1_000_000_000,
                true,
                &mut scratch,
                store,
                &mut KernelErrors::default(),
            )
        };
        feed(0);
        assert_eq!(sample(&mut apps, &mut store, 1), (0.0, 6.0));
        feed(250_000);
        assert_eq!(sample(&mut apps, &mut store, 2), (250.0, 6.0));
        let subject = apps.subject("web").unwrap();
        let cached = (subject, Metric::MemoryUsageWithPageCache);
        assert_eq!(store.last(cached, 2000, 0), Some(36.0));

        let other = tree.group("host-best-effort/other").unwrap();
        let list = [
            ("other", other),
            ("web", group.clone()),
            ("web", CgroupPath::root()),
        ];
        apps.follow(list.into_iter(), &mut store);
        assert_eq!(apps.apps.len(), 2, "of two with one name the first");
        assert_eq!(apps.subject("web"), Some(subject), "its series go on");
        assert_eq!(sample(&mut apps, &mut store, 3), (0.0, 6.0));
        // Another group is another application.
        let moved = tree.group("host-latency-sensitive/web-2").unwrap();
        apps.follow([("web", moved)].into_iter(), &mut store);
        assert_ne!(apps.subject("web"), Some(subject));
        assert!(store.is_empty(), "what the old one used is forgotten");
        apps.follow(std::iter::empty(), &mut store);
        assert!(store.is_empty() && apps.subject("web").is_none());
        assert_eq!(sample(&mut apps, &mut store, 4), (0.0, 0.0));
    }
}
