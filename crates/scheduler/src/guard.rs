//! Contains panics of plugins, so that a plugin's bug affects one operation and not the whole scheduler.
//!
//! The task that owns the engine makes every call that runs plugin code through here. An uncaught panic would
//! end that task, and the next leader would fail on the same object.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `run` and returns its result, or `None` if a plugin panics. The panic is logged with the `operation`.
pub(crate) fn guarded<T>(operation: &str, run: impl FnOnce() -> T) -> Option<T> {
    catch_panic(run)
        .inspect_err(|panic| {
            tracing::error!(operation, panic, "skipping an operation, a plugin panicked")
        })
        .ok()
}

/// Runs `run` and returns its result, or the panic message if a plugin panics.
pub(crate) fn catch_panic<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        text.or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_default()
    })
}
