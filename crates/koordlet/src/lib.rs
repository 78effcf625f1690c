//! koordlet
