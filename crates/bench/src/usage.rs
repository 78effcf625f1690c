//! What a process has used so far.

use std::time::Duration;

/// CPU time of this process; zero where the system does not tell.
#[must_use]
pub fn cpu() -> Duration {
    cpu_of("self")
}

/// CPU time of the process with this number, or of this one for `self`.
#[must_use]
pub fn cpu_of(process: &str) -> Duration {
    // Fields 14 and 15, after the name in parentheses: user and system time in ticks of 10 ms.
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let rest = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = rest.split_whitespace().skip(11).take(2);
    let ticks: u64 = ticks.filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks.saturating_mul(10))
}

/// Resident memory of this process in MiB; zero where the system does not tell.
#[must_use]
pub fn rss_mib() -> f64 {
    rss_mib_of("self")
}

/// Resident memory of the process with this number, in MiB, or of this one for `self`.
#[must_use]
pub fn rss_mib_of(process: &str) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u32>().ok());
    f64::from(kib.unwrap_or(0)) / 1024.0
}
