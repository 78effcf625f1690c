//! koord-scheduler
