//! The rules: functions from a snapshot to an outcome, by group.

mod cluster;
pub(crate) mod components;
mod definitions;
mod features;
mod nodes;
pub(crate) mod scheduling;
#[cfg(test)]
mod tests;
mod webhooks;

use super::outcome::Outcome;
use super::snapshot::Snapshot;

/// A check.
pub(super) struct Check {
    /// Stable id.
    pub(super) id: &'static str,
    /// What is checked.
    pub(super) title: &'static str,
    /// What to do if it warns or fails.
    pub(super) hint: &'static str,
    /// The rule.
    pub(super) rule: fn(&Snapshot) -> Outcome,
}

/// Returns the row of a check.
const fn check(
    id: &'static str,
    title: &'static str,
    hint: &'static str,
    rule: fn(&Snapshot) -> Outcome,
) -> Check {
    Check {
        id,
        title,
        hint,
        rule,
    }
}

/// All checks, in the order in which they are printed.
pub(super) const CHECKS: &[Check] = &[
    check(
        "A-02",
        "Kubernetes version",
        "see the table of versions in docs/install.md",
        cluster::version,
    ),
    check(
        "A-03",
        "API groups",
        "enable the group on the API server (--runtime-config)",
        cluster::groups,
    ),
    check(
        "A-04",
        "clocks of nodes",
        "synchronize the clocks (NTP); certificates fail first",
        cluster::clocks,
    ),
    check(
        "A-05",
        "kubelet version skew",
        "upgrade the API server first, then kubelets",
        cluster::skew,
    ),
    check(
        "C-01",
        "koord-manager",
        "kubectl logs -n koordinator-system deploy/koord-manager",
        components::manager,
    ),
    check(
        "C-02",
        "koord-scheduler",
        "kubectl logs -n koordinator-system deploy/koord-scheduler",
        components::scheduler,
    ),
    check(
        "C-03",
        "koord-descheduler",
        "kubectl logs -n koordinator-system deploy/koord-descheduler",
        components::descheduler,
    ),
    check(
        "C-04",
        "koordlet",
        "kubectl logs -n koordinator-system ds/koordlet",
        components::koordlet,
    ),
    check(
        "C-06",
        "leader leases",
        "look at the logs of the holder, the latency of the API server and the clocks",
        components::leases,
    ),
    check(
        "C-07",
        "duplicate components",
        "delete the workload that is not part of the installation",
        components::duplicates,
    ),
    check(
        "C-08",
        "images of components",
        "run one origin per component, see docs/manual/src/migrate.md",
        components::origins,
    ),
    check(
        "C-09",
        "replicas and disruption budgets",
        "spread replicas over nodes; minAvailable below the number of replicas",
        components::spread,
    ),
    check(
        "W-01",
        "webhook configurations",
        "look at the log of koord-manager, which fills them in",
        webhooks::present,
    ),
    check(
        "W-02",
        "webhook certificate authority",
        "wait a minute, then restart koord-manager",
        webhooks::authority,
    ),
    check(
        "W-03",
        "webhook certificate validity",
        "delete the Secret koordinator-webhook-certs; koord-manager makes a new one",
        webhooks::validity,
    ),
    check("W-04", "webhook endpoints", "see C-01", webhooks::endpoints),
    check(
        "W-06",
        "webhook exemption of the namespace",
        "kubectl label namespace koordinator-system control-plane=koordinator",
        webhooks::exemption,
    ),
    check(
        "W-07",
        "webhook failure policy and timeout",
        "set failurePolicy Ignore or two replicas, and a timeout of at most 10 s",
        webhooks::policy,
    ),
    check(
        "D-01",
        "custom resource definitions",
        "koord crds | kubectl apply --server-side -f -",
        definitions::present,
    ),
    check(
        "D-02",
        "fields that are pruned",
        "koord crds | kubectl apply --server-side --force-conflicts -f -",
        definitions::pruned,
    ),
    check(
        "D-03",
        "stored versions",
        "migrate the objects, then remove the version from status.storedVersions",
        definitions::stored,
    ),
    check(
        "D-04",
        "permissions of components",
        "apply rbac.yaml of the component's version",
        definitions::access,
    ),
    check(
        "N-01",
        "nodes without koordlet",
        "check taints, node selector and architecture of the DaemonSet koordlet",
        nodes::coverage,
    ),
    check(
        "N-02",
        "several agents on a node",
        "remove one of the agents",
        nodes::agents,
    ),
    check(
        "N-03",
        "NodeMetric reports",
        "look at the log of koordlet on the node",
        nodes::reports,
    ),
    check(
        "N-05",
        "kernel features",
        "koord node status on the node",
        nodes::kernel,
    ),
    check(
        "N-10",
        "kubelet settings",
        "let one program write each file, see docs/manual/src/troubleshooting.md",
        nodes::kubelets,
    ),
    check(
        "N-11",
        "NUMA topology reports",
        "see deploy/topology-exporter/README.md",
        nodes::topologies,
    ),
    check(
        "N-13",
        "devices",
        "check the driver on the node and the log of koordlet",
        nodes::devices,
    ),
    check(
        "F-01",
        "slo-controller-config",
        "correct the key; its last valid content stays in effect",
        features::settings,
    ),
    check(
        "F-02",
        "batch resources of nodes",
        "koord explain node NAME",
        features::batch,
    ),
    check(
        "F-03",
        "NodeSLO of nodes",
        "look at the log of koord-manager",
        features::node_slos,
    ),
    check(
        "F-04",
        "colocation profiles",
        "koord crds | kubectl apply --server-side -f -; correct the profile",
        features::profiles,
    ),
    check(
        "S-01",
        "pending pods",
        "koord explain pod NAMESPACE/NAME",
        scheduling::pending,
    ),
    check(
        "S-02",
        "quotas",
        "correct min and max; see docs/manual/src/capacity-scheduling.md",
        scheduling::quotas,
    ),
    check(
        "S-03",
        "gangs",
        "create the missing pods or lower minMember",
        scheduling::gangs,
    ),
    check(
        "S-04",
        "reservations",
        "look at the status of the Reservation; kubectl describe reservation NAME",
        scheduling::reservations,
    ),
    check(
        "S-05",
        "pod migrations",
        "look at the log of koord-descheduler; kubectl describe podmigrationjob NAME",
        scheduling::migrations,
    ),
];

/// Returns the value of a read, or leaves the rule with a skip that has the reason.
macro_rules! read {
    ($fetched:expr) => {
        match $fetched.read() {
            Ok(value) => value,
            Err(reason) => return $crate::check::outcome::Outcome::skipped(reason),
        }
    };
}
use read;
