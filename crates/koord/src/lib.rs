//! The `koord` command: argument parsing and wiring. Decisions live in the component crates.

mod access;
pub mod cli;
pub mod cluster;
pub mod demo;
mod instance_dir;
pub mod runtime;
mod shell;
mod sim_exporter;
pub mod up;

use koord_app::console;
