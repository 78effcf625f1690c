//! Resource limits of this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit of open files to the hard one and returns the new limit; `None` means no limit. An
/// agent keeps several files per container open, more than the usual soft limit of 1024.
#[must_use]
pub fn raise_open_files() -> Option<u64> {
    let now = getrlimit(Resource::Nofile);
    if now.current == now.maximum {
        return now.current;
    }
    let raised = Rlimit {
        current: now.maximum,
        maximum: now.maximum,
    };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => now.maximum,
        Err(_) => now.current,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_limit_never_falls() {
        let first = super::raise_open_files().unwrap_or(u64::MAX);
        assert!(first > 0);
        assert_eq!(super::raise_open_files().unwrap_or(u64::MAX), first);
    }
}
