//! Status page: what the agent measures and enforces, and what this machine lacks.
//!
//! The loop publishes a [`Status`] through a [`StatusHandle`]; `/debug/status` serves it, and `koord node
//! status` prints it.
//!
//! The loop publishes a [`Status`] on a [`StatusHandle`]; `/debug/status` serves it, and `koord node status`
//! prints it.

pub use crate::health::{
    Collector, Guard, GuardExperiment, GuardHeld, GuardService, MissingFeature, State,
};

use crate::conditions::Conditions;
use crate::gates::{self, Effect};
use crate::qos;
use crate::settings::Settings;
use crate::states::{Layout, MalformedInputs};
use axum::routing::get;
use axum::{Json, Router};
use jiff::Timestamp;
use koord_host::features::KernelFeatures;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A QoS strategy: a row of the strategy table, in the table's order.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Strategy {
    /// Name.
    pub name: String,
    /// State of the strategy.
    pub state: State,
    /// Feature gates of which at least one must be open.
    pub gates: Vec<String>,
    /// Milliseconds between two decisions.
    pub every_ms: u64,
    /// Claims of the strategy: file, level and classes that it writes.
    pub claims: Vec<String>,
    /// Current means of enforcement, such as `weights; quota above the pressure level`.
    pub mechanism: String,
    /// Reason why the strategy is not active, or its last error.
    pub why: String,
}

/// A feature gate.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GateStatus {
    /// Name.
    pub name: String,
    /// True if the gate is open.
    pub on: bool,
    /// Missing parts of upstream's effect in this build. Empty if the effect is complete.
    pub why: String,
}

/// The kernel.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Kernel {
    /// Release.
    pub release: String,
    /// Cgroup hierarchy: v1, v2 or hybrid.
    pub cgroups: String,
    /// Cgroup driver of the kubelet.
    pub driver: String,
    /// Names of the mechanisms that the kernel offers.
    pub has: Vec<String>,
    /// Mechanisms that the kernel lacks.
    pub lacks: Vec<MissingFeature>,
}

/// A device that is reported.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Device {
    /// Kind of device, such as `gpu`.
    pub kind: String,
    /// Minor number within the kind.
    pub minor: i32,
    /// Id.
    pub id: String,
    /// `healthy`, or a description of the problem.
    pub health: String,
    /// Location on the machine; empty if unknown.
    pub place: String,
}

/// The whole status of the agent.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// The node.
    pub node: String,
    /// The agent's version.
    pub version: String,
    /// Start time of the agent.
    pub started_at: Option<Timestamp>,
    /// Time of this status.
    pub updated_at: Option<Timestamp>,
    /// Milliseconds between two ticks.
    pub interval_ms: u64,
    /// Number of ticks so far.
    pub ticks: u64,
    /// Duration of the last tick, in microseconds.
    pub tick_us: u64,
    /// Number of pods on this node; `None` until the first list arrived.
    pub pods: Option<usize>,
    /// Kernel release, cgroup setup, and the mechanisms that the kernel offers or lacks.
    pub kernel: Kernel,
    /// Collectors, in no particular order.
    pub collectors: Vec<Collector>,
    /// Strategies, in the order in which they run.
    pub strategies: Vec<Strategy>,
    /// Devices of the last report.
    pub devices: Vec<Device>,
    /// The pressure guard, while it is active.
    pub guard: Option<Guard>,
    /// Feature gates.
    pub gates: Vec<GateStatus>,
    /// Invalid input that is still present.
    pub malformed: Vec<MalformedInput>,
    /// Active conditions.
    pub conditions: Vec<ActiveCondition>,
}

/// A lasting problem that an operator has to look at; see [`crate::conditions`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ActiveCondition {
    /// Name, such as `WriteRefused`.
    pub condition: String,
    /// The file, container or pod that has it.
    pub object: String,
    /// The details.
    pub message: String,
}

/// An invalid value of a field; the last valid one, or the default, is used.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MalformedInput {
    /// Object that has the field, such as `Pod default/web`.
    pub object: String,
    /// The field.
    pub field: String,
    /// The value.
    pub value: String,
    /// Reason why the value is invalid.
    pub error: String,
}

