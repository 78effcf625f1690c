//! koord-sim
