//! Sets of Linux capabilities, the privileges of root that can be granted one by one, and their names.

use rustix::thread::CapabilitySet;

/// Names without `CAP_`, by the number of the capability.
const NAMES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// A set of capabilities; the default is the empty one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capabilities(u64);

impl Capabilities {
    /// Returns the capability called `name`, such as `NET_ADMIN`, as a set of one; `None` when there
    /// is none of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let number = NAMES
            .iter()
            .position(|candidate| candidate.eq_ignore_ascii_case(name))?;
        Some(Self(1 << number))
    }

    /// Returns the capabilities that the calling thread can hand on to what it starts.
    #[must_use]
    pub fn bounding() -> Self {
        let allowed = |set: &CapabilitySet| {
            rustix::thread::capability_is_in_bounding_set(*set).unwrap_or(false)
        };
        let all = single_sets().filter(allowed);
        Self(all.fold(0, |bits, set| bits | set.bits()))
    }

    /// Returns both sets together.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns this set without `other`.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns whether `other` is a subset of this set.
    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }

    /// Returns true if the set has `CAP_SYS_ADMIN`. A process with it can mount file systems, and so see and
    /// change what its mount namespace hides.
    pub(crate) fn can_mount(self) -> bool {
        self.contains(Self(CapabilitySet::SYS_ADMIN.bits()))
    }

    pub(crate) fn bits(self) -> CapabilitySet {
        CapabilitySet::from_bits_retain(self.0)
    }
}

/// Returns every capability that a kernel may have, including those without a name here, one at a time.
pub(crate) fn single_sets() -> impl Iterator<Item = CapabilitySet> {
    (0..u64::BITS).map(|number| CapabilitySet::from_bits_retain(1 << number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_the_numbers_of_the_kernel() {
        for (name, set) in [
            ("CHOWN", CapabilitySet::CHOWN),
            ("net_bind_service", CapabilitySet::NET_BIND_SERVICE),
            ("SYS_ADMIN", CapabilitySet::SYS_ADMIN),
            ("CHECKPOINT_RESTORE", CapabilitySet::CHECKPOINT_RESTORE),
        ] {
            assert_eq!(Capabilities::from_name(name).unwrap().bits(), set, "{name}");
        }
        for name in ["", "CAP_CHOWN", "ALL", "NET"] {
            assert_eq!(Capabilities::from_name(name), None, "{name}");
        }
    }

    #[test]
    fn sets_are_joined_and_reduced() {
        let set = |name| Capabilities::from_name(name).unwrap();
        let combined = set("KILL").with(set("MKNOD"));
        assert!(combined.contains(set("KILL")) && combined.contains(Capabilities::default()));
        assert!(!combined.contains(set("BPF")) && !set("KILL").contains(combined));
        assert_eq!(combined.without(set("MKNOD")), set("KILL"));
        assert!(!combined.can_mount() && set("SYS_ADMIN").can_mount());
    }
}
