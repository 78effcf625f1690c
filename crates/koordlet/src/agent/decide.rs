//! The decisions of a tick about kernel files: BatchResource and CPUSuppress.

use super::{Agent, Now};
use crate::executor::{Intent, Level};
use crate::gates::Gate;
use crate::qos::batch_resource::{self, Rule};
use crate::qos::cpu_suppress::{Class, Input as SuppressInput};
use crate::states::node::SUPPRESS_MODE_ANNOTATION;
use crate::states::slo::{Policy as SuppressPolicy, SuppressMode};
use crate::states::{PodInfo, Slo};
use koord_api::qos::QosClass;
use koord_host::{CgroupPath, Controller, CpuSet, Reader, Resource};
use koord_model::pressure::Sample;
use koord_model::suppress::Usage;
use std::collections::BTreeSet;

/// Between two looks at the class's CPU set.
const CPUSET_EVERY: u64 = 5;

impl Agent {
    /// The class's quota now; `None` when there is no such group.
    fn class_quota(&mut self) -> Option<i64> {
        if self.class.quota.is_none() {
            let group = self.root.cgroup(&self.class.group);
            let path = group.file(Resource::CfsQuota).ok()?;
            self.class.quota = Reader::open(path, first_number).ok()?;
        }
        match self.class.quota.as_ref()?.read(&mut self.scratch) {
            Ok(Some(quota)) => Some(quota),
            _ => {
                self.class.quota = None;
                None
            }
        }
    }

    /// The mode in force: the node's annotation, else the NodeSLO, else the flag.
    pub(super) fn mode(&mut self, slo: &Slo) -> SuppressMode {
        let node = self.states.node.load();
        let annotation = node.as_ref().and_then(|node| node.suppress_mode.as_deref());
        let by_annotation = match annotation.map(str::parse::<SuppressMode>) {
            Some(Ok(mode)) => Some(mode),
            Some(Err(error)) => {
                let text = error.to_string();
                if self.bad_mode.as_ref() != Some(&text) {
                    tracing::warn!(annotation = SUPPRESS_MODE_ANNOTATION, error = %text, "ignored");
                    self.bad_mode = Some(text);
                }
                None
            }
            None => None,
        };
        let mode = by_annotation
            .or(slo.extension.mode)
            .unwrap_or(self.settings.suppress_mode);
        if mode == SuppressMode::Pressure && !self.psi && !self.schedstat {
            // Without a signal nobody would notice that services suffer.
            if !std::mem::replace(&mut self.blind, true) {
                tracing::warn!(
                    "this kernel tells no pressure (neither PSI nor schedstat): \
                     batch work is suppressed by the configured policy instead"
                );
            }
            return SuppressMode::Upstream;
        }
        mode
    }

    /// What is to be written now.
    pub(super) fn decide(&mut self, now: Now, slo: &Slo) -> Vec<Intent> {
        let mode = self.mode(slo);
        if self.last_mode != Some(mode) {
            tracing::info!(%mode, enabled = slo.enabled, "suppression mode");
            self.last_mode = Some(mode);
        }
        let mut intents = Vec::new();
        let pods = self.pods.clone();
        let pods = pods.as_deref().map_or(&[][..], Vec::as_slice);
        // First, because pods have no quotas of their own under that of the class.
        if self.settings.gates.is_on(Gate::BECPUSuppress) {
            intents.extend(self.suppress_batch(now, slo, mode, pods));
        }
        if self.settings.gates.is_on(Gate::BatchResource) {
            let by_quota = self.suppress.limits_by_quota()
                || (slo.enabled
                    && mode == SuppressMode::Upstream
                    && slo.policy == SuppressPolicy::CfsQuota);
            let idle = slo.enabled
                && mode == SuppressMode::Pressure
                && slo
                    .extension
                    .be_cpu_idle
                    .unwrap_or(self.settings.be_cpu_idle);
            let rule = Rule {
                quotas: !by_quota,
                idle: self.features_idle.then_some(idle),
            };
            let due = self.planned.is_none_or(|(at, planned)| {
                planned != rule
                    || now.ms().saturating_sub(at) >= self.settings.reconcile_interval_ms
            });
            if due {
                self.planned = Some((now.ms(), rule));
                intents.extend(batch_resource::plan(pods, rule));
            }
        }
        intents
    }

