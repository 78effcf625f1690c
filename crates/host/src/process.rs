//! Starts processes inside control groups, and watches them.

mod identity;

use crate::capability::Capabilities;
use crate::error::{HostError, Result};
use crate::mount_namespace::MountNamespace;
use crate::procfs::ProcessStat;
use crate::root::Root;
use crate::sched;
use identity::{Identity, prepare_child};
use rustix::process::{PidfdFlags, Signal, pidfd_open};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};

/// Program, arguments and environment of a process to start.
#[derive(Debug, Clone, Default)]
pub struct Spawn {
    /// Program, looked up in `PATH` of `env` when it has no slash.
    pub program: OsString,
    /// Arguments after the program name.
    pub args: Vec<OsString>,
    /// The whole environment: nothing is inherited.
    pub env: Vec<(OsString, OsString)>,
    /// Working directory; this process's when `None`.
    pub dir: Option<PathBuf>,
    /// `cgroup.procs` files to enter before exec: see [`crate::Cgroup::entrances`].
    pub cgroups: Vec<PathBuf>,
    /// User to become before exec; this process's when `None`.
    pub uid: Option<u32>,
    /// Group to become before exec; this process's when `None`.
    pub gid: Option<u32>,
    /// Supplementary groups. When `None`, this process's, or none under another user or group.
    pub groups: Option<Vec<u32>>,
    /// Bounding set: capabilities that it can ever have as user 0; this process's when `None`.
    pub capabilities: Option<Capabilities>,
    /// True if programs that it runs cannot raise its rights, for example by set-user-ID.
    pub no_new_privileges: bool,
    /// View of the files; this process's when `None`.
    pub namespace: Option<Arc<MountNamespace>>,
    /// Kind of its standard streams.
    pub streams: Streams,
}

/// Kind of the standard streams of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Streams {
    /// Empty standard input; pipes for the output.
    #[default]
    Output,
    /// Pipes for all three.
    Piped,
    /// A terminal for all three; the process leads a new session that the terminal controls.
    Terminal,
}

/// A started process. Dropping it neither kills nor reaps: call [`ChildProcess::reap`] once
/// [`ChildProcess::pidfd`] is readable.
#[derive(Debug)]
pub struct ChildProcess {
    /// Process id, also the id of its process group.
    pub pid: u32,
    /// Start time in clock ticks since boot; with the pid it identifies the process.
    pub start_ticks: u64,
    /// Becomes readable when the process ends.
    pub pidfd: OwnedFd,
    /// Read end of its standard output.
    pub stdout: Option<OwnedFd>,
    /// Read end of its standard error.
    pub stderr: Option<OwnedFd>,
    /// Write end of its standard input, with [`Streams::Piped`].
    pub stdin: Option<OwnedFd>,
    /// The parent's side of its terminal, with [`Streams::Terminal`].
    pub terminal: Option<OwnedFd>,
    child: Child,
}

/// The exit status of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Exit code of a process that returned.
    Code(i32),
    /// Signal that killed the process.
    Signal(i32),
}

impl Exit {
    /// Returns the code that a shell and a container runtime report: 128 + signal for a killed process.
    #[must_use]
    pub fn code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
        }
    }
}

impl ChildProcess {
    /// Returns the exit status of the process; `None` while it runs.
    ///
    /// # Errors
    /// When it was already reaped elsewhere.
    pub fn reap(&mut self) -> Result<Option<Exit>> {
        let status = self
            .child
            .try_wait()
            .map_err(|error| HostError::call(format!("wait for process {}", self.pid), error))?;
        Ok(status.map(|status| match status.signal() {
            Some(signal) => Exit::Signal(signal),
            None => Exit::Code(status.code().unwrap_or(-1)),
        }))
    }
}

