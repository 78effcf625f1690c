//! Parsers of public traces of machines' usage. The first line identifies the format.

use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Interval between two lines of a PlanetLab file.
const FIVE_MINUTES_MS: i64 = 300_000;
const DAY_MS: i64 = 86_400_000;

/// Usage of one machine, ordered by time.
#[derive(Debug, Clone, Default)]
pub(super) struct Series {
    pub(super) samples: Vec<TraceSample>,
}

/// Usage at one time.
#[derive(Debug, Clone, Copy)]
pub(super) struct TraceSample {
    /// Milliseconds since 1970, or since the trace began.
    pub(super) time: i64,
    /// Cores.
    pub(super) cpu: Option<f64>,
    /// Bytes.
    pub(super) memory: Option<f64>,
}

/// Reads all series below a path. Files of the same name that hold one day each (PlanetLab) are one series,
/// in the order of their directories.
pub(super) fn read(path: &Path) -> Result<Vec<Series>> {
    let mut files = Vec::new();
    walk(path, &mut files)?;
    files.sort();
    let mut all: BTreeMap<String, Series> = BTreeMap::new();
    for file in files {
        let text = fs::read_to_string(&file).with_context(|| format!("{}", file.display()))?;
        let Some(first) = text.lines().next() else {
            continue;
        };
        let whole = file.display().to_string();
        let (name, samples) = if first.starts_with("Timestamp [ms];") {
            (whole, bitbrains(&text))
        } else if first == "timestamp,value" {
            (whole, percent_by_time(&text))
        } else if first.trim().parse::<f64>().is_ok() {
            let name = file.file_name().unwrap_or_default();
            (name.to_string_lossy().into_owned(), percent_by_line(&text))
        } else {
            bail!("{whole}: {first:?} is the first line of no known format");
        };
        let samples = samples.with_context(|| format!("{}", file.display()))?;
        let series = all.entry(name).or_default();
        // The next whole day of the series.
        let shift = match series.samples.last() {
            Some(last) => (last.time / DAY_MS + 1) * DAY_MS,
            None => 0,
        };
        series.samples.extend(samples.into_iter().map(|mut sample| {
            sample.time += shift;
            sample
        }));
    }
    let mut all: Vec<Series> = all.into_values().collect();
    for series in &mut all {
        series.samples.sort_by_key(|sample| sample.time);
    }
    ensure!(!all.is_empty(), "found no trace files");
    Ok(all)
}

fn walk(path: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let at = || format!("{}", path.display());
    if fs::metadata(path).with_context(at)?.is_dir() {
        for entry in fs::read_dir(path).with_context(at)? {
            walk(&entry?.path(), files)?;
        }
    } else {
        files.push(path.to_owned());
    }
    Ok(())
}

/// Parses GWA-T-12: `Timestamp [ms]` (which is seconds), cores, capacity in MHz, CPU in MHz, CPU in percent,
/// memory capacity in KB, memory in KB, ... between semicolons and tabs.
fn bitbrains(text: &str) -> Result<Vec<TraceSample>> {
    let mut samples = Vec::new();
    for line in text.lines().skip(1) {
        let fields: Vec<&str> = line.split(';').map(str::trim).collect();
        let number = |at: usize| -> Result<f64> {
            let text = fields
                .get(at)
                .with_context(|| format!("{line:?}: too short"))?;
            text.parse().with_context(|| format!("{line:?}: {text:?}"))
        };
        let (cores, capacity, used) = (number(1)?, number(2)?, number(3)?);
        let per_core = capacity / cores;
        samples.push(TraceSample {
            time: number(0)? as i64 * 1000,
            cpu: (per_core > 0.0).then(|| used / per_core),
            memory: Some(number(6)? * 1024.0),
        });
    }
    Ok(samples)
}

/// Parses lines such as `2014-02-14 14:30:00,6.456`: time, and percent of a core.
fn percent_by_time(text: &str) -> Result<Vec<TraceSample>> {
    let mut samples = Vec::new();
    for line in text.lines().skip(1) {
        let (time, value) = line.split_once(',').with_context(|| format!("{line:?}"))?;
        let time: jiff::civil::DateTime = time.parse().with_context(|| format!("{line:?}"))?;
        let time = time.to_zoned(jiff::tz::TimeZone::UTC)?.timestamp();
        let value: f64 = value.parse().with_context(|| format!("{line:?}"))?;
        samples.push(TraceSample {
            time: time.as_millisecond(),
            cpu: Some(value / 100.0),
            memory: None,
        });
    }
    Ok(samples)
}

/// Parses a percentage each five minutes.
fn percent_by_line(text: &str) -> Result<Vec<TraceSample>> {
    let mut samples = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let value: f64 = line.trim().parse().with_context(|| format!("{line:?}"))?;
        samples.push(TraceSample {
            time: at as i64 * FIVE_MINUTES_MS,
            cpu: Some(value / 100.0),
            memory: None,
        });
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_detects_each_format_by_its_first_line() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("lab/0303/vm", "10\n20\n");
        write("lab/0306/vm", "30\n");
        let lab = read(&dir.path().join("lab")).unwrap();
        let times: Vec<_> = lab[0]
            .samples
            .iter()
            .map(|s| (s.time, s.cpu.unwrap()))
            .collect();
        assert_eq!(times, [(0, 0.1), (FIVE_MINUTES_MS, 0.2), (DAY_MS, 0.3)]);

        write(
            "bit/1.csv",
            "Timestamp [ms];\tCPU cores;...\n1372629804;\t2;\t5000.0;\t1250.0;\t25;\t8000.0;\t1024.0;\t0\n",
        );
        let bit = read(&dir.path().join("bit")).unwrap()[0].samples[0];
        assert_eq!(bit.time, 1_372_629_804_000);
        assert_eq!((bit.cpu, bit.memory), (Some(0.5), Some(1_048_576.0)));

        write("nab/a.csv", "timestamp,value\n2014-02-14 14:30:00,6.5\n");
        let nab = read(&dir.path().join("nab")).unwrap()[0].samples[0];
        assert_eq!((nab.time, nab.cpu), (1_392_388_200_000, Some(0.065)));

        write("odd/a.csv", "name,value\n");
        let error = format!("{:#}", read(&dir.path().join("odd")).unwrap_err());
        assert!(error.contains("\"name,value\""), "{error}");
        write("bad/a.csv", "timestamp,value\n2014-02-14 14:30:00,high\n");
        let error = format!("{:#}", read(&dir.path().join("bad")).unwrap_err());
        assert!(error.contains("high"), "{error}");
    }
}
