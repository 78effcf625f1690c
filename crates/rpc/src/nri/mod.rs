//! NRI, the interface between a container runtime and its plugins. The plugin connects; over that connection
//! the runtime calls the [`Plugin`] service of the plugin on channel [`PLUGIN_CHANNEL`], and the plugin the
//! [`Runtime`] service of the runtime on channel [`RUNTIME_CHANNEL`]. [`Stub`] implements a plugin except for
//! its decisions, which are a [`Handler`].

use crate::ttrpc::service;

mod events;
mod session;
mod stub;

pub use events::{events_named, mask, supported};
pub use stub::{Handler, Reply, RequestOutcome, Settings, Socket, Stub, StubEvent};

#[allow(
    clippy::all,
    clippy::allow_attributes_without_reason,
    missing_debug_implementations,
    unreachable_pub,
    rustdoc::all,
    reason = "generated"
)]
mod messages {
    include!("../generated/nri.rs");
}
pub use messages::*;

/// The [mux](crate::mux) channel on which the runtime calls the plugin.
pub const PLUGIN_CHANNEL: u32 = 1;

/// The [mux](crate::mux) channel on which the plugin calls the runtime.
pub const RUNTIME_CHANNEL: u32 = 2;

/// Default socket at which a runtime listens for plugins.
pub const SOCKET: &str = "/var/run/nri/nri.sock";

service! {
    /// Service of a runtime for its plugins.
    "nri.pkg.api.v1alpha1.Runtime": Runtime, RuntimeServer, RuntimeClient {
        /// Registers the plugin; this is the first call.
        "RegisterPlugin" register_plugin(RegisterPluginRequest) -> Empty;
        /// Updates containers outside of any event. Must not be called from an event handler: the runtime
        /// holds its lock meanwhile.
        "UpdateContainers" update_containers(UpdateContainersRequest) -> UpdateContainersResponse;
    }
}

service! {
    /// Service of a plugin for its runtime. Runtimes before 0.12 send [`state_change`](Plugin::state_change)
    /// where newer ones have a call for each event.
    "nri.pkg.api.v1alpha1.Plugin": Plugin, PluginServer, PluginClient {
        /// Configures the plugin; this is the first call after registration. The response names the events to
        /// subscribe to.
        "Configure" configure(ConfigureRequest) -> ConfigureResponse;
        /// Sends the existing pods and containers, since 0.7 in several parts.
        "Synchronize" synchronize(SynchronizeRequest) -> SynchronizeResponse;
        /// Announces that the runtime stops.
        "Shutdown" shutdown(Empty) -> Empty;
        /// A pod's sandbox runs; its containers do not exist yet.
        "RunPodSandbox" run_pod_sandbox(RunPodSandboxRequest) -> RunPodSandboxResponse;
        /// A pod's resources are about to change.
        "UpdatePodSandbox" update_pod_sandbox(UpdatePodSandboxRequest) -> UpdatePodSandboxResponse;
        /// A pod's resources have changed.
        "PostUpdatePodSandbox" post_update_pod_sandbox(PostUpdatePodSandboxRequest) -> PostUpdatePodSandboxResponse;
        /// A pod's sandbox is stopped.
        "StopPodSandbox" stop_pod_sandbox(StopPodSandboxRequest) -> StopPodSandboxResponse;
        /// A pod's sandbox is removed.
        "RemovePodSandbox" remove_pod_sandbox(RemovePodSandboxRequest) -> RemovePodSandboxResponse;
        /// A container is about to be created; the response may adjust it.
        "CreateContainer" create_container(CreateContainerRequest) -> CreateContainerResponse;
        /// A container was created.
        "PostCreateContainer" post_create_container(PostCreateContainerRequest) -> PostCreateContainerResponse;
        /// A container is about to start.
        "StartContainer" start_container(StartContainerRequest) -> StartContainerResponse;
        /// A container has started.
        "PostStartContainer" post_start_container(PostStartContainerRequest) -> PostStartContainerResponse;
        /// A container's resources are about to change; the response may adjust the change.
        "UpdateContainer" update_container(UpdateContainerRequest) -> UpdateContainerResponse;
        /// A container's resources have changed.
        "PostUpdateContainer" post_update_container(PostUpdateContainerRequest) -> PostUpdateContainerResponse;
        /// A container is stopped; the response may update others.
        "StopContainer" stop_container(StopContainerRequest) -> StopContainerResponse;
        /// A container is removed.
        "RemoveContainer" remove_container(RemoveContainerRequest) -> RemoveContainerResponse;
        /// An event that has no call of its own in the runtime's version.
        "StateChange" state_change(StateChangeEvent) -> Empty;
        /// The combined adjustment of all plugins for a container; the response may reject it.
        "ValidateContainerAdjustment" validate_container_adjustment(ValidateContainerAdjustmentRequest) -> ValidateContainerAdjustmentResponse;
    }
}
