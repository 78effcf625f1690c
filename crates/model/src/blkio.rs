//! Block IO: limits, weights and cost models of groups, one line of a cgroup file per device.
//!
//! A device is named `MAJ:MIN`. Source of formats and defaults: Koordinator
//! `pkg/koordlet/qosmanager/plugins/blkio`; of `io.max` the kernel's `cgroup-v2.rst`.

use crate::field::FieldError;
use koord_api::slo::{BlockCfg, BlockType, IOCfg};
use std::collections::{BTreeMap, BTreeSet};

/// The weight of a device that has none of its own.
pub const DEFAULT_WEIGHT: i64 = 100;
/// The latency target that stands for a missing one, in microseconds.
const DEFAULT_LATENCY: i64 = 3000;
/// The percentile that stands for a missing one.
const DEFAULT_LATENCY_PERCENT: i64 = 95;

/// A file with a line per device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum File {
    /// `blkio.throttle.read_iops_device` (v1).
    ReadIops,
    /// `blkio.throttle.write_iops_device` (v1).
    WriteIops,
    /// `blkio.throttle.read_bps_device` (v1).
    ReadBps,
    /// `blkio.throttle.write_bps_device` (v1).
    WriteBps,
    /// `blkio.cost.weight` (Anolis).
    Weight,
    /// `blkio.cost.qos` of the root (Anolis).
    CostQos,
    /// `blkio.cost.model` of the root (Anolis).
    CostModel,
    /// `io.max` (v2): all four limits in one line.
    IoMax,
}

/// One line to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Where.
    pub file: File,
    /// `MAJ:MIN`.
    pub device: String,
    /// What follows the device.
    pub value: String,
}

/// What a group's lines are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Limits and weight of a group on cgroup v1.
    Throttle,
    /// Limits of a group on cgroup v2.
    IoMax,
    /// Latency targets and cost model of the root (v1, Anolis).
    Root,
}

/// A block that is left as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// Its device is not known.
    #[error("block {name:?}: {why}")]
    Device {
        /// The block's name.
        name: String,
        /// Why.
        why: String,
    },
    /// A value that is not used.
    #[error("block {name:?}: {error}")]
    Value {
        /// The block's name.
        name: String,
        /// What is wrong with it.
        error: FieldError,
    },
}

