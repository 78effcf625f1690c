//! koord-manager
