//! State shared by the tasks of the node.

use crate::command::HostFacts;
use crate::container_registry::ContainerRegistry;
use crate::groups::Groups;
use crate::lifecycle::Backoff;
use crate::logs::Logs;
use crate::options::Options;
use crate::security::Views;
use crate::state::StateFile;
use crate::table::Table;
use koord_app::Clock;
use koord_host::Root;
use koord_host::process::Spawner;
use koord_kube::Client;
use koord_kube::events::Recorder;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Environment variable with the container id of a process. Without groups it is the only way to find a
/// process that left the process group of its container.
pub(crate) const MARK: &str = "KOORD_CONTAINER_ID";

/// State shared by all tasks of the node.
pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) root: Root,
    pub(crate) spawner: Spawner,
    /// `None` when containers are not confined.
    pub(crate) groups: Option<Groups>,
    pub(crate) logs: Logs,
    pub(crate) state: Arc<StateFile>,
    pub(crate) client: Client,
    pub(crate) recorder: Recorder,
    pub(crate) clock: Clock,
    pub(crate) host: HostFacts,
    pub(crate) table: Table,
    /// The only strong reference, so that [`Execs`](crate::Execs) ends with it.
    pub(crate) registry: Arc<ContainerRegistry>,
    /// Views of the machine's files for containers.
    pub(crate) views: Views,
    pub(crate) backoff: Backoff,
    pub(crate) shutdown: CancellationToken,
}
