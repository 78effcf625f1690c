//! Detection of the mounted cgroup trees.

use crate::controller::Controller;
use crate::error::Malformed;
use std::fs;
use std::path::{Path, PathBuf};

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Mounts {
    pub(crate) v1: Vec<(Controller, PathBuf)>,
    pub(crate) unified: Option<PathBuf>,
}

/// A line of mountinfo, reduced to the fields in use.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    point: String,
    filesystem: String,
    /// Super options; for cgroup v1 they name the controllers.
    options: String,
}

pub(crate) fn parse_mountinfo(text: &str) -> std::result::Result<Vec<Mount>, Malformed> {
    text.lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| {
            let bad = || Malformed::new("a mountinfo line", line);
            // "id parent major:minor root POINT options [tags] - FSTYPE source SUPEROPTIONS"
            let (left, right) = line.split_once(" - ").ok_or_else(bad)?;
            let point = left.split(' ').nth(4).ok_or_else(bad)?;
            let mut right = right.split(' ');
            let filesystem = right.next().ok_or_else(bad)?;
            let options = right.nth(1).unwrap_or("");
            Ok(Mount {
                point: unescape(point),
                filesystem: filesystem.to_owned(),
                options: options.to_owned(),
            })
        })
        .collect()
}

/// Undoes the octal escapes (`\040` for a space) of mountinfo.
pub(crate) fn unescape(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut index = 0;
    while let Some(&byte) = bytes.get(index) {
        let code = bytes
            .get(index + 1..index + 4)
            .filter(|_| byte == b'\\')
            .and_then(|digits| {
                let digits = std::str::from_utf8(digits).ok()?;
                u8::from_str_radix(digits, 8).ok()
            });
        match code {
            Some(code) => {
                out.push(code);
                index += 4;
            }
            None => {
                out.push(byte);
                index += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

pub(crate) fn relevant_mounts(all: Vec<Mount>, prefix: &Path, cgroup_dir: &Path) -> Mounts {
    let mut mounts = Mounts::default();
    for mount in all {
        let point = prefix.join(mount.point.trim_start_matches('/'));
        if !point.starts_with(cgroup_dir) || !point.is_dir() {
            continue;
        }
        match mount.filesystem.as_str() {
            "cgroup2" if mounts.unified.is_none() => mounts.unified = Some(point),
            "cgroup" => {
                for controller in mount.options.split(',').filter_map(Controller::from_name) {
                    if mounts.v1.iter().all(|(known, _)| *known != controller) {
                        mounts.v1.push((controller, point.clone()));
                    }
                }
            }
            _ => {}
        }
    }
    mounts
}

/// Lists each tree once: cpu and cpuacct are often one hierarchy with two names (symbolic links). The unified
/// tree comes last, with no v1 controllers.
pub(crate) fn distinct_trees(
    v1: &[(Controller, PathBuf)],
    unified: Option<&Path>,
) -> Vec<(PathBuf, Vec<Controller>)> {
    let real = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut trees: Vec<(PathBuf, Vec<Controller>)> = Vec::new();
    for (controller, mount) in v1 {
        let mount = real(mount);
        match trees.iter_mut().find(|(known, _)| *known == mount) {
            Some((_, carried)) => carried.push(*controller),
            None => trees.push((mount, vec![*controller])),
        }
    }
    trees.extend(unified.map(|mount| (real(mount), Vec::new())));
    trees
}

/// Derives the mounts from directory names: `cgroup.controllers` marks a unified tree, a directory named
/// after controllers (`cpu,cpuacct`) a v1 hierarchy.
pub(crate) fn mounts_by_layout(cgroup_dir: &Path) -> Mounts {
    let is_unified = |dir: &Path| dir.join("cgroup.controllers").exists();
    if is_unified(cgroup_dir) {
        return Mounts {
            v1: Vec::new(),
            unified: Some(cgroup_dir.to_owned()),
        };
    }
    let unified = Some(cgroup_dir.join("unified")).filter(|dir| is_unified(dir));
    let mut names: Vec<String> = fs::read_dir(cgroup_dir)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
        .collect();
    // Single names first: `cpu` is preferred to `cpu,cpuacct` when both exist.
    names.sort_by_key(|name| (name.matches(',').count(), name.clone()));
    let mut v1: Vec<(Controller, PathBuf)> = Vec::new();
    for name in names {
        let point = cgroup_dir.join(&name);
        for controller in name.split(',').filter_map(Controller::from_name) {
            if point.is_dir() && v1.iter().all(|(known, _)| *known != controller) {
                v1.push((controller, point.clone()));
            }
        }
    }
    Mounts { v1, unified }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::damage::survives;

    #[test]
    fn escapes() {
        assert_eq!(unescape("/a\\040b\\134"), "/a b\\");
        assert_eq!(unescape("\\04"), "\\04");
    }

    #[test]
    fn any_mountinfo_is_handled() {
        let sample = "24 29 0:22 / /a\\040b\\134 rw,nosuid shared:5 - cgroup2 none rw,memory\n";
        survives(sample, |text| {
            let parsed = parse_mountinfo(text);
            parsed.is_ok_and(|mounts| mounts.iter().all(|mount| !mount.point.contains('\0')))
        });
    }
}
