//! Single processes: run-queue delay, identity, parents.

use crate::error::{HostError, Malformed, Result, is_gone};
use crate::reader::Reader;
use crate::root::Root;
use std::fs;

/// `/proc/<pid>/schedstat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SchedStat {
    /// Time on a CPU, in nanoseconds.
    pub run_ns: u64,
    /// Time runnable but waiting for a CPU, in nanoseconds.
    pub wait_ns: u64,
    /// Time slices run.
    pub slices: u64,
}

impl SchedStat {
    /// Parses the three numbers.
    ///
    /// # Errors
    /// When there are fewer, or one is not a number.
    pub fn parse(text: &str) -> std::result::Result<Self, Malformed> {
        let mut fields = text.split_ascii_whitespace().map(str::parse::<u64>);
        match (fields.next(), fields.next(), fields.next()) {
            (Some(Ok(run_ns)), Some(Ok(wait_ns)), Some(Ok(slices))) => Ok(Self {
                run_ns,
                wait_ns,
                slices,
            }),
            _ => Err(Malformed::new("run time, wait time and slices", text)),
        }
    }
}

/// The parts of `/proc/<pid>/stat` that identify a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessStat {
    /// Executable name, at most 15 bytes, as the process set it.
    pub comm: String,
    /// State letter; `Z` is a zombie.
    pub state: char,
    /// Parent process.
    pub ppid: u32,
    /// Process group.
    pub pgrp: u32,
    /// Start time in clock ticks since boot: with the pid it identifies a process for the life of the kernel.
    pub start_ticks: u64,
}

impl ProcessStat {
    /// Parses `/proc/<pid>/stat`.
    ///
    /// # Errors
    /// When it does not have the kernel's format.
    pub fn parse(text: &str) -> std::result::Result<Self, Malformed> {
        let bad = || Malformed::new("a /proc/<pid>/stat line", text);
        // The name is in brackets and may itself contain brackets and blanks.
        let open = text.find('(').ok_or_else(bad)?;
        let close = text
            .rfind(')')
            .filter(|close| *close > open)
            .ok_or_else(bad)?;
        let comm = text.get(open + 1..close).ok_or_else(bad)?.to_owned();
        let fields: Vec<&str> = text
            .get(close + 1..)
            .unwrap_or("")
            .split_ascii_whitespace()
            .collect();
        let field = |index: usize| fields.get(index).copied().ok_or_else(bad);
        // Fields are numbered from 3 (state) after the name.
        let state = field(0)?.chars().next().ok_or_else(bad)?;
        let ppid = field(1)?.parse().map_err(|_| bad())?;
        let pgrp: i64 = field(2)?.parse().map_err(|_| bad())?;
        let start_ticks = field(19)?.parse().map_err(|_| bad())?;
        Ok(Self {
            comm,
            state,
            ppid,
            pgrp: u32::try_from(pgrp).unwrap_or(0),
            start_ticks,
        })
    }

    /// Reads the current state of process `pid`; `None` when there is none.
    ///
    /// # Errors
    /// When the file cannot be read or parsed.
    pub fn read(root: &Root, pid: u32) -> Result<Option<Self>> {
        root.read_with(&root.proc(&format!("{pid}/stat")), Self::parse)
    }
}

/// Reads the scheduling delay of a process's main thread.
///
/// # Errors
/// When the file cannot be read or parsed.
pub fn schedstat(root: &Root, pid: u32) -> Result<Option<SchedStat>> {
    root.read_with(&root.proc(&format!("{pid}/schedstat")), SchedStat::parse)
}

/// Returns a reader of the scheduling delay of one thread.
///
/// # Errors
/// When the file exists but cannot be opened.
pub fn thread_schedstat_reader(
    root: &Root,
    pid: u32,
    thread: u32,
) -> Result<Option<Reader<SchedStat>>> {
    Reader::open(
        root.proc(&format!("{pid}/task/{thread}/schedstat")),
        SchedStat::parse,
    )
}

/// Returns the sum of the scheduling statistics of all threads of `pid`; `None` when it is gone.
///
/// # Errors
/// When a file cannot be read or parsed.
pub fn process_schedstat(root: &Root, pid: u32) -> Result<Option<SchedStat>> {
    let Some(threads) = threads(root, pid)? else {
        return Ok(None);
    };
    let mut sum = SchedStat::default();
    for thread in threads {
        let path = root.proc(&format!("{pid}/task/{thread}/schedstat"));
        if let Some(stat) = root.read_with(&path, SchedStat::parse)? {
            sum.run_ns = sum.run_ns.saturating_add(stat.run_ns);
            sum.wait_ns = sum.wait_ns.saturating_add(stat.wait_ns);
            sum.slices = sum.slices.saturating_add(stat.slices);
        }
    }
    Ok(Some(sum))
}

