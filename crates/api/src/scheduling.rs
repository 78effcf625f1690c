//! Types of the API groups `scheduling.koordinator.sh` and `scheduling.sigs.k8s.io`.

mod device;

pub use device::*;
