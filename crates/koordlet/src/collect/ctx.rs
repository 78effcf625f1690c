//! What collectors of the loop share: what they read from, and what they found.

use super::errors::CollectError;
use super::follow::TrackedPods;
use super::host_app::HostApps;
use super::needs::Needs;
use super::node::NodeSample;
use super::pressure::Pressure;
use super::work::WorkMeter;
use crate::store::{Metric, Store, Subject};
use crate::time::TickTime;
use koord_host::{CgroupPath, Root, Scratch};
use std::fmt;

/// A collector on the agent's loop: a row of [`COLLECTORS`](super::table::COLLECTORS) at work.
pub trait Collector: fmt::Debug + Send {
    /// Takes a sample.
    ///
    /// # Errors
    /// When kernel files could not be read or parsed. What could be read is in `ctx` nonetheless.
    fn collect(&mut self, ctx: &mut CollectCtx<'_>) -> Result<(), CollectError>;

    /// Closes what is held open: there is no demand any more.
    fn suspend(&mut self, ctx: &mut CollectCtx<'_>) {
        let _ = ctx;
    }
}

/// The newest samples that one collector leaves for those after it, and for the views of strategies.
#[derive(Debug, Default)]
pub struct Samples {
    /// The node.
    pub node: NodeSample,
    /// What all pods use, in milli-cores and bytes.
    pub pods: (f64, f64),
    /// What all host applications use, in milli-cores and bytes.
    pub host_apps: (f64, f64),
    /// What neither pods nor host applications use, in milli-cores.
    pub system_cpu: Option<f64>,
    /// CPU in use by the BE class, in milli-cores.
    pub batch_cpu: Option<f64>,
}

/// Everything that a collector may use in one tick.
#[derive(Debug)]
pub struct CollectCtx<'a> {
    /// The time of the tick.
    pub now: TickTime,
    /// The number of the tick.
    pub tick: u64,
    /// What strategies need.
    pub needs: Needs,
    /// True if memory with page cache is stored.
    pub page_cache: bool,
    /// The machine.
    pub root: &'a Root,
    /// The group of the BE class.
    pub batch: &'a CgroupPath,
    /// A buffer for reading.
    pub scratch: &'a mut Scratch,
    /// Where samples go.
    pub store: &'a mut Store,
    /// The pods that are followed.
    pub pods: &'a mut TrackedPods,
    /// The host applications that are followed.
    pub host_apps: &'a mut HostApps,
    /// The pressure of services.
    pub pressure: &'a mut Pressure,
    /// The packets of services.
    pub work: &'a mut WorkMeter,
    /// What was found so far.
    pub samples: &'a mut Samples,
    /// The rows whose samples a collector took along with its own, and their results.
    pub along: Vec<(&'static str, Result<(), CollectError>)>,
}

impl CollectCtx<'_> {
    /// Stores a sample of this tick, where there is one.
    pub fn push(&mut self, subject: Subject, metric: Metric, value: Option<f64>) {
        if let Some(value) = value {
            self.store.push((subject, metric), self.now.ms(), value);
        }
    }
}
