//! Checks of the cluster itself.

use super::read;
use crate::check::outcome::{Findings, Outcome, join_names};
use crate::check::snapshot::Snapshot;
use crate::fetch::{elements, name, text};

/// Lowest minor version of Kubernetes 1.x that koord works with.
const LOWEST: u32 = 28;
/// Highest minor version that koord is tested with.
const HIGHEST: u32 = 35;
/// Number of minor versions that a kubelet may be older than the API server.
const MAX_SKEW: u32 = 3;
/// Number of seconds that a heartbeat may be from the future.
const MAX_AHEAD: i64 = 300;

/// Groups without which components do not work.
const NEEDED: [&str; 5] = [
    "admissionregistration.k8s.io/v1",
    "apiextensions.k8s.io/v1",
    "apps/v1",
    "coordination.k8s.io/v1",
    "policy/v1",
];
/// Groups without which a part has no effect, and that part.
const USEFUL: [(&str, &str); 2] = [
    ("resource.k8s.io/v1", "dynamic resource allocation is off"),
    ("discovery.k8s.io/v1", "webhook endpoints are not checked"),
];

/// Returns the minor version of `v1.35.0`, with or without a suffix.
fn minor(version: &str) -> Option<u32> {
    let rest = version.trim_start_matches('v').strip_prefix("1.")?;
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

pub(super) fn version(snapshot: &Snapshot) -> Outcome {
    let version = &snapshot.server_version;
    let mut findings = Findings::default();
    match minor(version) {
        None => findings.warn(format!("the API server has version {version:?}, not 1.x")),
        Some(minor) if minor < LOWEST => findings.fail(format!(
            "the API server has version {version}, the lowest supported one has 1.{LOWEST}"
        )),
        Some(minor) if minor > HIGHEST => findings.warn(format!(
            "the API server has version {version}, the highest tested one has 1.{HIGHEST}"
        )),
        Some(_) => {}
    }
    findings.finish(version.as_str())
}

pub(super) fn groups(snapshot: &Snapshot) -> Outcome {
    let served = read!(snapshot.group_versions);
    let is_served = |group: &str| served.iter().any(|it| it == group);
    let mut findings = Findings::default();
    for group in NEEDED.into_iter().filter(|group| !is_served(group)) {
        // The embedded API server has no group for what it does without: nothing depends on it there.
        if snapshot.is_koord_up() {
            findings.warn(format!("{group} is not served"));
        } else {
            findings.fail(format!("{group} is not served"));
        }
    }
    for (group, lost) in USEFUL.into_iter().filter(|(group, _)| !is_served(group)) {
        findings.warn(format!("{group} is not served: {lost}"));
    }
    findings.finish("all needed groups are served")
}

pub(super) fn clocks(snapshot: &Snapshot) -> Outcome {
    let nodes = read!(snapshot.nodes);
    let is_ahead = |node: &&serde_json::Value| {
        let conditions = elements(node, "/status/conditions").iter();
        conditions
            .filter_map(|condition| snapshot.age(text(condition, "/lastHeartbeatTime")))
            .any(|age| age < -MAX_AHEAD)
    };
    let ahead: Vec<&str> = nodes.iter().filter(is_ahead).map(name).collect();
    let mut findings = Findings::default();
    if !ahead.is_empty() {
        findings.warn(format!(
            "heartbeats from the future, compared with this machine's clock: {}",
            join_names(&ahead)
        ));
    }
    findings.finish("no heartbeat from the future")
}

pub(super) fn skew(snapshot: &Snapshot) -> Outcome {
    let nodes = read!(snapshot.nodes);
    let Some(server) = minor(&snapshot.server_version) else {
        return Outcome::skipped("the version of the API server is not 1.x");
    };
    let mut findings = Findings::default();
    let (mut newer, mut older) = (Vec::new(), Vec::new());
    for node in nodes {
        match minor(text(node, "/status/nodeInfo/kubeletVersion")) {
            Some(kubelet) if kubelet > server => newer.push(name(node)),
            Some(kubelet) if kubelet + MAX_SKEW < server => older.push(name(node)),
            _ => {}
        }
    }
    if !newer.is_empty() {
        findings.fail(format!(
            "kubelet newer than the API server: {}",
            join_names(&newer)
        ));
    }
    if !older.is_empty() {
        findings.warn(format!(
            "kubelet more than {MAX_SKEW} minor versions older than the API server: {}",
            join_names(&older)
        ));
    }
    findings.finish(format!("{} nodes", nodes.len()))
}
