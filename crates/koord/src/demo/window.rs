//! One measured window: set the phase up, generate the load, sample, judge the noise.

use super::result::{Phase, Run, Write};
use super::sampler::{Sampler, Window};
use super::scene::Scene;
use crate::workload::{load, monotonic_ns};
use anyhow::{Context, Result};

/// When the hypervisor took more than this part: from here on p99 shows the host, not the service.
const STEAL: f64 = 0.005;
/// When the generator woke later than this, in microseconds (99th percentile).
const SEND_LAG_US: f64 = 150.0;

/// Load that is not counted before a window, in seconds: until the phase is in its steady state.
/// Koordinator raises its cap by a tenth of the machine per second. Our guard starts at the threshold
/// where it cannot see memory bandwidth, and proves a cause before it acts: some seconds per lever. What
/// it found out it knows when the phase comes again. The service is not judged while it starts, and has
/// been there for a while before batch work comes, as services are: `first` says that the phase is new.
fn warmup(phase: Phase, first: bool, reads_file: bool) -> f64 {
    match (phase, first) {
        (Phase::Managed, true) => 30.0,
        (Phase::Managed, false) => 12.0,
        (Phase::Alone, true) => 15.0,
        // Memory fills, and what batch work drove out of it comes back.
        _ if reads_file => 6.0,
        (Phase::Alone, false) => 1.0,
        (Phase::BestEffort | Phase::Unmanaged, _) => 2.0,
        (Phase::Suppressed, _) => 4.0,
    }
}

impl Scene {
    /// Sets the phase up, measures one window, and clears the batch pods away.
    pub(super) async fn measure(&mut self, phase: Phase, repeat: usize) -> Result<Run> {
        let name = self.stage()?.scenario.name;
        let step = |scene: &Self, what: &str| {
            scene.step(&format!("{name}, {} {repeat}: {what}", phase.name()));
        };
        step(self, "waiting for a quiet machine");
        wait_for_quiet().await;
        step(self, "preparing");
        self.configure(phase).await?;
        let counters = match phase {
            Phase::Alone => None,
            _ => Some(self.start_batch(phase).await?),
        };
        let targets = self
            .targets(phase, counters.clone().unwrap_or_default())
            .await?;
        let sampler = Sampler::start(targets).context("sampler")?;
        step(self, "measuring");
        let stage = self.stage()?;
        let reads_file = stage.scenario.service.file.1 > 0;
        let warmup = warmup(phase, !stage.seen.contains(&phase), reads_file);
        let ls = self.generate(phase, repeat, warmup, &sampler).await;
        let series = sampler.finish(self.setup.cpus);
        if let Some(counters) = counters {
            self.stop_batch(&counters).await?;
        }
        let ls = ls?;
        self.saw(phase);
        let window = series.window(ls.window_ns);
        let writes = self.writes(ls.window_ns.0, warmup);
        // Without cgroups nobody can tell the service's CPU time from a stranger's.
        let strangers = match self.setup.enforced {
            true => self.stage()?.scenario.strangers,
            false => 1.0,
        };
        let rejected = rejection(&window, &ls, strangers);
        if phase == Phase::Alone {
            self.note_elsewhere(window.elsewhere * 100.0);
        }
        Ok(Run {
            repeat,
            cpu_utilization: window.cpu_utilization,
            strangers: window.strangers,
            steal: window.steal,
            be_ops_per_s: window.be_ops_per_s,
            ls_psi_some: window.ls_psi_some,
            rejected,
            cpu: series.cpu(ls.window_ns.0),
            writes,
            ls,
        })
    }

    async fn generate(
        &self,
        phase: Phase,
        repeat: usize,
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
            ("--connect", Some(stage.measured(phase).1.to_string())),
            ("--rate", Some(stage.rate.to_string())),
            ("--seconds", Some(seconds.to_string())),
            ("--warmup", Some(warmup.to_string())),
            ("--seed", Some(repeat.to_string())),
            ("--http", http.then(|| "/file".to_owned())),
            ("--bursts", load.bursts.map(str::to_owned)),
            ("--slots", load.slots.map(|(slot, _)| slot.to_string())),
        ];
        let options = options
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)));
        load::run_apart(&self.executable, options, |pid| sampler.load_is(pid)).await
    }

    /// koordlet's writes since the warm-up of the window that began at `window_ns`.
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
                    // The record's first half repeats file and value.
                    reason: entry
                        .message
                        .split_once(": ")
                        .map_or_else(String::new, |(_, why)| why.to_owned()),
                })
            })
            .collect()
    }
}

/// Waits, at most 8 s, for a third of a second in which the machine wakes sleepers in time. What disturbs it
/// (a compiler, the neighbours of a virtual machine) comes and goes in bursts.
async fn wait_for_quiet() {
    for _ in 0..24 {
        let probe = tokio::task::spawn_blocking(|| load::wake_lag_us(80));
        if probe.await.is_ok_and(|lag| lag < SEND_LAG_US) {
            return;
        }
    }
}

/// Why noise spoilt a window, if it did. `strangers` is the part of the machine that others may use.
pub(crate) fn rejection(window: &Window, ls: &load::Outcome, strangers: f64) -> Option<String> {
    if window.strangers > strangers {
        return Some(format!(
            "other processes used {:.1} %",
            window.strangers * 100.0
        ));
    }
    if window.steal > STEAL {
        return Some(format!("the hypervisor took {:.1} %", window.steal * 100.0));
    }
    (ls.realtime && ls.send_lag_p99_us > SEND_LAG_US)
        .then(|| format!("the generator woke {:.0} µs late", ls.send_lag_p99_us))
}
