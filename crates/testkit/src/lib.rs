//! What lab and tests share: a strict fake of the kernel's trees, a container runtime, and how a test says that it
//! does not run.

pub mod fake;
pub mod testing;
