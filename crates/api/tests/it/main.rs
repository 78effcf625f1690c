//! Behaviour of the API types as other programs see them.

mod crds;
mod samples;
