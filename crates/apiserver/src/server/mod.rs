//! Serving over the network: TLS, authentication, health, metrics.