/// A thread that starts processes, for as long as the spawner lives.
///
/// The kernel sends a child its "parent died" signal when the *thread* that forked it ends, and pool threads
/// come and go: so this thread forks all children. When this process is killed, the children die with it.
#[derive(Debug)]
pub struct Spawner {
    requests: mpsc::Sender<(Spawn, mpsc::SyncSender<Result<ChildProcess>>)>,
}

impl Spawner {
    /// Starts the thread. The children of a spawner are killed when it is dropped.
    ///
    /// # Errors
    /// When the system cannot create a thread.
    pub fn start(root: Root) -> Result<Self> {
        let (requests, inbox) = mpsc::channel::<(Spawn, mpsc::SyncSender<Result<ChildProcess>>)>();
        std::thread::Builder::new()
            .name("spawner".to_owned())
            .spawn(move || {
                for (spawn, reply) in inbox {
                    // The receiver is only gone when its thread panicked.
                    let _ = reply.send(start(&root, &spawn));
                }
            })
            .map_err(|error| HostError::call("start the spawner thread", error))?;
        Ok(Self { requests })
    }

    /// Starts a process; blocks for the few milliseconds of fork and exec.
    ///
    /// # Errors
    /// When a group cannot be entered or the program cannot be executed; the text names it.
    pub fn spawn(&self, spawn: Spawn) -> Result<ChildProcess> {
        let stopped = || HostError::call("spawner", io::Error::from(io::ErrorKind::BrokenPipe));
        let (reply, answer) = mpsc::sync_channel(1);
        self.requests.send((spawn, reply)).map_err(|_| stopped())?;
        answer.recv().map_err(|_| stopped())?
    }
}

#[allow(
    unsafe_code,
    reason = "std's pre_exec, to enter the groups between fork and exec"
)]
/// Starts a process in its cgroups, with its identity and streams.
fn start(root: &Root, spawn: &Spawn) -> Result<ChildProcess> {
    let mut entrances = Vec::with_capacity(spawn.cgroups.len());
    for path in &spawn.cgroups {
        let file = OpenOptions::new()
            .write(true)
            .open(path)
            .map_err(|error| HostError::io("open", path, error))?;
        entrances.push(file);
    }
    let mut command = Command::new(&spawn.program);
    command
        .args(&spawn.args)
        .env_clear()
        .envs(spawn.env.iter().map(|(key, value)| (key, value)))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut terminal = None;
    match spawn.streams {
        Streams::Output => command.stdin(Stdio::null()).process_group(0),
        Streams::Piped => command.stdin(Stdio::piped()).process_group(0),
        Streams::Terminal => {
            let (ours, [stdin, stdout, stderr]) = open_terminal(spawn.namespace.as_deref())?;
            terminal = Some(ours);
            command.stdin(stdin).stdout(stdout).stderr(stderr)
        }
    };
    let has_terminal = terminal.is_some();
    let identity = Identity::from_spawn(spawn)?;
    let parent = rustix::process::getpid();
    // SAFETY: the hook runs in the forked child before exec. It only makes system calls that are
    // async-signal-safe (setsid, ioctl, write, umask, setns, unshare, fchdir, chroot, chdir, prctl, capset,
    // getppid, geteuid, setgroups, setgid, setuid) on values that were prepared before the fork, and does
    // not allocate: io::Error from a raw code is a plain number.
    unsafe {
        command.pre_exec(move || {
            if has_terminal {
                rustix::process::setsid()?;
                rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
            }
            prepare_child(&mut entrances, parent, &identity)
        });
    }
    let mut child = command.spawn().map_err(|error| {
        HostError::call(
            format!("start {:?}", spawn.program.to_string_lossy()),
            error,
        )
    })?;
    let pid = child.id();
    let opened = sched::pid(pid).and_then(|raw| {
        pidfd_open(raw, PidfdFlags::NONBLOCK)
            .map_err(|error| HostError::call(format!("pidfd_open({pid})"), error))
    });
    let pidfd = match opened {
        Ok(pidfd) => pidfd,
        Err(error) => {
            // Without the descriptor the child would never be reaped.
            let _ = child.kill();
            let _ = child.wait();
            return Err(error);
        }
    };
    // The child is not reaped yet, so its entry exists even if it already ended.
    let start_ticks = ProcessStat::read(root, pid)
        .ok()
        .flatten()
        .map_or(0, |stat| stat.start_ticks);
    let stdout = child.stdout.take().map(OwnedFd::from);
    let stderr = child.stderr.take().map(OwnedFd::from);
    let stdin = child.stdin.take().map(OwnedFd::from);
    Ok(ChildProcess {
        pid,
        start_ticks,
        pidfd,
        stdout,
        stderr,
        stdin,
        terminal,
        child,
    })
}

