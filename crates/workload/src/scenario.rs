//! Scenarios of the demo: services and the neighbors that hurt them, each a mechanism of its own.

use super::phase::Phase;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// A service that shares the machine with batch work of one kind.
#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    /// Name for `--scenario`.
    pub name: &'static str,
    /// A heading.
    pub title: &'static str,
    /// Description of what shares the machine, and of the means that could help.
    pub about: &'static str,
    /// The phases measured; `alone` comes first.
    pub phases: &'static [Phase],
    /// The service.
    pub service: ServiceLoad,
    /// Load on the service.
    pub load: Load,
    /// The batch work.
    pub neighbour: Neighbour,
    /// Number of other services on the node, which are nearly idle and disturb nothing.
    pub bystanders: usize,
    /// Memory of this machine that all pods together may use, in MiB, like a kubelet's limit at the
    /// allocatable amount. Kept small so that the machine itself is never short of memory.
    pub pod_memory_mib: Option<u32>,
    /// Fraction of the machine that unknown processes may use before a window counts as noisy. Kernel
    /// threads, which belong to no pod, do a part of disk and memory work, and the kernel charges processes
    /// that live shorter than a tick to the process that runs at the tick: on an otherwise idle machine up to
    /// 7 % belong to no pod.
    pub strangers: f64,
}

/// Cost of a request.
#[derive(Debug, Clone, Copy)]
pub struct ServiceLoad {
    /// True for nginx, false for koord's own service.
    pub nginx: bool,
    /// CPU time per request, in microseconds; of nginx, roughly.
    pub us: f64,
    /// Limit as a multiple of the load's average demand; in `alone` there is none.
    pub limit: Option<f64>,
    /// Memory that requests walk through, in MiB, and cache lines per request.
    pub table: (u32, u32),
    /// File that requests read from, in MiB, and pages per request.
    pub file: (u32, u32),
}

/// Requests over time.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Mean load, as a fraction of the CPUs' capacity.
    pub share: f64,
    /// Bursts, as `koord workload load --bursts` takes them.
    pub bursts: Option<&'static str>,
    /// Length of the slots of the cycle for which p99 is reported, to show the recovery, and length of the first
    /// part of the cycle, in milliseconds.
    pub slots: Option<(u64, u64)>,
}

/// Work of the batch pods, one pod per CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Neighbour {
    /// Compute, with so many threads per pod.
    Compute(usize),
    /// Start processes without end.
    Spawn,
    /// Write, sync and replace files without end.
    Sync,
    /// Fill so many MiB of memory, or less where the pod has a limit.
    Grow(u32),
    /// Copy through more memory than any cache holds.
    Stream,
    /// Encode video with ffmpeg.
    Ffmpeg,
}

impl Neighbour {
    /// Returns the unit of the batch work in the plural, such as `files`.
    #[must_use]
    pub fn operation(self) -> &'static str {
        match self {
            Neighbour::Compute(_) => "operations",
            Neighbour::Spawn => "processes",
            Neighbour::Sync => "files",
            Neighbour::Grow(_) | Neighbour::Stream => "MiB",
            Neighbour::Ffmpeg => "frames",
        }
    }
}

const PLAIN: ServiceLoad = ServiceLoad {
    nginx: false,
    us: 250.0,
    limit: None,
    table: (0, 0),
    file: (0, 0),
};
const STEADY: Load = Load {
    share: 0.25,
    bursts: None,
    slots: None,
};
/// The phases of every scenario except the first, which also has `unmanaged`.
const PHASES: &[Phase] = &[
    Phase::Alone,
    Phase::BestEffort,
    Phase::Suppressed,
    Phase::Managed,
];
const BASE: Scenario = Scenario {
    name: "",
    title: "",
    about: "",
    phases: PHASES,
    service: PLAIN,
    load: STEADY,
    neighbour: Neighbour::Compute(2),
    bystanders: 0,
    pod_memory_mib: None,
    strangers: 0.08,
};

