//! The control groups: their list, their tasks, and their usage.

use super::{ResctrlGroup, Schema, parse_schemata};
use crate::error::{HostError, Malformed, Result, is_gone};
use crate::root::Root;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

/// Usage of one L3 domain by a group. Each value is `None` where the hardware does not report it (now).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// The domain (cache id).
    pub domain: u32,
    /// Bytes in the cache now.
    pub llc_occupancy: Option<u64>,
    /// Bytes moved from and to memory so far.
    pub mbm_total: Option<u64>,
    /// Part of [`Usage::mbm_total`] that went to the domain's own memory.
    pub mbm_local: Option<u64>,
}

/// Returns the control groups below the root, by name. Empty when resctrl is not mounted.
///
/// # Errors
/// When the directory cannot be listed.
pub fn groups(root: &Root) -> Result<Vec<ResctrlGroup>> {
    let dir = ResctrlGroup::root().dir(root);
    let entries = match fs::read_dir(&dir) {
        Ok(entries) => entries,
        Err(error) if is_gone(&error) => return Ok(Vec::new()),
        Err(error) => return Err(HostError::io("list", &dir, error)),
    };
    let mut groups: Vec<ResctrlGroup> = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    if let Some(overlay) = root.overlay() {
        let parse =
            |dir: PathBuf| -> Option<ResctrlGroup> { dir.file_name()?.to_str()?.parse().ok() };
        groups.retain(|group| overlay.has_dir(&group.dir(root)));
        groups.extend(overlay.new_dirs(&dir).into_iter().filter_map(parse));
    }
    groups.sort_unstable();
    Ok(groups)
}

/// Returns the threads that were moved into `group`; `None` when there is no such group.
///
/// # Errors
/// When the file cannot be read or parsed.
pub fn tasks(root: &Root, group: &ResctrlGroup) -> Result<Option<Vec<u32>>> {
    let tasks: Option<Vec<u32>> = root.read_with(&group.dir(root).join("tasks"), |text| {
        text.lines()
            .map(|line| {
                line.parse()
                    .map_err(|_| Malformed::new("one id per line", text))
            })
            .collect()
    })?;
    Ok(match root.overlay() {
        Some(overlay) => overlay.tasks(&group.dir(root), tasks),
        None => tasks,
    })
}

/// Returns the limits of `group`, by resource and domain; `None` when there is no such group.
///
/// # Errors
/// When the file cannot be read or parsed.
pub fn schemata(
    root: &Root,
    group: &ResctrlGroup,
) -> Result<Option<BTreeMap<Schema, BTreeMap<u32, u64>>>> {
    root.read_with(&group.dir(root).join("schemata"), parse_schemata)
}

/// Returns the usage of `group` by domain; empty when the group is gone or the machine measures nothing. With
/// sub-NUMA clustering these are the sums over the clusters of a cache.
///
/// # Errors
/// When a file cannot be read or parsed.
pub fn usage(root: &Root, group: &ResctrlGroup) -> Result<Vec<Usage>> {
    let dir = group.dir(root).join("mon_data");
    let entries = match fs::read_dir(&dir) {
        Ok(entries) => entries,
        Err(error) if is_gone(&error) => return Ok(Vec::new()),
        Err(error) => return Err(HostError::io("list", &dir, error)),
    };
    let mut all = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let domain = name.to_str().and_then(|name| name.strip_prefix("mon_L3_"));
        let Some(domain) = domain.and_then(|id| id.parse().ok()) else {
            continue;
        };
        let file = |name: &str| -> Result<Option<u64>> {
            Ok(root.read_with(&entry.path().join(name), counter)?.flatten())
        };
        all.push(Usage {
            domain,
            llc_occupancy: file("llc_occupancy")?,
            mbm_total: file("mbm_total_bytes")?,
            mbm_local: file("mbm_local_bytes")?,
        });
    }
    all.sort_unstable_by_key(|usage| usage.domain);
    Ok(all)
}

/// Parses a counter. Returns `None` for the words by which the kernel reports that there is no value.
fn counter(text: &str) -> std::result::Result<Option<u64>, Malformed> {
    match text.trim() {
        "Unavailable" | "Error" | "Unassigned" => Ok(None),
        number => match number.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(Malformed::new("a number of bytes", text)),
        },
    }
}

/// Returns the kernel's message about the last write, if it refused that; `None` otherwise.
#[must_use]
pub fn last_refusal(root: &Root) -> Option<String> {
    let text = root
        .read(&root.sys("fs/resctrl/info/last_cmd_status"))
        .ok()??;
    let text = text.trim();
    (!text.is_empty() && text != "ok").then(|| text.to_owned())
}
