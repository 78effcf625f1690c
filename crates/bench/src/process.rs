//! Processes of measured programs.

use anyhow::{Context as _, Result, bail};
use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// Number of last log lines in errors.
const TAIL: usize = 20;

/// A process that is killed when dropped, so that it does not outlive its measurement.
#[derive(Debug)]
pub(crate) struct Process {
    name: &'static str,
    child: Child,
    log: Option<PathBuf>,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    /// Starts a command; errors call it `name`.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn start(name: &'static str, command: &mut Command) -> Result<Self> {
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().to_string_lossy()))?;
        Ok(Self {
            name,
            child,
            log: None,
        })
    }

    /// Starts a command without input, whose output goes to the file `log`.
    ///
    /// # Errors
    /// The file cannot be created, or the command cannot be started.
    pub(crate) fn start_logging(
        name: &'static str,
        command: &mut Command,
        log: PathBuf,
    ) -> Result<Self> {
        let out = File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
        command
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out);
        let mut process = Self::start(name, command)?;
        process.log = Some(log);
        Ok(process)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns whether it runs.
    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Fails when it has ended.
    ///
    /// # Errors
    /// It has ended; the error has the end of its log.
    pub(crate) fn check_running(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("the {} ended ({status}):\n{}", self.name, self.log_tail()),
        }
    }

    /// Returns its output so far; empty without a log.
    ///
    /// # Errors
    /// The log cannot be read.
    pub(crate) fn output(&self) -> Result<String> {
        let Some(log) = &self.log else {
            return Ok(String::new());
        };
        std::fs::read_to_string(log).with_context(|| format!("cannot read {}", log.display()))
    }

    /// Returns the last lines of its output.
    pub(crate) fn log_tail(&self) -> String {
        let log = self.output().unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(TAIL)..].join("\n")
    }
}

/// Returns a TCP port of this machine that is free now.
///
/// # Errors
/// There is none.
pub(crate) fn free_port() -> Result<u16> {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
    Ok(listener.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_process_is_reported_with_the_end_of_its_log() {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "seq 30; exit 3"]);
        let mut process =
            Process::start_logging("counter", &mut command, dir.path().join("log")).unwrap();
        let _ = process.child.wait();
        assert!(!process.is_running());
        let error = process.check_running().unwrap_err().to_string();
        assert!(
            error.starts_with("the counter ended (exit status: 3):\n11\n"),
            "{error}"
        );
        assert!(error.ends_with("\n30"), "{error}");
    }

    #[test]
    fn process_is_killed_on_drop_and_a_missing_program_is_named() {
        let mut process = Process::start("sleeper", Command::new("sleep").arg("60")).unwrap();
        process.check_running().unwrap();
        let path = format!("/proc/{}", process.pid());
        drop(process);
        assert!(!std::path::Path::new(&path).exists());
        let error = Process::start("x", &mut Command::new("/no/program")).unwrap_err();
        assert_eq!(error.to_string(), "cannot start /no/program");
    }
}
