//! koord-model
