//! Collectors of the loop that need only the shared context.

use super::batch::{self, BatchCollector};
use super::ctx::{CollectCtx, TickCollector};
use super::errors::{CollectError, KernelErrors};
use super::node::NodeCollector;
use super::pod::{GroupCollector, SampleOptions};
use crate::store::{Metric, SeriesSubject, Store};
use koord_host::CgroupPath;
use rustc_hash::FxHashMap;

/// Ticks between two samples of a container's memory.
const CONTAINER_MEMORY_EVERY: u64 = 5;

impl TickCollector for NodeCollector {
    fn collect(&mut self, ctx: &mut CollectCtx<'_>) -> Result<(), CollectError> {
        let mut errors = KernelErrors::default();
        let node = errors.value_of(self.sample(ctx.now.steady_ns, ctx.scratch));
        ctx.samples.node = node;
        ctx.push(SeriesSubject::Node, Metric::CpuUsage, node.cpu.map(milli));
        ctx.push(SeriesSubject::Node, Metric::MemoryUsage, node.memory);
        let metric = Metric::MemoryUsageWithPageCache;
        ctx.push(SeriesSubject::Node, metric, node.memory_with_cache);
        errors.finish()
    }
}

/// Samples pods and, together with each, its containers.
#[derive(Debug)]
pub struct PodCollector;

impl TickCollector for PodCollector {
    fn collect(&mut self, ctx: &mut CollectCtx<'_>) -> Result<(), CollectError> {
        let (now, tick, needs, page_cache) = (ctx.now, ctx.tick, ctx.needs, ctx.page_cache);
        let (root, store, scratch) = (ctx.root, &mut *ctx.store, &mut *ctx.scratch);
        let (mut all_cpu, mut all_memory) = (0.0, 0.0);
        let (mut errors, mut in_containers) = (KernelErrors::default(), KernelErrors::default());
        let mut of_throttling = KernelErrors::default();
        ctx.pods.for_each(|info, pod| {
            if !info.is_active() {
                pod.usage = GroupCollector::default();
                return;
            }
            let options = SampleOptions {
                memory: true,
                throttling: None,
            };
            let (steady, group) = (now.steady_ns, &info.cgroup);
            (pod.usage).sample(root, group, steady, options, scratch, &mut errors);
            let subject = SeriesSubject::Pod(pod.id);
            push_usage(store, subject, &pod.usage, now.ms());
            if page_cache && let Some(bytes) = pod.usage.memory_with_cache {
                let key = (subject, Metric::MemoryUsageWithPageCache);
                store.push(key, now.ms(), bytes);
            }
            for container in &mut pod.containers {
                // A container without a limit is not throttled.
                let throttling = needs.throttling && container.limited;
                if !needs.containers && !throttling {
                    container.usage = GroupCollector::default();
                    continue;
                }
                let options = SampleOptions {
                    // In turns, so that every tick does the same work.
                    memory: needs.containers
                        && (tick + container.id).is_multiple_of(CONTAINER_MEMORY_EVERY),
                    throttling: throttling.then_some(&mut of_throttling),
                };
                let (usage, group) = (&mut container.usage, &container.group);
                usage.sample(root, group, steady, options, scratch, &mut in_containers);
                push_usage(
                    store,
                    SeriesSubject::Container(container.id),
                    usage,
                    now.ms(),
                );
            }
            all_cpu += pod.usage.cpu.unwrap_or(0.0) * 1000.0;
            all_memory += pod.usage.memory.unwrap_or(0.0);
        });
        ctx.samples.pods = (all_cpu, all_memory);
        if needs.containers || needs.throttling {
            ctx.along.push(("containers", in_containers.finish()));
        }
        if needs.throttling {
            ctx.along.push(("throttling", of_throttling.finish()));
        }
        if page_cache {
            ctx.along.push(("page cache", Ok(())));
        }
        errors.finish()
    }
}

/// Samples host applications.
#[derive(Debug)]
pub struct HostAppCollector;

impl TickCollector for HostAppCollector {
    fn collect(&mut self, ctx: &mut CollectCtx<'_>) -> Result<(), CollectError> {
        let mut errors = KernelErrors::default();
        ctx.samples.host_apps = ctx.host_apps.sample(
            ctx.root,
            ctx.now.steady_ns,
            ctx.page_cache,
            ctx.scratch,
            ctx.store,
            &mut errors,
        );
        errors.finish()
    }
}

