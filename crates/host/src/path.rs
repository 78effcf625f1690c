//! Validated relative cgroup paths.

use crate::error::{HostError, Result};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

/// A path below the root of a cgroup hierarchy, such as `kubepods/burstable/pod123`.
///
/// It is relative, has no empty, `.` or `..` component and no NUL, so joining it to a mount point
/// can never leave the tree. The empty path is the root group. Clones are cheap.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CgroupPath(Arc<str>);

impl CgroupPath {
    /// Longest accepted path in bytes (the kernel's `PATH_MAX` less room for the mount point).
    pub const MAX_LEN: usize = 3072;
    /// Longest accepted component in bytes (the kernel's `NAME_MAX`).
    pub const MAX_COMPONENT: usize = 255;

    /// Returns the root group of every hierarchy.
    #[must_use]
    pub fn root() -> Self {
        Self(Arc::from(""))
    }

    /// Checks `path`. Leading and trailing slashes are not tolerated.
    ///
    /// # Errors
    /// When the path is absolute, too long, or has an empty, `.` or `..` component or a NUL.
    pub fn new(path: &str) -> Result<Self> {
        let refuse = |reason| {
            Err(HostError::Path {
                path: path.to_owned(),
                reason,
            })
        };
        if path.is_empty() {
            return Ok(Self::root());
        }
        if path.len() > Self::MAX_LEN {
            return refuse("is too long");
        }
        if path.starts_with('/') {
            return refuse("is absolute");
        }
        for component in path.split('/') {
            match component {
                "" => return refuse("has an empty component"),
                "." | ".." => return refuse("has a '.' or '..' component"),
                _ if component.len() > Self::MAX_COMPONENT => {
                    return refuse("has a component longer than 255 bytes");
                }
                _ if component.contains(['\0', '\n']) => {
                    return refuse("contains NUL or a line break");
                }
                _ => {}
            }
        }
        Ok(Self(Arc::from(path)))
    }

    /// Returns `self/relative`, with `relative` checked like in [`CgroupPath::new`].
    ///
    /// # Errors
    /// When `relative` is not a valid path.
    pub fn join(&self, relative: &str) -> Result<Self> {
        let relative = Self::new(relative)?;
        if self.is_root() {
            return Ok(relative);
        }
        if relative.is_root() {
            return Ok(self.clone());
        }
        Self::new(&format!("{}/{}", self.0, relative.0))
    }

    /// Returns the group above; `None` for the root.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        if self.is_root() {
            return None;
        }
        Some(match self.0.rsplit_once('/') {
            Some((parent, _)) => Self(Arc::from(parent)),
            None => Self::root(),
        })
    }

    /// Returns the last component; empty for the root.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or("")
    }

    /// Returns whether this is the root group.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of components.
    #[must_use]
    pub fn depth(&self) -> usize {
        if self.is_root() {
            0
        } else {
            self.0.split('/').count()
        }
    }

    /// Returns whether `self` is `ancestor` or below it.
    #[must_use]
    pub fn is_within(&self, ancestor: &Self) -> bool {
        ancestor.is_root()
            || self.0 == ancestor.0
            || self
                .0
                .strip_prefix(&*ancestor.0)
                .is_some_and(|rest| rest.starts_with('/'))
    }

    /// Returns the path as text, without a leading slash.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the directory of this group below `mount`.
    #[must_use]
    pub fn under(&self, mount: &Path) -> PathBuf {
        if self.is_root() {
            mount.to_owned()
        } else {
            mount.join(&*self.0)
        }
    }
}

impl fmt::Display for CgroupPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}", self.0)
    }
}

impl fmt::Debug for CgroupPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CgroupPath({self})")
    }
}

impl FromStr for CgroupPath {
    type Err = HostError;
    fn from_str(path: &str) -> Result<Self> {
        Self::new(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_that_stay_below_the_root() {
        for good in [
            "",
            "kubepods",
            "kubepods/burstable/pod1",
            "a.slice/b..c",
            "...",
        ] {
            assert!(CgroupPath::new(good).is_ok(), "{good}");
        }
        for bad in [
            "/kubepods",
            "a//b",
            "a/",
            "..",
            "a/../b",
            "./a",
            "a\0b",
            "a\nb",
        ] {
            assert!(CgroupPath::new(bad).is_err(), "{bad:?}");
        }
        assert!(CgroupPath::new(&"x".repeat(256)).is_err());
        assert!(CgroupPath::new(&"x/".repeat(2000)).is_err());
    }

    #[test]
    fn relations() {
        let pod = CgroupPath::new("kubepods/besteffort/pod1").unwrap();
        assert_eq!(pod.name(), "pod1");
        assert_eq!(pod.depth(), 3);
        assert_eq!(pod.parent().unwrap().as_str(), "kubepods/besteffort");
        assert!(pod.is_within(&CgroupPath::new("kubepods").unwrap()));
        assert!(!pod.is_within(&CgroupPath::new("kube").unwrap()));
        assert_eq!(
            CgroupPath::root()
                .join("a")
                .unwrap()
                .join("b/c")
                .unwrap()
                .as_str(),
            "a/b/c"
        );
        assert!(pod.join("../x").is_err());
        assert!(CgroupPath::root().parent().is_none());
    }
}
