//! The `koord` command: argument parsing and wiring. Decisions live in the component crates.

mod access;
pub mod audit;
pub mod bench;
pub mod cli;
pub mod cluster;
mod crds;
pub mod demo;
pub mod explain;
mod exported;
pub mod node;
mod place;
pub mod plain;
pub mod recommend;
pub mod running;
pub mod runtime;
pub mod up;
pub mod workload;

use koord_app::console;