/// Samples the CPU usage of the BE class.
#[derive(Debug, Default)]
pub struct BatchUsageCollector {
    group: Option<CgroupPath>,
    class: BatchCollector,
}

impl TickCollector for BatchUsageCollector {
    fn collect(&mut self, ctx: &mut CollectCtx<'_>) -> Result<(), CollectError> {
        if self.group.as_ref() != Some(ctx.batch) {
            *self = Self {
                group: Some(ctx.batch.clone()),
                class: BatchCollector::default(),
            };
        }
        let mut errors = KernelErrors::default();
        let steady = ctx.now.steady_ns;
        ctx.samples.batch_cpu =
            (self.class).sample(ctx.root, ctx.batch, steady, ctx.scratch, &mut errors);
        ctx.push(
            SeriesSubject::Batch,
            Metric::CpuUsage,
            ctx.samples.batch_cpu,
        );
        errors.finish()
    }
}

/// Samples the CPU limit of the BE class, and sums up its requests.
#[derive(Debug)]
pub struct BatchLimitCollector;

impl TickCollector for BatchLimitCollector {
    fn collect(&mut self, ctx: &mut CollectCtx<'_>) -> Result<(), CollectError> {
        let mut errors = KernelErrors::default();
        let limit = batch::real_limit(ctx.root, ctx.batch, &mut errors);
        ctx.push(SeriesSubject::Batch, Metric::CpuRealLimit, limit);
        let listed = ctx.pods.list().is_some();
        let request = listed.then(|| batch::request(ctx.pods.iter().map(|(pod, _)| pod)));
        ctx.push(SeriesSubject::Batch, Metric::CpuRequest, request);
        errors.finish()
    }
}

/// Computes the usage outside pods and host applications, without reading a file.
#[derive(Debug)]
pub struct SystemCollector;

impl TickCollector for SystemCollector {
    fn collect(&mut self, ctx: &mut CollectCtx<'_>) -> Result<(), CollectError> {
        let samples = &*ctx.samples;
        let listed = ctx.pods.list().is_some();
        let remainder = |node: Option<f64>, pods: f64, apps: f64| {
            let remainder = node.map(|node| (node - (pods + apps)).max(0.0));
            remainder.filter(|_| listed)
        };
        let cpu = remainder(
            samples.node.cpu.map(milli),
            samples.pods.0,
            samples.host_apps.0,
        );
        let memory = remainder(samples.node.memory, samples.pods.1, samples.host_apps.1);
        ctx.samples.system_cpu = cpu;
        ctx.push(SeriesSubject::System, Metric::CpuUsage, cpu);
        ctx.push(SeriesSubject::System, Metric::MemoryUsage, memory);
        Ok(())
    }
}

/// Samples the pressure of services.
#[derive(Debug)]
pub struct PressureCollector;

impl TickCollector for PressureCollector {
    fn collect(&mut self, ctx: &mut CollectCtx<'_>) -> Result<(), CollectError> {
        ctx.pressure.sample(ctx.now.steady_ns, ctx.scratch)
    }

    fn suspend(&mut self, ctx: &mut CollectCtx<'_>) {
        ctx.pressure.suspend();
    }
}

/// Counts the packets of services.
#[derive(Debug)]
pub struct PacketCollector;

impl TickCollector for PacketCollector {
    fn collect(&mut self, ctx: &mut CollectCtx<'_>) -> Result<(), CollectError> {
        let used = ctx.pods.iter().map(|(_, pod)| (pod.id, pod.usage.cpu));
        let used: FxHashMap<u64, Option<f64>> = used.collect();
        let cores = |id| used.get(&id).copied().flatten();
        ctx.work.sample(ctx.now.steady_ns, cores)
    }

    fn suspend(&mut self, ctx: &mut CollectCtx<'_>) {
        ctx.work.suspend();
    }
}

fn milli(cores: f64) -> f64 {
    cores * 1000.0
}

fn push_usage(store: &mut Store, subject: SeriesSubject, usage: &GroupCollector, now_ms: u64) {
    let samples = [
        (Metric::CpuUsage, usage.cpu.map(milli)),
        (Metric::MemoryUsage, usage.memory),
        (Metric::CpuThrottled, usage.throttled),
    ];
    for (metric, value) in samples {
        if let Some(value) = value {
            store.push((subject, metric), now_ms, value);
        }
    }
}
