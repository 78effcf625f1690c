//! The `koord` command as its users meet it: processes, kubectl, kill -9.

mod crash;
mod harness;
mod kubectl;
