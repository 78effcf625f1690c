//! Preparation of a forked child before it executes its program: only system calls, on values that were
//! prepared before the fork.

use super::Spawn;
use crate::capability::{Capabilities, single_sets};
use crate::error::{HostError, Result};
use crate::mount_namespace::MountNamespace;
use rustix::process::Signal;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// A child's user, capabilities, namespace and working directory, prepared before the fork.
pub(super) struct Identity {
    namespace: Option<Arc<MountNamespace>>,
    dir: Option<CString>,
    uid: Option<u32>,
    gid: Option<u32>,
    groups: Option<Vec<libc::gid_t>>,
    capabilities: Option<Capabilities>,
    no_new_privileges: bool,
}

impl Identity {
    pub(super) fn from_spawn(spawn: &Spawn) -> Result<Self> {
        let dir = match &spawn.dir {
            None => None,
            Some(dir) => Some(CString::new(dir.as_os_str().as_bytes()).map_err(|_| {
                HostError::io("change to", dir, io::ErrorKind::InvalidInput.into())
            })?),
        };
        // This process's groups are not for another user.
        let changed = spawn.uid.is_some() || spawn.gid.is_some();
        let groups = spawn.groups.clone();
        Ok(Self {
            namespace: spawn.namespace.clone(),
            dir,
            uid: spawn.uid,
            gid: spawn.gid,
            groups: groups.or_else(|| changed.then(Vec::new)),
            capabilities: spawn.capabilities,
            no_new_privileges: spawn.no_new_privileges,
        })
    }
}

/// Gives this process, a child that has not executed its program yet, the groups, user and rights of
/// `identity`.
pub(super) fn prepare_child(
    entrances: &mut [File],
    parent: rustix::process::Pid,
    identity: &Identity,
) -> io::Result<()> {
    for entrance in entrances {
        // "0" is the writing process itself.
        entrance.write_all(b"0")?;
    }
    // The value of container runtimes: this process's umask may be stricter.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    if let Some(namespace) = &identity.namespace {
        enter(namespace, identity.capabilities)?;
    }
    if let Some(dir) = &identity.dir {
        rustix::process::chdir(dir.as_c_str())?;
    }
    take_identity(identity)?;
    // After setuid, which clears it.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have died before the call above took effect.
    if rustix::process::getppid() != Some(parent) {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    Ok(())
}

#[allow(unsafe_code, reason = "unshare can take file descriptors away")]
fn enter(namespace: &MountNamespace, capabilities: Option<Capabilities>) -> io::Result<()> {
    use rustix::thread::{LinkNameSpaceType, UnshareFlags};
    let kind = Some(LinkNameSpaceType::Mount);
    rustix::thread::move_into_link_name_space(namespace.namespace.as_fd(), kind)?;
    rustix::process::fchdir(&namespace.root)?;
    rustix::process::chroot(c".")?;
    // Its mounts and unmounts must not change the view of other processes.
    if capabilities.is_none_or(Capabilities::can_mount) {
        // SAFETY: with NEWNS alone the table of file descriptors stays as it is.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }?;
    }
    Ok(())
}

#[allow(
    unsafe_code,
    reason = "raw set*id calls: rustix sets them per thread on purpose"
)]
/// Takes groups, capabilities and user id of `identity`, in the forked child.
fn take_identity(identity: &Identity) -> io::Result<()> {
    let is_root = rustix::process::geteuid().is_root();
    // Only root can change them, and only root can become another user.
    if let (Some(groups), true) = (&identity.groups, is_root) {
        // SAFETY: the pointer is to as many ids as the count.
        if unsafe { libc::setgroups(groups.len(), groups.as_ptr()) } == -1 {
            return Err(io::Error::last_os_error());
        }
    }
    if let Some(gid) = identity.gid {
        // SAFETY: gid is a plain number.
        if unsafe { libc::setgid(gid) } == -1 {
            return Err(io::Error::last_os_error());
        }
    }
    if let (Some(kept), true) = (identity.capabilities, is_root) {
        for capability in single_sets().filter(|set| !kept.bits().contains(*set)) {
            match rustix::thread::remove_capability_from_bounding_set(capability) {
                // There is no capability of this number.
                Ok(()) | Err(rustix::io::Errno::INVAL) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    if let Some(uid) = identity.uid {
        // SAFETY: uid is a plain number.
        if unsafe { libc::setuid(uid) } == -1 {
            return Err(io::Error::last_os_error());
        }
    }
    if let Some(kept) = identity.capabilities {
        drop_capabilities(kept)?;
    }
    if identity.no_new_privileges {
        rustix::thread::set_no_new_privs(true)?;
    }
    Ok(())
}

/// Reduces the capabilities of this process to `kept`. Users other than root have lost all of them already.
fn drop_capabilities(kept: Capabilities) -> io::Result<()> {
    use rustix::thread::{CapabilitySet, CapabilitySets};
    match rustix::thread::clear_ambient_capability_set() {
        // Kernels before 4.3 have none.
        Ok(()) | Err(rustix::io::Errno::INVAL) => {}
        Err(error) => return Err(error.into()),
    }
    let permitted = rustix::thread::capabilities(None)?.permitted & kept.bits();
    let sets = CapabilitySets {
        effective: permitted,
        permitted,
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, sets)?;
    Ok(())
}
