//! Feeds the predictor with the peaks of pods, classes and the node, over days.

use super::measure::Measure;
use crate::log_on_change::LogOnChange;
use crate::predict::{self, Config, Predictor};
use crate::store::{Metric, SeriesSubject};
use crate::time::TickTime;
use koord_api::PriorityClass;
use koord_model::percentile;
use std::collections::BTreeSet;

/// The predictor and the time of its last training step.
#[derive(Debug)]
pub(crate) struct PredictorFeed {
    pub(crate) predictor: Predictor,
    trained_ms: Option<u64>,
    restored: bool,
    log: LogOnChange,
}

impl PredictorFeed {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            predictor: Predictor::new(config),
            trained_ms: None,
            restored: false,
            log: LogOnChange::default(),
        }
    }

    /// Loads the models of an earlier run, once the pod list is available.
    fn restore(&mut self, measure: &Measure, now: TickTime) {
        if self.restored {
            return;
        }
        let Some(pods) = measure.pods.list() else {
            return;
        };
        let time = self.predictor.time(now.wall.as_millisecond(), now.ms());
        self.restored = true;
        let mut uids: BTreeSet<String> = pods.iter().map(|pod| pod.uid.clone()).collect();
        uids.extend([predict::NODE, predict::SYSTEM].map(str::to_owned));
        uids.extend(classes().map(predict::class_uid));
        match self.predictor.restore(&uids, time) {
            Ok(0) => {}
            Ok(models) => tracing::info!(models, "predictor restored"),
            Err(error) => {
                tracing::warn!(%error, "failed to restore predictor, starting without history")
            }
        }
    }

    /// Trains the predictor once per `interval` milliseconds and maintains its files.
    pub(crate) fn step(&mut self, measure: &Measure, now: TickTime, interval: u64) {
        self.restore(measure, now);
        let due = match self.trained_ms {
            None => {
                self.trained_ms = Some(now.ms());
                false
            }
            Some(at) => now.ms().saturating_sub(at) >= interval,
        };
        if !due {
            return;
        }
        if measure.pods.list().is_none() {
            return;
        }
        self.trained_ms = Some(now.ms());
        let time = self.predictor.time(now.wall.as_millisecond(), now.ms());
        let mut sums: Vec<(PriorityClass, f64, f64)> =
            classes().map(|class| (class, 0.0, 0.0)).to_vec();
        let (mut cpu, mut memory) = (Vec::new(), Vec::new());
        let p90 = |samples: &mut Vec<f64>| {
            samples.sort_unstable_by(f64::total_cmp);
            percentile::from_sorted(samples, 0.90)
        };
        let (mut all_cpu, mut all_memory) = (0.0, 0.0);
        let collect = |subject, cpu: &mut Vec<f64>, memory: &mut Vec<f64>| {
            let (store, now_ms) = (&measure.store, now.ms());
            store.collect((subject, Metric::CpuUsage), now_ms, interval, cpu);
            store.collect((subject, Metric::MemoryUsage), now_ms, interval, memory);
        };
        for (pod, tracked) in measure.pods.iter() {
            collect(SeriesSubject::Pod(tracked.id), &mut cpu, &mut memory);
            let (Some(cpu), Some(memory)) = (p90(&mut cpu), p90(&mut memory)) else {
                continue;
            };
            let cores = cpu / 1000.0;
            self.predictor.train(&pod.uid, cores, memory, time);
            all_cpu += cores;
            all_memory += memory;
            if let Some(sum) = sums.iter_mut().find(|sum| sum.0 == pod.priority_class) {
                sum.1 += cores;
                sum.2 += memory;
            }
        }
        for (class, cores, bytes) in sums {
            self.predictor
                .train(&predict::class_uid(class), cores, bytes, time);
        }
        collect(SeriesSubject::Node, &mut cpu, &mut memory);
        if let (Some(cpu), Some(memory)) = (p90(&mut cpu), p90(&mut memory)) {
            let cores = cpu / 1000.0;
            self.predictor.train(predict::NODE, cores, memory, time);
            let system = (cores - all_cpu).max(0.0);
            self.predictor.train(
                predict::SYSTEM,
                system,
                (memory - all_memory).max(0.0),
                time,
            );
        }
        match self.predictor.maintain(time) {
            Ok(()) => self.log.clear("predictor"),
            Err(error) => self.log.log_failure("predictor", &error),
        }
    }
}

fn classes() -> [PriorityClass; 5] {
    let [a, b, c, d] = PriorityClass::ALL;
    [a, b, c, d, PriorityClass::None]
}
