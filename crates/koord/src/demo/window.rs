//! Measurement of a window: sets the phase up, generates the load, samples, judges the noise.

use super::result::{Phase, PhaseRun, Write};
use super::scene::Scene;
use super::schedule::Visit;
use anyhow::{Context, Result};
use koord_workload::noise::{rejection, wait_for_quiet};
use koord_workload::sampler::{Sampler, Series, Targets};
use koord_workload::{load, monotonic_ns};

/// Load before a further window of the same visit, in seconds: until the connections are open.
const PAUSE_S: f64 = 0.3;

impl Scene {
    /// Sets a phase up, measures windows while `again` returns true, and deletes the batch pods.
    pub(super) async fn visit(
        &mut self,
        visit: Visit,
        patience: usize,
        again: impl FnMut(PhaseRun) -> bool,
    ) -> Result<()> {
        let phase = visit.phase;
        self.step_of(visit, "waiting for a quiet machine")?;
        wait_for_quiet(patience).await;
        self.step_of(visit, "preparing")?;
        self.configure(phase).await?;
        let counters = match phase {
            Phase::Alone => None,
            _ => Some(self.start_batch(phase).await?),
        };
        let targets = self
            .targets(phase, counters.clone().unwrap_or_default())
            .await?;
        let measured = self.windows(visit, &targets, again).await;
        if let Some(counters) = counters {
            self.stop_batch(&counters).await?;
        }
        measured
    }

    /// Measures windows while `again` returns true.
    async fn windows(
        &mut self,
        visit: Visit,
        targets: &Targets,
        mut again: impl FnMut(PhaseRun) -> bool,
    ) -> Result<()> {
        let mut warmup_s = visit.warmup_s;
        for number in 1.. {
            self.step_of(visit, &format!("measuring, window {number}"))?;
            let sampler = Sampler::start(targets.clone()).context("sampler")?;
            let ls = self.generate(visit, number, warmup_s, &sampler).await;
            let series = sampler.finish(self.setup.cpus);
            let run = self.run_of(visit, ls?, &series, warmup_s)?;
            warmup_s = PAUSE_S;
            if !again(run) {
                break;
            }
        }
        Ok(())
    }

    /// Returns the run of a window, judged by the noise rules.
    fn run_of(
        &mut self,
        visit: Visit,
        ls: load::Outcome,
        series: &Series,
        warmup_s: f64,
    ) -> Result<PhaseRun> {
        let window = series.window(ls.window_ns);
        // Without cgroups the service's CPU time cannot be distinguished from that of other processes.
        let strangers = match self.setup.enforced {
            true => self.stage()?.scenario.strangers,
            false => 1.0,
        };
        if visit.phase == Phase::Alone {
            self.note_elsewhere(window.elsewhere * 100.0);
        }
        Ok(PhaseRun {
            repeat: visit.round,
            cpu_utilization: window.cpu_utilization,
            strangers: window.strangers,
            steal: window.steal,
            be_ops_per_s: window.be_ops_per_s,
            ls_psi_some: window.ls_psi_some,
            rejected: rejection(&window, &ls, strangers),
            cpu: series.cpu(ls.window_ns.0),
            writes: self.writes(ls.window_ns.0, warmup_s),
            ls,
        })
    }

    /// Shows the current step.
    fn step_of(&self, visit: Visit, what: &str) -> Result<()> {
        let name = self.stage()?.scenario.name;
        self.step(&format!(
            "{name}, {}, round {}: {what}",
            visit.phase.label(),
            visit.round
        ));
        Ok(())
    }

    /// Generates the load of a window in a child process, and returns its results.
    async fn generate(
        &self,
        visit: Visit,
        number: usize,
        warmup: f64,
        sampler: &Sampler,
    ) -> Result<load::Outcome> {
        let stage = self.stage()?;
        let seconds = match stage.scenario.load.slots {
            // Two cycles at least.
            Some((_, peak)) => {
                #[allow(clippy::cast_precision_loss, reason = "milliseconds of a cycle")]
                let cycle = 2.0 * peak as f64 / 1000.0;
                self.setup.phase_seconds.max(2.0 * cycle)
            }
            None => self.setup.phase_seconds,
        };
        let load = stage.scenario.load;
        let http = stage.scenario.service.nginx;
        let options = [
            ("--connect", Some(stage.measured(visit.phase).1.to_string())),
            ("--rate", Some(stage.rate.to_string())),
            ("--seconds", Some(seconds.to_string())),
            ("--warmup", Some(warmup.to_string())),
            ("--seed", Some((100 * visit.round + number).to_string())),
            ("--http", http.then(|| "/file".to_owned())),
            ("--bursts", load.bursts.map(str::to_owned)),
            ("--slots", load.slots.map(|(slot, _)| slot.to_string())),
        ];
        let options = options
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)));
        load::run_apart(&self.executable, options, |pid| sampler.set_load_pid(pid)).await
    }

    /// Returns koordlet's writes since the warm-up of the window that began at `window_ns`.
    fn writes(&self, window_ns: u64, warmup: f64) -> Vec<Write> {
        let now_ns = monotonic_ns();
        let now = self.cluster.context.clock.now();
        #[allow(clippy::cast_precision_loss, reason = "seconds of a run")]
        let window_age = now_ns.saturating_sub(window_ns) as f64 / 1e9;
        self.cluster
            .audit
            .entries()
            .into_iter()
            .filter_map(|entry| {
                let at_s = window_age - now.duration_since(entry.created_at).as_secs_f64();
                let change = entry.change.filter(|_| at_s >= -warmup - 1.0)?;
                Some(Write {
                    at_s,
                    file: format!("{}/{}", change.cgroup, change.file),
                    old: change.old.unwrap_or_default(),
                    new: change.new,
                    // The first half of the message repeats file and value.
                    reason: entry
                        .message
                        .split_once(": ")
                        .map_or_else(String::new, |(_, why)| why.to_owned()),
                })
            })
            .collect()
    }
}
