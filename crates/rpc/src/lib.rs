//! Protocols between koord and other programs on a node: container runtime, kubelet, runtime proxy.
//!
//! * [`cri`], [`deviceplugin`], [`hooks`] and [`podresources`]: messages, clients and servers of the
//!   gRPC services, generated from the definitions in `proto`; [`grpc`] is their transport; [`lister`] is
//!   the kubelet's end of PodResources;
//! * [`nri`]: the messages and services of NRI; [`ttrpc`] and [`mux`] are their transport.
//!
//! This crate only transfers bytes and messages. It must not interpret messages: decisions about pods, QoS
//! and the resources of containers are made elsewhere. It depends on no other crate of koord.

pub mod grpc;
mod io;
pub mod lister;
pub mod mux;
pub mod nri;
pub mod ttrpc;

/// Includes generated code, which the definitions in `proto` document.
macro_rules! generated {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[allow(
            clippy::all,
            clippy::allow_attributes_without_reason,
            clippy::large_futures,
            missing_debug_implementations,
            unreachable_pub,
            rustdoc::all,
            reason = "generated"
        )]
        pub mod $name {
            include!(concat!("generated/", stringify!($name), ".rs"));
        }
    };
}

generated! {
    /// Kubernetes' Container Runtime Interface, `runtime.v1`: calls of the kubelet to a runtime.
    cri
}
generated! {
    /// The kubelet's device plugin API, `v1beta1`.
    deviceplugin
}
generated! {
    /// Koordinator's `runtime.v1alpha1`: calls of a runtime proxy to koordlet.
    hooks
}
generated! {
    /// The kubelet's PodResources API, `v1`: which devices, CPUs and memory each container has.
    podresources
}
