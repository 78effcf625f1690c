//! Shares of the last-level cache and of memory bandwidth, as lines of the `schemata` of a resctrl group.
//!
//! The ids of the cache domains come from the root's `schemata`: they need not be consecutive (AMD), and with
//! sub-NUMA clustering they stay those of the caches, because only monitoring is by node. Sources:
//! Koordinator `pkg/koordlet/qosmanager/plugins/resctrl`, `pkg/koordlet/util/resctrl`; the kernel's
//! `Documentation/filesystems/resctrl.rst`.

use crate::field::FieldError;
use koord_api::extension::{Resctrl, ResctrlResource};
use koord_api::qos::QosClass;
use koord_api::slo::ResctrlQOSCfg;
use std::collections::BTreeMap;
use std::fmt;

/// Default step of memory bandwidth if the kernel does not report one, in percent.
pub const DEFAULT_BANDWIDTH_STEP: u64 = 10;
/// Value for unlimited bandwidth on AMD, in 1/8 GB/s.
pub const AMD_UNLIMITED: u64 = 2048;
/// Bandwidth of an AMD core complex that percentages refer to, in 1/8 GB/s.
const AMD_FULL: u64 = 160;

/// Returns the resctrl group of a QoS class (with default). LSE shares that of LSR; system pods have none.
#[must_use]
pub fn class_group(class: QosClass) -> Option<&'static str> {
    match class {
        QosClass::Lse | QosClass::Lsr => Some("LSR"),
        QosClass::Ls => Some("LS"),
        QosClass::Be => Some("BE"),
        QosClass::System | QosClass::None => None,
    }
}

/// Resource in `schemata`, by the kernel's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    /// `L3`: last-level cache.
    L3,
    /// `L3CODE`: its part for code, where the kernel splits it (CDP).
    L3Code,
    /// `L3DATA`: its part for data.
    L3Data,
    /// `MB`: memory bandwidth.
    Mb,
}

impl Resource {
    /// Returns the name before the colon.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::L3 => "L3",
            Self::L3Code => "L3CODE",
            Self::L3Data => "L3DATA",
            Self::Mb => "MB",
        }
    }
}

/// One line of `schemata`: the value of each listed domain; others are not changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemataLine {
    /// The resource.
    pub resource: Resource,
    /// Domain to its mask or bandwidth.
    pub domains: BTreeMap<u32, u64>,
}

impl fmt::Display for SchemataLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.resource.name())?;
        let mut separator = ':';
        for (id, value) in &self.domains {
            match self.resource {
                Resource::Mb => write!(f, "{separator}{id}={value}")?,
                _ => write!(f, "{separator}{id}={value:x}")?,
            }
            separator = ';';
        }
        Ok(())
    }
}

/// Unit of memory bandwidth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bandwidth {
    /// Percent (Intel, Arm MPAM), with a step and a minimum from `info/MB/bandwidth_gran` and
    /// `info/MB/min_bandwidth`.
    Percent {
        /// Step in percent.
        step: u64,
        /// Minimum in percent.
        min: u64,
    },
    /// 1/8 GB/s of a core complex (AMD).
    Amd,
}

impl Bandwidth {
    /// Returns the unit for a `vendor_id` of `/proc/cpuinfo`. A missing step counts as 10 %, a missing
    /// minimum as 0.
    #[must_use]
    pub fn from_vendor(vendor: &str, step: Option<u64>, min: Option<u64>) -> Self {
        if vendor == "AuthenticAMD" {
            return Self::Amd;
        }
        Self::Percent {
            step: step
                .filter(|step| *step > 0)
                .unwrap_or(DEFAULT_BANDWIDTH_STEP),
            min: min.unwrap_or(0),
        }
    }

    /// Returns the value for `percent`: rounded up to a whole step, or 160 · percent / 100 on AMD, where 100
    /// % means no limit.
    fn value(self, percent: u64) -> u64 {
        match self {
            Self::Percent { step, min } => percent.next_multiple_of(step).max(min).min(100),
            Self::Amd if percent >= 100 => AMD_UNLIMITED,
            Self::Amd => (AMD_FULL * percent / 100).max(1),
        }
    }
}

/// Resources that the machine can control.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hardware {
    /// `info/L3/cbm_mask`; `None` if the cache cannot be divided.
    pub cbm_mask: Option<u64>,
    /// `info/L3/min_cbm_bits`.
    pub min_cbm_bits: u32,
    /// Unit of bandwidth; `None` if it cannot be divided.
    pub bandwidth: Option<Bandwidth>,
    /// Domains (cache ids) of each resource that can be divided, from the root's `schemata`.
    pub domains: BTreeMap<Resource, Vec<u32>>,
}

/// Returns the mask of the bits `[ceil(n · start / 100), ceil(n · end / 100))` of a full mask of `n` bits,
/// with at least `min_bits` of them.
///
/// # Errors
/// The full mask is not of the form 2^n − 1, or the range is not within 0–100 or is empty.
pub fn mask(cbm_mask: u64, min_bits: u32, start: i64, end: i64) -> Result<u64, FieldError> {
    if cbm_mask == 0 || cbm_mask & cbm_mask.wrapping_add(1) != 0 {
        let shown = format!("{cbm_mask:x}");
        return Err(FieldError::new("cbm_mask", "of the form 2^n - 1", &shown));
    }
    if !(0..end).contains(&start) || end > 100 {
        let shown = format!("{start}-{end}");
        return Err(FieldError::new(
            "cache range",
            "0 <= start < end <= 100",
            &shown,
        ));
    }
    let ways = cbm_mask.count_ones();
    let way = |percent: i64| (u64::from(ways) * percent as u64).div_ceil(100) as u32;
    let (mut first, mut last) = (way(start), way(end));
    // The kernel rejects an empty mask.
    let least = min_bits.clamp(1, ways);
    if last - first < least {
        last = (first + least).min(ways);
        first = last - least;
    }
    Ok(low_bits(last) & !low_bits(first))
}

