//! Initial files of a group or a machine.

use koord_host::CpuSet;
use std::fs;
use std::io;
use std::path::Path;

const V1_UNLIMITED: &str = "9223372036854771712\n";
const NO_PRESSURE: &str = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n\
                           full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";

/// Returns the files of a new group in `tree`. `parent_cpus` are the CPUs that it can use.
pub(super) fn group_files(
    tree: &str,
    root: bool,
    parent_cpus: &str,
) -> Vec<(&'static str, String)> {
    let mut files: Vec<(&'static str, String)> = vec![("cgroup.procs", String::new())];
    let mut add = |name: &'static str, content: &str| files.push((name, content.to_owned()));
    match tree {
        "unified" | "v2" => {
            add("cgroup.threads", "");
            add("cgroup.subtree_control", "");
            add("cpu.stat", "usage_usec 0\nuser_usec 0\nsystem_usec 0\n");
            for name in ["cpu.pressure", "memory.pressure", "io.pressure"] {
                add(name, NO_PRESSURE);
            }
            if root {
                add(
                    "cgroup.controllers",
                    if tree == "v2" {
                        "cpuset cpu io memory pids\n"
                    } else {
                        ""
                    },
                );
                if tree == "v2" {
                    add("cpuset.cpus.effective", parent_cpus);
                }
            } else {
                add("cgroup.controllers", "");
                add("cgroup.kill", "");
                add("cgroup.freeze", "0\n");
            }
        }
        _ => add("tasks", ""),
    }
    match tree {
        "cpu" => {
            add("cpu.shares", "1024\n");
            add("cpu.cfs_quota_us", "-1\n");
            add("cpu.cfs_period_us", "100000\n");
            add("cpu.cfs_burst_us", "0\n");
            add("cpu.idle", "0\n");
            add(
                "cpu.stat",
                "nr_periods 0\nnr_throttled 0\nthrottled_time 0\nnr_bursts 0\nburst_time 0\n",
            );
        }
        "cpuacct" => {
            add("cpuacct.usage", "0\n");
            add("cpuacct.stat", "user 0\nsystem 0\n");
        }
        "cpuset" => {
            add("cpuset.cpus", if root { parent_cpus } else { "\n" });
            add("cpuset.mems", if root { "0\n" } else { "\n" });
            add("cpuset.effective_cpus", parent_cpus);
        }
        "memory" => {
            add("memory.limit_in_bytes", V1_UNLIMITED);
            add("memory.usage_in_bytes", "0\n");
            add(
                "memory.stat",
                "cache 0\nrss 0\ntotal_cache 0\ntotal_rss 0\ntotal_inactive_anon 0\n\
                 total_active_anon 0\ntotal_inactive_file 0\ntotal_active_file 0\n\
                 total_unevictable 0\n",
            );
            add(
                "memory.numa_stat",
                "total=0 N0=0\nhierarchical_total=0 N0=0\n",
            );
            add(
                "memory.oom_control",
                "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n",
            );
        }
        "blkio" => {
            for name in [
                "blkio.throttle.read_bps_device",
                "blkio.throttle.write_bps_device",
                "blkio.throttle.read_iops_device",
                "blkio.throttle.write_iops_device",
            ] {
                add(name, "");
            }
        }
        "freezer" if !root => add("freezer.state", "THAWED\n"),
        _ => {}
    }
    files
}

/// Returns the files that a v2 group has once its parent enables `controller`.
pub(super) fn v2_controller_files(
    controller: &str,
    parent_cpus: &str,
) -> Vec<(&'static str, String)> {
    let fixed: &[(&'static str, &str)] = match controller {
        "cpu" => &[
            ("cpu.weight", "100\n"),
            ("cpu.max", "max 100000\n"),
            ("cpu.max.burst", "0\n"),
            ("cpu.idle", "0\n"),
            (
                "cpu.stat",
                "usage_usec 0\nuser_usec 0\nsystem_usec 0\nnr_periods 0\nnr_throttled 0\n\
                 throttled_usec 0\nnr_bursts 0\nburst_usec 0\n",
            ),
        ],
        "cpuset" => &[
            ("cpuset.cpus", "\n"),
            ("cpuset.mems", "\n"),
            ("cpuset.mems.effective", "0\n"),
        ],
        "memory" => &[
            ("memory.current", "0\n"),
            ("memory.min", "0\n"),
            ("memory.low", "0\n"),
            ("memory.high", "max\n"),
            ("memory.reclaim", ""),
            ("memory.max", "max\n"),
            ("memory.oom.group", "0\n"),
            ("memory.events", "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n"),
            ("memory.numa_stat", "anon N0=0\nfile N0=0\n"),
            (
                "memory.stat",
                "anon 0\nfile 0\ninactive_anon 0\nactive_anon 0\ninactive_file 0\n\
                 active_file 0\nunevictable 0\n",
            ),
        ],
        "pids" => &[("pids.max", "max\n"), ("pids.current", "0\n")],
        "io" => &[
            ("io.max", ""),
            ("io.weight", "default 100\n"),
            ("io.stat", ""),
        ],
        _ => &[],
    };
    let mut files: Vec<_> = fixed
        .iter()
        .map(|(name, text)| (*name, (*text).to_owned()))
        .collect();
    if controller == "cpuset" {
        files.push(("cpuset.cpus.effective", parent_cpus.to_owned()));
    }
    files
}

/// Creates procfs and sysfs of an idle machine with one socket and 8 GiB.
pub(super) fn machine(dir: &Path, online: &CpuSet) -> io::Result<()> {
    let put = |relative: &str, content: &str| -> io::Result<()> {
        let path = dir.join(relative);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(path, content)
    };
    let mut stat = String::from("cpu  0 0 0 0 0 0 0 0 0 0\n");
    let mut cpuinfo = String::new();
    for cpu in online.iter() {
        stat.push_str(&format!("cpu{cpu} 0 0 0 0 0 0 0 0 0 0\n"));
        cpuinfo.push_str(&format!(
            "processor\t: {cpu}\nvendor_id\t: FakeVendor\nmodel name\t: Fake CPU\nflags\t\t: fpu\n\n"
        ));
        let cpu_dir = format!("sys/devices/system/cpu/cpu{cpu}");
        put(&format!("{cpu_dir}/topology/physical_package_id"), "0\n")?;
        put(&format!("{cpu_dir}/topology/core_id"), &format!("{cpu}\n"))?;
        put(&format!("{cpu_dir}/cache/index3/level"), "3\n")?;
        put(&format!("{cpu_dir}/cache/index3/id"), "0\n")?;
    }
    stat.push_str("btime 1700000000\n");
    let list = format!("{online}\n");
    put("proc/stat", &stat)?;
    put("proc/cpuinfo", &cpuinfo)?;
    put("proc/loadavg", "0.00 0.00 0.00 1/100 1\n")?;
    put("proc/self/schedstat", "0 0 0\n")?;
    let meminfo = "MemTotal: 8388608 kB\nMemFree: 4194304 kB\nMemAvailable: 6291456 kB\n\
                   Buffers: 0 kB\nCached: 2097152 kB\nActive(file): 1048576 kB\n\
                   Inactive(file): 1048576 kB\nSReclaimable: 0 kB\n";
    put("proc/meminfo", meminfo)?;
    put(
        "sys/devices/system/node/node0/meminfo",
        &meminfo.replace("MemAvailable: 6291456 kB\n", ""),
    )?;
    put("sys/devices/system/cpu/online", &list)?;
    put("sys/devices/system/cpu/smt/active", "0\n")?;
    put("sys/devices/system/node/online", "0\n")?;
    put("sys/devices/system/node/node0/cpulist", &list)
}

/// Empties and removes the files of a directory. Emptied first, because an open descriptor must see the
/// removal, as on a removed cgroup.
pub(super) fn clear(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            fs::write(entry.path(), "")?;
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
