//! Rules as Kubernetes and Koordinator define them, evaluated for every node and every pod without
//! equivalence classes, signatures or incremental sums. Only for small clusters.

use std::collections::{BTreeMap, BTreeSet};

/// Pod with its requests and constraints.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Pod {
    pub(super) name: String,
    pub(super) app: &'static str,
    /// Requested milli-CPUs and MiB; 0 if not requested.
    pub(super) cpu: i64,
    pub(super) memory: i64,
    pub(super) priority: i32,
    /// True if it needs host port TCP 80.
    pub(super) port: bool,
    pub(super) selects_zone: Option<&'static str>,
    /// Zone excluded by required node affinity.
    pub(super) shuns_zone: Option<&'static str>,
    /// Preferred zones with weights.
    pub(super) prefers: Vec<(i64, &'static str)>,
    /// Keys of taints that are tolerated with any value.
    pub(super) tolerates: Vec<&'static str>,
    /// Topology key and `maxSkew` of a hard spread constraint over pods of its own app.
    pub(super) spread: Option<(&'static str, i64)>,
    /// Topology key and app of required pod affinity.
    pub(super) near: Option<(&'static str, &'static str)>,
    /// Topology key and app of required pod anti-affinity.
    pub(super) apart: Option<(&'static str, &'static str)>,
    pub(super) quota: Option<&'static str>,
    /// Gang with its minimum.
    pub(super) gang: Option<(String, usize)>,
    /// Label that matches the owners of reservations.
    pub(super) owner: Option<&'static str>,
    /// True if it may be placed in a reservation only.
    pub(super) insists: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) zone: &'static str,
    pub(super) cpu: i64,
    pub(super) memory: i64,
    pub(super) cordoned: bool,
    /// Key and effect of the taint.
    pub(super) taint: Option<(&'static str, &'static str)>,
    /// Usage in milli-CPUs and MiB, and report time in seconds.
    pub(super) usage: Option<(i64, i64, i64)>,
}

#[derive(Debug, Clone)]
pub(super) struct Reservation {
    pub(super) node: String,
    pub(super) owner: &'static str,
    pub(super) cpu: i64,
    pub(super) memory: i64,
    pub(super) restricted: bool,
}

/// Maximum number of pods per node.
pub(super) const PODS: usize = 8;
/// Usage thresholds in percent of the node, and seconds after which a report expires.
pub(super) const CPU_THRESHOLD: i64 = 60;
pub(super) const MEMORY_THRESHOLD: i64 = 80;
pub(super) const EXPIRES: i64 = 100;

/// State of the cluster as users see it.
#[derive(Debug, Clone, Default)]
pub(super) struct OracleCluster {
    pub(super) nodes: BTreeMap<String, Node>,
    pub(super) pods: BTreeMap<String, Pod>,
    /// Node of each placed pod.
    pub(super) placed: BTreeMap<String, String>,
    /// Nominated node of each pod with a preemption in progress.
    pub(super) nominated: BTreeMap<String, String>,
    pub(super) reservations: BTreeMap<String, Reservation>,
    /// Reservation that each placed owner pod uses.
    pub(super) owns: BTreeMap<String, String>,
    /// Maximum milli-CPUs by quota.
    pub(super) quotas: BTreeMap<&'static str, i64>,
    pub(super) now: i64,
}

/// Sources from which a node can provide the resources for a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Fit {
    /// True if the node has enough free in addition to all reservations.
    pub(super) plain: bool,
    /// Reservations that fit the pod.
    pub(super) from: BTreeSet<String>,
}

impl OracleCluster {
    /// Returns placed pods with their nodes.
    fn placed_pods(&self) -> impl Iterator<Item = (&Pod, &String)> {
        let placed = self.placed.iter();
        placed.map(|(name, node)| (&self.pods[name], node))
    }

    fn on<'a>(&'a self, node: &'a str) -> impl Iterator<Item = &'a Pod> {
        let on_node = self.placed_pods().filter(move |(_, at)| *at == node);
        on_node.map(|(pod, _)| pod)
    }

    /// Returns the value of a topology key.
    fn domain<'a>(&'a self, node: &'a str, key: &str) -> &'a str {
        if key == "zone" {
            self.nodes[node].zone
        } else {
            node
        }
    }

    /// Returns true if the pod's quota admits it.
    pub(super) fn quota_admits(&self, pod: &Pod) -> bool {
        let Some(quota) = pod.quota else { return true };
        let quota_pods = self
            .placed_pods()
            .filter(|(other, _)| other.quota == Some(quota));
        let used: i64 = quota_pods.map(|(other, _)| other.cpu).sum();
        used + pod.cpu <= self.quotas[quota]
    }

