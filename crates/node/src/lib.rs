//! koord-node
