//! The self-contained HTML pages of the demos.

pub mod picture;
pub mod suite;
