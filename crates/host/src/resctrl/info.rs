//! Capabilities of this machine's resctrl.

use super::{Schema, parse_schemata};
use crate::error::{HostError, Malformed, Result};
use crate::procfs::CpuInfo;
use crate::reader;
use crate::root::Root;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Partitioning capabilities of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheInfo {
    /// Mask with all bits that a mask may have.
    pub mask: u64,
    /// Minimum number of bits of a mask.
    pub min_bits: u32,
    /// Bits that other parts of the machine (graphics, I/O) use too.
    pub shareable: u64,
    /// True if the bits of a mask need not be adjacent.
    pub sparse: bool,
    /// Maximum number of groups, the root included.
    pub closids: u32,
}

/// Partitioning capabilities of the memory bandwidth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BandwidthInfo {
    /// The smallest value: percent on Intel and MPAM, 1/8 GB/s on AMD.
    pub min: u64,
    /// Values are rounded up to a multiple of this.
    pub step: u64,
    /// Maximum number of groups, the root included.
    pub closids: u32,
}

/// Monitoring capabilities.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MonitorInfo {
    /// `llc_occupancy`, `mbm_total_bytes`, `mbm_local_bytes`.
    pub features: BTreeSet<String>,
    /// Maximum number of monitored groups.
    pub rmids: u32,
}

/// Capabilities of resctrl.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Info {
    /// The caches that can be partitioned: `L3`, or `L3CODE` and `L3DATA` with code/data prioritization
    /// (CDP), likewise `L2`.
    pub caches: BTreeMap<Schema, CacheInfo>,
    /// Memory bandwidth; `None` if it cannot be partitioned.
    pub bandwidth: Option<BandwidthInfo>,
    /// Monitoring; `None` without it.
    pub monitor: Option<MonitorInfo>,
    /// The domains (cache ids) of each resource. They need not be 0, 1, 2, ...
    pub domains: BTreeMap<Schema, Vec<u32>>,
}

impl Info {
    /// Returns the maximum number of groups, including the root group: the smallest over all resources.
    #[must_use]
    pub fn closids(&self) -> u32 {
        let caches = self.caches.values().map(|cache| cache.closids);
        let bandwidth = self.bandwidth.iter().map(|bandwidth| bandwidth.closids);
        caches.chain(bandwidth).min().unwrap_or(0)
    }
}

/// Returns whether resctrl is mounted.
#[must_use]
pub fn is_mounted(root: &Root) -> bool {
    root.sys("fs/resctrl/info").is_dir()
}

/// Reads the capabilities of resctrl; `None` when it is not mounted. A resource whose description is missing
/// is left out.
///
/// # Errors
/// When a file cannot be read or parsed.
pub fn info(root: &Root) -> Result<Option<Info>> {
    if !is_mounted(root) {
        return Ok(None);
    }
    let mut info = Info::default();
    let dir = |name: &str| root.sys("fs/resctrl/info").join(name);
    for schema in Schema::ALL {
        if schema.is_mask() {
            if let Some(cache) = cache_info(root, &dir(schema.name()))? {
                info.caches.insert(schema, cache);
            }
        } else {
            info.bandwidth = bandwidth_info(root, &dir(schema.name()))?;
        }
    }
    let monitor = dir("L3_MON");
    if let Some(features) = root.read(&monitor.join("mon_features"))? {
        let features = features.split_ascii_whitespace().map(str::to_owned);
        let rmids = file(root, &monitor, "num_rmids", reader::number)?;
        info.monitor = Some(MonitorInfo {
            features: features.collect(),
            rmids: rmids.map_or(0, small),
        });
    }
    let schemata = root.read_with(&root.sys("fs/resctrl/schemata"), parse_schemata)?;
    for (schema, domains) in schemata.unwrap_or_default() {
        info.domains.insert(schema, domains.into_keys().collect());
    }
    Ok(Some(info))
}

