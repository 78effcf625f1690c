//! The recommender's flags. All are koord's own: upstream has no recommender.

use super::sources::SampleSource;
use crate::OptionsError;
use koord_api::GoDuration;
use koord_api::quantity::Quantity;
use koord_model::recommend::{Settings, SettingsError};
use std::time::Duration;

/// Flags of the recommender.
#[derive(Debug, Clone, clap::Args)]
pub struct RecommenderArgs {
    /// Source of usage samples: auto, metrics-api or node-metric
    #[arg(long, default_value = "auto")]
    pub recommender_source: String,
    /// Preset of percentiles and margin: peak (p99 of CPU, p95 of memory, 5 % margin) or vpa (p90, 15 % margin)
    #[arg(long, default_value = "peak")]
    pub recommender_profile: String,
    /// Minimum time between two writes of a Recommendation that changed by a tenth or less
    #[arg(long, default_value = "10m")]
    pub recommender_update_interval: GoDuration,
    /// Interval of the samples of pod usage
    #[arg(long, default_value = "1m")]
    pub recommender_interval: GoDuration,
    /// Interval at which each usage history is saved
    #[arg(long, default_value = "10m")]
    pub recommender_checkpoint_interval: GoDuration,
    /// Maximum number of usage histories saved per round
    #[arg(long, default_value_t = 300)]
    pub recommender_checkpoints_per_round: usize,
    /// Percentile of CPU samples to cover, from 0 to 1; overrides the profile
    #[arg(long)]
    pub recommender_cpu_percentile: Option<f64>,
    /// Percentile of memory peaks to cover, from 0 to 1; overrides the profile
    #[arg(long)]
    pub recommender_memory_percentile: Option<f64>,
    /// Margin added to every recommendation, as a fraction of it; overrides the profile
    #[arg(long)]
    pub recommender_margin: Option<f64>,
    /// Minimum CPU recommended for a pod
    #[arg(long, default_value = "25m")]
    pub recommender_pod_min_cpu: Quantity,
    /// Minimum memory recommended for a pod
    #[arg(long, default_value = "250Mi")]
    pub recommender_pod_min_memory: Quantity,
    /// Half-life of the weight of CPU samples
    #[arg(long, default_value = "24h")]
    pub recommender_cpu_half_life: GoDuration,
    /// Half-life of the weight of memory peaks
    #[arg(long, default_value = "24h")]
    pub recommender_memory_half_life: GoDuration,
    /// Length of the window whose memory peak is one sample
    #[arg(long, default_value = "24h")]
    pub recommender_memory_window: GoDuration,
    /// Number of windows without a sample after which a history is dropped
    #[arg(long, default_value_t = 8)]
    pub recommender_memory_windows: i64,
    /// Factor by which memory is raised after an OOM kill
    #[arg(long, default_value_t = 1.2)]
    pub recommender_oom_ratio: f64,
    /// Minimum amount by which memory is raised after an OOM kill
    #[arg(long, default_value = "100Mi")]
    pub recommender_oom_min_bump: Quantity,
}

/// Options of the recommender.
#[derive(Debug, Clone, PartialEq)]
pub struct RecommenderOptions {
    pub(crate) settings: Settings,
    pub(crate) source: SampleSource,
    pub(crate) interval: Duration,
    pub(crate) update_interval: Duration,
    pub(crate) checkpoint_interval: Duration,
    pub(crate) checkpoints_per_round: usize,
}

impl Default for RecommenderOptions {
    fn default() -> Self {
        Self {
            settings: Settings::peak(),
            source: SampleSource::Auto,
            interval: Duration::from_secs(60),
            update_interval: Duration::from_secs(600),
            checkpoint_interval: Duration::from_secs(600),
            checkpoints_per_round: 300,
        }
    }
}

