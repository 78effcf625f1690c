//! Block IO: limits, weights and cost models of cgroups, one line of a cgroup file per device.
//!
//! A device is named `MAJ:MIN`. Files and values are those of cgroup v1; the writer maps them to v2. Source
//! of formats and defaults: Koordinator `pkg/koordlet/qosmanager/plugins/blkio`.

use crate::field::FieldError;
use koord_api::slo::{BlockCfg, BlockType, IOCfg};
use std::collections::{BTreeMap, BTreeSet};

/// Weight of a device without a configured one.
pub const DEFAULT_WEIGHT: i64 = 100;
/// Default of a missing latency target, in microseconds.
const DEFAULT_LATENCY: i64 = 3000;
/// Default of a missing latency percentile.
const DEFAULT_LATENCY_PERCENT: i64 = 95;

/// Cgroup file with one line per device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum IoFile {
    /// `blkio.throttle.read_iops_device`.
    ReadIops,
    /// `blkio.throttle.write_iops_device`.
    WriteIops,
    /// `blkio.throttle.read_bps_device`.
    ReadBps,
    /// `blkio.throttle.write_bps_device`.
    WriteBps,
    /// `blkio.cost.weight` (on v1 Anolis only).
    Weight,
    /// `blkio.cost.qos` of the root (on v1 Anolis only).
    CostQos,
    /// `blkio.cost.model` of the root (on v1 Anolis only).
    CostModel,
}

impl IoFile {
    /// Returns the files of a kind of cgroup.
    #[must_use]
    pub fn for_kind(kind: IoCgroupKind) -> &'static [Self] {
        match kind {
            IoCgroupKind::Group => &[
                Self::ReadIops,
                Self::ReadBps,
                Self::WriteIops,
                Self::WriteBps,
                Self::Weight,
            ],
            IoCgroupKind::Root => &[Self::CostQos, Self::CostModel],
        }
    }
}

/// One line to write to a cgroup file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IoLine {
    /// The file.
    pub file: IoFile,
    /// `MAJ:MIN`.
    pub device: String,
    /// Text after the device.
    pub value: String,
}

/// The kind of a cgroup, which determines its files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoCgroupKind {
    /// A class, pod or container cgroup: limits and weight.
    Group,
    /// The root cgroup: latency targets and cost model.
    Root,
}

/// Problem of a configured block.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// The device is unknown; the block is skipped.
    #[error("block {name:?}: {why}")]
    Device {
        /// The block's name.
        name: String,
        /// Reason.
        why: String,
    },
    /// A value is out of range and is ignored.
    #[error("block {name:?}: {error}")]
    Value {
        /// The block's name.
        name: String,
        /// The field and its range.
        error: FieldError,
    },
}

/// Returns the lines to write for `blocks`, and resets for the devices in `present` (those that have lines
/// now) without a block. If two blocks name one device, the later one takes effect.
///
/// `devices` returns the device numbers of a block. A block without one is reported and skipped; then no
/// device is reset, because the skipped block may stand for one of them.
pub fn plan(
    kind: IoCgroupKind,
    blocks: &[BlockCfg],
    present: &BTreeSet<String>,
    devices: impl Fn(&BlockCfg) -> Result<BTreeSet<String>, String>,
) -> (Vec<IoLine>, Vec<BlockError>) {
    let mut configured = BTreeMap::new();
    let mut errors = Vec::new();
    let mut unknown = false;
    for block in blocks {
        match devices(block) {
            Ok(numbers) => {
                let mut settings = block.io_cfg.clone().unwrap_or_default();
                let refused = take_violations(&mut settings).into_iter();
                errors.extend(refused.map(|error| BlockError::Value {
                    name: block.name.clone(),
                    error,
                }));
                let each = numbers.into_iter();
                configured.extend(each.map(|number| (number, settings.clone())));
            }
            Err(why) => {
                unknown = true;
                errors.push(BlockError::Device {
                    name: block.name.clone(),
                    why,
                });
            }
        }
    }
    let mut lines: Vec<IoLine> = configured
        .iter()
        .flat_map(|(device, settings)| lines(kind, device, settings))
        .collect();
    if !unknown {
        let removed = present
            .iter()
            .filter(|device| !configured.contains_key(*device));
        lines.extend(removed.flat_map(|device| resets(kind, device)));
    }
    (lines, errors)
}

/// Returns the values of `settings` that are out of range.
#[must_use]
pub fn violations(settings: &IOCfg) -> Vec<FieldError> {
    take_violations(&mut settings.clone())
}

/// Removes the values that are out of range from `settings` and returns them as errors.
fn take_violations(settings: &mut IOCfg) -> Vec<FieldError> {
    const AMOUNT: (i64, i64, &str) = (0, i64::MAX, "at least 0");
    const MODEL: (i64, i64, &str) = (1, i64::MAX, "at least 1");
    const PERCENT: (i64, i64, &str) = (0, 100, "in 0..=100");
    const WEIGHT: (i64, i64, &str) = (1, 100, "in 1..=100");
    let s = settings;
    let table = [
        ("readIOPS", &mut s.read_iops, AMOUNT),
        ("writeIOPS", &mut s.write_iops, AMOUNT),
        ("readBPS", &mut s.read_bps, AMOUNT),
        ("writeBPS", &mut s.write_bps, AMOUNT),
        ("ioWeightPercent", &mut s.io_weight_percent, WEIGHT),
        ("readLatency", &mut s.read_latency, AMOUNT),
        ("writeLatency", &mut s.write_latency, AMOUNT),
        ("readLatencyPercent", &mut s.read_latency_percent, PERCENT),
        ("writeLatencyPercent", &mut s.write_latency_percent, PERCENT),
        ("modelReadBPS", &mut s.model_read_bps, MODEL),
        ("modelWriteBPS", &mut s.model_write_bps, MODEL),
        ("modelReadSeqIOPS", &mut s.model_read_seq_iops, MODEL),
        ("modelWriteSeqIOPS", &mut s.model_write_seq_iops, MODEL),
        ("modelReadRandIOPS", &mut s.model_read_rand_iops, MODEL),
        ("modelWriteRandIOPS", &mut s.model_write_rand_iops, MODEL),
    ];
    let refused = table
        .into_iter()
        .filter_map(|(field, value, (low, high, want))| {
            let value = value.take_if(|value| !(low..=high).contains(value))?;
            Some(FieldError::new(field, want, &value))
        });
    refused.collect()
}

