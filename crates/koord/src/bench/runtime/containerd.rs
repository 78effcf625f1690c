//! A containerd of the measurement's own, by the script that tests use.

use anyhow::{Context as _, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The script is part of this program: it may run far from the repository.
const SCRIPT: &str = include_str!("../../../../../bench/containerd");

/// A running one; stopped with all that it runs on drop.
pub(super) struct Containerd {
    directory: PathBuf,
    run: PathBuf,
}

fn script(verb: &str, directory: &Path, run: &Path) -> Result<()> {
    let done = Command::new("bash")
        .args(["-c", SCRIPT, "containerd", verb])
        .args([directory, run])
        .output()
        .context("bash")?;
    if !done.status.success() {
        bail!("{}", String::from_utf8_lossy(&done.stderr).trim());
    }
    Ok(())
}

impl Drop for Containerd {
    fn drop(&mut self) {
        if let Err(error) = script("stop", &self.directory, &self.run) {
            tracing::warn!(%error, "containerd is left behind");
        }
    }
}

impl Containerd {
    /// Starts the one of `directory`, with everything it has below `run`.
    ///
    /// # Errors
    /// What the script says.
    pub(super) fn start(directory: &Path, run: &Path) -> Result<Self> {
        let one = Self {
            directory: directory.to_owned(),
            run: run.to_owned(),
        };
        script("start", directory, run)?;
        Ok(one)
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.run.join("containerd.sock")
    }

    pub(super) fn nri_socket(&self) -> PathBuf {
        self.run.join("nri.sock")
    }

    /// A directory for what pods write.
    pub(super) fn logs(&self) -> PathBuf {
        self.run.join("logs")
    }
}
