//! koord-host against the real kernel of this machine, and the fake against both.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "test code")]

mod comparison;
mod confined;
mod lockstep;
mod nvml;
mod support;
