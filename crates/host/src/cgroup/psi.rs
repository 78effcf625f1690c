//! Pressure stall information.

use super::Resource;
use crate::error::{HostError, Malformed, Result};
use crate::root::Root;

/// Resource that stalled tasks wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the kernel's own names")]
pub enum PressureKind {
    Cpu,
    Memory,
    Io,
}

impl PressureKind {
    /// All kinds of pressure.
    pub const ALL: [Self; 3] = [Self::Cpu, Self::Memory, Self::Io];

    /// Returns the cgroup file with the pressure of this kind.
    #[must_use]
    pub fn resource(self) -> Resource {
        match self {
            Self::Cpu => Resource::CpuPressure,
            Self::Memory => Resource::MemoryPressure,
            Self::Io => Resource::IoPressure,
        }
    }

    /// Returns `cpu`, `memory` or `io`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Io => "io",
        }
    }
}

/// A line of a pressure file.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PressureLine {
    /// Share of the last 10 s that was stalled, in percent.
    pub avg10: f64,
    /// Share of the last 60 s, in percent.
    pub avg60: f64,
    /// Share of the last 300 s, in percent.
    pub avg300: f64,
    /// Stalled time so far, in microseconds.
    pub total_us: u64,
}

/// A pressure file.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Pressure {
    /// Line for the time in which at least one task was stalled.
    pub some: PressureLine,
    /// Line for the time in which all tasks were stalled. Kernels before 5.13 have no such line for CPU.
    pub full: Option<PressureLine>,
}

impl Pressure {
    /// Parses a pressure file.
    ///
    /// # Errors
    /// When there is no `some` line or a field is not a finite number.
    pub fn parse(text: &str) -> std::result::Result<Self, Malformed> {
        let bad = || {
            Malformed::new(
                "pressure lines such as \"some avg10=0.00 ... total=0\"",
                text,
            )
        };
        let mut some = None;
        let mut full = None;
        for line in text.lines() {
            let mut fields = line.split_ascii_whitespace();
            let slot = match fields.next() {
                Some("some") => &mut some,
                Some("full") => &mut full,
                _ => continue,
            };
            let mut parsed = PressureLine::default();
            for field in fields {
                let (key, value) = field.split_once('=').ok_or_else(bad)?;
                let average = || {
                    value
                        .parse::<f64>()
                        .ok()
                        .filter(|average| average.is_finite())
                        .ok_or_else(bad)
                };
                match key {
                    "avg10" => parsed.avg10 = average()?,
                    "avg60" => parsed.avg60 = average()?,
                    "avg300" => parsed.avg300 = average()?,
                    "total" => parsed.total_us = value.parse().map_err(|_| bad())?,
                    _ => {}
                }
            }
            *slot = Some(parsed);
        }
        Ok(Self {
            some: some.ok_or_else(bad)?,
            full,
        })
    }
}

/// Reads the pressure of the whole machine, from `/proc/pressure`; `None` when the kernel keeps none.
///
/// # Errors
/// When the file is there but cannot be read or parsed.
pub fn system(root: &Root, kind: PressureKind) -> Result<Option<Pressure>> {
    let path = root.proc("pressure").join(kind.name());
    match root.read_short(&path, Pressure::parse) {
        Err(error @ HostError::Io { .. }) if error.is_unsupported() => Ok(None),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::damage::survives;

    #[test]
    fn both_lines_and_old_kernels() {
        let text = "some avg10=1.50 avg60=0.44 avg300=2.98 total=32874472\n\
                    full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        let pressure = Pressure::parse(text).unwrap();
        assert_eq!(
            (pressure.some.avg10, pressure.some.total_us),
            (1.5, 32_874_472)
        );
        assert_eq!(pressure.full.unwrap().total_us, 7);
        let old = Pressure::parse(text.lines().next().unwrap()).unwrap();
        assert!(old.full.is_none());
        for bad in [
            "",
            "full avg10=0 total=0",
            "some avg10=x",
            "some avg10=nan",
            "some total",
        ] {
            assert!(Pressure::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn any_content_is_handled() {
        let sample = "some avg10=1.50 avg60=0.44 avg300=2.98 total=32874472\n\
                      full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        survives(sample, |text| Pressure::parse(text).is_ok());
    }
}
