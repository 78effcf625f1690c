//! Lists of CPUs as Linux and Koordinator write them: `0-5,8`.

use std::collections::BTreeSet;
use std::fmt::Write as _;

/// The largest CPU number that is accepted; far above any kernel's limit.
const MAX_CPU: u32 = 1 << 16;

/// A text that is not a CPU list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("CPU list {text:?}: part {part:?} is not a number or a rising range up to {MAX_CPU}")]
pub struct CpuListError {
    /// The whole text.
    pub text: String,
    /// The offending part.
    pub part: String,
}

/// Reads a CPU list; the empty text is the empty list.
///
/// # Errors
/// A part is not a number or a rising range.
pub fn parse_cpu_list(text: &str) -> Result<BTreeSet<u32>, CpuListError> {
    let mut cpus = BTreeSet::new();
    if text.trim().is_empty() {
        return Ok(cpus);
    }
    for part in text.split(',') {
        let error = || CpuListError {
            text: text.to_owned(),
            part: part.to_owned(),
        };
        let trimmed = part.trim();
        let (first, last) = trimmed.split_once('-').unwrap_or((trimmed, trimmed));
        let number = |digits: &str| {
            let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
            digits
                .parse::<u32>()
                .ok()
                .filter(|cpu| plain && *cpu <= MAX_CPU)
        };
        match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => cpus.extend(first..=last),
            _ => return Err(error()),
        }
    }
    Ok(cpus)
}

/// The number of CPUs in a list.
///
/// # Errors
/// A part is not a number or a rising range.
pub fn count_cpus(text: &str) -> Result<u32, CpuListError> {
    // At most MAX_CPU + 1 entries.
    parse_cpu_list(text).map(|cpus| u32::try_from(cpus.len()).unwrap_or(u32::MAX))
}

/// Writes a CPU list with ranges, rising.
#[must_use]
pub fn format_cpu_list(cpus: &BTreeSet<u32>) -> String {
    let mut text = String::new();
    let mut rest = cpus.iter().copied().peekable();
    while let Some(first) = rest.next() {
        let mut last = first;
        while let Some(next) = rest.next_if(|next| *next == last + 1) {
            last = next;
        }
        if !text.is_empty() {
            text.push(',');
        }
        // Writing to a String cannot fail.
        let _ = if first == last {
            write!(text, "{first}")
        } else {
            write!(text, "{first}-{last}")
        };
    }
    text
}
