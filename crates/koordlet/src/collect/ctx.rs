//! Context that the collectors of the loop share: their inputs and their results.

use super::errors::CollectError;
use super::host_app::HostApps;
use super::needs::Needs;
use super::node::NodeSample;
use super::pressure::Pressure;
use super::tracked_pods::TrackedPods;
use super::work::WorkMeter;
use crate::store::{Metric, SeriesSubject, Store};
use crate::time::TickTime;
use koord_host::{CgroupPath, Root, Scratch};
use std::fmt;

/// A collector of the agent's loop, made from a row of [`COLLECTORS`](super::table::COLLECTORS).
pub trait TickCollector: fmt::Debug + Send {
    /// Takes a sample.
    ///
    /// # Errors
    /// When kernel files could not be read or parsed. Values that could be read are in `ctx` nonetheless.
    fn collect(&mut self, ctx: &mut CollectCtx<'_>) -> Result<(), CollectError>;

    /// Closes open files when there is no demand any more.
    fn suspend(&mut self, ctx: &mut CollectCtx<'_>) {
        let _ = ctx;
    }
}

/// The newest samples, for the collectors that run later and for the views of strategies.
#[derive(Debug, Default)]
pub struct TickSamples {
    /// The node.
    pub node: NodeSample,
    /// Usage of all pods: CPU in milli-cores and memory in bytes.
    pub pods: (f64, f64),
    /// Usage of all host applications: CPU in milli-cores and memory in bytes.
    pub host_apps: (f64, f64),
    /// CPU usage outside pods and host applications, in milli-cores.
    pub system_cpu: Option<f64>,
    /// CPU usage of the BE class, in milli-cores.
    pub batch_cpu: Option<f64>,
}

/// Inputs and outputs of a collector in one tick.
#[derive(Debug)]
pub struct CollectCtx<'a> {
    /// The time of the tick.
    pub now: TickTime,
    /// The number of the tick.
    pub tick: u64,
    /// Samples that strategies need.
    pub needs: Needs,
    /// True if memory usage including page cache is stored as well.
    pub page_cache: bool,
    /// The machine.
    pub root: &'a Root,
    /// Cgroup of the BE class.
    pub batch: &'a CgroupPath,
    /// Buffer for reading files.
    pub scratch: &'a mut Scratch,
    /// Destination of the samples.
    pub store: &'a mut Store,
    /// The pods that are followed.
    pub pods: &'a mut TrackedPods,
    /// The host applications that are followed.
    pub host_apps: &'a mut HostApps,
    /// The pressure of services.
    pub pressure: &'a mut Pressure,
    /// The packets of services.
    pub work: &'a mut WorkMeter,
    /// Samples of this tick so far.
    pub samples: &'a mut TickSamples,
    /// Results of other rows whose samples a collector took together with its own.
    pub along: Vec<(&'static str, Result<(), CollectError>)>,
}

impl CollectCtx<'_> {
    /// Stores a sample of this tick, if there is a value.
    pub fn push(&mut self, subject: SeriesSubject, metric: Metric, value: Option<f64>) {
        if let Some(value) = value {
            self.store.push((subject, metric), self.now.ms(), value);
        }
    }
}