/// The phases that are played by default.
const DEFAULT_PHASES: [Phase; 3] = [Phase::Alone, Phase::BestEffort, Phase::Managed];

/// The scenarios, in the order in which `all` plays them.
pub const ALL: &[Scenario] = &[
    Scenario {
        name: "cpu",
        title: "Batch work that computes",
        about: "A request-processing service next to batch pods that take every CPU cycle they get. \
                Weight alone can hold them back.",
        phases: &super::phase::PHASES,
        ..BASE
    },
    Scenario {
        name: "burst",
        title: "A bursty service with a CPU limit",
        about: "The service has a CPU limit a fifth above its mean use, and its requests come in \
                bursts of 60 ms at 2.4 times the rate. Kubernetes throttles it in every burst. With CFS \
                burst, which Kubernetes does not set, it could use CPU time that it saved between \
                bursts. In alone it has no limit.",
        service: ServiceLoad {
            limit: Some(1.2),
            ..PLAIN
        },
        load: Load {
            // No multiple of the CFS period: each window has bursts that begin anywhere in it.
            bursts: Some("60:2.4,150:0.44"),
            ..STEADY
        },
        ..BASE
    },
    Scenario {
        name: "fork",
        title: "Batch work that starts processes without end",
        about: "Batch pods start and end processes all the time, as scripts and builds do. The kernel \
                chooses a CPU for each new process, and does much of the work.",
        neighbour: Neighbour::Spawn,
        strangers: 0.12,
        ..BASE
    },
    Scenario {
        name: "io",
        title: "Batch work that writes and syncs files",
        about: "Batch pods write files, sync them and replace older ones with them, as databases and \
                package managers do.",
        neighbour: Neighbour::Sync,
        strangers: 0.4,
        ..BASE
    },
    Scenario {
        name: "memory",
        title: "Batch work that fills memory",
        about: "The service reads from a file that fits into memory; batch pods use as much \
                memory as they find, as many runtimes do. Best-effort pods have no limit and find the \
                whole node; with batch-memory they have one.",
        service: ServiceLoad {
            us: 150.0,
            file: (192, 8),
            ..PLAIN
        },
        neighbour: Neighbour::Grow(190),
        pod_memory_mib: Some(512),
        strangers: 0.4,
        ..BASE
    },
    Scenario {
        name: "surge",
        title: "A service that goes from idle to its peak in one step",
        about: "Every two seconds the service's load jumps from almost nothing to two thirds of the \
                machine, which batch work has filled meanwhile.",
        load: Load {
            share: 0.35,
            bursts: Some("1000:1.9,1000:0.1"),
            slots: Some((20, 1000)),
        },
        strangers: 0.1,
        ..BASE
    },
    Scenario {
        name: "many",
        title: "Ten services, one of them slowed down",
        about: "Nine nearly idle services run next to the measured one, which batch pods slow down by \
                starting processes without end. An agent must neither miss this one among ten nor limit \
                batch work because of the nine.",
        neighbour: Neighbour::Spawn,
        bystanders: 9,
        strangers: 0.12,
        ..BASE
    },
    Scenario {
        name: "threads",
        title: "Batch work with hundreds of threads",
        about: "Each batch pod computes with 128 threads.",
        neighbour: Neighbour::Compute(128),
        ..BASE
    },
    Scenario {
        name: "bandwidth",
        title: "Batch work that streams through memory",
        about: "The service walks through a table that fits into the shared cache; batch pods copy \
                buffers that do not. Neither weights nor caps divide a cache; only resctrl does, where \
                the processor has it.",
        service: ServiceLoad {
            us: 150.0,
            table: (8, 1500),
            ..PLAIN
        },
        neighbour: Neighbour::Stream,
        ..BASE
    },
    Scenario {
        name: "nginx",
        title: "nginx next to ffmpeg",
        about: "The reference example: nginx serves a small file, ffmpeg encodes video. Published figures \
                with Koordinator and a kernel plug-in on 104 CPUs: p99 0.706 ms alone, 1.7 ms \
                unmanaged, 0.88 ms managed.",
        phases: &super::phase::PHASES,
        service: ServiceLoad {
            nginx: true,
            us: 40.0,
            ..PLAIN
        },
        load: Load {
            share: 0.1,
            ..STEADY
        },
        neighbour: Neighbour::Ffmpeg,
        strangers: 0.15,
        ..BASE
    },
];

