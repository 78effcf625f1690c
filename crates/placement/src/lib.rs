//! Target nodes for evictions by the scheduler's own rules: the descheduler requests one before it evicts a
//! pod.
//!
//! A scheduler's engine follows the cluster without making decisions ([`Follower`]). For a running pod,
//! the engine stores the resources and what matters to other pods, and the descheduler's snapshot holds how
//! the pod selects a node; together they describe the replacement pod. [ADR
//! 12](../../../docs/adr/0012-targets-by-the-scheduler.md) gives the reasons.

use anyhow::Context as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use koord_api::annotations;
use koord_app::Context;
use koord_descheduler::framework::{Placement, SkipReason};
use koord_descheduler::state::{PodInfo, Shape, Snapshot};
use koord_kube::Client;
use koord_scheduler::config::Configuration;
use koord_scheduler::engine::Engine;
use koord_scheduler::framework::Registry;
use koord_scheduler::state::PodInfo as SchedulerPodInfo;
use koord_scheduler::{Follower, Options};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

/// Reason of a refusal: no node fits the replacement of the pod.
pub const NO_TARGET: &str = "NoTarget";
/// Reason of a refusal: whether a node fits cannot be determined.
pub const UNKNOWN_TARGET: &str = "TargetUnknown";

/// Annotations with earlier decisions about the pod; its replacement gets its own.
const DECISION_ANNOTATIONS: [&str; 3] = [
    annotations::RESERVATION_ALLOCATED,
    annotations::RESOURCE_STATUS,
    annotations::DEVICE_ALLOCATED,
];

/// Finds target nodes for pods that the descheduler is about to evict.
#[derive(Debug)]
pub struct Targets {
    follower: Follower,
    /// The engine and the time of the cycle; set during a cycle.
    engine: Option<(Engine, Timestamp)>,
}

impl Targets {
    /// Creates targets that are found by the engine of `follower`.
    #[must_use]
    pub fn new(follower: Follower) -> Self {
        let engine = None;
        Self { follower, engine }
    }

    /// Starts to follow the API server, to find the targets that a scheduler with these options would find.
    /// Until the initial lists are handled, no target is found.
    ///
    /// # Errors
    /// Fails if the configuration is invalid.
    pub fn follow(
        options: Options,
        client: &Client,
        context: &Context,
    ) -> Result<Self, koord_scheduler::Error> {
        let options = follower_options(options);
        let clock = context.clock.clone();
        let follower = Follower::start(&options, client, clock, &context.shutdown)?;
        Ok(Self::new(follower))
    }

    /// Waits until the initial lists of all kinds are handled.
    pub async fn settled(&self) {
        self.follower.settled().await;
    }
}

impl Placement for Targets {
    fn begin(&mut self, snapshot: &Snapshot) {
        self.end();
        if self.follower.is_settled() {
            let engine = self.follower.take();
            self.engine = engine.map(|engine| (engine, snapshot.now));
        }
    }

    fn place_tentatively(
        &mut self,
        _: &Snapshot,
        pod: &Arc<PodInfo>,
    ) -> Result<Arc<str>, SkipReason> {
        let unknown = |message: &'static str| Err(SkipReason::new(UNKNOWN_TARGET, message));
        let Some((engine, now)) = &mut self.engine else {
            return unknown("not all is known yet that the scheduler would judge by");
        };
        let Some(running) = engine.cluster().booked_pod(&pod.uid) else {
            return unknown("the pod is on no node as far as the scheduler would know");
        };
        let mut object = replacement_object(pod, running);
        let is_own_profile = |name: &str| {
            engine
                .plugins()
                .profiles()
                .iter()
                .any(|profile| profile.name == name)
        };
        // The rules of other schedulers are unknown; the first profile here is the closest approximation.
        if let Some(spec) = object
            .spec
            .as_mut()
            .filter(|_| !is_own_profile(&pod.shape.scheduler_name))
        {
            let first = engine.plugins().profiles().first();
            spec.scheduler_name = first.map(|profile| profile.name.clone());
        }
        let replacement = Arc::new(running.without_node(Arc::new(object)));
        let target = engine.place_tentatively(&replacement, *now);
        target.map_err(|diagnosis| SkipReason::new(NO_TARGET, diagnosis.message()))
    }