impl RecommenderArgs {
    /// Validates the flags and converts them to options.
    pub(crate) fn options(&self) -> Result<RecommenderOptions, OptionsError> {
        let invalid = OptionsError::flag;
        let preset = match self.recommender_profile.as_str() {
            "peak" => Settings::peak(),
            "vpa" => Settings::vpa(),
            other => {
                let problem = format!("want peak or vpa, got {other:?}");
                return Err(invalid("recommender-profile", problem));
            }
        };
        let millis = |duration: GoDuration| duration.as_nanos() / 1_000_000;
        let mut percentiles = preset.percentiles;
        percentiles.cpu = self.recommender_cpu_percentile.unwrap_or(percentiles.cpu);
        percentiles.memory = self
            .recommender_memory_percentile
            .unwrap_or(percentiles.memory);
        let settings = Settings {
            percentiles,
            margin: self.recommender_margin.unwrap_or(preset.margin),
            min_cpu: self.recommender_pod_min_cpu.to_f64(),
            min_memory: self.recommender_pod_min_memory.to_f64(),
            cpu_half_life_ms: millis(self.recommender_cpu_half_life),
            memory_half_life_ms: millis(self.recommender_memory_half_life),
            memory_window_ms: millis(self.recommender_memory_window),
            memory_windows: self.recommender_memory_windows,
            oom_ratio: self.recommender_oom_ratio,
            oom_bump: self.recommender_oom_min_bump.to_f64(),
        };
        settings
            .check()
            .map_err(|error| invalid(flag_of(&error), error.to_string()))?;
        let positive = |flag: &'static str, duration: GoDuration| {
            let least = GoDuration::from_secs(1);
            let valid = duration.to_std().filter(|_| duration >= least);
            valid.ok_or_else(|| invalid(flag, format!("must be at least 1s, got {duration}")))
        };
        if self.recommender_checkpoints_per_round == 0 {
            let problem = "must be at least 1, got 0".to_owned();
            return Err(invalid("recommender-checkpoints-per-round", problem));
        }
        Ok(RecommenderOptions {
            settings,
            source: self
                .recommender_source
                .parse()
                .map_err(|problem| invalid("recommender-source", problem))?,
            interval: positive("recommender-interval", self.recommender_interval)?,
            update_interval: positive(
                "recommender-update-interval",
                self.recommender_update_interval,
            )?,
            checkpoint_interval: positive(
                "recommender-checkpoint-interval",
                self.recommender_checkpoint_interval,
            )?,
            checkpoints_per_round: self.recommender_checkpoints_per_round,
        })
    }
}

/// Returns the flag of an invalid setting.
fn flag_of(error: &SettingsError) -> &'static str {
    match error.field {
        "cpu" => "recommender-cpu-percentile",
        "memory" => "recommender-memory-percentile",
        "margin" => "recommender-margin",
        "minCPU" => "recommender-pod-min-cpu",
        "minMemory" => "recommender-pod-min-memory",
        "cpuHalfLife" => "recommender-cpu-half-life",
        "memoryHalfLife" => "recommender-memory-half-life",
        "memoryWindow" => "recommender-memory-window",
        "memoryWindows" => "recommender-memory-windows",
        "oomRatio" => "recommender-oom-ratio",
        _ => "recommender-oom-min-bump",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: RecommenderArgs,
    }

    fn options(line: &str) -> Result<RecommenderOptions, String> {
        let argv = std::iter::once("manager").chain(line.split_whitespace());
        let line = Line::try_parse_from(argv).map_err(|error| error.to_string())?;
        line.args.options().map_err(|error| error.to_string())
    }

    #[test]
    fn the_defaults_are_the_preset_peak() {
        assert_eq!(options("").unwrap(), RecommenderOptions::default());
        let vpa = options("--recommender-profile=vpa --recommender-memory-percentile=1").unwrap();
        let percentiles = vpa.settings.percentiles;
        assert_eq!((percentiles.cpu, percentiles.memory), (0.9, 1.0));
        assert_eq!(vpa.settings.margin, 0.15);
    }

    #[test]
    fn mistakes_name_flag_and_value() {
        for (line, flag, value) in [
            ("--recommender-profile=p95", "recommender-profile", "p95"),
            (
                "--recommender-source=prometheus",
                "recommender-source",
                "prometheus",
            ),
            (
                "--recommender-cpu-percentile=95",
                "recommender-cpu-percentile",
                "95",
            ),
            ("--recommender-margin=-1", "recommender-margin", "-1"),
            ("--recommender-interval=0s", "recommender-interval", "0s"),
            (
                "--recommender-memory-window=1day",
                "recommender-memory-window",
                "1day",
            ),
            (
                "--recommender-pod-min-cpu=some",
                "recommender-pod-min-cpu",
                "some",
            ),
            (
                "--recommender-oom-ratio=0.9",
                "recommender-oom-ratio",
                "0.9",
            ),
            (
                "--recommender-checkpoints-per-round=0",
                "checkpoints-per-round",
                "0",
            ),
        ] {
            let error = options(line).unwrap_err();
            assert!(error.contains(flag) && error.contains(value), "{error}");
        }
    }
}
