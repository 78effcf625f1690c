//! Reservations: owners, matching and what is left of them.
