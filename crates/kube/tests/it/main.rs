//! Integration tests: what the repository ships for clusters, and TLS servers whose callers an API server knows.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has to panic")]

mod manifests;
mod secure;
mod tls_client;

use koord_kube::secure::SecureServingArgs;