impl Scenario {
    /// Returns the phases to run: those that compare koord with plain Kubernetes, or with `all` every phase
    /// of the scenario.
    #[must_use]
    pub fn phases(&self, all: bool) -> &'static [Phase] {
        if all { self.phases } else { &DEFAULT_PHASES }
    }

    /// Returns the third-party programs that it needs.
    #[must_use]
    pub fn programs(&self) -> &'static [&'static str] {
        match self.neighbour {
            Neighbour::Ffmpeg => &["nginx", "ffmpeg"],
            _ => &[],
        }
    }
}

/// Returns the path of a program in `PATH`.
#[must_use]
pub fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    // Debian installs nginx to a directory that is only in root's PATH.
    let places = std::env::split_paths(&path).chain(["/usr/sbin".into()]);
    places
        .map(|place| place.join(name))
        .find(|file| is_program(file))
}

fn is_program(file: &Path) -> bool {
    let executable = |mode: u32| mode & 0o111 != 0;
    std::fs::metadata(file).is_ok_and(|of| of.is_file() && executable(of.permissions().mode()))
}

/// Returns the names of all scenarios, for messages.
#[must_use]
pub fn names() -> String {
    let names: Vec<&str> = ALL.iter().map(|scenario| scenario.name).collect();
    names.join(", ")
}

/// Returns the scenarios that a command line requests: names, or `all`.
///
/// # Errors
/// When a name is unknown; the message lists the valid ones.
pub fn select(requested: &[String]) -> Result<Vec<&'static Scenario>, String> {
    if requested.iter().any(|name| name == "all") {
        return Ok(ALL.iter().collect());
    }
    let mut selected: Vec<&Scenario> = Vec::new();
    for name in requested {
        let scenario = ALL.iter().find(|scenario| scenario.name == name);
        let scenario = scenario
            .ok_or_else(|| format!("there is no scenario {name:?}: {}, or all", names()))?;
        if !selected.iter().any(|other| other.name == scenario.name) {
            selected.push(scenario);
        }
    }
    Ok(selected)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn scenarios_compare_koord_with_kubernetes_and_koordinator() {
        let names: BTreeSet<&str> = ALL.iter().map(|scenario| scenario.name).collect();
        assert_eq!(names.len(), ALL.len());
        for scenario in ALL {
            assert_eq!(scenario.phases[0], Phase::Alone, "{}", scenario.name);
            for phase in PHASES {
                assert!(scenario.phases.contains(phase), "{}", scenario.name);
            }
            if let Some(bursts) = scenario.load.bursts {
                assert!(bursts.parse::<crate::load::Bursts>().is_ok());
            }
        }
    }

    #[test]
    fn select_of_an_unknown_scenario_lists_all_names() {
        let select_names = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            select(&names).map(|all| all.iter().map(|s| s.name).collect::<Vec<_>>())
        };
        let error = select_names(&["cpu", "disk"]).unwrap_err();
        assert!(
            error.contains("\"disk\"") && error.contains("bandwidth"),
            "{error}"
        );
        assert_eq!(select_names(&["io", "cpu", "io"]).unwrap(), ["io", "cpu"]);
        assert_eq!(select_names(&["all"]).unwrap().len(), ALL.len());
    }

    #[test]
    fn scenario_memory_fits_the_service_or_the_batch_only() {
        for scenario in ALL {
            let (Some(all), Neighbour::Grow(batch)) = (scenario.pod_memory_mib, scenario.neighbour)
            else {
                continue;
            };
            let file = scenario.service.file.0;
            assert!(file + 64 < all && 2 * batch + 64 < all, "{}", scenario.name);
            assert!(file + 2 * batch > all, "{}", scenario.name);
        }
    }
}