/// Returns the parent's side of a new terminal, and three handles of the child's side.
fn open_terminal(namespace: Option<&MountNamespace>) -> Result<(OwnedFd, [Stdio; 3])> {
    use rustix::fs::{Mode, OFlags, openat};
    use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let open = || {
        let parent_side = match namespace {
            None => openpt(flags)?,
            Some(namespace) => {
                let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
                openat(&namespace.terminals, "ptmx", flags, Mode::empty())?
            }
        };
        grantpt(&parent_side)?;
        unlockpt(&parent_side)?;
        let child_side = ioctl_tiocgptpeer(&parent_side, flags)?;
        let streams = [child_side.try_clone()?, child_side.try_clone()?, child_side];
        io::Result::Ok((parent_side, streams.map(Stdio::from)))
    };
    open().map_err(|error| HostError::call("open a terminal", error))
}

/// Sets the size of a terminal's window, in characters.
///
/// # Errors
/// When the descriptor is no terminal.
pub fn resize_terminal(terminal: &OwnedFd, columns: u16, rows: u16) -> Result<()> {
    let size = rustix::termios::Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    rustix::termios::tcsetwinsize(terminal, size)
        .map_err(|error| HostError::call("resize a terminal", error))
}

/// Sends `signal` to every process of the group `pgid`; a group without processes is not an error.
///
/// # Errors
/// When this process lacks the right.
pub fn signal_group(pgid: u32, signal: Signal) -> Result<()> {
    let pid = sched::pid(pgid)?;
    match rustix::process::kill_process_group(pid, signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(HostError::call(format!("kill process group {pgid}"), error)),
    }
}

/// Sends SIGTERM to every process of the group.
///
/// # Errors
/// As [`signal_group`].
pub fn terminate_group(pgid: u32) -> Result<()> {
    signal_group(pgid, Signal::TERM)
}

/// Sends SIGKILL to every process of the group.
///
/// # Errors
/// As [`signal_group`].
pub fn kill_group(pgid: u32) -> Result<()> {
    signal_group(pgid, Signal::KILL)
}

/// Returns a pidfd, which becomes readable when process `pid` ends; `None` when there is no such process.
///
/// # Errors
/// When the system has no descriptor left.
pub fn pidfd(pid: u32) -> Result<Option<OwnedFd>> {
    let Ok(raw) = sched::pid(pid) else {
        return Ok(None);
    };
    match pidfd_open(raw, PidfdFlags::NONBLOCK) {
        Ok(fd) => Ok(Some(fd)),
        // EINVAL: a thread that is not the leader of its group, which only a race can cause.
        Err(rustix::io::Errno::SRCH | rustix::io::Errno::INVAL) => Ok(None),
        Err(error) => Err(HostError::call(format!("pidfd_open({pid})"), error)),
    }
}

