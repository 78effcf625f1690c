//! Pods and configuration from the kubelet.

mod client;
mod config;
mod metrics;
mod options;
mod poll;
mod rate_limit;
mod split;
#[cfg(test)]
mod tests;

pub use client::KubeletError;
pub(crate) use client::{TOKEN, url_of};
pub use config::Config;
pub use metrics::KubeletMetrics;
pub use options::{Kubelet, kubelet_trust};
pub(crate) use poll::KubeletPoller;
