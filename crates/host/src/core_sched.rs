//! Core scheduling: cookies that determine which tasks may share a physical core.
//!
//! A cookie is created on a task and copied from task to task; it has no name. Source: the kernel's
//! `Documentation/admin-guide/hw-vuln/core-scheduling.rst`.

use std::io;
use std::os::raw::{c_int, c_ulong};

/// Constant of `linux/prctl.h`.
const PR_SCHED_CORE: c_int = 62;
const GET: c_ulong = 0;
const CREATE: c_ulong = 1;
const SHARE_TO: c_ulong = 2;
const SHARE_FROM: c_ulong = 3;
/// Scope of a single thread.
const THREAD: c_ulong = 0;
/// Scope of a process with all its threads.
const PROCESS: c_ulong = 1;

/// Operation on the core-scheduling cookie of a process, for all its threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CookieOperation {
    /// Reads the cookie.
    Get,
    /// Creates a new cookie.
    New,
    /// Copies the cookie of the process with this id.
    From(u32),
    /// Removes the cookie.
    Clear,
}

impl CookieOperation {
    /// Parses an operation from the text of a write: `new`, `from PID`, or `0` to remove the cookie. Returns
    /// `None` for other text.
    pub(crate) fn parse(value: &str) -> Option<Self> {
        match value {
            "new" => Some(Self::New),
            "0" => Some(Self::Clear),
            other => {
                let pid = other.strip_prefix("from ")?;
                let digits = pid.bytes().all(|byte| byte.is_ascii_digit());
                pid.parse()
                    .ok()
                    .filter(|pid| digits && *pid > 0)
                    .map(Self::From)
            }
        }
    }
}

/// Applies `cookie` to process `pid` and returns its cookie afterwards, 0 for none.
///
/// # Errors
/// ESRCH when a process is gone, EINVAL where the kernel is built without core scheduling, ENODEV
/// where no core has hyper-threads, EPERM without the right to trace the process.
pub fn call(pid: u32, cookie: CookieOperation) -> io::Result<u64> {
    let pid = libc::pid_t::try_from(pid)
        .ok()
        // 0 would mean the calling thread.
        .filter(|pid| *pid > 0)
        .ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
    match cookie {
        CookieOperation::Get => {}
        CookieOperation::New => prctl(CREATE, pid, PROCESS, None)?,
        // Cookies are pulled to and pushed from the calling thread, and a new thread has the cookie of its
        // creator: a short-lived thread keeps this process's own cookie out of it.
        CookieOperation::From(from) => {
            let from = libc::pid_t::try_from(from).unwrap_or(-1);
            run_on_own_thread(move || {
                prctl(SHARE_FROM, from, THREAD, None)?;
                prctl(SHARE_TO, pid, PROCESS, None)
            })?;
        }
        CookieOperation::Clear => run_on_own_thread(move || {
            let own = get(0)?;
            if own != 0 {
                let text = "this process has a cookie itself and cannot take one off another";
                return Err(io::Error::other(text));
            }
            prctl(SHARE_TO, pid, PROCESS, None)
        })?,
    }
    get(pid)
}

fn run_on_own_thread<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    std::thread::Builder::new()
        .name("core-sched".to_owned())
        .spawn(work)?
        .join()
        .map_err(|_| io::Error::other("the thread that copies cookies ended early"))?
}

fn get(pid: libc::pid_t) -> io::Result<u64> {
    let mut cookie = 0;
    prctl(GET, pid, THREAD, Some(&mut cookie))?;
    Ok(cookie)
}

#[allow(unsafe_code, reason = "libc call that rustix lacks")]
fn prctl(
    command: c_ulong,
    pid: libc::pid_t,
    scope: c_ulong,
    out: Option<&mut u64>,
) -> io::Result<()> {
    let out: *mut u64 = out.map_or(std::ptr::null_mut(), std::ptr::from_mut);
    let pid = c_ulong::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    // SAFETY: the kernel writes at most 8 bytes to `out`, and only for GET, for which it is a live
    // and aligned u64; the other arguments are numbers.
    let code = unsafe { libc::prctl(PR_SCHED_CORE, command, pid, scope, out) };
    if code == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Returns whether this kernel and machine support core scheduling.
#[must_use]
pub fn is_supported() -> bool {
    get(0).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Tree;
    use crate::target::{Attribute, Target};
    use crate::testing::skip;

    fn target(pid: u32) -> Target {
        Target::Process {
            pid,
            attribute: Attribute::CoreSchedCookie,
        }
    }

    #[test]
    fn cookies_are_made_copied_and_taken_off() {
        let tree = Tree::v2("0-1").unwrap();
        for pid in [11, 12, 13] {
            let file = format!("proc/{pid}/core_sched_cookie");
            tree.put(&file, "0\n").unwrap();
        }
        let root = tree.root();
        let cookie = |pid| root.read_target(&target(pid)).unwrap().unwrap();
        assert_eq!(cookie(11), "0");
        assert!(root.write_target(&target(11), "new").unwrap().changed);
        assert!(root.write_target(&target(12), "from 11").unwrap().changed);
        assert!(!root.write_target(&target(12), "from 11").unwrap().changed);
        assert!(cookie(11) != "0" && cookie(11) == cookie(12) && cookie(13) == "0");
        assert_eq!(
            root.target_holds(&target(12), "from 11").unwrap(),
            Some(true)
        );
        assert_eq!(
            root.target_holds(&target(13), "from 11").unwrap(),
            Some(false)
        );
        root.write_target(&target(13), "new").unwrap();
        assert_ne!(cookie(13), cookie(11));
        let cleared = root.write_target(&target(12), "0").unwrap();
        assert_eq!((cleared.changed, cookie(12).as_str()), (true, "0"));
        assert!(!root.write_target(&target(12), "0").unwrap().changed);

        assert_eq!(root.read_target(&target(99)).unwrap(), None);
        assert!(root.write_target(&target(99), "new").unwrap_err().is_gone());
        assert!(
            root.write_target(&target(13), "from 99")
                .unwrap_err()
                .is_gone()
        );
        for bad in ["1", "from 0", "from", "from +1", "from x", ""] {
            let error = root.write_target(&target(13), bad).unwrap_err().to_string();
            assert!(error.contains("core_sched_cookie"), "{error}");
        }
    }

    /// A kernel without core scheduling reports it as unsupported, and nothing is retried.
    #[test]
    fn a_kernel_without_it_is_unsupported() {
        let tree = Tree::v2("0-1").unwrap();
        tree.put("proc/11/stat", "").unwrap();
        let error = tree.root().write_target(&target(11), "new").unwrap_err();
        assert!(error.is_unsupported(), "{error}");
    }

    #[test]
    fn the_real_kernel() {
        if !is_supported() {
            return skip(
                "core-sched",
                "this kernel or machine has no core scheduling",
            );
        }
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pid = child.id();
        let created = call(pid, CookieOperation::New);
        let copied = call(pid, CookieOperation::From(pid));
        let cleared = call(pid, CookieOperation::Clear);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(created.is_ok_and(|cookie| cookie != 0));
        assert!(copied.is_ok_and(|cookie| cookie != 0));
        assert_eq!(cleared.ok(), Some(0));
    }
}
