//! Detection of the kubelet's cgroup layout: by the kubelet's configuration, else by existing directories.

use super::{Driver, Layout};
use koord_api::lenient;
use koord_api::qos::KubeQos;
use koord_host::procfs::process;
use koord_host::{CgroupPath, Root};
use serde_json::Value;

/// Default path of the kubelet's configuration file.
const DEFAULT_CONFIG: &str = "/var/lib/kubelet/config.yaml";

/// The cgroupRoot of kind's kubelets, which is tried if none is configured.
const KIND_ROOT: &str = "kubelet";

/// Settings of the kubelet's cgroups from one source; `None` if the source does not have them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CgroupHint {
    /// `cgroupDriver`.
    pub driver: Option<Driver>,
    /// `cgroupRoot`; the root cgroup may be written as `/`.
    pub cgroup_root: Option<String>,
}

/// Source of a detected layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The kubelet's `/configz`.
    Configz,
    /// A flag of the kubelet's process.
    Flag,
    /// The configuration file of the kubelet's process.
    File,
    /// The directories that exist.
    Directories,
    /// The layout is a guess.
    Guess,
}

impl Source {
    /// Returns the source as text for messages.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Configz => "the kubelet's configz",
            Self::Flag => "the kubelet's flag",
            Self::File => "the kubelet's config file",
            Self::Directories => "the directories that exist",
            Self::Guess => "a guess",
        }
    }
}

/// A detected layout and its reliability.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DetectedLayout {
    /// The layout to use now.
    pub layout: Layout,
    /// Source of the driver.
    pub source: Source,
    /// True if the kubelet's configuration is known and the cgroup of all pods exists, so that detection can
    /// end.
    pub settled: bool,
}

/// Cgroup settings of the kubelet's process.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct KubeletProcess {
    flag: CgroupHint,
    file: CgroupHint,
}

/// Decides on the layout. `own` is koordlet's own setting of the kubelet's cgroupRoot, which takes precedence
/// unless it is the root cgroup; `exists` returns whether a layout's cgroup of all pods exists.
pub(super) fn decide(
    own: &CgroupPath,
    configz: Option<&CgroupHint>,
    process: Option<&KubeletProcess>,
    exists: impl Fn(&Layout) -> bool,
) -> DetectedLayout {
    let flag = process.map(|process| &process.flag);
    let file = process.map(|process| &process.file);
    let sources = [
        (configz, Source::Configz),
        (flag, Source::Flag),
        (file, Source::File),
    ];
    let cgroup_root =
        |(hint, _): &(Option<&CgroupHint>, Source)| hint.and_then(|hint| hint.cgroup_root.clone());
    let root = if own.is_root() {
        sources.iter().find_map(cgroup_root)
    } else {
        Some(own.as_str().to_owned())
    };
    let known_root = root.is_some();
    let root = root.unwrap_or_default();
    let root = CgroupPath::new(root.trim_matches('/')).unwrap_or_else(|_| CgroupPath::root());
    let hint = sources
        .iter()
        .find_map(|(hint, source)| Some((hint.and_then(|hint| hint.driver)?, *source)));
    let mut existing = Vec::new();
    for driver in [Driver::Systemd, Driver::Cgroupfs] {
        let plain = Layout::new(driver, root.clone());
        if exists(&plain) {
            existing.push(plain);
        } else if !known_root
            && let Ok(root) = CgroupPath::new(KIND_ROOT)
            && let kind = Layout::new(driver, root)
            && exists(&kind)
        {
            existing.push(kind);
        }
    }
    let with = |driver: Driver| {
        existing
            .iter()
            .find(|layout| layout.driver == driver)
            .cloned()
    };
    if let Some((driver, source)) = hint {
        if let Some(layout) = with(driver) {
            return DetectedLayout {
                layout,
                source,
                settled: true,
            };
        }
        // The runtime may use another driver than the kubelet's setting: existing directories count.
        let other = existing.into_iter().next();
        return DetectedLayout {
            source: if other.is_some() {
                Source::Directories
            } else {
                source
            },
            layout: other.unwrap_or_else(|| Layout::new(driver, root)),
            settled: false,
        };
    }
    match existing.into_iter().next() {
        Some(layout) => DetectedLayout {
            layout,
            source: Source::Directories,
            settled: false,
        },
        None => DetectedLayout {
            // A kubelet without a setting uses cgroupfs.
            layout: Layout::new(
                match process {
                    Some(_) => Driver::Cgroupfs,
                    None => Driver::Systemd,
                },
                root,
            ),
            source: Source::Guess,
            settled: false,
        },
    }
}

/// Detects the layout on this machine.
#[derive(Debug, Clone)]
pub(crate) struct LayoutFinder {
    root: Root,
    own: CgroupPath,
}

impl LayoutFinder {
    /// Creates a finder; `own` is koordlet's own setting of the kubelet's cgroupRoot.
    pub(crate) fn new(root: Root, own: CgroupPath) -> Self {
        Self { root, own }
    }

    /// Returns the machine's root.
    pub(crate) fn root(&self) -> &Root {
        &self.root
    }

