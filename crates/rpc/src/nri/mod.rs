//! NRI: a container runtime and its plugins. The plugin connects; over that connection the runtime
//! calls the [`Plugin`] service of the plugin, over channel [`PLUGIN_CHANNEL`], and the plugin the
//! [`Runtime`] service of the runtime, over channel [`RUNTIME_CHANNEL`]. [`Stub`] is all of a plugin but
//! its decisions, which are a [`Handler`].

use crate::ttrpc::service;

mod events;
mod session;
mod stub;

pub use events::{events_named, known, mask};
pub use stub::{Handler, Outcome, Reply, Seen, Settings, Socket, Stub};

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

/// Where a runtime listens for plugins unless it is forward_events otherwise.
pub const SOCKET: &str = "/var/run/nri/nri.sock";

service! {
    /// What a plugin asks of its runtime.
    "nri.pkg.api.v1alpha1.Runtime": Runtime, RuntimeServer, RuntimeClient {
        /// The first call: who the plugin is.
        "RegisterPlugin" register_plugin(RegisterPluginRequest) -> Empty;
        /// Changes containers outside of any event. Not from within an event's handler: the runtime
        /// holds its lock meanwhile.
        "UpdateContainers" update_containers(UpdateContainersRequest) -> UpdateContainersResponse;
    }
}

service! {
    /// What a runtime asks of its plugins, and tells them. Runtimes before 0.12 send
    /// [`state_change`](Plugin::state_change) where newer ones have a call for each event.
    "nri.pkg.api.v1alpha1.Plugin": Plugin, PluginServer, PluginClient {
        /// The first call after registration; the answer names the events that the plugin wants.
        "Configure" configure(ConfigureRequest) -> ConfigureResponse;
        /// What there is: pods and containers, since 0.7 in several parts.
        "Synchronize" synchronize(SynchronizeRequest) -> SynchronizeResponse;
        /// The runtime ends.
        "Shutdown" shutdown(Empty) -> Empty;
        /// A pod's sandbox runs, its containers are still to come.
        "RunPodSandbox" run_pod_sandbox(RunPodSandboxRequest) -> RunPodSandboxResponse;
        /// A pod's resources are about to change.
        "UpdatePodSandbox" update_pod_sandbox(UpdatePodSandboxRequest) -> UpdatePodSandboxResponse;
        /// They have changed.
        "PostUpdatePodSandbox" post_update_pod_sandbox(PostUpdatePodSandboxRequest) -> PostUpdatePodSandboxResponse;
        /// A pod's sandbox is stopped.
        "StopPodSandbox" stop_pod_sandbox(StopPodSandboxRequest) -> StopPodSandboxResponse;
        /// A pod's sandbox is removed.
        "RemovePodSandbox" remove_pod_sandbox(RemovePodSandboxRequest) -> RemovePodSandboxResponse;
        /// A container is about to be created; the answer may change it.
        "CreateContainer" create_container(CreateContainerRequest) -> CreateContainerResponse;
        /// It is created.
        "PostCreateContainer" post_create_container(PostCreateContainerRequest) -> PostCreateContainerResponse;
        /// A container is about to start.
        "StartContainer" start_container(StartContainerRequest) -> StartContainerResponse;
        /// It has started.
        "PostStartContainer" post_start_container(PostStartContainerRequest) -> PostStartContainerResponse;
        /// A container's resources are about to change; the answer may change how.
        "UpdateContainer" update_container(UpdateContainerRequest) -> UpdateContainerResponse;
        /// They have changed.
        "PostUpdateContainer" post_update_container(PostUpdateContainerRequest) -> PostUpdateContainerResponse;
        /// A container is stopped; the answer may change others.
        "StopContainer" stop_container(StopContainerRequest) -> StopContainerResponse;
        /// A container is removed.
        "RemoveContainer" remove_container(RemoveContainerRequest) -> RemoveContainerResponse;
        /// An event that has no call of its own in the runtime's version.
        "StateChange" state_change(StateChangeEvent) -> Empty;
        /// What all plugins together want of a container; the answer may refuse it.
        "ValidateContainerAdjustment" validate_container_adjustment(ValidateContainerAdjustmentRequest) -> ValidateContainerAdjustmentResponse;
    }
}
