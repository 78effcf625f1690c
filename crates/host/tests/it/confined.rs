//! Processes in real groups.

use crate::support::TestHierarchy;
use koord_host::cgroup::PressureKind;
use koord_host::process::{ChildProcess, Exit, Spawn, Spawner};
use koord_host::testing::skip;
use koord_host::{Controller, Root, features};
use rustix::event::{PollFd, PollFlags, poll};

fn wait(spawned: &mut ChildProcess) -> Exit {
    let mut fds = [PollFd::new(&spawned.pidfd, PollFlags::IN)];
    poll(&mut fds, None).unwrap();
    spawned.reap().unwrap().unwrap()
}

fn shell(script: &str) -> Spawn {
    Spawn {
        program: "/bin/sh".into(),
        args: vec!["-c".into(), script.into()],
        env: vec![("PATH".into(), "/usr/bin:/bin".into())],
        ..Spawn::default()
    }
}

#[test]
fn a_process_starts_inside_its_group_and_is_killed_with_it() {
    let Some(ground) = TestHierarchy::new() else {
        return;
    };
    let group = ground.root.cgroup(&ground.path);
    let spawner = Spawner::start(ground.root.clone()).unwrap();
    // A grandchild in its own session: only the group can find it.
    let script = "setsid sleep 1000 & exec sleep 1000";
    let mut spawned = spawner
        .spawn(Spawn {
            cgroups: group.entrances(),
            ..shell(script)
        })
        .unwrap();
    for controller in [Some(Controller::Cpu), Some(Controller::Memory), None] {
        let place =
            koord_host::procfs::process::cgroup_of(&ground.root, spawned.pid, controller).unwrap();
        let mounted = match controller {
            Some(controller) => ground.root.v1_mount(controller).is_some(),
            None => ground.root.unified_mount().is_some(),
        };
        if mounted {
            assert_eq!(
                place.as_deref(),
                Some(ground.path.as_str()),
                "{controller:?}"
            );
        }
    }
    assert!(group.procs().unwrap().contains(&spawned.pid));
    while group.procs().unwrap().len() < 2 {
        std::thread::yield_now();
    }
    group.kill().unwrap();
    assert_eq!(wait(&mut spawned), Exit::Signal(9));
    while !group.procs_recursive().unwrap().is_empty() {
        std::thread::yield_now();
    }
    group.remove().unwrap();
    assert!(!group.exists());
}

#[test]
fn usage_throttling_pressure_and_freezing_are_read() {
    let Some(ground) = TestHierarchy::new() else {
        return;
    };
    let group = ground.root.cgroup(&ground.path);
    group.set_cfs_quota(10_000).unwrap();
    let spawner = Spawner::start(ground.root.clone()).unwrap();
    let spawn = Spawn {
        cgroups: group.entrances(),
        ..shell("while :; do :; done")
    };
    let mut spawned = spawner.spawn(spawn).unwrap();
    let reader = group.cpu_stat_reader().unwrap().unwrap();
    let mut scratch = koord_host::Scratch::new();
    while reader.read(&mut scratch).unwrap().unwrap().nr_throttled < 2 {
        std::thread::yield_now();
    }
    assert!(group.cpu_usage().unwrap().unwrap() > 0);
    assert!(group.memory_usage().unwrap().unwrap() > 0);
    let stat = group.memory_stat().unwrap().unwrap();
    assert!(stat.working_set(group.memory_usage().unwrap().unwrap()) > 0);
    if ground.root.unified_mount().is_some() {
        match group.pressure(PressureKind::Cpu).unwrap() {
            Some(pressure) => assert!(pressure.some.avg10 >= 0.0),
            None => skip("pressure", "the unified tree has no pressure files"),
        }
        group.freeze(true).unwrap();
        group.freeze(false).unwrap();
    }
    group.kill().unwrap();
    assert_eq!(wait(&mut spawned), Exit::Signal(9));
}

#[test]
fn written_values_report_what_was_there() {
    let Some(ground) = TestHierarchy::new() else {
        return;
    };
    let group = ground.root.cgroup(&ground.path);
    let written = group.set_cpu_shares(512).unwrap();
    assert!(written.changed);
    assert_eq!(written.new, "512");
    assert!(!group.set_cpu_shares(512).unwrap().changed);
    let online = group.effective_cpuset().unwrap().unwrap();
    assert!(!online.is_empty());
    assert!(!group.set_cpuset(&online).unwrap().changed || group.cpuset().unwrap() == Some(online));
    assert_eq!(group.set_memory_limit(64 << 20).unwrap().old, "-1");
    assert_eq!(group.memory_limit().unwrap(), Some(64 << 20));
}

#[test]
fn this_kernel_is_probed() {
    let features = features::probe(&Root::system().unwrap()).unwrap();
    let lines = features.lines();
    assert!(lines[0].starts_with("cgroups: "));
    for line in lines {
        eprintln!("{line}");
    }
}