    /// Detects the current layout; `configz` is the kubelet's own configuration, if it is known.
    pub(crate) fn detect(&self, configz: Option<&CgroupHint>) -> DetectedLayout {
        let process = match configz {
            Some(hint) if hint.driver.is_some() => None,
            _ => self.process(),
        };
        decide(&self.own, configz, process.as_ref(), |layout| {
            let group = layout.qos(KubeQos::Guaranteed);
            group.is_ok_and(|group| self.root.cgroup(&group).exists())
        })
    }

    /// Returns the settings of the kubelet's process, if this process may read them.
    fn process(&self) -> Option<KubeletProcess> {
        let read = |pid: u32, file: &str| {
            let path = self.root.proc(&format!("{pid}/{file}"));
            self.root.read(&path).ok().flatten()
        };
        let pids = process::all(&self.root).unwrap_or_default();
        let pid = pids
            .into_iter()
            .find(|pid| read(*pid, "comm").is_some_and(|comm| comm.trim_end() == "kubelet"))?;
        let line = read(pid, "cmdline").unwrap_or_default();
        let flags: Vec<&str> = line.split('\0').collect();
        let config = flag(&flags, "config").unwrap_or(DEFAULT_CONFIG);
        // The path in the kubelet's mount namespace.
        let config = match config.strip_prefix('/') {
            Some(absolute) => format!("root/{absolute}"),
            None => format!("cwd/{config}"),
        };
        Some(KubeletProcess {
            flag: CgroupHint {
                driver: flag(&flags, "cgroup-driver").and_then(|name| name.parse().ok()),
                cgroup_root: flag(&flags, "cgroup-root").map(str::to_owned),
            },
            file: read(pid, &config)
                .as_deref()
                .map(parse_hint)
                .unwrap_or_default(),
        })
    }
}

/// Returns the value of `--name=value` or `--name value`.
fn flag<'a>(flags: &[&'a str], name: &str) -> Option<&'a str> {
    flags.iter().enumerate().find_map(|(at, flag)| {
        let value = flag.trim_start_matches('-').strip_prefix(name)?;
        match value.strip_prefix('=') {
            Some(value) => Some(value),
            None if value.is_empty() => flags.get(at + 1).copied(),
            None => None,
        }
    })
}

/// Parses the two keys of a KubeletConfiguration file, YAML or JSON. They are at the top level, so only lines
/// that begin with a key are searched.
fn parse_hint(file: &str) -> CgroupHint {
    if let Ok(value) = serde_json::from_str::<Value>(file) {
        return CgroupHint::from_config(&value);
    }
    let value = |key: &str| {
        let line = file.lines().find_map(|line| line.strip_prefix(key))?;
        let value = line.trim_start().strip_prefix(':')?;
        let value = value.split(" #").next().unwrap_or_default();
        let value = value.trim().trim_matches(['"', '\'']);
        (!value.is_empty()).then(|| value.to_owned())
    };
    CgroupHint {
        driver: value("cgroupDriver").and_then(|name| name.parse().ok()),
        cgroup_root: value("cgroupRoot"),
    }
}

