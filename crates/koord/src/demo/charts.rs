//! The pictures of the report, as SVG text.

use super::result::{CpuSample, Phase, PhaseResult, Run};
use anyhow::{Result, anyhow};
use plotters::prelude::*;

/// The colour of a phase, the same in every picture and in the page.
#[must_use]
pub fn colour(phase: Phase) -> RGBColor {
    match phase {
        Phase::Alone => RGBColor(0x6b, 0x72, 0x80),
        Phase::BestEffort => RGBColor(0x7c, 0x3a, 0xed),
        Phase::Unmanaged => RGBColor(0xd9, 0x48, 0x3b),
        Phase::Suppressed => RGBColor(0xd9, 0x8e, 0x04),
        Phase::Managed => RGBColor(0x0f, 0x8b, 0x6d),
    }
}

const SERVICE: RGBColor = RGBColor(0x25, 0x63, 0xeb);
const BATCH: RGBColor = RGBColor(0x0f, 0x8b, 0x6d);
const OTHER: RGBColor = RGBColor(0x9c, 0xa3, 0xaf);
const INK: RGBColor = RGBColor(0x37, 0x41, 0x51);
const GRID: RGBColor = RGBColor(0xe5, 0xe7, 0xeb);

fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("cannot draw: {error}")
}

/// The run whose p99 is nearest the phase's median: what a picture of one run shows.
#[must_use]
pub fn representative(result: &PhaseResult) -> Option<&Run> {
    result
        .repeats
        .iter()
        .filter(|run| result.counted == 0 || run.rejected.is_none())
        .min_by(|a, b| {
            let distance = |run: &Run| (run.ls.p99_us - result.ls.p99_us).abs();
            distance(a).total_cmp(&distance(b))
        })
}

fn nines(quantile: f64) -> f64 {
    -(1.0 - quantile).max(1e-4).log10()
}

/// Latency by percentile, every phase in one picture: a logarithmic latency axis over percentiles
/// that are stretched towards the tail.
///
/// # Errors
/// When plotters refuses to draw.
pub fn latency(phases: &[PhaseResult]) -> Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (860, 400)).into_drawing_area();
        let points = |result: &PhaseResult| -> Vec<(f64, f64)> {
            representative(result).map_or_else(Vec::new, |run| {
                run.ls
                    .distribution
                    .iter()
                    .filter(|(_, quantile)| *quantile < 1.0)
                    .map(|(latency, quantile)| (nines(*quantile), latency.max(1.0)))
                    .collect()
            })
        };
        let all: Vec<f64> = phases
            .iter()
            .flat_map(points)
            .map(|(_, latency)| latency)
            .collect();
        let low = all
            .iter()
            .copied()
            .fold(f64::INFINITY, f64::min)
            .clamp(1.0, 1e6)
            * 0.8;
        let high = all.iter().copied().fold(0.0, f64::max).max(low * 10.0) * 1.3;
        let mut chart = ChartBuilder::on(&area)
            .margin(12)
            .x_label_area_size(38)
            .y_label_area_size(74)
            .build_cartesian_2d(0.0..3.5f64, (low..high).log_scale())
            .map_err(failed)?;
        chart
            .configure_mesh()
            .light_line_style(WHITE)
            .bold_line_style(GRID)
            .axis_style(INK)
            .label_style(("sans-serif", 13).into_font().color(&INK))
            .x_labels(8)
            .x_label_formatter(&|x| {
                let label = match (x * 2.0).round() {
                    0.0 => "p0",
                    2.0 => "p90",
                    4.0 => "p99",
                    6.0 => "p99.9",
                    _ => "",
                };
                label.to_owned()
            })
            .y_label_formatter(&|y| microseconds(*y))
            .y_desc("latency of the service")
            .draw()
            .map_err(failed)?;
        for result in phases {
            let colour = colour(result.name);
            chart
                .draw_series(LineSeries::new(points(result), colour.stroke_width(3)))
                .map_err(failed)?
                .label(result.name.name())
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 22, y)], colour.stroke_width(3))
                });
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .margin(14)
            .background_style(WHITE.mix(0.85))
            .border_style(GRID)
            .label_font(("sans-serif", 14).into_font().color(&INK))
            .draw()
            .map_err(failed)?;
        area.present().map_err(failed)?;
    }
    Ok(svg)
}

fn microseconds(value: f64) -> String {
    if value >= 1000.0 {
        format!("{:.0} ms", value / 1000.0)
    } else {
        format!("{value:.0} µs")
    }
}

