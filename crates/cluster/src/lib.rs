//! What a cluster on an embedded API server has from its first start on: the objects that a Koordinator
//! installation brings along, and the manager's webhooks in the server's own process.

pub mod objects;
pub mod webhooks;
