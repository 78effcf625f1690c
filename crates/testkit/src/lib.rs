//! Common parts of lab and tests: a strict fake of the kernel's trees, a container runtime, and the record of
//! skipped tests.

pub mod fake;
pub mod testing;
