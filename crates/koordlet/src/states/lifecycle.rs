//! Detects new pods and containers in the cgroup tree, before the kubelet lists them.

use super::{Layout, States};
use koord_api::qos::KubeQos;
use koord_host::root::Controller;
use koord_host::watch::{Change, Watch};
use koord_host::{CgroupPath, Root};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

/// Polling interval without inotify.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Interval of searches for directories that are not watched yet.
const WATCH_INTERVAL: Duration = Duration::from_secs(10);

/// Delays after which pods are read again when a cgroup appeared: the kubelet receives the id of a
/// container from the runtime, and only then lists it.
const RESYNC_DELAYS: [Duration; 3] = [
    Duration::from_millis(300),
    Duration::from_secs(1),
    Duration::from_millis(2500),
];

const CLASSES: [KubeQos; 3] = [KubeQos::Guaranteed, KubeQos::Burstable, KubeQos::BestEffort];

/// Triggers a read of the pods whenever a pod's or container's directory appears, until `shutdown`. Without
/// inotify it searches for new pods every second.
pub(crate) async fn watch(
    root: Root,
    setting: Layout,
    states: Arc<States>,
    shutdown: CancellationToken,
) {
    let groups = PodGroups {
        root,
        setting,
        states,
    };
    let work = async {
        match Watch::new().map_err(|error| error.to_string()) {
            Ok(watch) => match registered(watch) {
                Ok(watch) => groups.follow(watch).await,
                Err(error) => groups.poll(&error.to_string()).await,
            },
            Err(error) => groups.poll(&error).await,
        }
    };
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = work => {}
    }
}

#[expect(
    deprecated,
    reason = "sound for what owns its descriptor; its replacement is for koord-host only"
)]
fn registered(watch: Watch) -> std::io::Result<AsyncFd<Watch>> {
    AsyncFd::new(watch)
}

/// The cgroups of pods on this machine.
pub(super) struct PodGroups {
    pub(super) root: Root,
    pub(super) setting: Layout,
    pub(super) states: Arc<States>,
}

impl PodGroups {
    /// Returns the directory of a cgroup in one hierarchy that the kubelet uses.
    fn dir(&self, group: &CgroupPath) -> Option<PathBuf> {
        self.root.cgroup(group).dir(Controller::Cpu)
    }

    fn classes(&self, layout: &Layout) -> impl Iterator<Item = CgroupPath> {
        let groups = CLASSES.map(|class| layout.qos(class).ok());
        groups.into_iter().flatten()
    }

    /// Returns the cgroups of all pods, listed or not.
    pub(super) fn pods(&self, layout: &Layout) -> BTreeSet<CgroupPath> {
        let children = self.classes(layout).flat_map(|class| {
            let children = self.root.cgroup(&class).children_in(Controller::Cpu);
            children.unwrap_or_default()
        });
        children
            .filter(|group| layout.pod_uid(group.name()).is_some())
            .collect()
    }

    /// Watches directories that are not watched yet. Returns whether the cgroup of a QoS class exists.
    fn extend(&self, watch: &mut Watch) -> bool {
        let layout = self.states.layout_or(&self.setting);
        let mut add = |group: &CgroupPath| {
            let Some(dir) = self.dir(group) else {
                return false;
            };
            watch.add(&dir).unwrap_or_else(|error| {
                // With too many watches, changes are found by the next list.
                tracing::debug!(%error, "failed to add inotify watch, relying on the next list");
                false
            })
        };
        let mut any = false;
        for class in self.classes(&layout) {
            any |= add(&class);
        }
        for pod in self.pods(&layout) {
            add(&pod);
        }
        any
    }

    /// Triggers reads of the pods on changes of watched directories; polls if the watch fails.
    async fn follow(&self, mut watch: AsyncFd<Watch>) {
        let mut resyncs: Vec<Instant> = Vec::new();
        let mut layout = self.states.layout_or(&self.setting);
        let mut is_there = self.extend(watch.get_mut());
        if is_there {
            // For cgroups that appeared before the watch.
            self.states.resync_pods();
        }
        let mut last_check = Instant::now();
        loop {
            // Before the first pod the kubelet's own cgroup is waited for.
            let next_check = last_check
                + if is_there {
                    WATCH_INTERVAL
                } else {
                    POLL_INTERVAL
                };
            let next = resyncs.iter().min().copied().unwrap_or(next_check);
            tokio::select! {
                ready = watch.readable_mut() => {
                    let Ok(mut ready) = ready else { return self.poll("inotify").await };
                    let changes = ready.get_inner_mut().changes();
                    ready.clear_ready();
                    let has_new = match changes {
                        Ok(changes) => self.has_new_group(&layout, &changes),
                        Err(error) => return self.poll(&error.to_string()).await,
                    };
                    if has_new {
                        is_there |= self.extend(watch.get_mut());
                        self.states.resync_pods();
                        let now = Instant::now();
                        resyncs = RESYNC_DELAYS.map(|after| now + after).to_vec();
                    }
                }
                () = sleep_until(next.min(next_check)) => {
                    let now = Instant::now();
                    let due = resyncs.len();
                    resyncs.retain(|time| *time > now);
                    if resyncs.len() < due {
                        self.states.resync_pods();
                    }
                    if now >= next_check {
                        last_check = now;
                        layout = self.states.layout_or(&self.setting);
                        let was_there = is_there;
                        is_there = self.extend(watch.get_mut());
                        if is_there && !was_there {
                            self.states.resync_pods();
                        }
                    }
                }
            }
        }
    }

