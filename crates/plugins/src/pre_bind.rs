//! `DefaultPreBind`: writes the annotation patches that the other pre-bind plugins collected.
//!
//! The patch is part of every binding request, so this plugin does nothing. Its name must exist because
//! configurations list it.

use koord_scheduler::framework::{Plugin, Points, Roles};

pub(crate) const NAME: &str = "DefaultPreBind";

/// The `DefaultPreBind` plugin; it does nothing, since binding requests already carry the patch.
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
