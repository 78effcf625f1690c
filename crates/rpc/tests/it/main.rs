//! Messages and transports, from outside.

#[path = "../../examples/generate.rs"]
mod generate;
mod messages;