fn low_bits(count: u32) -> u64 {
    1_u64.checked_shl(count).map_or(u64::MAX, |bit| bit - 1)
}

/// Returns the lines of a class's group. A missing setting gives no line; an invalid one gives none and is
/// reported; a resource that the machine cannot control gives none.
#[must_use]
pub fn class_lines(
    hardware: &Hardware,
    settings: &ResctrlQOSCfg,
) -> (Vec<SchemataLine>, Vec<FieldError>) {
    let mut lines = SchemataBuilder::new(hardware);
    if let (Some(start), Some(end)) = (
        settings.cat_range_start_percent,
        settings.cat_range_end_percent,
    ) {
        lines.cache(None, start, end);
    }
    if let Some(percent) = settings.mba_percent {
        lines.bandwidth(None, "mbaPercent", percent);
    }
    lines.finish()
}

/// Returns the lines of the group of a pod with annotation `node.koordinator.sh/resctrl`: the general values,
/// and for single caches those of `schemataPerCache`. Caches that are not listed are not limited.
#[must_use]
pub fn pod_lines(hardware: &Hardware, settings: &Resctrl) -> (Vec<SchemataLine>, Vec<FieldError>) {
    let mut lines = SchemataBuilder::new(hardware);
    for (cache, range) in settings.llc.iter().flat_map(|llc| {
        entries(
            llc,
            |all| all.range.as_slice(),
            |entry| entry.range.as_slice(),
        )
    }) {
        match range {
            [] => {}
            [start, end] => lines.cache(cache, *start, *end),
            other => lines.errors.push(FieldError::new(
                "llc range",
                "start and end",
                &format!("{other:?}"),
            )),
        }
    }
    for (cache, percent) in settings
        .mb
        .iter()
        .flat_map(|mb| entries(mb, |all| all.percent, |entry| entry.percent))
    {
        if let Some(percent) = percent {
            lines.bandwidth(cache, "mb percent", percent);
        }
    }
    lines.finish()
}

/// Returns the general entry of a resource, then those of single caches.
fn entries<'a, T>(
    resource: &'a ResctrlResource,
    general: impl Fn(&'a koord_api::extension::ResctrlSchemata) -> T,
    single: impl Fn(&'a koord_api::extension::ResctrlSchemataPerCache) -> T,
) -> Vec<(Option<i64>, T)> {
    let general = resource.schemata.iter().map(|all| (None, general(all)));
    let single = resource
        .schemata_per_cache
        .iter()
        .map(|entry| (Some(entry.cache_id), single(entry)));
    general.chain(single).collect()
}

/// Builder of `schemata` lines.
struct SchemataBuilder<'a> {
    hardware: &'a Hardware,
    domains: BTreeMap<Resource, BTreeMap<u32, u64>>,
    errors: Vec<FieldError>,
}

impl<'a> SchemataBuilder<'a> {
    fn new(hardware: &'a Hardware) -> Self {
        Self {
            hardware,
            domains: BTreeMap::new(),
            errors: Vec::new(),
        }
    }

    fn cache(&mut self, cache: Option<i64>, start: i64, end: i64) {
        let Some(full) = self.hardware.cbm_mask else {
            return;
        };
        match mask(full, self.hardware.min_cbm_bits, start, end) {
            Ok(mask) => {
                for resource in [Resource::L3, Resource::L3Code, Resource::L3Data] {
                    self.set(resource, cache, mask);
                }
            }
            Err(error) => self.errors.push(error),
        }
    }

    fn bandwidth(&mut self, cache: Option<i64>, field: &'static str, percent: i64) {
        let Some(kind) = self.hardware.bandwidth else {
            return;
        };
        match u64::try_from(percent) {
            Ok(value @ 1..=100) => self.set(Resource::Mb, cache, kind.value(value)),
            _ => self
                .errors
                .push(FieldError::new(field, "in 1..=100", &percent)),
        }
    }

    /// Sets one domain, or all. A resource without domains does not exist.
    fn set(&mut self, resource: Resource, cache: Option<i64>, value: u64) {
        let domains = self.hardware.domains.get(&resource);
        let domains = domains.map_or(&[][..], Vec::as_slice);
        let selected: Vec<u32> = match cache {
            None => domains.to_vec(),
            Some(id) => {
                let matching = domains
                    .iter()
                    .copied()
                    .find(|domain| i64::from(*domain) == id);
                if matching.is_none() && !domains.is_empty() {
                    let field = "cacheID";
                    let error = FieldError::new(field, "a cache of this machine", &id);
                    if !self.errors.contains(&error) {
                        self.errors.push(error);
                    }
                }
                matching.into_iter().collect()
            }
        };
        if !selected.is_empty() {
            let line = self.domains.entry(resource).or_default();
            line.extend(selected.into_iter().map(|id| (id, value)));
        }
    }

    fn finish(self) -> (Vec<SchemataLine>, Vec<FieldError>) {
        let lines = self
            .domains
            .into_iter()
            .map(|(resource, domains)| SchemataLine { resource, domains });
        (lines.collect(), self.errors)
    }
}

#[cfg(test)]
mod tests;
