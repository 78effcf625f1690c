//! What koord says to a node's other programs, and hears: container runtime, kubelet, runtime proxy.
//!
//! * [`cri`], [`deviceplugin`], [`hooks`] and [`podresources`]: messages, clients and servers of the
//!   gRPC services, generated from the definitions in `proto`; [`grpc`] carries them; [`lister`] is the
//!   kubelet's end of the last;
//! * [`nri`]: the messages and services of NRI; [`ttrpc`] and [`mux`] carry them.
//!
//! Everything here moves bytes and messages. This crate must never know what a message is good for:
//! pods, QoS and what a container shall get are decided elsewhere. It depends on no other crate of
//! koord.

pub mod grpc;
mod io;
pub mod lister;
pub mod mux;
pub mod nri;
pub mod ttrpc;

/// Generated code: what it holds is described in `proto`, where its lines come from.
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
    /// Kubernetes' Container Runtime Interface, `runtime.v1`: what the kubelet asks of a runtime.
    cri
}
generated! {
    /// The kubelet's device plugin API, `v1beta1`.
    deviceplugin
}
generated! {
    /// Koordinator's `runtime.v1alpha1`: what a runtime proxy asks of koordlet.
    hooks
}
generated! {
    /// The kubelet's PodResources API, `v1`: which devices, CPUs and memory each container has.
    podresources
}
