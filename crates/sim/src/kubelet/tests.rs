//! Tests of one kubelet and its pods.

mod admission;
mod list;
mod merge;
mod prediction;
