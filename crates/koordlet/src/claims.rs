//! Claims of strategies to files: two strategies that write the same file are an error at start.

use koord_api::qos::QosClass;
use koord_host::TargetKind;
use serde::{Serialize, Serializer};
use std::fmt;

/// Level of a file: the kind of object that it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// The machine as a whole.
    Node,
    /// The cgroup of a kubelet QoS class.
    Qos,
    /// The cgroup of a pod.
    Pod,
    /// The cgroup of a container or sandbox.
    Container,
    /// The cgroup of a host application.
    Host,
}

/// A set of QoS classes, by the pod's label; no label is a class of its own. The cgroups of the kubelet's
/// classes count as BE (BestEffort), LS (Burstable) and LSR (Guaranteed).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Classes(u8);

impl Classes {
    /// The set of all classes.
    pub const ALL: Self = Self(0b11_1111);
    /// The class BE.
    pub const BE: Self = Self::only(&[QosClass::Be]);

    /// Returns the set of exactly these classes.
    #[must_use]
    pub const fn only(classes: &[QosClass]) -> Self {
        let mut bits = 0;
        let mut index = 0;
        while index < classes.len() {
            bits |= 1 << classes[index] as u8;
            index += 1;
        }
        Self(bits)
    }

    /// Returns the set of all classes except these.
    #[must_use]
    pub const fn except(classes: &[QosClass]) -> Self {
        Self(Self::ALL.0 & !Self::only(classes).0)
    }

    /// Returns whether the set contains `class`.
    #[must_use]
    pub const fn has(self, class: QosClass) -> bool {
        self.0 & (1 << class as u8) != 0
    }

    /// Returns whether the sets have a class in common.
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl fmt::Display for Classes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::ALL {
            return f.write_str("all");
        }
        let all = [
            QosClass::Lse,
            QosClass::Lsr,
            QosClass::Ls,
            QosClass::Be,
            QosClass::System,
            QosClass::None,
        ];
        let names: Vec<_> = all
            .into_iter()
            .filter(|class| self.has(*class))
            .map(|class| match class {
                QosClass::None => "none",
                class => class.as_str(),
            })
            .collect();
        f.write_str(&names.join(","))
    }
}

/// A strategy's right to write a file at a level, for pods of some classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// The kind of file.
    pub file: TargetKind,
    /// The level.
    pub level: Level,
    /// QoS classes of the pods.
    pub classes: Classes,
}

impl Claim {
    /// Returns whether a write to `file` at `level` for a pod of `class` is covered.
    #[must_use]
    pub fn covers(&self, file: TargetKind, level: Level, class: QosClass) -> bool {
        self.file == file && self.level == level && self.classes.has(class)
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.file == other.file && self.level == other.level && self.classes.overlaps(other.classes)
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} at level {:?} of {}",
            self.file.name(),
            self.level,
            self.classes
        )
    }
}

impl Serialize for Claim {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Error of two strategies that claim one file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("strategies {first} and {second} both write {claim}")]
pub struct ClaimError {
    /// The first claimant.
    pub first: &'static str,
    /// The second.
    pub second: &'static str,
    /// Claim of the second.
    pub claim: Claim,
}

/// Checks that every file has one writer.
///
/// # Errors
/// Returns the first conflict.
pub fn check(rows: &[(&'static str, &[Claim])]) -> Result<(), ClaimError> {
    for (at, (first, claims)) in rows.iter().enumerate() {
        for (second, others) in &rows[at + 1..] {
            let clash = others
                .iter()
                .find(|other| claims.iter().any(|claim| claim.overlaps(other)));
            if let Some(claim) = clash {
                return Err(ClaimError {
                    first,
                    second,
                    claim: *claim,
                });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_host::Resource;

    #[test]
    fn one_writer_per_file_level_and_class() {
        let claim = |level, classes| Claim {
            file: TargetKind::Cgroup(Resource::CfsQuota),
            level,
            classes,
        };
        let services = Classes::only(&[QosClass::Ls, QosClass::None]);
        let batch = [
            claim(Level::Pod, Classes::BE),
            claim(Level::Qos, Classes::BE),
        ];
        let services_claim = [claim(Level::Pod, services)];
        assert!(check(&[("a", &batch), ("b", &services_claim)]).is_ok());
        let error = check(&[("a", &batch), ("b", &[claim(Level::Pod, Classes::ALL)])]);
        assert_eq!(
            error.unwrap_err().to_string(),
            "strategies a and b both write cpu.cfs_quota_us at level Pod of all"
        );
        assert_eq!(
            services_claim[0].to_string(),
            "cpu.cfs_quota_us at level Pod of LS,none"
        );
        assert_eq!(
            Classes::except(&[QosClass::Be]).to_string(),
            "LSE,LSR,LS,SYSTEM,none"
        );
    }
}