    /// Returns true if any reservation matches the pod.
    pub(super) fn has_reservation(&self, pod: &Pod) -> bool {
        let mut all = self.reservations.values();
        all.any(|reservation| pod.owner == Some(reservation.owner))
    }

    /// Returns the nodes that can take the pod, and from which source.
    pub(super) fn feasible(&self, pod: &Pod) -> BTreeMap<String, Fit> {
        // Nominated pods of equal or higher priority count as placed, but the pod must also fit without them.
        let mut with = self.clone();
        for (name, node) in &self.nominated {
            let other = &self.pods[name];
            if *name != pod.name && other.priority >= pod.priority && self.nodes.contains_key(node)
            {
                with.placed.insert(name.clone(), node.clone());
            }
        }
        let without = self.feasible_now(pod);
        let with = with.feasible_now(pod);
        without
            .into_iter()
            .filter(|(node, _)| with.contains_key(node))
            .collect()
    }

    fn feasible_now(&self, pod: &Pod) -> BTreeMap<String, Fit> {
        let mut out = BTreeMap::new();
        for (name, node) in &self.nodes {
            let rules = self.ready(pod, node)
                && selected(pod, node)
                && self.port_free(pod, name)
                && self.spread(pod, name)
                && self.near(pod, name)
                && self.apart(pod, name)
                && self.idle(pod, name, node);
            let fit = self.fit(pod, name, node);
            if rules && (!fit.from.is_empty() || (fit.plain && !pod.insists)) {
                out.insert(name.clone(), fit);
            }
        }
        out
    }

    /// Checks NodeUnschedulable and TaintToleration.
    fn ready(&self, pod: &Pod, node: &Node) -> bool {
        let hard = node
            .taint
            .filter(|(_, effect)| *effect != "PreferNoSchedule");
        !node.cordoned && hard.is_none_or(|(key, _)| pod.tolerates.contains(&key))
    }

    /// Checks NodePorts.
    fn port_free(&self, pod: &Pod, node: &str) -> bool {
        !pod.port || !self.on(node).any(|other| other.port)
    }

    /// Checks PodTopologySpread, over the domains of the nodes that the pod's node affinity allows.
    fn spread(&self, pod: &Pod, node: &str) -> bool {
        let Some((key, most)) = pod.spread else {
            return true;
        };
        let mut counts: BTreeMap<&str, i64> = BTreeMap::new();
        for (name, _) in self.nodes.iter().filter(|(_, node)| selected(pod, node)) {
            let same_app = self.on(name).filter(|other| other.app == pod.app).count();
            *counts.entry(self.domain(name, key)).or_default() += i64::try_from(same_app).unwrap();
        }
        let least = counts.values().copied().min().unwrap_or(0);
        let own_count = counts.get(self.domain(node, key)).copied();
        own_count.is_some_and(|own_count| own_count + 1 - least <= most)
    }

    /// Checks InterPodAffinity for the pod's required affinity.
    fn near(&self, pod: &Pod, node: &str) -> bool {
        let Some((key, app)) = pod.near else {
            return true;
        };
        let own_domain = self.domain(node, key);
        let mut friends = self
            .placed_pods()
            .filter(|(other, _)| other.app == app)
            .peekable();
        // The first pod of a group with affinity to itself may be placed anywhere.
        if friends.peek().is_none() {
            return pod.app == app;
        }
        friends.any(|(_, at)| self.domain(at, key) == own_domain)
    }

    /// Checks InterPodAffinity for anti-affinity of the pod and of placed pods.
    fn apart(&self, pod: &Pod, node: &str) -> bool {
        let shuns = |from: &Pod, other: &Pod, at: &str| {
            let is_same_domain = |key| self.domain(node, key) == self.domain(at, key);
            from.apart
                .is_some_and(|(key, app)| app == other.app && is_same_domain(key))
        };
        !self
            .placed_pods()
            .any(|(other, at)| shuns(pod, other, at) || shuns(other, pod, at))
    }

    /// Checks LoadAwareScheduling: reported usage, and estimates for placed pods and the pod. The reports
    /// list no pods.
    fn idle(&self, pod: &Pod, name: &str, node: &Node) -> bool {
        let Some((cpu, memory, reported)) = node.usage else {
            return true;
        };
        if self.now - reported >= EXPIRES {
            return false;
        }
        let pods = || self.on(name).chain([pod]);
        let cpu = cpu + pods().map(|pod| estimate(pod.cpu, 85, 250)).sum::<i64>();
        let memory = memory + pods().map(|pod| estimate(pod.memory, 70, 200)).sum::<i64>();
        percent(cpu, node.cpu) <= CPU_THRESHOLD && percent(memory, node.memory) <= MEMORY_THRESHOLD
    }