/// Shared handle of the status that the loop publishes. Clones refer to the same status.
#[derive(Debug, Clone, Default)]
pub struct StatusHandle {
    status: Arc<Mutex<Status>>,
    /// Kernel errors, by strategy.
    errors: Arc<Mutex<Vec<(&'static str, String)>>>,
    malformed_inputs: MalformedInputs,
    conditions: Conditions,
}

impl StatusHandle {
    /// Creates a handle that also shows `malformed_inputs` and `conditions`.
    #[must_use]
    pub fn new(malformed_inputs: MalformedInputs, conditions: Conditions) -> Self {
        Self {
            malformed_inputs,
            conditions,
            ..Self::default()
        }
    }

    /// Changes the status.
    pub fn update(&self, change: impl FnOnce(&mut Status)) {
        change(&mut self.status.lock());
    }

    /// Replaces the kernel errors of strategies that are shown.
    pub fn show_errors(&self, errors: Vec<(&'static str, String)>) {
        *self.errors.lock() = errors;
    }

    /// Returns the current status.
    #[must_use]
    pub fn get(&self) -> Status {
        let mut status = self.status.lock().clone();
        fail(&mut status, &self.errors.lock());
        list_malformed(&mut status, &self.malformed_inputs);
        let active = self.conditions.active().into_iter();
        let active = active.map(|(condition, object, message)| ActiveCondition {
            condition: condition.name().to_owned(),
            object,
            message,
        });
        status.conditions = active.collect();
        status
    }

    /// Returns the routes `/debug/status`, `/debug/collectors`, `/debug/strategies` and `/debug/gates`; the
    /// last three serve the lists of that name.
    pub fn routes(&self) -> Router {
        let board = || self.clone();
        let (all, collectors, strategies, gates) = (board(), board(), board(), board());
        Router::new()
            .route("/debug/status", get(async move || Json(all.get())))
            .route(
                "/debug/collectors",
                get(async move || Json(collectors.get().collectors)),
            )
            .route(
                "/debug/strategies",
                get(async move || Json(strategies.get().strategies)),
            )
            .route("/debug/gates", get(async move || Json(gates.get().gates)))
    }
}

/// Marks strategies with kernel errors as failing. Strategies decide with the files that could be read and
/// may report another state themselves.
fn fail(status: &mut Status, errors: &[(&'static str, String)]) {
    for row in &mut status.strategies {
        let error = errors.iter().find(|(name, _)| row.name == *name);
        if let (Some((_, error)), State::Active | State::Idle) = (error, row.state) {
            row.state = State::Failing;
            row.why.clone_from(error);
        }
    }
}

/// Stores the states that strategies reported.
pub fn apply_strategy_states(status: &mut Status, states: Vec<(&'static str, State, String)>) {
    for (name, state, text) in states {
        let Some(row) = status.strategies.iter_mut().find(|row| row.name == name) else {
            continue;
        };
        row.state = state;
        let (mechanism, why) = match state {
            State::Active => (text, String::new()),
            _ => (String::new(), text),
        };
        (row.mechanism, row.why) = (mechanism, why);
    }
}

/// Fills in what is known at start: the kernel, the table of strategies, the gates.
pub fn describe(status: &mut Status, features: &KernelFeatures, settings: &Settings) {
    env!("CARGO_PKG_VERSION").clone_into(&mut status.version);
    status.interval_ms = settings.interval_ms;
    let (has, lacks) = mechanisms(features);
    status.kernel = Kernel {
        release: release(),
        cgroups: format!("{:?}", features.mode).to_lowercase(),
        driver: driver(&settings.layout),
        has,
        lacks,
    };
    let strategies = qos::strategy_rows(settings)
        .into_iter()
        .map(|row| Strategy {
            name: row.name.to_owned(),
            state: if row.on { State::Active } else { State::Off },
            mechanism: describe_mechanism(row.name, &row.claims),
            why: match (row.on, row.every_ms) {
                (true, _) => String::new(),
                (false, 0) => "its interval is 0".to_owned(),
                (false, _) => format!("gate {} is closed", row.gates.join(" or ")),
            },
            gates: row.gates.into_iter().map(str::to_owned).collect(),
            every_ms: row.every_ms,
            claims: row.claims,
        });
    status.strategies = strategies.collect();
    let gates = gates::Gate::ALL.iter().map(|gate| GateStatus {
        name: gate.name().to_owned(),
        on: settings.gates.is_on(*gate),
        why: match gate.effect() {
            Effect::Works => String::new(),
            Effect::Partly(why) | Effect::Nothing(why) => why.to_owned(),
        },
    });
    status.gates = gates.collect();
}

/// Lists the invalid input that is still present.
fn list_malformed(status: &mut Status, malformed_inputs: &MalformedInputs) {
    let standing = malformed_inputs.current();
    let each = standing.into_iter().flat_map(|(object, all)| {
        all.into_iter().map(move |problem| MalformedInput {
            object: object.clone(),
            field: problem.field,
            value: problem.value,
            error: problem.error,
        })
    });
    status.malformed = each.collect();
}

/// Describes how `strategy` acts: the files in its `claims`, grouped by levels and QoS classes. A strategy without claims
/// evicts pods, or acts through the quotas that [`qos::cpu_limits`](crate::qos::cpu_limits) writes.
pub(crate) fn describe_mechanism(strategy: &str, claims: &[String]) -> String {
    if claims.is_empty() {
        let action = if strategy.ends_with("Evict") {
            "evicts pods"
        } else {
            "through CPULimits"
        };
        return action.to_owned();
    }
    // File and class with all its levels, in the order of the table.
    let mut files: Vec<(&str, &str, Vec<String>)> = Vec::new();
    for claim in claims {
        let parts = claim.split_once(" at level ");
        let Some((file, (level, classes))) =
            parts.and_then(|(file, rest)| Some((file, rest.split_once(" of ")?)))
        else {
            continue;
        };
        let level = level.to_lowercase();
        let existing = files
            .iter_mut()
            .find(|(f, c, _)| *f == file && *c == classes);
        match existing {
            Some((_, _, levels)) => levels.push(level),
            None => files.push((file, classes, vec![level])),
        }
    }
    let mut places: Vec<(String, Vec<&str>)> = Vec::new();
    for (file, classes, levels) in files {
        let place = format!("{} of {classes}", levels.join(", "));
        match places.iter_mut().find(|(existing, _)| *existing == place) {
            Some((_, files)) => files.push(file),
            None => places.push((place, vec![file])),
        }
    }
    let texts = places
        .iter()
        .map(|(place, files)| format!("{} ({place})", files.join(", ")));
    texts.collect::<Vec<_>>().join("; ")
}

/// Returns the name of the kubelet's cgroup driver.
pub(crate) fn driver(layout: &Layout) -> String {
    format!("{:?}", layout.driver()).to_lowercase()
}

/// Returns the running kernel's release; empty if it cannot be read.
fn release() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease");
    release.map_or_else(|_| String::new(), |text| text.trim().to_owned())
}

/// Returns the mechanisms that `features` has, and those that it lacks with the consequence of each.
fn mechanisms(features: &KernelFeatures) -> (Vec<String>, Vec<MissingFeature>) {
    let f = features;
    let table: [(bool, &str, &str); 17] = [
        (f.writable, "writable cgroups", "nothing is enforced"),
        (f.cfs_quota, "CFS quota", "CPU is limited by CPU sets only"),
        (f.cfs_burst, "CFS burst", "CPU burst raises quotas instead"),
        (
            f.cpu_idle,
            "cpu.idle",
            "batch work is held back by the lowest weight",
        ),
        (
            f.cpuset,
            "cpusets",
            "no CPU sets, for services or batch work",
        ),
        (
            f.memory,
            "memory controller",
            "memory is neither measured nor limited by pod",
        ),
        (
            f.memory_qos,
            "memory.min, low and high",
            "memory QoS is not enforced",
        ),
        (
            f.memory_wmark,
            "memory.wmark_ratio",
            "no background reclaim by group",
        ),
        (
            f.cgroup_psi,
            "PSI of groups",
            "CPU pressure is read from the services' threads",
        ),
        (f.system_psi, "PSI of the node", "no pressure of the node"),
        (
            f.cgroup_kill,
            "cgroup.kill",
            "processes are killed one by one",
        ),
        (f.schedstat, "schedstat", "no run-queue delays"),
        (f.bvt, "group identity", "no bvt; weights only"),
        (
            f.core_sched,
            "core scheduling",
            "siblings of a core are shared by all",
        ),
        (
            f.resctrl_cat || f.resctrl_mba,
            "resctrl",
            "cache and memory bandwidth are not divided",
        ),
        (
            f.kidled,
            "kidled",
            "no cold pages; memory counts without page cache",
        ),
        (f.blkio, "block I/O throttling", "disks are not divided"),
    ];
    let (mut has, mut lacks) = (Vec::new(), Vec::new());
    for (is_present, mechanism, consequence) in table {
        let mechanism = mechanism.to_owned();
        if is_present {
            has.push(mechanism);
        } else {
            let consequence = consequence.to_owned();
            lacks.push(MissingFeature {
                mechanism,
                consequence,
            });
        }
    }
    (has, lacks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mechanism_groups_claims_by_place() {
        let claims = [
            "cpu.shares at level Pod of BE",
            "cpu.idle at level Pod of BE",
            "cpu.shares at level Container of BE",
            "memory.low at level Pod of LS,BE",
            "cpu.cfs_quota_us at level Container of BE",
            "cpu.cfs_quota_us at level Pod of BE",
            "memory.min at level Pod of LS,BE",
        ];
        assert_eq!(
            describe_mechanism("X", &claims.map(str::to_owned)),
            "cpu.shares (pod, container of BE); cpu.idle (pod of BE); \
             memory.low, memory.min (pod of LS,BE); cpu.cfs_quota_us (container, pod of BE)"
        );
        assert_eq!(describe_mechanism("CPUEvict", &[]), "evicts pods");
    }

    #[test]
    fn strategy_with_kernel_errors_is_failing_until_they_end() {
        let board = StatusHandle::default();
        let states = [State::Active, State::Idle, State::Off, State::Active];
        let shown = |board: &StatusHandle| {
            let rows = board.get().strategies.into_iter();
            let rows: Vec<_> = rows.map(|row| (row.state, row.why)).collect();
            rows
        };
        board.update(|status| {
            let rows = ["A", "B", "C", "D"].iter().zip(states);
            let rows = rows.map(|(name, state)| Strategy {
                name: (*name).to_owned(),
                state,
                ..Strategy::default()
            });
            status.strategies = rows.collect();
        });
        let before = shown(&board);
        board.show_errors(["A", "B", "C"].map(|name| (name, "e".to_owned())).into());
        let failing = || (State::Failing, "e".to_owned());
        let expected = [failing(), failing(), before[2].clone(), before[3].clone()];
        assert_eq!(shown(&board), expected);
        board.show_errors(Vec::new());
        assert_eq!(shown(&board), before);
    }

    use axum::body::{Body, to_bytes};
    use http::Request;
    use tower::ServiceExt;

    #[tokio::test]
    async fn lists_are_served_as_the_loop_left_them() {
        let board = StatusHandle::default();
        board.update(|status| {
            status.node = "n1".to_owned();
            status.strategies.push(Strategy {
                name: "CPUSuppress".to_owned(),
                state: State::Active,
                gates: vec!["BECPUSuppress".to_owned()],
                every_ms: 1000,
                ..Strategy::default()
            });
        });
        let get = async |path: &str| {
            let request = Request::get(path).body(Body::empty()).unwrap();
            let response = board.routes().oneshot(request).await.unwrap();
            let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
            serde_json::from_slice::<serde_json::Value>(&body).unwrap()
        };
        let all = get("/debug/status").await;
        assert_eq!(
            serde_json::from_value::<Status>(all.clone()).unwrap(),
            board.get()
        );
        let strategies = get("/debug/strategies").await;
        assert_eq!(strategies, all["strategies"]);
        assert_eq!(strategies[0]["everyMs"], 1000);
        assert_eq!(strategies[0]["state"], "active");
        assert_eq!(get("/debug/collectors").await, serde_json::json!([]));
        assert_eq!(get("/debug/gates").await, serde_json::json!([]));
    }
}
