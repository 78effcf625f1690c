//! Coscheduling: gangs.
