//! koord-api
