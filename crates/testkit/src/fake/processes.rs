//! Rules for processes in groups, and for the controllers that a v2 group enables for its children.
//!
//! On v2 the two depend on each other. Memory and I/O are *domain* controllers: a group that enables one of
//! them for its children has no processes of its own. CPU, CPU sets and pids are *threaded* controllers: a
//! group may have both them and processes, but is then a thread root, and its children can have neither
//! processes nor controllers.

use super::files;
use super::kernel::{FakeDir, child_dirs, errno, read};
use super::rules::number;
use libc::{EBUSY, EINVAL, ENOENT, ENOSPC, EOPNOTSUPP};
use std::fs;
use std::io;
use std::path::Path;

/// The controllers in the order in which the kernel lists them, and whether they are threaded.
const CONTROLLERS: [(&str, bool); 8] = [
    ("cpuset", true),
    ("cpu", true),
    ("io", false),
    ("memory", false),
    ("hugetlb", false),
    ("pids", true),
    ("rdma", false),
    ("misc", false),
];

const LISTS: [&str; 3] = ["cgroup.procs", "tasks", "cgroup.threads"];

/// Moves a process into a group, out of every other group of the tree.
pub(super) fn enter(place: &FakeDir<'_>, value: &str) -> io::Result<()> {
    let pid: i32 = number(value).map_err(|_| errno(EINVAL))?;
    let pid = match u32::try_from(pid).map_err(|_| errno(EINVAL))? {
        0 => std::process::id(),
        pid => pid,
    };
    let empty = |name: &str| place.read(name).is_empty();
    if place.tree == "cpuset" && (empty("cpuset.cpus") || empty("cpuset.mems")) {
        return Err(errno(ENOSPC));
    }
    if matches!(place.tree, "v2" | "unified") {
        if !is_domain(place, place.dir) {
            return Err(errno(EOPNOTSUPP));
        }
        if !can_be_thread_root(place, place.dir) && !empty("cgroup.subtree_control") {
            return Err(errno(EBUSY));
        }
    }
    leave(place.mount, pid)?;
    for name in LISTS {
        let path = place.dir.join(name);
        if path.is_file() {
            let mut text = fs::read_to_string(&path)?;
            text.push_str(&format!("{pid}\n"));
            fs::write(&path, text)?;
        }
    }
    Ok(())
}

fn enabled(dir: &Path) -> Vec<(&'static str, bool)> {
    let text = read(dir, "cgroup.subtree_control");
    let has = |name: &str| text.split_ascii_whitespace().any(|word| word == name);
    CONTROLLERS
        .into_iter()
        .filter(|(name, _)| has(name))
        .collect()
}

fn has_processes(dir: &Path) -> bool {
    !read(dir, "cgroup.procs").is_empty()
}

/// Returns whether there is a process in the group or below.
pub(super) fn is_populated(dir: &Path) -> bool {
    has_processes(dir) || child_dirs(dir).iter().any(|child| is_populated(child))
}

/// Returns whether a group may have processes and threaded controllers at once: no domain controller, and no
/// processes below.
fn can_be_thread_root(place: &FakeDir<'_>, dir: &Path) -> bool {
    dir == place.mount
        || (enabled(dir).iter().all(|(_, threaded)| *threaded)
            && !child_dirs(dir).iter().any(|child| is_populated(child)))
}

fn is_thread_root(dir: &Path) -> bool {
    has_processes(dir) && enabled(dir).iter().any(|(_, threaded)| *threaded)
}

/// Returns whether no group above is a thread root.
fn is_domain(place: &FakeDir<'_>, dir: &Path) -> bool {
    let mut above = dir.ancestors().skip(1);
    !above.any(|group| {
        group.starts_with(place.mount) && group != place.mount && is_thread_root(group)
    })
}

