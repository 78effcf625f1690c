//! Containers as processes of this machine.

use crate::command::{self, Invocation};
use crate::container_registry::RunningContainer;
use crate::context::{MARK, Shared};
use crate::exec;
use crate::logs::pump;
use crate::pidfd;
use crate::pod::Amounts;
use crate::runner::{ContainerSpec, Exited, Failure, Runner, Started};
use crate::session::{ExecOptions, Session};
use crate::state::Process;
use futures::FutureExt;
use futures::future::BoxFuture;
use koord_host::CgroupPath;
use koord_host::process::{ChildProcess, Exit, Spawn};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::unix::pipe;
use tokio::task::JoinHandle;

/// Time for which the output of an ended container may stay open, held by a process that left the container's
/// group.
const OUTPUT_GRACE: Duration = Duration::from_secs(1);

/// Scheme of container ids: the part before `://`.
const SCHEME: &str = "koord";

/// Runs containers as processes of this machine.
#[derive(Debug)]
pub(crate) struct ProcessRunner;

/// A running container.
struct ProcessContainer {
    shared: Arc<Shared>,
    /// The pod's uid.
    uid: String,
    id: String,
    /// Process id of the main process, which is also the id of its process group.
    pid: u32,
    group: Option<CgroupPath>,
    /// Invocation that started it; commands run in the container get the same environment and rights.
    invocation: Invocation,
}

impl fmt::Debug for ProcessContainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessContainer")
            .field("id", &self.id)
            .field("pid", &self.pid)
            .finish_non_exhaustive()
    }
}

/// Returns a new container id: 64 hex digits.
pub(crate) fn new_id() -> String {
    let mut id = String::with_capacity(64);
    for _ in 0..4 {
        id.push_str(&format!("{:016x}", fastrand::u64(..)));
    }
    id
}

impl Runner for ProcessRunner {
    fn scheme(&self) -> &str {
        SCHEME
    }

    fn start<'a>(
        &'a self,
        shared: &'a Arc<Shared>,
        spec: ContainerSpec<'a>,
    ) -> BoxFuture<'a, Result<Started, Failure>> {
        start(shared, spec).boxed()
    }
}

/// Starts a container in its own group below the pod's, with its output going to its log.
async fn start(shared: &Arc<Shared>, spec: ContainerSpec<'_>) -> Result<Started, Failure> {
    let ContainerSpec { pod, container, .. } = spec;
    let invocation = command::invocation(pod, container, &shared.host)
        .map_err(|error| Failure::Never(error.reason().to_owned(), error.to_string()))?;
    let id = new_id();
    let fail = |message: String| Failure::Start {
        id: id.clone(),
        message,
    };
    let key = spec.log_key();
    let attempt = spec.attempt;
    let (size, files) = (shared.options.log_max_size, shared.options.log_max_files);
    let log = shared
        .logs
        .create(&key, attempt, size, files)
        .map_err(|error| fail(format!("log file: {error}")))?;
    shared.logs.prune(&key, attempt, 2);
    let mut group = None;
    let mut entrances = Vec::new();
    if let (Some(groups), Some(parent)) = (&shared.groups, spec.group) {
        let settings = Amounts::from_container(container)
            .map_err(|error| fail(error.to_string()))?
            .settings();
        let path = groups
            .make_container(parent, &id, &settings)
            .map_err(|error| fail(error.to_string()))?;
        entrances = groups.entrances(&path);
        group = Some(path);
    }
    let mut argv = invocation.argv.iter().map(OsString::from);
    let spawn = Spawn {
        program: argv.next().unwrap_or_default(),
        args: argv.collect(),
        env: invocation
            .env
            .iter()
            .map(|(name, value)| (name.into(), value.into()))
            .chain([(MARK.into(), OsString::from(&id))])
            .collect(),
        dir: invocation.dir.clone(),
        cgroups: entrances,
        ..invocation.security.spawn(&shared.views)
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
            Err(error) => tracing::warn!(%error, stream, "failed to log the output of a container"),
        }
    }
    drop(log);
    let live = Arc::new(ProcessContainer {
        shared: shared.clone(),
        uid: key.uid,
        id: id.clone(),
        pid: spawned.pid,
        group: group.clone(),
        invocation,
    });
    let exit = wait_for_exit(shared.clone(), id, group, spawned, pumps).boxed();
    let ip = None;
    Ok(Started { live, exit, ip })
}