fn cache_info(root: &Root, dir: &Path) -> Result<Option<CacheInfo>> {
    let Some(mask) = file(root, dir, "cbm_mask", hex)? else {
        return Ok(None);
    };
    let number = |name: &str| file(root, dir, name, reader::number);
    Ok(Some(CacheInfo {
        mask,
        min_bits: number("min_cbm_bits")?.map_or(1, small),
        shareable: file(root, dir, "shareable_bits", hex)?.unwrap_or(0),
        sparse: number("sparse_masks")? == Some(1),
        closids: number("num_closids")?.map_or(0, small),
    }))
}

fn bandwidth_info(root: &Root, dir: &Path) -> Result<Option<BandwidthInfo>> {
    let number = |name: &str| file(root, dir, name, reader::number);
    let Some(min) = number("min_bandwidth")? else {
        return Ok(None);
    };
    Ok(Some(BandwidthInfo {
        min,
        step: number("bandwidth_gran")?.unwrap_or(1).max(1),
        closids: number("num_closids")?.map_or(0, small),
    }))
}

fn file<T>(
    root: &Root,
    dir: &Path,
    name: &str,
    parse: fn(&str) -> std::result::Result<T, Malformed>,
) -> Result<Option<T>> {
    root.read_with(&dir.join(name), parse)
}

fn hex(text: &str) -> std::result::Result<u64, Malformed> {
    u64::from_str_radix(text.trim(), 16).map_err(|_| Malformed::new("a hexadecimal mask", text))
}

fn small(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Returns whether L3 cache and memory bandwidth can be partitioned: according to a mounted resctrl, else by
/// the processor's flags, where the kernel has a mount point for it. The flags are those of x86; on ARM only
/// a mounted resctrl shows it.
///
/// # Errors
/// When a file cannot be read or parsed.
pub fn allocates(root: &Root) -> Result<(bool, bool)> {
    if let Some(info) = info(root)? {
        let cache = |schema| info.caches.contains_key(&schema);
        let l3 = [Schema::L3, Schema::L3Code, Schema::L3Data];
        return Ok((l3.into_iter().any(cache), info.bandwidth.is_some()));
    }
    if !root.sys("fs/resctrl").is_dir() {
        return Ok((false, false));
    }
    let cpu = CpuInfo::read(root)?;
    Ok((cpu.has("cat_l3"), cpu.has("mba")))
}

/// Returns whether resctrl is not mounted but can be: the kernel has a mount point for it, and the processor
/// can partition cache or bandwidth. The kernel creates the mount point only for such hardware, but also for
/// hardware that can only monitor; the flags distinguish them, which ARM does not have.
///
/// # Errors
/// When a file cannot be read or parsed.
pub fn is_mountable(root: &Root) -> Result<bool> {
    if is_mounted(root) || !root.sys("fs/resctrl").is_dir() {
        return Ok(false);
    }
    let arm = CpuInfo::read(root)?.vendor.starts_with("0x");
    let (cache, bandwidth) = allocates(root)?;
    Ok(arm || cache || bandwidth)
}

/// Mounts resctrl at its usual place, without options, like `mount -t resctrl`.
///
/// # Errors
/// The kernel's error: ENODEV without the hardware, EBUSY when it is mounted, EPERM.
#[allow(
    unsafe_code,
    reason = "libc call; rustix has it behind a feature that we do not build"
)]
pub fn mount(root: &Root) -> Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let dir = root.sys("fs/resctrl");
    let place = std::ffi::CString::new(dir.as_os_str().as_bytes())
        .map_err(|error| HostError::io("mount", &dir, error.into()))?;
    // SAFETY: all four are NUL-terminated strings that live across the call, which only reads them.
    let code = unsafe {
        libc::mount(
            c"resctrl".as_ptr(),
            place.as_ptr(),
            c"resctrl".as_ptr(),
            libc::MS_RELATIME,
            c"".as_ptr().cast(),
        )
    };
    if code == -1 {
        return Err(HostError::io(
            "mount",
            &dir,
            std::io::Error::last_os_error(),
        ));
    }
    Ok(())
}
