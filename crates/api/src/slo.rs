//! Types of the API group `slo.koordinator.sh`.

pub mod defaults;
mod host_app;
mod node_metric;
mod node_slo;
mod raw;
mod resource_qos;

pub use host_app::*;
pub use node_metric::*;
pub use node_slo::*;
pub use raw::*;
pub use resource_qos::*;
