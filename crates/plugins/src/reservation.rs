//! Reservation: room held for pods to come.
