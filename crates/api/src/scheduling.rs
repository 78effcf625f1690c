//! Types of the API groups `scheduling.koordinator.sh` and `scheduling.sigs.k8s.io`.

mod cluster_network_topology;
mod device;
mod pod_group;
mod pod_migration_job;
mod reservation;
mod schedule_explanation;

pub use cluster_network_topology::*;
pub use device::*;
pub use pod_group::*;
pub use pod_migration_job::*;
pub use reservation::*;
pub use schedule_explanation::*;