/// Returns the lines that apply `cfg` to `device` in a cgroup of this kind.
fn lines(kind: IoCgroupKind, device: &str, cfg: &IOCfg) -> Vec<IoLine> {
    let line = |file, value: String| IoLine {
        file,
        device: device.to_owned(),
        value,
    };
    match kind {
        // 0 removes a limit.
        IoCgroupKind::Group => [
            (IoFile::ReadIops, cfg.read_iops.unwrap_or(0)),
            (IoFile::ReadBps, cfg.read_bps.unwrap_or(0)),
            (IoFile::WriteIops, cfg.write_iops.unwrap_or(0)),
            (IoFile::WriteBps, cfg.write_bps.unwrap_or(0)),
            (
                IoFile::Weight,
                cfg.io_weight_percent.unwrap_or(DEFAULT_WEIGHT),
            ),
        ]
        .into_iter()
        .map(|(file, value)| line(file, value.to_string()))
        .collect(),
        IoCgroupKind::Root => {
            let qos = format!(
                "enable=1 ctrl=user rpct={} rlat={} wpct={} wlat={}",
                cfg.read_latency_percent.unwrap_or(DEFAULT_LATENCY_PERCENT),
                cfg.read_latency.unwrap_or(DEFAULT_LATENCY),
                cfg.write_latency_percent.unwrap_or(DEFAULT_LATENCY_PERCENT),
                cfg.write_latency.unwrap_or(DEFAULT_LATENCY),
            );
            vec![
                line(IoFile::CostQos, qos),
                line(IoFile::CostModel, cost_model(cfg)),
            ]
        }
    }
}

fn cost_model(cfg: &IOCfg) -> String {
    if cfg.enable_user_model != Some(true) {
        return "ctrl=auto".to_owned();
    }
    format!(
        "ctrl=user rbps={} rseqiops={} rrandiops={} wbps={} wseqiops={} wrandiops={}",
        cfg.model_read_bps.unwrap_or(0),
        cfg.model_read_seq_iops.unwrap_or(0),
        cfg.model_read_rand_iops.unwrap_or(0),
        cfg.model_write_bps.unwrap_or(0),
        cfg.model_write_seq_iops.unwrap_or(0),
        cfg.model_write_rand_iops.unwrap_or(0),
    )
}

/// Returns the lines that reset a device without a block.
fn resets(kind: IoCgroupKind, device: &str) -> Vec<IoLine> {
    match kind {
        IoCgroupKind::Group => lines(kind, device, &IOCfg::default()),
        IoCgroupKind::Root => vec![IoLine {
            file: IoFile::CostQos,
            device: device.to_owned(),
            value: "enable=0".to_owned(),
        }],
    }
}

/// Returns the devices that have a line in a file with `content`. Other lines, such as `Total 0`, are
/// ignored.
#[must_use]
pub fn devices(content: &str) -> BTreeSet<String> {
    let first = content
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let is_device = |word: &&str| {
        word.split_once(':')
            .is_some_and(|(major, minor)| is_number(major) && is_number(minor))
    };
    first.filter(is_device).map(str::to_owned).collect()
}

/// Block devices of the node. Devices are named `/dev/<name>`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Storage {
    /// Disk name to its number, `MAJ:MIN`.
    pub numbers: BTreeMap<String, String>,
    /// Block device to the disks it is on: a disk to itself, a partition to its disk, a logical volume to the
    /// disks of its volume group.
    pub disks: BTreeMap<String, BTreeSet<String>>,
    /// Volume group to its disks.
    pub groups: BTreeMap<String, BTreeSet<String>>,
    /// Mount point to the device that is mounted there.
    pub mounts: BTreeMap<String, String>,
}

impl Storage {
    /// Returns the numbers of the disks of a block. `mount` is the mount point of the pod volume with the
    /// block's name, for blocks of type `podvolume`.
    ///
    /// # Errors
    /// The storage or the type is unknown; the text names it.
    pub fn devices(
        &self,
        block: &BlockCfg,
        mount: Option<&str>,
    ) -> Result<BTreeSet<String>, String> {
        let disks = match &block.type_ {
            Some(BlockType::Device) => self.disks.get(&block.name),
            Some(BlockType::VolumeGroup) => self.groups.get(&block.name),
            Some(BlockType::PodVolume) => {
                let mount = mount.ok_or("the pod has no such volume of a claim or CSI driver")?;
                let device = self.mounts.get(mount).ok_or("it is not mounted")?;
                self.disks.get(device)
            }
            Some(BlockType::Other(other)) => return Err(format!("type {other:?} is not known")),
            None => return Err("type is not set".to_owned()),
        };
        let disks = disks.into_iter().flatten();
        let numbers: BTreeSet<_> = disks
            .filter_map(|disk| self.numbers.get(disk))
            .cloned()
            .collect();
        if numbers.is_empty() {
            return Err("no disk of this node is known for it".to_owned());
        }
        Ok(numbers)
    }
}

#[cfg(test)]
mod tests;