/// Returns the thread ids of `pid`, ascending; `None` when it is gone.
///
/// # Errors
/// When the directory exists but cannot be listed.
pub fn threads(root: &Root, pid: u32) -> Result<Option<Vec<u32>>> {
    numeric_entries(root, &format!("{pid}/task"))
}

/// Returns the ids of all processes, ascending.
///
/// # Errors
/// When procfs cannot be listed.
pub fn all(root: &Root) -> Result<Vec<u32>> {
    Ok(numeric_entries(root, "")?.unwrap_or_default())
}

/// Returns the entries of `/proc/{relative}` whose names are numbers, sorted: ids of processes or threads. `None`
/// if the directory does not exist or is removed meanwhile.
fn numeric_entries(root: &Root, relative: &str) -> Result<Option<Vec<u32>>> {
    let dir = root.proc(relative);
    let entries = match fs::read_dir(&dir) {
        Ok(entries) => entries,
        Err(error) if is_gone(&error) => return Ok(None),
        Err(error) => return Err(HostError::io("list", &dir, error)),
    };
    let mut ids = Vec::new();
    for entry in entries {
        match entry {
            Ok(entry) => ids.extend(
                entry
                    .file_name()
                    .to_str()
                    .and_then(|name| name.parse::<u32>().ok()),
            ),
            Err(error) if is_gone(&error) => return Ok(None),
            Err(error) => return Err(HostError::io("list", &dir, error)),
        }
    }
    ids.sort_unstable();
    Ok(Some(ids))
}

/// Returns the group of `pid` in the hierarchy of `controller`, or in the unified tree for `None`; without
/// the leading slash. `None` when the process is gone or not in such a hierarchy.
///
/// # Errors
/// When the file cannot be read or parsed.
pub fn cgroup_of(
    root: &Root,
    pid: u32,
    controller: Option<crate::Controller>,
) -> Result<Option<String>> {
    let cgroup_path = root.read_with(&root.proc(&format!("{pid}/cgroup")), |text| {
        for line in text.lines() {
            // "4:memory:/path"; the unified tree is "0::/path".
            let mut parts = line.splitn(3, ':');
            let (Some(_), Some(controllers), Some(path)) =
                (parts.next(), parts.next(), parts.next())
            else {
                return Err(Malformed::new("lines such as \"4:memory:/path\"", line));
            };
            let this = match controller {
                None => controllers.is_empty(),
                Some(controller) => controllers.split(',').any(|name| name == controller.name()),
            };
            if this {
                return Ok(Some(path.trim_start_matches('/').to_owned()));
            }
        }
        Ok(None)
    })?;
    Ok(cgroup_path.flatten())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::damage::survives;

    #[test]
    fn stat_with_a_nasty_name() {
        let text = "42 (a) (b c) S 7 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1 2\n";
        let stat = ProcessStat::parse(text).unwrap();
        assert_eq!(
            (stat.comm.as_str(), stat.state, stat.ppid),
            ("a) (b c", 'S', 7)
        );
        assert_eq!(stat.start_ticks, 98_765);
        for bad in ["", "1 (x", "1 )x( S 1", "1 (x) S"] {
            assert!(ProcessStat::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn delay() {
        let stat = SchedStat::parse("5 6 7\n").unwrap();
        assert_eq!((stat.run_ns, stat.wait_ns, stat.slices), (5, 6, 7));
        assert!(SchedStat::parse("5 6").is_err());
    }

    #[test]
    fn this_process() {
        let root = Root::system().unwrap();
        let pid = std::process::id();
        assert!(ProcessStat::read(&root, pid).unwrap().unwrap().start_ticks > 0);
        assert!(threads(&root, pid).unwrap().unwrap().contains(&pid));
        assert!(all(&root).unwrap().contains(&pid));
        assert!(threads(&root, u32::MAX).unwrap().is_none());
    }

    #[test]
    fn any_content_is_handled() {
        let sample = "42 (a) (b c) S 7 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1 2\n";
        survives(sample, |text| ProcessStat::parse(text).is_ok());
        survives("5 6 7\n", |text| SchedStat::parse(text).is_ok());
    }
}
