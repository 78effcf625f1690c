//! Cache and memory-bandwidth control: the files of resctrl.
//!
//! One format applies to Intel RDT, AMD QoS and ARM MPAM; they differ in the domains (cache ids need not be
//! consecutive), the unit of the bandwidth (percent, on AMD 1/8 GB/s) and whether the bits of a mask must be
//! adjacent. [`info()`] returns all of it. With sub-NUMA clustering masks and domains are still those of the
//! caches.

mod group;
mod info;

pub use group::{Usage, groups, last_refusal, schemata, tasks, usage};
pub use info::{
    BandwidthInfo, CacheInfo, Info, MonitorInfo, allocates, info, is_mountable, is_mounted, mount,
};

use crate::error::{HostError, Malformed, Result};
use crate::root::Root;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

/// A control group of resctrl: the root group, or one directory below it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResctrlGroup(Arc<str>);

impl ResctrlGroup {
    /// Names that the kernel uses in every group.
    const RESERVED: [&'static str; 3] = ["info", "mon_groups", "mon_data"];

    /// Returns the group of all tasks that were not moved to another.
    #[must_use]
    pub fn root() -> Self {
        Self(Arc::from(""))
    }

    /// Returns whether this is the root group.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the directory's name; empty for the root.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the directory of the group.
    #[must_use]
    pub fn dir(&self, root: &Root) -> PathBuf {
        let mount = root.sys("fs/resctrl");
        if self.is_root() {
            mount
        } else {
            mount.join(&*self.0)
        }
    }
}

impl FromStr for ResctrlGroup {
    type Err = HostError;
    /// Parses a single directory name that is not one of the kernel's own.
    fn from_str(name: &str) -> Result<Self> {
        let reason = if name.is_empty() || name.starts_with('.') {
            "is empty or starts with a dot"
        } else if name.len() > 255 || name.contains(['/', '\n', '\0']) {
            "is no single directory name"
        } else if Self::RESERVED.contains(&name) {
            "is a name of the kernel's own"
        } else {
            return Ok(Self(Arc::from(name)));
        };
        Err(HostError::Path {
            path: name.to_owned(),
            reason,
        })
    }
}

impl fmt::Display for ResctrlGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}", self.0)
    }
}

impl fmt::Debug for ResctrlGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ResctrlGroup({self})")
    }
}

/// A resource that a line of `schemata` controls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the kernel's own names")]
pub enum Schema {
    L2,
    L2Code,
    L2Data,
    L3,
    L3Code,
    L3Data,
    Mb,
}

impl Schema {
    /// All resources.
    pub const ALL: [Self; 7] = [
        Self::L2,
        Self::L2Code,
        Self::L2Data,
        Self::L3,
        Self::L3Code,
        Self::L3Data,
        Self::Mb,
    ];

    /// Returns the name before the colon.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::L2 => "L2",
            Self::L2Code => "L2CODE",
            Self::L2Data => "L2DATA",
            Self::L3 => "L3",
            Self::L3Code => "L3CODE",
            Self::L3Data => "L3DATA",
            Self::Mb => "MB",
        }
    }

    /// Returns whether the values are bit masks, in hexadecimal; otherwise they are decimal numbers.
    #[must_use]
    pub fn is_mask(self) -> bool {
        self != Self::Mb
    }

    /// Parses `0=fe;1=fe`, the part after the colon: domain id (cache id) to value.
    ///
    /// # Errors
    /// When it is empty, a field is no `id=value`, or an id comes twice.
    pub fn parse(self, text: &str) -> std::result::Result<BTreeMap<u32, u64>, Malformed> {
        let expected = if self.is_mask() {
            "domains such as \"0=fe;1=fe\""
        } else {
            "domains such as \"0=100;1=100\""
        };
        let bad = || Malformed::new(expected, text);
        let mut domains = BTreeMap::new();
        for field in text.trim().split(';') {
            let (id, value) = field.split_once('=').ok_or_else(bad)?;
            let id = id.trim().parse().map_err(|_| bad())?;
            let value = value.trim();
            let value = if self.is_mask() {
                u64::from_str_radix(value, 16)
            } else {
                value.parse()
            };
            if domains.insert(id, value.map_err(|_| bad())?).is_some() {
                return Err(bad());
            }
        }
        Ok(domains)
    }

    /// Formats values for [`Schema::parse`]: ascending ids, lower-case masks without prefix.
    #[must_use]
    pub fn format(self, domains: &BTreeMap<u32, u64>) -> String {
        let fields: Vec<String> = domains
            .iter()
            .map(|(id, value)| {
                if self.is_mask() {
                    format!("{id}={value:x}")
                } else {
                    format!("{id}={value}")
                }
            })
            .collect();
        fields.join(";")
    }

    /// Returns the resource with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|schema| schema.name() == name)
    }

    /// Returns the part after the colon in the content of a `schemata` file.
    #[must_use]
    pub fn line(self, schemata: &str) -> Option<&str> {
        schemata.lines().find_map(|line| {
            let (name, rest) = line.split_once(':')?;
            (name.trim() == self.name()).then(|| rest.trim())
        })
    }
}

/// Parses a `schemata` file. Lines of unknown resources are left out.
///
/// # Errors
/// When a line of a known resource is malformed.
pub fn parse_schemata(
    text: &str,
) -> std::result::Result<BTreeMap<Schema, BTreeMap<u32, u64>>, Malformed> {
    let mut all = BTreeMap::new();
    for line in text.lines() {
        let Some((name, rest)) = line.split_once(':') else {
            continue;
        };
        if let Some(schema) = Schema::from_name(name.trim()) {
            all.insert(schema, schema.parse(rest)?);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests;
