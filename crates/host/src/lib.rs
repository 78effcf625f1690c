//! koord-host
