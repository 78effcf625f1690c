//! `DefaultPreBind`: sends what the other pre-bind plugins collected.
//!
//! The patch is part of every binding request, so there is nothing to do here; the name must be
//! known because configurations list it.

use koord_scheduler::framework::{Plugin, Points, Roles};

pub(crate) const NAME: &str = "DefaultPreBind";

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct DefaultPreBind;

impl Plugin for DefaultPreBind {
    const ROLES: Roles<Self> = Roles::none();

    fn name(&self) -> &'static str {
        NAME
    }
    fn points(&self) -> Points {
        Points::PRE_BIND
    }
}