/// Waits for the main process, kills what it leaves behind, and returns its result.
async fn wait_for_exit(
    shared: Arc<Shared>,
    id: String,
    group: Option<CgroupPath>,
    spawned: ChildProcess,
    pumps: Vec<JoinHandle<()>>,
) -> Exited {
    let pid = spawned.pid;
    let exit = reap(spawned).await.unwrap_or_else(|error| {
        tracing::error!(pid, %error, "failed to wait for a container process");
        Exit::Signal(9)
    });
    let mut out_of_memory = false;
    if let (Some(groups), Some(group)) = (&shared.groups, &group) {
        // Counts kills of any process in the group: a shell reports its child's end as its own.
        out_of_memory = groups.oom_kills(group) > 0;
        // Processes that the main process leaves behind are killed.
        if let Err(error) = groups.empty(group).await {
            tracing::warn!(group = %group, %error, "failed to empty a control group");
        }
    } else {
        if let Err(error) = koord_host::process::kill_group(pid) {
            tracing::debug!(pid, %error, "failed to kill a process group");
        }
        let (root, ids) = (shared.root.clone(), BTreeSet::from([id.clone()]));
        let kill = move || koord_host::process::kill_by_environment(&root, MARK, &ids);
        match tokio::task::spawn_blocking(kill).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                tracing::warn!(pid, %error, "failed to kill orphan processes of a container")
            }
            Err(error) => {
                tracing::warn!(pid, %error, "search for orphan processes of a container interrupted")
            }
        }
    }
    for mut pump in pumps {
        if tokio::time::timeout(OUTPUT_GRACE, &mut pump).await.is_err() {
            pump.abort();
        }
    }
    let reason = match (exit.code(), out_of_memory) {
        (0, _) => "Completed",
        (_, true) => "OOMKilled",
        _ => "Error",
    };
    let signal = match exit {
        Exit::Signal(signal) => Some(signal),
        Exit::Code(_) => None,
    };
    Exited {
        id,
        code: exit.code(),
        signal,
        reason: reason.to_owned(),
        message: String::new(),
    }
}

async fn reap(mut spawned: ChildProcess) -> Result<Exit, koord_host::HostError> {
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

impl RunningContainer for ProcessContainer {
    fn id(&self) -> &str {
        &self.id
    }

    fn terminate(&self, _grace: Duration) {
        if let Err(error) = koord_host::process::terminate_group(self.pid) {
            tracing::warn!(pid = self.pid, %error, "failed to signal a container");
        }
    }

    fn kill(&self) {
        let mut result = koord_host::process::kill_group(self.pid);
        if let (Some(group), true) = (&self.group, self.shared.groups.is_some()) {
            result = result.and(self.shared.root.cgroup(group).kill().map(|_| ()));
        }
        if let Err(error) = result {
            tracing::warn!(pid = self.pid, %error, "failed to kill a container");
        }
    }

    /// Removes the container's cgroup and its entry in the node's state file.
    fn clean(&self) -> BoxFuture<'_, ()> {
        async {
            remove_group(&self.shared, self.group.as_ref()).await;
            self.shared.state.note(|state| {
                if let Some(entry) = state.pods.get_mut(&self.uid) {
                    entry.processes.remove(&self.id);
                }
            });
        }
        .boxed()
    }

    fn exec(&self, options: ExecOptions) -> BoxFuture<'_, Result<Session, String>> {
        let target = exec::ExecTarget {
            id: &self.id,
            group: self.group.as_ref(),
            invocation: &self.invocation,
        };
        async move { exec::spawn(&self.shared, target, options).await }.boxed()
    }
}

async fn remove_group(shared: &Shared, group: Option<&CgroupPath>) {
    if let (Some(groups), Some(group)) = (&shared.groups, group)
        && let Err(error) = groups.remove(group).await
    {
        tracing::warn!(group = %group, %error, "failed to remove a control group");
    }
}