/// How high a layer of the stack reaches.
type Height = fn(&CpuSample) -> f64;

/// CPU over time of one run, stacked by class, with the BE cap as a line and koordlet's writes as
/// ticks along the top.
///
/// # Errors
/// When plotters refuses to draw.
pub fn cpu(run: &Run, cpus: usize) -> Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (430, 210)).into_drawing_area();
        let begin = run.cpu.first().map_or(0.0, |sample| sample.at_s);
        let end = run
            .cpu
            .last()
            .map_or(1.0, |sample| sample.at_s)
            .max(begin + 0.1);
        let mut chart = ChartBuilder::on(&area)
            .margin(8)
            .x_label_area_size(26)
            .y_label_area_size(46)
            .build_cartesian_2d(begin..end, 0.0..1.08f64)
            .map_err(failed)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(WHITE)
            .bold_line_style(GRID)
            .axis_style(INK)
            .label_style(("sans-serif", 12).into_font().color(&INK))
            .y_labels(5)
            .y_label_formatter(&|y| format!("{:.0} %", y * 100.0))
            .x_label_formatter(&|x| format!("{x:.0} s"))
            .draw()
            .map_err(failed)?;
        // From the back to the front: each area covers the lower part of the one behind it.
        let stacks: [(RGBColor, Height); 3] = [
            (OTHER, |sample| sample.service + sample.batch + sample.other),
            (BATCH, |sample| sample.service + sample.batch),
            (SERVICE, |sample| sample.service),
        ];
        for (colour, height) in stacks {
            let points = run
                .cpu
                .iter()
                .map(|sample| (sample.at_s, height(sample).min(1.0)));
            chart
                .draw_series(AreaSeries::new(points, 0.0, colour.mix(0.8)).border_style(colour))
                .map_err(failed)?;
        }
        #[allow(clippy::cast_precision_loss, reason = "a count of CPUs")]
        let machine = cpus.max(1) as f64;
        let cap: Vec<(f64, f64)> = run
            .cpu
            .iter()
            .filter_map(|sample| {
                let cap = sample.be_cap_cores?;
                Some((sample.at_s, (sample.service + cap / machine).min(1.05)))
            })
            .collect();
        chart
            .draw_series(LineSeries::new(cap, RED.mix(0.8).stroke_width(2)))
            .map_err(failed)?;
        let ticks = run
            .writes
            .iter()
            .filter(|write| write.at_s >= begin && write.at_s <= end);
        chart
            .draw_series(ticks.map(|write| {
                PathElement::new(
                    [(write.at_s, 1.03), (write.at_s, 1.08)],
                    INK.stroke_width(2),
                )
            }))
            .map_err(failed)?;
        area.present().map_err(failed)?;
    }
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::super::result::{Phase, PhaseResult, Run};
    use super::*;
    use crate::workload::load::Outcome;

    fn sample_run() -> Run {
        Run {
            repeat: 1,
            ls: Outcome {
                p99_us: 500.0,
                distribution: (0..1000)
                    .map(|i| (100.0 + f64::from(i), f64::from(i) / 1000.0))
                    .collect(),
                ..Outcome::default()
            },
            cpu_utilization: 1.0,
            strangers: 0.0,
            steal: 0.0,
            be_ops_per_s: 1.0,
            ls_psi_some: None,
            rejected: None,
            cpu: (0..20)
                .map(|i| CpuSample {
                    at_s: f64::from(i) / 2.0,
                    service: 0.25,
                    batch: 0.7,
                    other: 0.05,
                    be_cap_cores: Some(0.7),
                })
                .collect(),
            writes: Vec::new(),
        }
    }

    #[test]
    fn pictures_are_self_contained_svg() {
        let phases = [PhaseResult::from_runs(Phase::Managed, vec![sample_run()])];
        for svg in [latency(&phases).unwrap(), cpu(&sample_run(), 2).unwrap()] {
            assert!(
                svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"),
                "{svg:.80}"
            );
            assert!(!svg.contains("NaN"));
        }
    }

    #[test]
    fn nothing_measured_still_draws() {
        let empty = PhaseResult::from_runs(Phase::Alone, Vec::new());
        assert!(latency(&[empty]).is_ok());
        let mut run = sample_run();
        run.cpu.clear();
        assert!(cpu(&run, 2).is_ok());
    }
}
