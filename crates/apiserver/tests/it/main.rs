//! Integration tests of the API server.

mod serving;
mod store_crash;
