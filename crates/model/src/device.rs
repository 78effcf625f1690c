//! Devices: what pods ask for and which devices they get.
