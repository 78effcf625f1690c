//! `/proc/cpuinfo`: model, vendor and feature flags of the first CPU.

use crate::error::Result;
use crate::root::Root;
use std::collections::BTreeSet;

/// Content of `/proc/cpuinfo`. Fields are empty where the architecture's file has no such line.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CpuInfo {
    /// `GenuineIntel`, `AuthenticAMD`, or an ARM implementer number.
    pub vendor: String,
    /// Marketing name.
    pub model: String,
    /// Feature flags.
    pub flags: BTreeSet<String>,
}

impl CpuInfo {
    /// Parses the file. Never fails: every architecture has its own format.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut info = Self::default();
        for line in text.lines() {
            let Some((key, value)) = line.split_once(':') else {
                continue;
            };
            let value = value.trim();
            match key.trim() {
                "vendor_id" | "CPU implementer" if info.vendor.is_empty() => {
                    value.clone_into(&mut info.vendor);
                }
                "model name" if info.model.is_empty() => value.clone_into(&mut info.model),
                "flags" | "Features" if info.flags.is_empty() => {
                    info.flags = value.split_ascii_whitespace().map(str::to_owned).collect();
                }
                _ => {}
            }
        }
        info
    }

    /// Reads the properties of the running processor.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn read(root: &Root) -> Result<Self> {
        Ok(Self::parse(
            &root.read(&root.proc("cpuinfo"))?.unwrap_or_default(),
        ))
    }

    /// Returns whether the processor has `flag`.
    #[must_use]
    pub fn has(&self, flag: &str) -> bool {
        self.flags.contains(flag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_cpu_counts() {
        let text = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: X @ 2 GHz\n\
                    flags\t\t: fpu cat_l3 mba\n\nprocessor\t: 1\nflags\t: other\n";
        let info = CpuInfo::parse(text);
        assert_eq!(
            (info.vendor.as_str(), info.model.as_str()),
            ("GenuineIntel", "X @ 2 GHz")
        );
        assert!(info.has("cat_l3") && !info.has("other"));
    }
}