/// Sends SIGKILL to `pid`, but only if it is still the process that started at `start_ticks`. Race-free: a
/// pidfd is held while the identity is checked. Returns whether it was signaled.
///
/// # Errors
/// When this process lacks the right, or procfs cannot be read.
pub fn kill_if_same(root: &Root, pid: u32, start_ticks: u64) -> Result<bool> {
    let Ok(raw) = sched::pid(pid) else {
        return Ok(false);
    };
    let fd = match pidfd_open(raw, PidfdFlags::empty()) {
        Ok(fd) => fd,
        Err(rustix::io::Errno::SRCH) => return Ok(false),
        Err(error) => return Err(HostError::call(format!("pidfd_open({pid})"), error)),
    };
    match ProcessStat::read(root, pid)? {
        Some(stat) if stat.start_ticks == start_ticks => {}
        _ => return Ok(false),
    }
    match rustix::process::pidfd_send_signal(&fd, Signal::KILL) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::SRCH) => Ok(false),
        Err(error) => Err(HostError::call(format!("kill {pid}"), error)),
    }
}

/// Sends SIGKILL to every process that was started with the variable `name` set to one of `values`, and to
/// processes that these start meanwhile: a process inherits its environment, even when it leaves its process
/// group and its parents are gone. Processes whose environment cannot be read are skipped. Returns the number
/// of signaled processes.
///
/// # Errors
/// When `/proc` cannot be listed, or a process cannot be signaled; the others are signaled nevertheless.
pub fn kill_by_environment(root: &Root, name: &str, values: &BTreeSet<String>) -> Result<usize> {
    let mut signalled = BTreeSet::new();
    let mut failure = None;
    if values.is_empty() {
        return Ok(0);
    }
    for _ in 0..MAX_ROUNDS {
        let mut processes = with_environment(root, name, values)?;
        processes.retain(|process| !signalled.contains(process));
        if processes.is_empty() {
            break;
        }
        for (pid, start_ticks) in processes {
            signalled.insert((pid, start_ticks));
            if let Err(error) = kill_if_same(root, pid, start_ticks) {
                failure = Some(error);
            }
        }
    }
    failure.map_or(Ok(signalled.len()), Err)
}

/// Maximum number of rounds in which [`kill_by_environment`] searches for processes started meanwhile.
const MAX_ROUNDS: usize = 100;