/// The lines for `blocks`, and resets for the devices that have lines (`present`) and no block.
///
/// `device` finds the number of a block's device. A block without one is reported and skipped; then
/// nothing is reset, because what it stands for cannot be told from what was taken away.
pub fn plan(
    kind: Kind,
    blocks: &[BlockCfg],
    present: &BTreeSet<String>,
    device: impl Fn(&BlockCfg) -> Result<String, String>,
) -> (Vec<Line>, Vec<BlockError>) {
    let mut configured = BTreeMap::new();
    let mut errors = Vec::new();
    let mut unknown = false;
    for block in blocks {
        match device(block) {
            Ok(number) => {
                let settings = checked(block, &mut errors);
                configured.insert(number, settings);
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
    let mut lines: Vec<Line> = configured
        .iter()
        .flat_map(|(device, settings)| lines(kind, device, settings))
        .collect();
    if !unknown {
        let gone = present
            .iter()
            .filter(|device| !configured.contains_key(*device));
        lines.extend(gone.flat_map(|device| resets(kind, device)));
    }
    (lines, errors)
}

/// The block's settings without what is out of range.
fn checked(block: &BlockCfg, errors: &mut Vec<BlockError>) -> IOCfg {
    let mut settings = block.io_cfg.clone().unwrap_or_default();
    const AMOUNT: (i64, i64, &str) = (0, i64::MAX, "at least 0");
    const MODEL: (i64, i64, &str) = (1, i64::MAX, "at least 1");
    const PERCENT: (i64, i64, &str) = (0, 100, "in 0..=100");
    for (field, value, (low, high, want)) in [
        ("readIOPS", &mut settings.read_iops, AMOUNT),
        ("writeIOPS", &mut settings.write_iops, AMOUNT),
        ("readBPS", &mut settings.read_bps, AMOUNT),
        ("writeBPS", &mut settings.write_bps, AMOUNT),
        (
            "ioWeightPercent",
            &mut settings.io_weight_percent,
            (1, 100, "in 1..=100"),
        ),
        ("readLatency", &mut settings.read_latency, AMOUNT),
        ("writeLatency", &mut settings.write_latency, AMOUNT),
        (
            "readLatencyPercent",
            &mut settings.read_latency_percent,
            PERCENT,
        ),
        (
            "writeLatencyPercent",
            &mut settings.write_latency_percent,
            PERCENT,
        ),
        ("modelReadBPS", &mut settings.model_read_bps, MODEL),
        ("modelWriteBPS", &mut settings.model_write_bps, MODEL),
        ("modelReadSeqIOPS", &mut settings.model_read_seq_iops, MODEL),
        (
            "modelWriteSeqIOPS",
            &mut settings.model_write_seq_iops,
            MODEL,
        ),
        (
            "modelReadRandIOPS",
            &mut settings.model_read_rand_iops,
            MODEL,
        ),
        (
            "modelWriteRandIOPS",
            &mut settings.model_write_rand_iops,
            MODEL,
        ),
    ] {
        if let Some(given) = value.take_if(|given| !(low..=high).contains(given)) {
            errors.push(BlockError::Value {
                name: block.name.clone(),
                error: FieldError::new(field, want, &given),
            });
        }
    }
    settings
}

fn lines(kind: Kind, device: &str, cfg: &IOCfg) -> Vec<Line> {
    let line = |file, value: String| Line {
        file,
        device: device.to_owned(),
        value,
    };
    match kind {
        // 0 takes a limit away.
        Kind::Throttle => [
            (File::ReadIops, cfg.read_iops.unwrap_or(0)),
            (File::ReadBps, cfg.read_bps.unwrap_or(0)),
            (File::WriteIops, cfg.write_iops.unwrap_or(0)),
            (File::WriteBps, cfg.write_bps.unwrap_or(0)),
            (
                File::Weight,
                cfg.io_weight_percent.unwrap_or(DEFAULT_WEIGHT),
            ),
        ]
        .into_iter()
        .map(|(file, value)| line(file, value.to_string()))
        .collect(),
        Kind::IoMax => {
            let limit = |value: Option<i64>| match value {
                Some(value) if value > 0 => value.to_string(),
                _ => "max".to_owned(),
            };
            let value = format!(
                "rbps={} wbps={} riops={} wiops={}",
                limit(cfg.read_bps),
                limit(cfg.write_bps),
                limit(cfg.read_iops),
                limit(cfg.write_iops)
            );
            vec![line(File::IoMax, value)]
        }
        Kind::Root => {
            let qos = format!(
                "enable=1 ctrl=user rpct={} rlat={} wpct={} wlat={}",
                cfg.read_latency_percent.unwrap_or(DEFAULT_LATENCY_PERCENT),
                cfg.read_latency.unwrap_or(DEFAULT_LATENCY),
                cfg.write_latency_percent.unwrap_or(DEFAULT_LATENCY_PERCENT),
                cfg.write_latency.unwrap_or(DEFAULT_LATENCY),
            );
            vec![
                line(File::CostQos, qos),
                line(File::CostModel, cost_model(cfg)),
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

/// What a device without a block gets.
fn resets(kind: Kind, device: &str) -> Vec<Line> {
    match kind {
        Kind::Throttle | Kind::IoMax => lines(kind, device, &IOCfg::default()),
        Kind::Root => vec![Line {
            file: File::CostQos,
            device: device.to_owned(),
            value: "enable=0".to_owned(),
        }],
    }
}

/// The devices that have a line in a file of this kind; other lines, such as `Total 0`, are none.
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

/// What the node knows of its storage.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Storage {
    /// Disk (`/dev/sda`) to its number.
    pub numbers: BTreeMap<String, String>,
    /// Partition (`/dev/sda1`) to its disk.
    pub partitions: BTreeMap<String, String>,
    /// Volume group to its disk.
    pub groups: BTreeMap<String, String>,
    /// Logical volume (`/dev/mapper/vg-lv`) to its group.
    pub volumes: BTreeMap<String, String>,
    /// Mount point to the device mounted there.
    pub mounts: BTreeMap<String, String>,
}

impl Storage {
    /// The number of a block's device. `mount` is where the pod's volume of the block's name is
    /// mounted, for blocks of type `podvolume`.
    ///
    /// # Errors
    /// The storage or the type is not known; the text says which.
    pub fn device(&self, block: &BlockCfg, mount: Option<&str>) -> Result<String, String> {
        let disk = match &block.type_ {
            Some(BlockType::Device) => self.disk(&block.name),
            Some(BlockType::VolumeGroup) => self.groups.get(&block.name),
            Some(BlockType::PodVolume) => {
                let mount = mount.ok_or("the pod has no such volume of a claim or CSI driver")?;
                self.mounts.get(mount).and_then(|device| {
                    let group = self.volumes.get(device);
                    self.disk(device).or_else(|| self.groups.get(group?))
                })
            }
            Some(BlockType::Other(other)) => return Err(format!("type {other:?} is not known")),
            None => return Err("type is not set".to_owned()),
        };
        disk.and_then(|disk| self.numbers.get(disk))
            .cloned()
            .ok_or_else(|| "no disk of this node is known for it".to_owned())
    }

    /// The disk of a disk or a partition.
    fn disk<'a>(&'a self, device: &str) -> Option<&'a String> {
        let known = self.numbers.get_key_value(device).map(|(disk, _)| disk);
        known.or_else(|| self.partitions.get(device))
    }
}

#[cfg(test)]
mod tests;
