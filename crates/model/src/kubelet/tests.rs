//! One kubelet and pods.

mod admission;
mod merge;
mod prediction;
