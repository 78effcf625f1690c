//! Initial content of a cluster on an embedded API server: the objects of a Koordinator installation, and the
//! manager's webhooks in the server's own process.

pub mod objects;
pub mod webhooks;
