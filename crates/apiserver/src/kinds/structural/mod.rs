//! Structural schemas of custom resources.
