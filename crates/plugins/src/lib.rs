//! koord-plugins
