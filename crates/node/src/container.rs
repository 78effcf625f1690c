//! One start of one container: log, group, process, end.

use crate::agent::Shared;
use crate::command::Invocation;
use crate::exec::{self, Place};
use crate::lifecycle::Ended;
use crate::logs::{LogKey, pump};
use crate::pidfd;
use crate::pod::Amounts;
use crate::state::Process;
use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use koord_host::CgroupPath;
use koord_host::process::{Exit, Spawn, Spawned};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::unix::pipe;
use tokio::task::{AbortHandle, JoinHandle};

/// How long the output of an ended container may stay open, in the hands of a process that left
/// the container's group.
const OUTPUT_GRACE: Duration = Duration::from_secs(1);

/// The variable that says which container a process belongs to. Without groups it is the only way
/// to find a process that left the process group of its container.
pub(crate) const MARK: &str = "KOORD_CONTAINER_ID";

/// A container that runs.
#[derive(Debug)]
pub(crate) struct Running {
    /// Index of its record.
    pub(crate) index: usize,
    /// Its id.
    pub(crate) id: String,
    /// Its process, and the process group of that.
    pub(crate) pid: u32,
    group: Option<CgroupPath>,
    /// Ends its probes with it.
    pub(crate) probes: Option<AbortOnDrop>,
}

/// A task that ends when this goes.
#[derive(Debug)]
pub(crate) struct AbortOnDrop(pub(crate) AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A container whose main process has ended.
#[derive(Debug)]
pub(crate) struct Exited {
    pub(crate) id: String,
    exit: Exit,
    out_of_memory: bool,
}

/// A container that could not be started.
#[derive(Debug)]
pub(crate) struct StartFailure {
    pub(crate) id: String,
    pub(crate) message: String,
}

impl Exited {
    /// What is told about the end.
    pub(crate) fn ended(&self, started_at: Timestamp, finished_at: Timestamp) -> Ended {
        let signal = match self.exit {
            Exit::Signal(signal) => Some(signal),
            Exit::Code(_) => None,
        };
        let reason = match (self.exit.code(), self.out_of_memory) {
            (0, _) => "Completed",
            (_, true) => "OOMKilled",
            _ => "Error",
        };
        Ended {
            exit_code: self.exit.code(),
            signal,
            reason: reason.to_owned(),
            message: String::new(),
            started_at,
            finished_at,
            id: self.id.clone(),
        }
    }
}

/// A new container id: 64 hex digits.
pub(crate) fn new_id() -> String {
    let mut id = String::with_capacity(64);
    for _ in 0..4 {
        id.push_str(&format!("{:016x}", fastrand::u64(..)));
    }
    id
}

/// Starts a container in its own group below `pod_group`, with its output going to its log. The
/// future resolves when it has ended and everything it said is in the log.
pub(crate) async fn start(
    shared: &Arc<Shared>,
    pod: &Pod,
    container: &Container,
    pod_group: Option<CgroupPath>,
    attempt: u32,
    invocation: Invocation,
    index: usize,
) -> Result<(Running, Place, BoxFuture<'static, Exited>), StartFailure> {
    let id = new_id();
    let fail = |message: String| StartFailure {
        id: id.clone(),
        message,
    };
    let meta = &pod.metadata;
    let key = LogKey {
        namespace: meta.namespace.clone().unwrap_or_default(),
        pod: meta.name.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
        container: container.name.clone(),
    };
    let (size, files) = (shared.options.log_max_size, shared.options.log_max_files);
    let log = shared
        .logs
        .create(&key, attempt, size, files)
        .map_err(|error| fail(format!("log file: {error}")))?;
    shared.logs.prune(&key, attempt, 2);
    let mut group = None;
    let mut entrances = Vec::new();
    if let (Some(groups), Some(parent)) = (&shared.groups, &pod_group) {
        let settings = Amounts::of(container)
            .map_err(|error| fail(error.to_string()))?
            .settings();
        let path = groups
            .make_container(parent, &id, &settings)
            .map_err(|error| fail(error.to_string()))?;
        entrances = groups.entrances(&path);
        group = Some(path);
    }
    let mut words = invocation.argv.iter().map(OsString::from);
    let spawn = Spawn {
        program: words.next().unwrap_or_default(),
        args: words.collect(),
        env: invocation
            .env
            .iter()
            .map(|(name, value)| (name.into(), value.into()))
            .chain([(MARK.into(), OsString::from(&id))])
            .collect(),
        dir: invocation.dir.clone(),
        cgroups: entrances,
        uid: invocation.uid,
        gid: invocation.gid,
        ..Spawn::default()
    };
    let spawner = shared.clone();
    let spawned = tokio::task::spawn_blocking(move || spawner.spawner.spawn(spawn)).await;
    let mut spawned = match spawned {
        Ok(Ok(spawned)) => spawned,
        Ok(Err(error)) => {
            remove_group(shared, group.as_ref()).await;
            return Err(fail(error.to_string()));
        }
        Err(error) => return Err(fail(format!("start was interrupted: {error}"))),
    };
    let process = Process {
        pid: spawned.pid,
        start_ticks: spawned.start_ticks,
    };
    shared.state.note(|state| {
        let entry = state.pods.entry(key.uid.clone()).or_default();
        entry.name = format!("{}/{}", key.namespace, key.pod);
        entry.processes.insert(id.clone(), process);
    });
    let mut pumps: Vec<JoinHandle<()>> = Vec::new();
    for (stream, output) in [
        ("stdout", spawned.stdout.take()),
        ("stderr", spawned.stderr.take()),
    ] {
        let Some(output) = output else { continue };
        match pipe::Receiver::from_owned_fd(output) {
            Ok(output) => {
                pumps.push(tokio::spawn(pump(
                    output,
                    stream,
                    log.clone(),
                    shared.clock.clone(),
                )));
            }
            Err(error) => tracing::warn!(%error, stream, "output is not logged"),
        }
    }
    drop(log);
    let place = Place {
        id: id.clone(),
        group: group.clone(),
        invocation,
    };
    shared.places.put(exec::key_of(&key), place.clone());
    let running = Running {
        index,
        id: id.clone(),
        pid: spawned.pid,
        group: group.clone(),
        probes: None,
    };
    let exit = wait(shared.clone(), id, group, spawned, pumps).boxed();
    Ok((running, place, exit))
}

async fn wait(
    shared: Arc<Shared>,
    id: String,
    group: Option<CgroupPath>,
    spawned: Spawned,
    pumps: Vec<JoinHandle<()>>,
) -> Exited {
    let pid = spawned.pid;
    let exit = reap(spawned).await.unwrap_or_else(|error| {
        tracing::error!(pid, %error, "container process lost");
        Exit::Signal(9)
    });
    let mut out_of_memory = false;
    if let (Some(groups), Some(group)) = (&shared.groups, &group) {
        // Whichever of its processes was killed: a shell reports its child's end as its own.
        out_of_memory = groups.oom_kills(group) > 0;
        // What the main process leaves behind ends with it.
        if let Err(error) = groups.empty(group).await {
            tracing::warn!(group = %group, %error, "control group not emptied");
        }
    } else {
        if let Err(error) = koord_host::process::kill_group(pid) {
            tracing::debug!(pid, %error, "process group not killed");
        }
        let (root, ids) = (shared.root.clone(), BTreeSet::from([id.clone()]));
        let kill = move || koord_host::process::kill_by_environment(&root, MARK, &ids);
        match tokio::task::spawn_blocking(kill).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(pid, %error, "strays of a container not killed"),
            Err(error) => tracing::warn!(pid, %error, "strays of a container not looked for"),
        }
    }
    for mut pump in pumps {
        if tokio::time::timeout(OUTPUT_GRACE, &mut pump).await.is_err() {
            pump.abort();
        }
    }
    Exited {
        id,
        exit,
        out_of_memory,
    }
}