impl CgroupHint {
    /// Returns the settings of a KubeletConfiguration. An empty text counts as missing.
    #[must_use]
    pub(crate) fn from_config(config: &Value) -> Self {
        let text = |key| {
            let text = lenient::member(config, key)?.as_str()?;
            (!text.is_empty()).then(|| text.to_owned())
        };
        Self {
            driver: text("cgroupDriver").and_then(|name| name.parse().ok()),
            cgroup_root: text("cgroupRoot"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_host::fake::Tree;

    fn cgroup_hint(driver: Option<Driver>, root: Option<&str>) -> CgroupHint {
        CgroupHint {
            driver,
            cgroup_root: root.map(str::to_owned),
        }
    }

    /// Asserts the cgroup of all pods, the source and whether the layout is settled.
    fn check(
        own: &str,
        configz: Option<CgroupHint>,
        process: Option<KubeletProcess>,
        there: &[&str],
        want: (&str, Source, bool),
    ) {
        let own = CgroupPath::new(own).unwrap();
        let detected = decide(&own, configz.as_ref(), process.as_ref(), |layout| {
            there.contains(&layout.pods.as_str())
        });
        let got = (
            detected.layout.pods.as_str(),
            detected.source,
            detected.settled,
        );
        assert_eq!(got, want, "{own} {configz:?} {process:?} {there:?}");
    }

    #[test]
    fn kubelet_configuration_precedes_directories() {
        use Driver::{Cgroupfs, Systemd};
        use Source::{Configz, Directories, File, Flag, Guess};
        let says = |driver| Some(cgroup_hint(Some(driver), None));
        let process = |flag: Option<CgroupHint>, file: Option<CgroupHint>| {
            Some(KubeletProcess {
                flag: flag.unwrap_or_default(),
                file: file.unwrap_or_default(),
            })
        };
        let (slice, plain) = ("kubepods.slice", "kubepods");
        // The cgroup does not exist yet: the layout is used and detected again.
        check("", says(Systemd), None, &[], (slice, Configz, false));
        check("", says(Cgroupfs), None, &[], (plain, Configz, false));
        check("", says(Cgroupfs), None, &[plain], (plain, Configz, true));
        // An old tree of the other driver next to it.
        let layouts = [slice, plain];
        check("", says(Cgroupfs), None, &layouts, (plain, Configz, true));
        check("", says(Systemd), None, &layouts, (slice, Configz, true));
        // The runtime overruled the setting.
        check(
            "",
            says(Cgroupfs),
            None,
            &[slice],
            (slice, Directories, false),
        );
        // Configz before flag before file.
        let flag = process(says(Systemd), says(Cgroupfs));
        check(
            "",
            says(Cgroupfs),
            flag.clone(),
            &layouts,
            (plain, Configz, true),
        );
        check("", None, flag.clone(), &layouts, (slice, Flag, true));
        check(
            "",
            Some(CgroupHint::default()),
            flag,
            &layouts,
            (slice, Flag, true),
        );
        let file = process(None, says(Cgroupfs));
        check("", None, file, &layouts, (plain, File, true));
        // No source has a hint.
        check("", None, None, &[plain], (plain, Directories, false));
        check("", None, None, &layouts, (slice, Directories, false));
        check("", None, None, &[], (slice, Guess, false));
        check("", None, process(None, None), &[], (plain, Guess, false));
        // cgroupRoot: our own setting, the kubelet's, kind's.
        let (kind, slices) = ("kubelet/kubepods", "kubelet.slice/kubelet-kubepods.slice");
        let rooted = |driver, root| Some(cgroup_hint(Some(driver), Some(root)));
        check(
            "",
            rooted(Systemd, "/kubelet"),
            None,
            &[],
            (slices, Configz, false),
        );
        check(
            "",
            rooted(Cgroupfs, "/kubelet"),
            None,
            &[kind],
            (kind, Configz, true),
        );
        check(
            "",
            rooted(Cgroupfs, "/"),
            None,
            &[kind, plain],
            (plain, Configz, true),
        );
        check("", None, None, &[kind], (kind, Directories, false));
        check("", None, None, &[slices], (slices, Directories, false));
        check("", says(Systemd), None, &[slices], (slices, Configz, true));
        check(
            "own",
            rooted(Cgroupfs, "/kubelet"),
            None,
            &[kind],
            ("own/kubepods", Configz, false),
        );
    }

    #[test]
    fn the_process_and_its_file_are_read() {
        let config = "kind: KubeletConfiguration\ncgroupDriver: \"systemd\" # as containerd\n";
        for (cmdline, path, file, want) in [
            (
                "kubelet\0--cgroup-driver=cgroupfs\0--cgroup-root\0/k\0",
                "root/x",
                "",
                (Some(Driver::Cgroupfs), Some("/k"), None),
            ),
            (
                "/usr/bin/kubelet\0--v=2\0",
                "root/var/lib/kubelet/config.yaml",
                config,
                (None, None, Some(Driver::Systemd)),
            ),
            (
                "kubelet\0--config=/etc/kubelet.json\0",
                "root/etc/kubelet.json",
                r#"{"cgroupDriver":"cgroupfs"}"#,
                (None, None, Some(Driver::Cgroupfs)),
            ),
            (
                "kubelet\0-config\0conf.yaml\0",
                "cwd/conf.yaml",
                "a:\n  cgroupDriver: systemd\ncgroupDriver: cgroupfs\n",
                (None, None, Some(Driver::Cgroupfs)),
            ),
            (
                "kubelet\0--cgroup-driver=magic\0",
                "root/x",
                "",
                (None, None, None),
            ),
        ] {
            let tree = Tree::v2("0-1").unwrap();
            tree.put("proc/77/comm", "kubelet\n").unwrap();
            tree.put("proc/77/cmdline", cmdline).unwrap();
            tree.put(&format!("proc/77/{path}"), file).unwrap();
            tree.put("proc/78/comm", "kubelet-proxy\n").unwrap();
            let finder = LayoutFinder::new(tree.root().clone(), CgroupPath::root());
            let process = finder.process().unwrap();
            let got = (
                process.flag.driver,
                process.flag.cgroup_root.as_deref(),
                process.file.driver,
            );
            assert_eq!(got, want, "{cmdline:?}");
        }
        let empty = Tree::v2("0-1").unwrap();
        let finder = LayoutFinder::new(empty.root().clone(), CgroupPath::root());
        assert_eq!(finder.process(), None);
        // Before the first pod everything is a guess; afterwards it is not.
        assert_eq!(finder.detect(None).source, Source::Guess);
        empty.group("kubepods/besteffort").unwrap();
        let detected = finder.detect(None);
        assert_eq!(
            (detected.layout.driver(), detected.source),
            (Driver::Cgroupfs, Source::Directories)
        );
        let hint = cgroup_hint(Some(Driver::Cgroupfs), None);
        assert!(finder.detect(Some(&hint)).settled);
    }
}
