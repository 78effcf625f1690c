//! Detects the cgroup layout of the kubelet and the container runtime, repeatedly.

use super::layout::{LayoutFinder, Locator};
use super::{Layout, States};
use crate::conditions::Condition;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// Interval of detection while the layout is not certain.
const UNSETTLED_INTERVAL: Duration = Duration::from_secs(10);

/// Interval of detection afterwards: a node may get another kubelet.
const SETTLED_INTERVAL: Duration = Duration::from_secs(300);

/// Interval of checks that running containers have cgroups.
const LOCATE_INTERVAL: Duration = Duration::from_secs(10);

/// Detects the layout until `shutdown` and publishes it, starting from `setting`. Pods are read again when it
/// changes, so that their cgroups get new names.
pub(crate) async fn detect_layout(
    finder: LayoutFinder,
    setting: Layout,
    states: Arc<States>,
    shutdown: CancellationToken,
) {
    let work = async {
        let mut logged = false;
        let mut locator = Locator::default();
        let mut next_detection = Instant::now();
        loop {
            if Instant::now() < next_detection {
                locate(&mut locator, &finder, &setting, &states);
                let next = next_detection.min(Instant::now() + LOCATE_INTERVAL);
                tokio::select! {
                    () = sleep_until(next) => {}
                    () = states.layout_requested() => next_detection = Instant::now(),
                }
                continue;
            }
            let kubelet = states.kubelet.load_full();
            let mut detected = finder.detect(kubelet.as_deref().map(|config| &config.cgroups));
            let before = states.layout_or(&setting);
            detected.layout = detected.layout.with_located(before.located().clone());
            if *before != detected.layout || !logged {
                logged = true;
                tracing::info!(
                    driver = %detected.layout.driver(),
                    cgroup_root = detected.layout.cgroup_root().as_str(),
                    source = detected.source.as_str(),
                    settled = detected.settled,
                    "detected the kubelet's cgroup layout"
                );
            }
            if *before != detected.layout {
                states.layout.store(Some(Arc::new(detected.layout)));
                states.resync_pods();
            }
            next_detection = Instant::now()
                + if detected.settled {
                    SETTLED_INTERVAL
                } else {
                    UNSETTLED_INTERVAL
                };
        }
    };
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = work => {}
    }
}

/// Finds the cgroups of running containers that the current layout does not have, and reports those that are
/// missing.
fn locate(locator: &mut Locator, finder: &LayoutFinder, setting: &Layout, states: &States) {
    let Some(pods) = states.pods.load_full() else {
        return;
    };
    let before = states.layout_or(setting);
    let pass = locator.pass(finder.root(), &pods, before.located());
    let conditions = &states.conditions;
    conditions.replace(Condition::CgroupNotFound, &pass.missing);
    if pass.located == *before.located() {
        return;
    }
    let example = pass.located.values().next().map(ToString::to_string);
    tracing::info!(
        containers = pass.located.len(),
        example,
        "located container cgroups under other names"
    );
    let layout = (*before).clone().with_located(pass.located);
    states.layout.store(Some(Arc::new(layout)));
    states.resync_pods();
}

#[cfg(test)]
mod tests {
    use super::super::kubelet::Config;
    use super::super::layout::{CgroupHint, Driver};
    use super::*;
    use koord_host::CgroupPath;
    use koord_host::fake::Tree;
    use tokio::time::timeout;

    #[tokio::test(start_paused = true)]
    async fn guessed_layout_is_replaced_by_detected_one() {
        let tree = Tree::v2("0-1").unwrap();
        let states = Arc::new(States::default());
        let shutdown = CancellationToken::new();
        let finder = LayoutFinder::new(tree.root().clone(), CgroupPath::root());
        let setting = finder.detect(None).layout;
        assert_eq!(setting.driver(), Driver::Systemd, "upstream's guess");
        tokio::spawn(detect_layout(
            finder,
            setting.clone(),
            states.clone(),
            shutdown.clone(),
        ));
        let quiet = states.resync_requested();
        assert!(timeout(Duration::from_secs(60), quiet).await.is_err());
        // With the first pod, the layout is read from the directories.
        tree.group("kubepods/burstable/podu1").unwrap();
        states.resync_requested().await;
        let layout = states.layout_or(&setting);
        assert_eq!(layout.driver(), Driver::Cgroupfs);
        // Another driver from now on; the old tree is still there.
        tree.group("kubepods.slice").unwrap();
        let cgroups = CgroupHint {
            driver: Some(Driver::Systemd),
            cgroup_root: Some("/".to_owned()),
        };
        let config = Config {
            cgroups,
            ..Config::default()
        };
        states.kubelet.store(Some(Arc::new(config)));
        states.request_layout_detection();
        states.resync_requested().await;
        assert_eq!(states.layout_or(&setting).driver(), Driver::Systemd);
        let quiet = states.resync_requested();
        assert!(timeout(Duration::from_secs(3600), quiet).await.is_err());
        shutdown.cancel();
    }
}
