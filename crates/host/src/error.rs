//! Errors that carry the path and the offending content.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// The result of an operation on the kernel.
pub type Result<T> = std::result::Result<T, HostError>;

/// Content that does not have the expected format, without its location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed {
    /// The expected format.
    pub expected: &'static str,
    /// The actual content, shortened.
    pub found: String,
}

impl Malformed {
    /// Creates the error for `found` in place of `expected`.
    #[must_use]
    pub fn new(expected: &'static str, found: &str) -> Self {
        Self {
            expected,
            found: excerpt(found),
        }
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {}, found {:?}", self.expected, self.found)
    }
}

impl std::error::Error for Malformed {}

/// An error of an operation on the kernel's interfaces.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// A file or directory operation failed.
    #[error("{operation} {}: {source}", path.display())]
    Io {
        /// The operation that failed: "read", "create", ...
        operation: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel refused a value.
    #[error("write {value:?} to {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The refused value.
        value: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A file does not have the expected format.
    #[error("{}: {malformed}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The expected format and the actual content.
        malformed: Malformed,
    },
    /// A value that this resource cannot take; nothing was written.
    #[error("{resource}: invalid value {value:?}: {expected}")]
    Invalid {
        /// The resource, by its cgroup v1 file name.
        resource: &'static str,
        /// The refused value.
        value: String,
        /// The valid values.
        expected: &'static str,
    },
    /// The resource has no file in the mounted cgroup version.
    #[error("{resource} does not exist in {version}")]
    Unsupported {
        /// The resource, by its cgroup v1 file name.
        resource: &'static str,
        /// The cgroup version, or the missing hierarchy.
        version: &'static str,
    },
    /// A cgroup path that could leave the cgroup tree.
    #[error("cgroup path {path:?}: {reason}")]
    Path {
        /// The refused path.
        path: String,
        /// The reason for the rejection.
        reason: &'static str,
    },
    /// A system call on something that is not a file failed.
    #[error("{call}: {source}")]
    Call {
        /// The call and its subject.
        call: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl HostError {
    /// Returns the error of an `operation` on `path` that the kernel refused with `source`.
    #[must_use]
    pub fn io(operation: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io {
            operation,
            path: path.to_owned(),
            source,
        }
    }

    pub(crate) fn malformed(path: &Path, malformed: Malformed) -> Self {
        Self::Malformed {
            path: path.to_owned(),
            malformed,
        }
    }

    pub(crate) fn call(call: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Call {
            call: call.into(),
            source: source.into(),
        }
    }

    /// Returns the operating system's error number, if there is one.
    #[must_use]
    pub fn os_error(&self) -> Option<i32> {
        match self {
            Self::Io { source, .. } | Self::Write { source, .. } | Self::Call { source, .. } => {
                source.raw_os_error()
            }
            _ => None,
        }
    }

    /// Returns whether the group, process or file does not exist (any more).
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.os_error().is_some_and(is_gone_code)
    }

    /// Returns whether the resource does not exist on this kernel or in this cgroup version.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        matches!(self, Self::Unsupported { .. })
            || self.os_error().is_some_and(|code| code == libc::EOPNOTSUPP)
    }

    /// Returns true if the same write may succeed a moment later.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        let transient = [libc::EBUSY, libc::EAGAIN, libc::EINTR, libc::ENOMEM];
        self.os_error()
            .is_some_and(|code| transient.contains(&code))
    }

    /// Returns whether this process lacks the right, or the tree is read-only.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        self.os_error()
            .is_some_and(|code| matches!(code, libc::EACCES | libc::EPERM | libc::EROFS))
    }
}

/// Returns whether an error number means that something no longer exists. ENOENT: no such file; ENODEV: open
/// cgroup file of a removed group; ESRCH: process is gone.
pub(crate) fn is_gone_code(code: i32) -> bool {
    matches!(
        code,
        libc::ENOENT | libc::ENODEV | libc::ESRCH | libc::ENOTDIR
    )
}

pub(crate) fn is_gone(error: &io::Error) -> bool {
    error.raw_os_error().is_some_and(is_gone_code)
}

fn excerpt(content: &str) -> String {
    const LIMIT: usize = 120;
    match content.char_indices().nth(LIMIT) {
        None => content.to_owned(),
        Some((end, _)) => format!("{}…", &content[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_path_and_content() {
        let error =
            HostError::malformed(Path::new("/x/cpu.stat"), Malformed::new("a number", "zz"));
        assert_eq!(
            error.to_string(),
            "/x/cpu.stat: expected a number, found \"zz\""
        );
        let error = HostError::Write {
            path: "/x/cpu.shares".into(),
            value: "q".into(),
            source: io::Error::from_raw_os_error(libc::EINVAL),
        };
        assert!(
            error
                .to_string()
                .starts_with("write \"q\" to /x/cpu.shares: Invalid argument")
        );
        assert!(!error.is_gone());
    }

    #[test]
    fn long_content_is_shortened() {
        let shown = Malformed::new("x", &"é".repeat(500)).found;
        assert_eq!(shown.chars().count(), 121);
    }
}