fn leave(dir: &Path, pid: u32) -> io::Result<()> {
    let line = pid.to_string();
    for name in LISTS {
        let path = dir.join(name);
        let Ok(text) = fs::read_to_string(&path) else {
            continue;
        };
        if text.lines().any(|entry| entry == line) {
            let others: Vec<&str> = text.lines().filter(|entry| *entry != line).collect();
            let tail = if others.is_empty() { "" } else { "\n" };
            fs::write(&path, others.join("\n") + tail)?;
        }
    }
    for child in child_dirs(dir) {
        leave(&child, pid)?;
    }
    Ok(())
}

/// Kills the processes in and below a group: fake processes are only numbers, which are removed.
pub(super) fn kill(dir: &Path) -> io::Result<()> {
    for name in ["cgroup.procs", "cgroup.threads"] {
        fs::write(dir.join(name), "")?;
    }
    for child in child_dirs(dir) {
        kill(&child)?;
    }
    Ok(())
}

/// Writes `cgroup.subtree_control`, such as `+cpu -memory`: all of it or nothing.
pub(super) fn delegate(place: &FakeDir<'_>, value: &str) -> io::Result<()> {
    let mut changes: Vec<(&str, bool)> = Vec::new();
    for word in value.split_ascii_whitespace() {
        let (on, name) = match (word.strip_prefix('+'), word.strip_prefix('-')) {
            (Some(name), _) => (true, name),
            (_, Some(name)) => (false, name),
            _ => return Err(errno(EINVAL)),
        };
        if !CONTROLLERS
            .iter()
            .any(|(controller, _)| *controller == name)
        {
            return Err(errno(EINVAL));
        }
        changes.retain(|(changed, _)| *changed != name);
        changes.push((name, on));
    }
    let available = place.read("cgroup.controllers");
    let before = enabled(place.dir);
    let is_on = |name: &str| before.iter().any(|(enabled, _)| *enabled == name);
    changes.retain(|(name, on)| is_on(name) != *on);
    for (name, on) in &changes {
        let is_available = available.split_ascii_whitespace().any(|word| word == *name);
        if *on && !is_available {
            return Err(errno(ENOENT));
        }
        let used = |child: &Path| enabled(child).iter().any(|(below, _)| below == name);
        if !on && child_dirs(place.dir).iter().any(|child| used(child)) {
            return Err(errno(EBUSY));
        }
    }
    let enabling = CONTROLLERS
        .into_iter()
        .filter(|(name, _)| changes.contains(&(*name, true)));
    check_enabling(place, &enabling.collect::<Vec<_>>())?;

    let after: Vec<&str> = CONTROLLERS
        .into_iter()
        .map(|(name, _)| name)
        .filter(|name| {
            let change = changes.iter().find(|(changed, _)| changed == name);
            change.map_or_else(|| is_on(name), |(_, on)| *on)
        })
        .collect();
    let cpus = format!("{}\n", place.read("cpuset.cpus.effective"));
    for child in child_dirs(place.dir) {
        for (name, on) in &changes {
            for (file, content) in files::v2_controller_files(name, &cpus) {
                let path = child.join(file);
                // Every group has the statistics file, with more content when the controller is on.
                match (on, file) {
                    (true, _) => fs::write(&path, content)?,
                    (false, "cpu.stat") => {}
                    (false, _) => fs::remove_file(&path)?,
                }
            }
        }
        fs::write(
            child.join("cgroup.controllers"),
            format!("{}\n", after.join(" ")),
        )?;
    }
    place.set("cgroup.subtree_control", &after.join(" "))
}

/// Checks that the group may enable these controllers for its children.
fn check_enabling(place: &FakeDir<'_>, enabling: &[(&str, bool)]) -> io::Result<()> {
    if enabling.is_empty() {
        return Ok(());
    }
    if !is_domain(place, place.dir) {
        return Err(errno(EOPNOTSUPP));
    }
    if place.is_root() {
        return Ok(());
    }
    if enabling.iter().all(|(_, threaded)| *threaded) {
        if can_be_thread_root(place, place.dir) {
            return Ok(());
        }
    } else if is_thread_root(place.dir) {
        return Err(errno(EOPNOTSUPP));
    }
    if has_processes(place.dir) {
        return Err(errno(EBUSY));
    }
    Ok(())
}