    fn end(&mut self) {
        if let Some((mut engine, now)) = self.engine.take() {
            engine.withdraw_tentative_placements(now);
            drop(engine.take_outputs());
            drop(engine.telemetry.take_measures());
            self.follower.return_engine(engine);
        }
    }
}

impl Drop for Targets {
    fn drop(&mut self) {
        self.end();
    }
}

/// Creates the placement of koord-descheduler: [`Targets`] of the scheduler whose configuration is in the
/// file `config`; `None` uses [`registry`].
///
/// # Errors
/// Fails if the file cannot be read, or if the configuration is invalid.
pub fn for_descheduler(
    config: Option<&Path>,
    client: &Client,
    context: &Context,
) -> anyhow::Result<Box<dyn Placement>> {
    let read = |path: &Path| {
        let flag = || format!("--scheduler-config: {}", path.display());
        let text = std::fs::read_to_string(path).with_context(flag)?;
        Configuration::parse(&text).with_context(flag)
    };
    let options = Options {
        config: config.map(read).transpose()?,
        ..Options::new(registry())
    };
    Ok(Box::new(Targets::follow(options, client, context)?))
}

/// Returns the plugins that koord-scheduler has without a configuration file, with load thresholds added. The
/// scheduler's own default has no thresholds, like upstream's sample, but no pod must be moved to a hot node.
/// The thresholds are LoadAwareScheduling's defaults.
#[must_use]
pub fn registry() -> Registry {
    let mut registry = koord_plugins::registry();
    set_load_thresholds(&mut registry);
    registry
}

/// Sets the load thresholds of the built-in profile to LoadAwareScheduling's defaults. That profile has none, as
/// upstream's sample, but no pod must be moved to a hot node.
pub fn set_load_thresholds(registry: &mut Registry) {
    if let Some(args) = registry.koord_args.get_mut("LoadAwareScheduling") {
        args["usageThresholds"] = json!({"cpu": 65, "memory": 95});
    }
}

/// Converts the options of a scheduler to those of a follower of it: leader election is off, and network
/// topology is on if the arguments of Coscheduling set `awareNetworkTopology`. The scheduler's own flag for
/// network topology is unknown here; it is assumed to be set, because without it such gangs stay pending.
fn follower_options(mut options: Options) -> Options {
    const GANGS: &str = "Coscheduling";
    let is_aware = |args: &Value| args["awareNetworkTopology"] == true;
    let aware = match &options.config {
        Some(config) => {
            let mut args = config.profiles.iter().flat_map(|it| &it.plugin_config);
            args.any(|plugin| plugin.name == GANGS && is_aware(&plugin.args))
        }
        None => options.registry.koord_args.get(GANGS).is_some_and(is_aware),
    };
    options.leader_elect = false;
    options.build.network_topology |= aware;
    options
}

/// Returns the pod that a controller would create to replace `pod`, without a node. Resources of containers are
/// taken from `running`, images from `pod`.
fn replacement_object(pod: &PodInfo, running: &SchedulerPodInfo) -> Pod {
    let mut object = running.named_object();
    if let Some(annotations) = &mut object.metadata.annotations {
        annotations.retain(|key, _| !DECISION_ANNOTATIONS.contains(&key.as_str()));
    }
    object.status = None;
    let shape: &Shape = &pod.shape;
    let spec = object.spec.get_or_insert_default();
    // It does not matter which container has which image.
    let init = spec.init_containers.iter_mut().flatten();
    let containers = spec.containers.iter_mut().chain(init);
    for (container, image) in containers.zip(&shape.images) {
        container.image = Some(image.clone());
    }
    let unless_empty = |empty: bool| (!empty).then_some(());
    *spec = PodSpec {
        node_name: None,
        scheduler_name: Some(shape.scheduler_name.clone()),
        node_selector: unless_empty(shape.node_selector.is_empty())
            .map(|()| shape.node_selector.clone()),
        affinity: shape.affinity.clone(),
        tolerations: unless_empty(shape.tolerations.is_empty()).map(|()| shape.tolerations.clone()),
        topology_spread_constraints: unless_empty(shape.spread.is_empty())
            .map(|()| shape.spread.clone()),
        scheduling_gates: None,
        ..std::mem::take(spec)
    };
    object
}

#[cfg(test)]
mod tests;
