//! `/proc/stat`: CPU time of the machine and of each CPU.

use crate::error::{Malformed, Result};
use crate::reader::Reader;
use crate::root::Root;

/// Counters of one CPU line, in clock ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "the kernel's own names")]
pub struct CpuTicks {
    pub user: u64,
    pub nice: u64,
    pub system: u64,
    pub idle: u64,
    pub iowait: u64,
    pub irq: u64,
    pub softirq: u64,
    pub steal: u64,
}

impl CpuTicks {
    /// Returns the used ticks: user + nice + system + irq + softirq. Not idle, iowait and steal, and not
    /// guest, which user already includes.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.user
            .saturating_add(self.nice)
            .saturating_add(self.system)
            .saturating_add(self.irq)
            .saturating_add(self.softirq)
    }

    /// Returns the sum of all counters.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.used()
            .saturating_add(self.idle)
            .saturating_add(self.iowait)
            .saturating_add(self.steal)
    }

    /// Parses the fields after the name of a CPU; `line` is for errors.
    fn parse(fields: &str, line: &str) -> std::result::Result<Self, Malformed> {
        let mut values = [0u64; 8];
        let mut fields = fields.split_ascii_whitespace();
        for (index, value) in values.iter_mut().enumerate() {
            match fields.next() {
                Some(field) => {
                    *value = field
                        .parse()
                        .map_err(|_| Malformed::new("a cpu line of ticks", line))?;
                }
                // Ancient kernels end after idle.
                None if index >= 4 => break,
                None => return Err(Malformed::new("a cpu line of ticks", line)),
            }
        }
        let [user, nice, system, idle, iowait, irq, softirq, steal] = values;
        Ok(Self {
            user,
            nice,
            system,
            idle,
            iowait,
            irq,
            softirq,
            steal,
        })
    }
}

/// `/proc/stat`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProcStat {
    /// The sum over all CPUs.
    pub total: CpuTicks,
    /// Ticks of each online CPU, by number.
    pub cpus: Vec<(u32, CpuTicks)>,
    /// Boot time of the machine in seconds since 1970; 0 when the line is missing.
    pub boot_time: u64,
}

impl ProcStat {
    /// Parses `/proc/stat`.
    ///
    /// # Errors
    /// When there is no `cpu` line or a counter is not a number.
    pub fn parse(text: &str) -> std::result::Result<Self, Malformed> {
        let mut stat = Self::default();
        stat.update(text)?;
        Ok(stat)
    }

    /// Parses a file like [`ProcStat::parse`], into an existing value: no allocation when the CPUs are unchanged.
    ///
    /// # Errors
    /// As [`ProcStat::parse`]; the value is then partly updated.
    pub fn update(&mut self, text: &str) -> std::result::Result<(), Malformed> {
        let mut has_total = false;
        self.cpus.clear();
        for line in text.lines() {
            let Some((key, rest)) = line.split_once(' ') else {
                continue;
            };
            if key == "cpu" {
                self.total = CpuTicks::parse(rest, line)?;
                has_total = true;
            } else if let Some(cpu) = key.strip_prefix("cpu") {
                let cpu = cpu
                    .parse()
                    .map_err(|_| Malformed::new("a cpu line of ticks", line))?;
                self.cpus.push((cpu, CpuTicks::parse(rest, line)?));
            } else if key == "btime" {
                self.boot_time = rest.trim().parse().unwrap_or(0);
            }
        }
        if has_total {
            Ok(())
        } else {
            Err(Malformed::new("a \"cpu\" line", text))
        }
    }

    /// Reads the current counters of the machine.
    ///
    /// # Errors
    /// When the file cannot be read or parsed.
    pub fn read(root: &Root) -> Result<Option<Self>> {
        root.read_with(&root.proc("stat"), Self::parse)
    }

    /// Returns a reader whose [`Reader::read_text`] feeds [`ProcStat::update`].
    ///
    /// # Errors
    /// When the file exists but cannot be opened.
    pub fn reader(root: &Root) -> Result<Option<Reader<Self>>> {
        Reader::open(root.proc("stat"), Self::parse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::damage::survives;

    #[test]
    fn used_ticks_total_and_per_cpu() {
        let text = "cpu  100 20 30 1000 50 4 6 8 90 9\ncpu0 60 10 20 500 20 2 3 4 0 0\n\
                    cpu3 1 1 1 1\nintr 5\nctxt 1\nbtime 1700000000\n";
        let stat = ProcStat::parse(text).unwrap();
        assert_eq!(stat.total.used(), 160);
        assert_eq!(stat.total.total(), 1218);
        assert_eq!(
            stat.cpus.iter().map(|(cpu, _)| *cpu).collect::<Vec<_>>(),
            [0, 3]
        );
        assert_eq!(stat.boot_time, 1_700_000_000);
        for bad in [
            "",
            "cpu0 1 2 3 4\n",
            "cpu 1 2 3\n",
            "cpu a 2 3 4\n",
            "cpux 1 2 3 4\ncpu 1 1 1 1",
        ] {
            assert!(ProcStat::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn any_content_is_handled() {
        let sample = "cpu  100 20 30 1000 50 4 6 8 90 9\ncpu0 60 10 20 500 20 2 3 4 0 0\n\
                      cpu3 1 1 1 1\nintr 5\nctxt 1\nbtime 1700000000\n";
        survives(sample, |text| ProcStat::parse(text).is_ok());
    }
}
