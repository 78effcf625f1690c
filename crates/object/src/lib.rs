//! Objects as JSON values: metadata, names, quantities, the schemas of built-in types and of custom
//! resources, label selectors and patches. Pure functions, for the API server and for components.

mod index;
pub mod meta;
pub mod names;
pub mod patch;
pub mod quantity;
pub mod schema;
pub mod selector;
pub mod status;

pub use index::{Index, TableId};
pub use status::{ApiError, FieldError};