    fn suppress_batch(
        &mut self,
        now: Now,
        slo: &Slo,
        mode: SuppressMode,
        pods: &[PodInfo],
    ) -> Vec<Intent> {
        let node = self.node_info();
        let capacity = node
            .as_ref()
            .map(|node| node.capacity.cpu)
            .filter(|cpu| *cpu > 0)
            .unwrap_or(self.processors.len() as i64 * 1000);
        let quota = self.class_quota();
        let by_cpuset =
            slo.enabled && mode == SuppressMode::Upstream && slo.policy == SuppressPolicy::Cpuset;
        let recovering = slo.known && !self.suppress.leaves_cpusets();
        let cpusets = quota.is_some() && (by_cpuset || recovering);
        if quota.is_some() && (cpusets || self.ticks % CPUSET_EVERY == 1) {
            let group = self.root.cgroup(&self.class.group);
            let set = |read: koord_host::Result<Option<CpuSet>>| {
                read.ok().flatten().filter(|set| !set.is_empty())
            };
            // On v2 nothing is configured at first: then what is in effect counts.
            self.class.cpuset = set(group.cpuset()).or_else(|| set(group.effective_cpuset()));
        }
        let usage = self.usage(now.ms(), pods);
        let batch = self
            .class
            .usage
            .cpu
            .map_or(0, |cores| (cores * 1000.0) as i64);
        let samples: Vec<Sample<u64>> = pods
            .iter()
            .filter(|pod| !pod.is_best_effort())
            .filter_map(|pod| self.tracked.get(&pod.uid))
            .filter_map(|pod| {
                let used = (pod.group.cpu? * 1000.0) as i64;
                Some(Sample {
                    key: pod.id,
                    pressure: pod.held_up?,
                    used,
                })
            })
            .collect();
        let groups = if cpusets {
            self.class_groups()
        } else {
            Vec::new()
        };
        let cpus_of = |qos: QosClass| -> BTreeSet<u32> {
            pods.iter()
                .filter(|pod| pod.qos == qos && pod.is_active())
                .filter_map(|pod| pod.cpus.as_ref())
                .flat_map(|cpus| cpus.iter())
                .collect()
        };
        let outcome = self.suppress.plan(&SuppressInput {
            now_ms: now.ms(),
            node: node.as_ref().map_or("", |node| node.name.as_str()),
            slo,
            mode,
            capacity,
            reserved: node.as_ref().map_or(0, |node| node.reserved_cpu),
            usage,
            batch_active: batch.saturating_mul(100) > capacity,
            samples: &samples,
            class: quota.map(|quota| Class {
                group: &self.class.group,
                quota,
                cpuset: self.class.cpuset.as_ref(),
            }),
            processors: &self.processors,
            excluded: &cpus_of(QosClass::Lse),
            lsr: &cpus_of(QosClass::Lsr),
            groups: &groups,
        });
        if let Some(rise) = outcome.rise {
            let service = pods
                .iter()
                .find(|pod| self.tracked.get(&pod.uid).is_some_and(|t| t.id == rise.key));
            tracing::info!(
                service = service.map_or("", |pod| pod.name.as_str()),
                pressure = rise.pressure,
                baseline = rise.baseline,
                "pressure rose: batch work falls back to the configured threshold"
            );
        }
        let services = usage.map_or(0, |usage| usage.pods_not_be);
        self.metrics
            .suppression(outcome.by, outcome.limit, outcome.cap, services, batch);
        outcome.intents
    }

    /// Every group in the BE class, whoever made it: on v1 the class cannot get fewer CPUs than any
    /// of them has, and sandboxes and init containers are in no list of pods.
    fn class_groups(&self) -> Vec<(Level, CgroupPath)> {
        let below = |group: &CgroupPath| {
            let children = self.root.cgroup(group).children_in(Controller::Cpuset);
            children.unwrap_or_default()
        };
        let mut groups = Vec::new();
        for pod in below(&self.class.group) {
            let containers = below(&pod);
            groups.push((Level::Pod, pod));
            groups.extend(
                containers
                    .into_iter()
                    .map(|group| (Level::Container, group)),
            );
        }
        groups
    }

    /// The newest samples, when there is one of the node and the pods are known.
    fn usage(&self, now_ms: u64, pods: &[PodInfo]) -> Option<Usage> {
        self.pods.as_ref()?;
        let axis = &self.series.axis;
        let window = self.settings.interval_ms.saturating_mul(2);
        let (node, _) = self.series.node_cpu.window(axis, now_ms, window).next()?;
        let mut usage = Usage {
            node: node as i64,
            ..Usage::default()
        };
        for pod in pods {
            let Some(tracked) = self.tracked.get(&pod.uid) else {
                continue;
            };
            let used = tracked.group.cpu.map_or(0, |cores| (cores * 1000.0) as i64);
            usage.pods += used;
            if !pod.is_best_effort() {
                usage.pods_not_be += used;
            }
        }
        Some(usage)
    }
}

/// The quota: the first number of the file, `max` being none.
fn first_number(text: &str) -> Result<i64, koord_host::Malformed> {
    match text.split_ascii_whitespace().next() {
        Some("max") => Ok(-1),
        Some(first) => first
            .parse()
            .map_err(|_| koord_host::Malformed::new("a quota in microseconds", text)),
        None => Err(koord_host::Malformed::new("a quota in microseconds", text)),
    }
}
