//! One kubelet and pods.

mod admission;
mod list;
mod merge;
mod prediction;
