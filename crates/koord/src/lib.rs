//! The `koord` command: argument parsing and wiring. Decisions live in the component crates.

mod access;
pub mod cli;
pub mod cluster;
pub mod demo;
mod exported;
mod place;
pub mod runtime;
pub mod up;

use koord_app::console;