async fn reap(mut spawned: Spawned) -> Result<Exit, koord_host::HostError> {
    let call = |source| koord_host::HostError::Call {
        call: "watch a process".into(),
        source,
    };
    loop {
        if let Some(exit) = spawned.reap()? {
            return Ok(exit);
        }
        pidfd::ended(spawned.pidfd.try_clone().map_err(call)?)
            .await
            .map_err(call)?;
    }
}

/// Kills a container that did not end in time.
pub(crate) fn kill(shared: &Shared, running: &Running) {
    let mut result = koord_host::process::kill_group(running.pid);
    if let (Some(group), true) = (&running.group, shared.groups.is_some()) {
        result = result.and(shared.root.cgroup(group).kill().map(|_| ()));
    }
    if let Err(error) = result {
        tracing::warn!(pid = running.pid, %error, "container not killed");
    }
}

/// Removes what an ended container leaves: its group and its entry in the state.
pub(crate) async fn clean(shared: &Shared, pod: &Pod, running: &Running) {
    shared.places.remove(&running.id);
    remove_group(shared, running.group.as_ref()).await;
    let uid = pod.metadata.uid.clone().unwrap_or_default();
    shared.state.note(|state| {
        if let Some(entry) = state.pods.get_mut(&uid) {
            entry.processes.remove(&running.id);
        }
    });
}

async fn remove_group(shared: &Shared, group: Option<&CgroupPath>) {
    if let (Some(groups), Some(group)) = (&shared.groups, group)
        && let Err(error) = groups.remove(group).await
    {
        tracing::warn!(group = %group, %error, "control group not removed");
    }
}