    /// Returns the part of a reservation that its owners do not use.
    fn remainder(&self, name: &str) -> [i64; 2] {
        let reservation = &self.reservations[name];
        let owners = self.owns.iter().filter(|(_, owned)| *owned == name);
        let mut remainder = [reservation.cpu, reservation.memory];
        for (owner, _) in owners {
            remainder[0] -= self.pods[owner].cpu;
            remainder[1] -= self.pods[owner].memory;
        }
        remainder.map(|remainder| remainder.max(0))
    }

    /// Checks NodeResourcesFit and Reservation.
    fn fit(&self, pod: &Pod, name: &str, node: &Node) -> Fit {
        let mut free = [node.cpu, node.memory];
        for other in self.on(name) {
            free[0] -= other.cpu;
            free[1] -= other.memory;
        }
        let matching = self
            .reservations
            .iter()
            .filter(|(_, reservation)| reservation.node == *name);
        let matching: Vec<&String> = matching.map(|(name, _)| name).collect();
        // A reservation counts as a pod on the node.
        let count = self.on(name).count() + matching.len();
        for reservation_name in &matching {
            let remainder = self.remainder(reservation_name);
            free[0] -= remainder[0];
            free[1] -= remainder[1];
        }
        let requested = [pod.cpu, pod.memory];
        let enough =
            |free: [i64; 2]| (0..2).all(|at| requested[at] == 0 || requested[at] <= free[at]);
        let mut fit = Fit {
            plain: count < PODS && enough(free),
            ..Fit::default()
        };
        for reservation_name in matching {
            let reservation = &self.reservations[reservation_name];
            let remainder = self.remainder(reservation_name);
            let with = [free[0] + remainder[0], free[1] + remainder[1]];
            if pod.owner == Some(reservation.owner)
                && count <= PODS
                && enough(with)
                && (!reservation.restricted || enough(remainder))
            {
                fit.from.insert(reservation_name.clone());
            }
        }
        fit
    }

    /// Computes NodeResourcesFit (least allocated), TaintToleration ×3 and NodeAffinity ×2 for the nodes that
    /// can take the pod. Ignores reservations.
    pub(super) fn scores(&self, pod: &Pod, nodes: &BTreeMap<String, Fit>) -> BTreeMap<String, i64> {
        let soft = |node: &Node| {
            let soft = node
                .taint
                .filter(|(_, effect)| *effect == "PreferNoSchedule");
            i64::from(soft.is_some_and(|(key, _)| !pod.tolerates.contains(&key)))
        };
        let wished = |node: &Node| -> i64 {
            let all = pod.prefers.iter().filter(|(_, zone)| *zone == node.zone);
            all.map(|(weight, _)| weight).sum()
        };
        let most = |of: &dyn Fn(&Node) -> i64| nodes.keys().map(|name| of(&self.nodes[name])).max();
        let (most_soft, most_wished) = (most(&soft).unwrap_or(0), most(&wished).unwrap_or(0));
        let score = |name: &String| {
            let node = &self.nodes[name];
            let mut used = [0, 0];
            for other in self.on(name).chain([pod]) {
                used[0] += if other.cpu == 0 { 100 } else { other.cpu };
                used[1] += if other.memory == 0 { 200 } else { other.memory };
            }
            let part = |used: i64, of: i64| if used > of { 0 } else { (of - used) * 100 / of };
            let least = (part(used[0], node.cpu) + part(used[1], node.memory)) / 2;
            let taints = if most_soft == 0 {
                100
            } else {
                100 - 100 * soft(node) / most_soft
            };
            let affinity = if most_wished == 0 {
                0
            } else {
                100 * wished(node) / most_wished
            };
            least + 3 * taints + 2 * affinity
        };
        nodes
            .keys()
            .map(|name| (name.clone(), score(name)))
            .collect()
    }
}

/// Checks NodeAffinity with the node selector.
fn selected(pod: &Pod, node: &Node) -> bool {
    pod.selects_zone.is_none_or(|zone| node.zone == zone)
        && pod.shuns_zone.is_none_or(|zone| node.zone != zone)
}

/// Returns the estimated usage. Requests and limits are equal here: an estimate is capped by the limit, but
/// never reaches it.
fn estimate(requested: i64, factor: i64, nothing: i64) -> i64 {
    if requested == 0 {
        nothing
    } else {
        rounded(requested * factor, 100)
    }
}

fn percent(of: i64, all: i64) -> i64 {
    rounded(of * 100, all)
}

fn rounded(numerator: i64, denominator: i64) -> i64 {
    (2 * numerator + denominator) / (2 * denominator)
}
