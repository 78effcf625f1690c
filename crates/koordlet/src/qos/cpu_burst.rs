//! CPUBurst: lets services temporarily use CPU time that they saved before.
//!
//! There are two mechanisms, chosen by policy: the kernel's burst buffer, and a CFS quota that is raised
//! while a container is throttled and the shared pool has free CPU. Neither is written here: the row leaves
//! its allowances in the plan, and CPULimits, which owns both files, combines them with the limit and the
//! node's normalization. Rules and formulas are in [`koord_model::burst`].

use crate::collect::needs::Needs;
use crate::gates::Gate;
use crate::health::State;
use crate::qos::reconcile::Reconcile;
use crate::qos::{BurstAllowance, Facts, Plan, Planner, PodView, StrategySpec, View, cpu_limits};
use crate::states::ContainerInfo;
use crate::store::{Metric, SeriesSubject};
use koord_api::qos::QosClass;
use koord_api::slo::CPUBurstPolicy;
use koord_host::Resource;
use koord_model::burst::{self, Config, Limiter, PoolPod, PoolState, Raised};
use koord_model::cpu_limit;
use koord_model::field::FieldError;
use rustc_hash::{FxHashMap, FxHashSet};

/// The strategy's name.
pub const NAME: &str = "CPUBurst";

/// Maximum window over which the pool's usage is averaged, in milliseconds.
const POOL_WINDOW_MS: u64 = 10_000;

/// The row of the table of strategies.
pub const STRATEGY: StrategySpec = StrategySpec {
    name: NAME,
    gates: &[Gate::CPUBurst],
    every: |settings| settings.interval_ms,
    claims: &[],
    make: |_, _| Box::new(CpuBurst::default()),
};

/// State of the strategy.
#[derive(Debug, Default)]
struct CpuBurst {
    /// Limiters, by container number.
    limiters: FxHashMap<u64, Limiter>,
    /// Base quota and last quota of each container, in microseconds per period, by container number. Between
    /// two reconciles the file is assumed to be unchanged.
    last_quotas: FxHashMap<u64, (i64, i64)>,
    reconcile: Reconcile,
    /// Errors of settings that were logged.
    logged: FxHashSet<String>,
}

/// A container that may burst.
struct Candidate<'a> {
    id: u64,
    info: &'a ContainerInfo,
    config: Config,
    base: i64,
    present: i64,
}

impl Planner for CpuBurst {
    fn needs(&self, facts: &Facts<'_>) -> Needs {
        // A pod's annotation may enable it on a node that does not; then its first seconds pass
        // without samples.
        let node = facts.slo.cpu_burst().policy.as_ref();
        let raises = !self.limiters.is_empty()
            || node.is_some_and(|policy| {
                matches!(
                    policy,
                    CPUBurstPolicy::Auto | CPUBurstPolicy::CfsQuotaBurstOnly
                )
            });
        Needs {
            throttling: raises,
            ..Needs::default()
        }
    }

    fn plan(&mut self, view: &View<'_>, plan: &mut Plan) {
        let candidates = self.candidates(view);
        let state = pool(view);
        if candidates.is_empty() {
            plan.report_state(State::Idle, "no policy asks for it");
        } else {
            let buffers = candidates.iter().filter(|c| c.config.buffers()).count();
            let raised = candidates.iter().filter(|c| c.present > c.base).count();
            plan.report_state(
                State::Active,
                format!("burst buffers of {buffers} containers, raised quotas of {raised}"),
            );
        }
        let over = match state {
            PoolState::Overload { over } => over,
            _ => 0,
        };
        let raised = candidates.iter().map(|candidate| Raised {
            id: candidate.id,
            base: candidate.base,
            present: candidate.present,
        });
        let lowered = burst::lowered(over, raised.collect());
        let now = i64::try_from(view.now.ms()).unwrap_or(i64::MAX);
        self.limiters.retain(|_, limiter| !limiter.expired(now));
        let mut quotas = FxHashMap::default();
        for candidate in candidates {
            let allowed = self.allows(view, &candidate, now);
            let last = |metric| {
                let window = view.facts.settings.interval_ms.saturating_mul(2);
                let key = (SeriesSubject::Container(candidate.id), metric);
                view.store.last(key, view.now.ms(), window)
            };
            let throttled = last(Metric::CpuThrottled);
            let requested = burst::operation(&candidate.config, allowed, throttled);
            let chosen = lowered.contains(&candidate.id);
            let operation = burst::admitted(requested, state, chosen);
            let percent = candidate.config.quota_percent;
            let next = burst::next_quota(candidate.base, candidate.present, percent, operation);
            let quota = next.unwrap_or(candidate.present);
            quotas.insert(candidate.id, (candidate.base, quota));
            plan.bursts.insert(
                candidate.id,
                BurstAllowance {
                    quota,
                    quota_percent: percent,
                    buffer_percent: if candidate.config.buffers() {
                        candidate.config.buffer_percent
                    } else {
                        0
                    },
                },
            );
        }
        self.last_quotas = quotas;
    }
}