    /// Returns whether a pod or a container may have appeared.
    fn has_new_group(&self, layout: &Layout, changes: &[Change]) -> bool {
        changes.iter().any(|change| match change {
            Change::Overflow => true,
            Change::Created { name, .. } => {
                let class = self.classes(layout).any(|group| group.name() == name);
                class || layout.pod_uid(name).is_some() || layout.container_hash(name).is_some()
            }
            Change::Removed { .. } | Change::WatchEnded(_) => false,
        })
    }

    async fn poll(&self, reason: &str) {
        tracing::warn!(
            reason,
            "failed to watch cgroups with inotify, polling for new pods every second"
        );
        let mut before = self.pods(&self.states.layout_or(&self.setting));
        loop {
            sleep(POLL_INTERVAL).await;
            let now = self.pods(&self.states.layout_or(&self.setting));
            if !now.is_subset(&before) {
                self.states.resync_pods();
            }
            before = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::Driver;
    use super::*;
    use koord_host::fake::Tree;
    use tokio::time::timeout;

    struct Machine {
        tree: Tree,
        states: Arc<States>,
        shutdown: CancellationToken,
    }

    impl Machine {
        /// Returns a machine with the kubelet's groups in `tree`, watched by inotify or by polling.
        fn start(tree: Tree, by_poll: bool) -> Self {
            let states = Arc::new(States::default());
            let shutdown = CancellationToken::new();
            let groups = PodGroups {
                root: tree.root().clone(),
                setting: Layout::new(Driver::Cgroupfs, CgroupPath::root()),
                states: states.clone(),
            };
            let (root, setting) = (groups.root.clone(), groups.setting.clone());
            let stop = shutdown.clone();
            if by_poll {
                tokio::spawn(async move {
                    tokio::select! {
                        () = groups.poll("test") => {}
                        () = stop.cancelled() => {}
                    }
                });
            } else {
                tokio::spawn(watch(root, setting, states.clone(), stop));
            }
            Self {
                tree,
                states,
                shutdown,
            }
        }

        async fn wait_for_resync(&self) {
            let resync_request = self.states.resync_requested();
            let limit = Duration::from_secs(60);
            timeout(limit, resync_request)
                .await
                .expect("pods are not read again");
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            self.shutdown.cancel();
        }
    }

    #[tokio::test]
    async fn new_pod_or_container_resyncs_at_once() {
        for tree in [Tree::v2("0-1").unwrap(), Tree::hybrid("0-1").unwrap()] {
            let machine = Machine::start(tree, false);
            // The first of a node is found by looking for the kubelet's own group.
            machine.tree.group("kubepods/burstable/podu1").unwrap();
            machine.wait_for_resync().await;
            // From here on inotify reports changes.
            machine.tree.group("kubepods/burstable/podu2").unwrap();
            machine.wait_for_resync().await;
            for _ in RESYNC_DELAYS {
                machine.wait_for_resync().await;
            }
            machine.tree.group("kubepods/burstable/podu1/c1").unwrap();
            machine.wait_for_resync().await;
            machine.tree.group("kubepods/besteffort/podu3").unwrap();
            machine.wait_for_resync().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn new_pods_are_found_by_polling_without_inotify() {
        let tree = Tree::hybrid("0-1").unwrap();
        tree.group("kubepods/besteffort/podold").unwrap();
        let machine = Machine::start(tree, true);
        let quiet = machine.states.resync_requested();
        assert!(timeout(Duration::from_secs(30), quiet).await.is_err());
        machine.tree.group("kubepods/podnew").unwrap();
        machine.wait_for_resync().await;
        let new_pod = CgroupPath::new("kubepods/podnew").unwrap();
        machine.tree.vanish(&new_pod).unwrap();
        let quiet = machine.states.resync_requested();
        assert!(timeout(Duration::from_secs(30), quiet).await.is_err());
    }
}
