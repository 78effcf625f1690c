//! Integration tests: the manifests in the repository, and TLS servers that authenticate clients with an API
//! server.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has to panic")]

mod manifests;
mod secure;
mod tls_client;

use koord_kube::secure::SecureServingArgs;
