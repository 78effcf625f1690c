//! The file by which koord-runtime-proxy knows this hook server.

use koord_api::hookserver::{FAIL, HookServer, IGNORE, KOORDLET};
use std::io;
use std::path::Path;
use std::str::FromStr;

/// What becomes of a container whose hook fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// It is created as it was asked for.
    Ignore,
    /// It is not created.
    Fail,
}

/// A policy that there is not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("must be Fail or Ignore, got {0:?}")]
pub struct UnknownPolicy(String);

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        match text {
            FAIL => Ok(Self::Fail),
            IGNORE => Ok(Self::Ignore),
            other => Err(UnknownPolicy(other.to_owned())),
        }
    }
}

impl Policy {
    /// Its name in flags and files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ignore => IGNORE,
            Self::Fail => FAIL,
        }
    }
}

/// Writes the registration at once: a reader sees the old file or the new one.
pub(super) fn write(directory: &Path, server: &HookServer) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    // Its name must not end like one that counts.
    let new = directory.join(format!(".{KOORDLET}.new"));
    std::fs::write(&new, server.to_json()?)?;
    std::fs::rename(&new, directory.join(KOORDLET))
}

/// Removes what an earlier run left: the proxy must not ask for what the runtime does now.
pub(super) fn remove(directory: &Path) {
    let path = directory.join(KOORDLET);
    match std::fs::remove_file(&path) {
        Ok(()) => tracing::info!(path = %path.display(), "registration of the hook server removed"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "the hook server stays registered");
        }
    }
}
