//! A plugin's bug costs what the plugin was asked for, and not the scheduler.
//!
//! Whatever the task that owns the engine calls and plugins have a say in goes through here. A panic that got past would
//! end that task, and the next leader would meet the same object.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// What `run` gives; nothing when a plugin panics, which is logged: `about` says over what.
pub(crate) fn guarded<T>(about: &str, run: impl FnOnce() -> T) -> Option<T> {
    let ran = attempted(run);
    ran.inspect_err(|said| tracing::error!(said, "a plugin panicked {about}"))
        .ok()
}

/// The same, with what the plugin said when it panicked.
pub(crate) fn attempted<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        text.or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_default()
    })
}