/// Returns process ids and start times.
fn with_environment(root: &Root, name: &str, values: &BTreeSet<String>) -> Result<Vec<(u32, u64)>> {
    let proc = root.proc("");
    let entries = std::fs::read_dir(&proc).map_err(|error| HostError::io("list", &proc, error))?;
    let mut processes = Vec::new();
    for entry in entries.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|pid| pid.parse().ok()) else {
            continue;
        };
        // The identity first: if the id is reused before the environment is read, the signal finds another
        // start time.
        let stat = ProcessStat::read(root, pid).ok().flatten();
        let environment = root.read(&entry.path().join("environ")).ok().flatten();
        let (Some(stat), Some(environment)) = (stat, environment) else {
            continue;
        };
        let marked = environment
            .split('\0')
            .filter_map(|entry| entry.strip_prefix(name)?.strip_prefix('='))
            .any(|value| values.contains(value));
        if marked {
            processes.push((pid, stat.start_ticks));
        }
    }
    Ok(processes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};
    use std::fs::File;

    fn wait(spawned: &mut ChildProcess) -> Exit {
        let mut fds = [PollFd::new(&spawned.pidfd, PollFlags::IN)];
        poll(&mut fds, None).unwrap();
        spawned.reap().unwrap().unwrap()
    }

    fn shell(script: &str) -> Spawn {
        Spawn {
            program: "/bin/sh".into(),
            args: vec!["-c".into(), script.into()],
            env: vec![("X".into(), "7".into())],
            ..Spawn::default()
        }
    }

    #[test]
    fn exit_codes_output_and_environment() {
        use std::io::Read;
        let spawner = Spawner::start(Root::system().unwrap()).unwrap();
        let mut spawned = spawner.spawn(shell("echo $X; exit 3")).unwrap();
        assert_eq!(wait(&mut spawned), Exit::Code(3));
        let mut text = String::new();
        File::from(spawned.stdout.take().unwrap())
            .read_to_string(&mut text)
            .unwrap();
        assert_eq!(text, "7\n");
    }

    #[test]
    fn signals_reach_the_whole_group() {
        let spawner = Spawner::start(Root::system().unwrap()).unwrap();
        let mut spawned = spawner.spawn(shell("sleep 1000 & wait")).unwrap();
        kill_group(spawned.pid).unwrap();
        let exit = wait(&mut spawned);
        assert_eq!((exit, exit.code()), (Exit::Signal(9), 137));
    }

    #[test]
    fn children_die_with_the_spawner() {
        let spawner = Spawner::start(Root::system().unwrap()).unwrap();
        let mut spawned = spawner.spawn(shell("exec sleep 1000")).unwrap();
        drop(spawner);
        assert_eq!(wait(&mut spawned), Exit::Signal(9));
    }

    #[test]
    fn only_the_recorded_process_is_killed() {
        let root = Root::system().unwrap();
        let spawner = Spawner::start(root.clone()).unwrap();
        let mut spawned = spawner.spawn(shell("exec sleep 1000")).unwrap();
        assert!(!kill_if_same(&root, spawned.pid, spawned.start_ticks + 1).unwrap());
        assert!(kill_if_same(&root, spawned.pid, spawned.start_ticks).unwrap());
        assert_eq!(wait(&mut spawned), Exit::Signal(9));
        assert!(!kill_if_same(&root, spawned.pid, spawned.start_ticks).unwrap());
    }

    #[test]
    fn marked_processes_are_found_wherever_they_went() {
        use std::io::{BufRead, BufReader};
        let root = Root::system().unwrap();
        let spawner = Spawner::start(root.clone()).unwrap();
        let mark = format!("process-test-{}", std::process::id());
        let mut spawn = shell("setsid sleep 1000 & echo $!; exec sleep 1000");
        spawn.env.push(("PATH".into(), "/usr/bin:/bin".into()));
        spawn.env.push(("MARK".into(), mark.clone().into()));
        let mut spawned = spawner.spawn(spawn).unwrap();
        let mut line = String::new();
        BufReader::new(File::from(spawned.stdout.take().unwrap()))
            .read_line(&mut line)
            .unwrap();
        let stray = pidfd(line.trim().parse().unwrap()).unwrap().unwrap();
        kill_group(spawned.pid).unwrap();
        wait(&mut spawned);
        let none = BTreeSet::from(["other".to_owned()]);
        assert_eq!(kill_by_environment(&root, "MARK", &none).unwrap(), 0);
        assert_eq!(
            kill_by_environment(&root, "MARK", &BTreeSet::new()).unwrap(),
            0
        );
        let marks = BTreeSet::from([mark]);
        // It may still be leaving the process group when that is killed.
        assert!(kill_by_environment(&root, "MARK", &marks).unwrap() <= 1);
        poll(&mut [PollFd::new(&stray, PollFlags::IN)], None).unwrap();
        assert_eq!(kill_by_environment(&root, "MARK", &marks).unwrap(), 0);
    }

    fn output(spawned: &mut ChildProcess) -> String {
        use std::io::Read;
        let mut text = String::new();
        File::from(spawned.stdout.take().unwrap())
            .read_to_string(&mut text)
            .unwrap();
        wait(spawned);
        text
    }

    #[test]
    fn identity_of_a_child_is_the_requested_one() {
        if !crate::is_root() {
            return crate::testing::skip("root", "another user cannot be taken");
        }
        let spawner = Spawner::start(Root::system().unwrap()).unwrap();
        let run = |spawn| output(&mut spawner.spawn(spawn).unwrap());
        let status = "umask; exec grep -E 'Uid|Gid|Groups|Cap|NoNew' /proc/self/status";
        let spawn = Spawn {
            capabilities: Capabilities::from_name("KILL"),
            groups: Some(vec![7, 9]),
            no_new_privileges: true,
            gid: Some(5),
            ..shell(status)
        };
        let text = run(spawn.clone());
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace()
                .skip(1)
                .collect::<Vec<_>>()
                .join(" ")
        };
        let kill = "0000000000000020";
        let none = "0000000000000000";
        assert!(text.starts_with("0022\n"), "{text}");
        for (name, value) in [
            ("Uid", "0 0 0 0"),
            ("Gid", "5 5 5 5"),
            ("Groups", "7 9"),
            ("CapInh", none),
            ("CapPrm", kill),
            ("CapEff", kill),
            ("CapBnd", kill),
            ("CapAmb", none),
            ("NoNewPrivs", "1"),
        ] {
            assert_eq!(field(&text, name), value, "{name}");
        }
        let other = Spawn {
            uid: Some(1234),
            ..spawn
        };
        let text = run(other);
        for (name, value) in [
            ("Uid", "1234 1234 1234 1234"),
            ("CapEff", none),
            ("CapPrm", none),
        ] {
            assert_eq!(field(&text, name), value, "{name}");
        }
    }

    #[test]
    fn namespace_hides_and_protects_files() {
        let dir = tempfile::tempdir().unwrap();
        let (secret, open) = (dir.path().join("secret"), dir.path().join("open"));
        std::fs::create_dir(&secret).unwrap();
        std::fs::create_dir(&open).unwrap();
        std::fs::write(secret.join("key"), "x").unwrap();
        let namespace =
            MountNamespace::new(std::slice::from_ref(&secret), std::slice::from_ref(&open));
        let namespace = match namespace {
            Ok(namespace) => Arc::new(namespace),
            Err(error) => return crate::testing::skip("mount-namespace", error),
        };
        let spawner = Spawner::start(Root::system().unwrap()).unwrap();
        let script = format!(
            "cat {0}/key; ls {0}; echo a > {1}/a && echo written; echo b > {2}/b || echo refused; \
             echo x > /dev/null && echo null; ls /run; cat /proc/sys/kernel/ostype; \
             echo core > /proc/sys/kernel/core_pattern || echo refused; ls /dev/sda /dev/vda; pwd",
            secret.display(),
            open.display(),
            dir.path().display(),
        );
        let spawn = Spawn {
            capabilities: Some(Capabilities::default()),
            namespace: Some(namespace.clone()),
            dir: Some("/usr".into()),
            ..shell(&script)
        };
        let mut spawned = spawner.spawn(spawn).unwrap();
        let text = output(&mut spawned);
        let resolv = text
            .replace("systemd\n", "")
            .replace("NetworkManager\n", "");
        assert_eq!(resolv, "written\nrefused\nnull\nLinux\nrefused\n/usr\n");
        assert!(open.join("a").exists() && !dir.path().join("b").exists());
        assert!(secret.join("key").exists());

        // A process that may mount has a namespace of its own: directories that it uncovers stay hidden from
        // the others.
        let script = format!("umount {0} && cat {0}/key", secret.display());
        let mighty = Spawn {
            namespace: Some(namespace.clone()),
            env: vec![("PATH".into(), "/usr/bin:/bin:/sbin".into())],
            ..shell(&script)
        };
        assert_eq!(output(&mut spawner.spawn(mighty).unwrap()), "x");
        let looks = Spawn {
            namespace: Some(namespace),
            ..shell(&format!("cat {}/key", secret.display()))
        };
        assert_eq!(output(&mut spawner.spawn(looks).unwrap()), "");
    }

    #[test]
    fn a_missing_program_is_named() {
        let spawner = Spawner::start(Root::system().unwrap()).unwrap();
        let spawn = Spawn {
            program: "/no/such/program".into(),
            ..Spawn::default()
        };
        let error = spawner.spawn(spawn).unwrap_err();
        assert!(error.to_string().contains("/no/such/program"), "{error}");
        assert!(error.is_gone());
    }
}