impl CpuBurst {
    /// Returns the pods that may burst, with their configuration.
    fn candidates<'a>(&mut self, view: &View<'a>) -> Vec<Candidate<'a>> {
        let every = view.facts.settings.reconcile_interval_ms;
        if self.reconcile.due(view, every).is_some() {
            self.last_quotas
                .values_mut()
                .for_each(|(_, quota)| *quota = 0);
        }
        let mut candidates = Vec::new();
        let mut wrong = Vec::new();
        for pod in view.pods() {
            if !cpu_limits::may_burst(pod.info) {
                continue;
            }
            let node = view.facts.slo.cpu_burst();
            let (config, errors) = Config::merge(node, pod.info.settings().cpu_burst.as_ref());
            wrong.extend(errors);
            if !config.buffers() && !config.raises_quota() {
                continue;
            }
            for (info, id) in running(pod) {
                let base = cpu_limits::base(pod.info, info, &view.facts);
                if base <= 0 {
                    continue;
                }
                let group = info.cgroup.as_ref();
                let last = self.last_quotas.get(&id).copied();
                let present = match last {
                    // The kernel's value was read or written here since the last round.
                    Some((_, quota)) if quota != 0 => Some(quota),
                    _ => group.and_then(|g| view.kernel.number(g, Resource::CfsQuota)),
                };
                if let Some(present) = present {
                    // The kubelet's quota, or that in force before the node's ratio changed.
                    let native = cpu_limit::quota_of(info.native.cpu_limit);
                    let old = last.map_or(native, |(base, _)| base);
                    let moved = old != base && present > 0;
                    candidates.push(Candidate {
                        id,
                        info,
                        config: config.clone(),
                        base,
                        present: if moved {
                            cpu_limit::rebased(present, old, base)
                        } else {
                            present
                        },
                    });
                }
            }
        }
        self.log_errors(wrong);
        candidates
    }

    fn allows(&mut self, view: &View<'_>, candidate: &Candidate<'_>, now: i64) -> bool {
        if candidate.config.period_seconds < 0 {
            return true;
        }
        // Varied between containers, so that they do not run out at the same time.
        let share =
            (candidate.id.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as f64 / (1 << 25) as f64;
        let limiter = self
            .limiters
            .entry(candidate.id)
            .or_insert_with(|| Limiter::new(&candidate.config, share, now));
        limiter.follow(&candidate.config, share, now);
        let limit = candidate.info.native.cpu_limit.unwrap_or(0);
        let key = (SeriesSubject::Container(candidate.id), Metric::CpuUsage);
        let window = view.facts.settings.interval_ms.saturating_mul(2);
        let used = view.store.last(key, view.now.ms(), window);
        limiter.allow(
            now,
            burst::usage_percent(limit, used.map(|milli| milli as i64)),
        )
    }

    /// Logs errors of settings, once each.
    fn log_errors(&mut self, errors: Vec<FieldError>) {
        let mut now = FxHashSet::default();
        for error in errors {
            let text = error.to_string();
            if !self.logged.contains(&text) && !now.contains(&text) {
                tracing::warn!(
                    strategy = NAME,
                    error = text,
                    "ignoring invalid CPU burst setting"
                );
            }
            now.insert(text);
        }
        self.logged = now;
    }
}

/// Returns the running containers of a pod, with their numbers.
pub(super) fn running<'a>(pod: &PodView<'a>) -> impl Iterator<Item = (&'a ContainerInfo, u64)> {
    let (info, tracked) = (pod.info, pod.containers);
    info.resident_containers().filter_map(move |container| {
        let group = container.cgroup.as_ref()?;
        let tracked = tracked.iter().find(|container| container.group == *group)?;
        Some((container, tracked.id))
    })
}

/// Returns the state of the shared pool.
fn pool(view: &View<'_>) -> PoolState {
    let now = view.now.ms();
    let window = POOL_WINDOW_MS.min(view.facts.settings.interval_ms.saturating_mul(5));
    let mean = |subject| {
        let mean = view.store.average((subject, Metric::CpuUsage), now, window);
        mean.map(|milli| milli as i64)
    };
    let pods = view.pods().filter(|pod| {
        pod.info.is_active() && !matches!(pod.info.qos, QosClass::Ls | QosClass::System)
    });
    let pods = pods.map(|pod| PoolPod {
        qos: pod.info.qos,
        request: pod.info.cpu_request,
        used: mean(SeriesSubject::Pod(pod.id)),
    });
    let threshold = view.facts.slo.cpu_burst().share_pool_threshold_percent;
    burst::pool_state(
        view.facts.machine.processors.len(),
        mean(SeriesSubject::Node),
        pods,
        threshold.unwrap_or(50),
    )
}
