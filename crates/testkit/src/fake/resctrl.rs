//! A strict resctrl: rejects what the kernel rejects, with the reason in `info/last_cmd_status`.
//!
//! The rules follow `Documentation/filesystems/resctrl.rst` and the responses of Linux 6.18.

use super::kernel::{child_dirs, errno, read};
use koord_host::resctrl::{ResctrlGroup, Schema, parse_schemata};
use libc::{EBUSY, EEXIST, EINVAL, ENOENT, ENOSPC, EPERM, ESRCH};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The hardware behind a fake resctrl.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResctrlHardware {
    /// Cache ids, ascending.
    pub domains: Vec<u32>,
    /// Bits that an L3 mask may have.
    pub mask: u64,
    /// Minimum number of bits in a mask.
    pub min_bits: u32,
    /// True if the bits of a mask need not be adjacent.
    pub sparse: bool,
    /// True if L3 masks are separate for code and data (CDP).
    pub cdp: bool,
    /// Smallest and largest bandwidth and its step; `None` without bandwidth allocation.
    pub bandwidth: Option<(u64, u64, u64)>,
    /// Maximum number of groups, the root included.
    pub closids: u32,
    /// True if the hardware can monitor cache and memory bandwidth.
    pub monitor: bool,
}

impl ResctrlHardware {
    /// Returns hardware with two sockets of 11 ways each; bandwidth in steps of 10 percent.
    #[must_use]
    pub fn intel() -> Self {
        Self {
            domains: vec![0, 1],
            mask: 0x7ff,
            min_bits: 1,
            sparse: false,
            cdp: false,
            bandwidth: Some((10, 100, 10)),
            closids: 8,
            monitor: true,
        }
    }

    /// Returns hardware with four core complexes whose ids are not 0..3; bandwidth in 1/8 GB/s.
    #[must_use]
    pub fn amd() -> Self {
        Self {
            domains: vec![0, 1, 8, 9],
            mask: 0xffff,
            sparse: true,
            bandwidth: Some((1, 2048, 1)),
            closids: 16,
            ..Self::intel()
        }
    }

    /// Returns hardware with ARM's MPAM: one cache with a large id, bandwidth in percent.
    #[must_use]
    pub fn mpam() -> Self {
        Self {
            domains: vec![5],
            mask: 0xfff,
            sparse: true,
            bandwidth: Some((5, 100, 5)),
            closids: 32,
            monitor: false,
            ..Self::intel()
        }
    }

    /// Returns the lines that `schemata` has on this hardware.
    fn schemas(&self) -> Vec<Schema> {
        let caches: &[Schema] = if self.cdp {
            &[Schema::L3Data, Schema::L3Code]
        } else {
            &[Schema::L3]
        };
        let bandwidth = self.bandwidth.map(|_| Schema::Mb);
        caches.iter().copied().chain(bandwidth).collect()
    }

    /// Returns the maximum number of groups. With CDP, each takes two CLOSIDs.
    fn groups(&self) -> usize {
        self.closids as usize / if self.cdp { 2 } else { 1 }
    }

    fn full(&self) -> BTreeMap<Schema, BTreeMap<u32, u64>> {
        let value = |schema: Schema| match self.bandwidth {
            Some((_, max, _)) if schema == Schema::Mb => max,
            _ => self.mask,
        };
        let domains = |schema| {
            let each = self.domains.iter().map(|id| (*id, value(schema)));
            each.collect()
        };
        self.schemas()
            .into_iter()
            .map(|schema| (schema, domains(schema)))
            .collect()
    }

    /// Formats schemata like the kernel, with aligned names.
    fn format(&self, all: &BTreeMap<Schema, BTreeMap<u32, u64>>) -> String {
        let digits = (64 - self.mask.leading_zeros()).div_ceil(4) as usize;
        let wide = self.schemas().iter().map(|s| s.name().len()).max();
        let mut text = String::new();
        for schema in self.schemas() {
            let domains = all.get(&schema).into_iter().flatten();
            let fields: Vec<String> = domains
                .map(|(id, value)| match schema {
                    Schema::Mb => format!("{id}={value:4}"),
                    _ => format!("{id}={value:0digits$x}"),
                })
                .collect();
            let name = schema.name();
            text.push_str(&format!(
                "{name:>w$}:{}\n",
                fields.join(";"),
                w = wide.unwrap_or(0) + 4
            ));
        }
        text
    }
}

/// A mounted resctrl.
#[derive(Debug)]
pub(super) struct FakeResctrl {
    dir: PathBuf,
    proc: PathBuf,
    hardware: ResctrlHardware,
}

/// Error number, and the text of `last_cmd_status`.
type Refusal = (i32, String);

impl FakeResctrl {
    /// Creates the files of the root group and of `info`.
    pub(super) fn new(dir: PathBuf, proc: PathBuf, hardware: ResctrlHardware) -> io::Result<Self> {
        let put = |name: &str, text: String| -> io::Result<()> {
            let path = dir.join("info").join(name);
            fs::create_dir_all(path.parent().unwrap_or(&dir))?;
            fs::write(path, text + "\n")
        };
        for schema in hardware.schemas() {
            let name = schema.name();
            put(
                &format!("{name}/num_closids"),
                hardware.groups().to_string(),
            )?;
            match (schema, hardware.bandwidth) {
                (Schema::Mb, Some((min, _, step))) => {
                    put(&format!("{name}/min_bandwidth"), min.to_string())?;
                    put(&format!("{name}/bandwidth_gran"), step.to_string())?;
                    put(&format!("{name}/delay_linear"), "1".to_owned())?;
                }
                _ => {
                    put(&format!("{name}/cbm_mask"), format!("{:x}", hardware.mask))?;
                    put(
                        &format!("{name}/min_cbm_bits"),
                        hardware.min_bits.to_string(),
                    )?;
                    put(&format!("{name}/shareable_bits"), "0".to_owned())?;
                    put(
                        &format!("{name}/sparse_masks"),
                        u8::from(hardware.sparse).to_string(),
                    )?;
                }
            }
        }
        if hardware.monitor {
            put(
                "L3_MON/mon_features",
                "llc_occupancy\nmbm_total_bytes\nmbm_local_bytes".to_owned(),
            )?;
            put("L3_MON/num_rmids", "176".to_owned())?;
        }
        put("last_cmd_status", "ok".to_owned())?;
        let mounted = Self {
            dir,
            proc,
            hardware,
        };
        mounted.fill(&mounted.dir)?;
        Ok(mounted)
    }

    /// Creates the files of a new group.
    fn fill(&self, group: &Path) -> io::Result<()> {
        fs::write(
            group.join("schemata"),
            self.hardware.format(&self.hardware.full()),
        )?;
        fs::write(group.join("tasks"), "")?;
        fs::write(group.join("cpus_list"), "\n")?;
        fs::write(group.join("mode"), "shareable\n")?;
        if self.hardware.monitor {
            fs::create_dir_all(group.join("mon_groups"))?;
            for domain in &self.hardware.domains {
                let dir = group.join(format!("mon_data/mon_L3_{domain:02}"));
                fs::create_dir_all(&dir)?;
                for name in ["llc_occupancy", "mbm_total_bytes", "mbm_local_bytes"] {
                    fs::write(dir.join(name), "0\n")?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn holds(&self, path: &Path) -> bool {
        path.starts_with(&self.dir)
    }

    /// Writes the outcome to `last_cmd_status` and converts the error.
    fn record_status<T>(&self, outcome: Result<T, Refusal>) -> io::Result<T> {
        let text = match &outcome {
            Ok(_) => "ok",
            Err((_, text)) => text.as_str(),
        };
        fs::write(self.dir.join("info/last_cmd_status"), format!("{text}\n"))?;
        outcome.map_err(|(code, _)| errno(code))
    }

    /// Writes to a file of a group, as the kernel accepts or rejects it.
    pub(super) fn write(&self, path: &Path, value: &str) -> io::Result<()> {
        let (Some(group), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(errno(ENOENT));
        };
        match name.to_str() {
            Some("schemata") => {
                let schemata = self.record_status(self.apply_lines(group, value))?;
                fs::write(path, self.hardware.format(&schemata))
            }
            Some("tasks") => {
                let task = self.record_status(self.find_task(value))?;
                for other in self.groups() {
                    let tasks = read(&other, "tasks");
                    if tasks.lines().any(|line| line == task) {
                        let remaining = tasks.lines().filter(|line| *line != task);
                        let remaining: String = remaining.map(|line| format!("{line}\n")).collect();
                        fs::write(other.join("tasks"), remaining)?;
                    }
                }
                let mut tasks = fs::read_to_string(path)?;
                tasks.push_str(&format!("{task}\n"));
                fs::write(path, tasks)
            }
            _ => Err(errno(EPERM)),
        }
    }

    fn groups(&self) -> Vec<PathBuf> {
        let named = child_dirs(&self.dir).into_iter().filter(|dir| {
            let name = dir.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.parse::<ResctrlGroup>().is_ok())
        });
        std::iter::once(self.dir.clone()).chain(named).collect()
    }

    /// Parses the id of an existing thread from a write to `tasks`.
    fn find_task(&self, value: &str) -> Result<String, Refusal> {
        let bad = |_| (EINVAL, format!("Task list parsing error pid {value}"));
        let id: i32 = value.trim().parse().map_err(bad)?;
        if id <= 0 {
            return Err((EINVAL, format!("Invalid pid {id}")));
        }
        if !self.proc.join(id.to_string()).exists() {
            return Err((ESRCH, format!("No task {id}")));
        }
        Ok(id.to_string())
    }

    /// Returns the group's schemata with the lines of `value` applied; one invalid line rejects all.
    fn apply_lines(
        &self,
        group: &Path,
        value: &str,
    ) -> Result<BTreeMap<Schema, BTreeMap<u32, u64>>, Refusal> {
        let invalid = |text: String| (EINVAL, text);
        let Some(lines) = value.strip_suffix('\n') else {
            return Err(invalid("ok".to_owned()));
        };
        let mut all = parse_schemata(&read(group, "schemata")).unwrap_or_default();
        for line in lines.split('\n') {
            let (name, rest) = line
                .split_once(':')
                .ok_or_else(|| invalid("Missing ':'".to_owned()))?;
            let name = name.trim();
            if rest.trim().is_empty() {
                return Err(invalid(format!("Missing '{name}' value")));
            }
            let schema = self
                .hardware
                .schemas()
                .into_iter()
                .find(|s| s.name() == name);
            let schema = schema
                .ok_or_else(|| invalid(format!("Unknown or unsupported resource name '{name}'")))?;
            let mut ids = Vec::new();
            for field in rest.split(';').filter(|field| !field.is_empty()) {
                let parts = field.split_once('=');
                let parsed =
                    parts.and_then(|(id, text)| Some((id.trim().parse::<u32>().ok()?, text)));
                let (id, text) = parsed
                    .ok_or_else(|| invalid("Missing '=' or non-numeric domain".to_owned()))?;
                if !self.hardware.domains.contains(&id) {
                    // The kernel gives no text for this one.
                    return Err(invalid("ok".to_owned()));
                }
                if ids.contains(&id) {
                    return Err(invalid(format!("Duplicate domain {id}")));
                }
                ids.push(id);
                let value = match schema {
                    Schema::Mb => self.bandwidth(text.trim()),
                    _ => self.mask(text.trim()),
                }
                .map_err(invalid)?;
                all.entry(schema).or_default().insert(id, value);
            }
        }
        Ok(all)
    }

    /// Parses and checks a cache mask.
    fn mask(&self, text: &str) -> Result<u64, String> {
        let hardware = &self.hardware;
        let mask = u64::from_str_radix(text.trim_start_matches("0x"), 16)
            .map_err(|_| format!("Non-hex character in the mask {text}"))?;
        if (mask == 0 && hardware.min_bits > 0) || mask & !hardware.mask != 0 {
            return Err("Mask out of range".to_owned());
        }
        let run = mask >> mask.trailing_zeros().min(63);
        if !hardware.sparse && run & run.wrapping_add(1) != 0 {
            return Err(format!("The mask {mask:x} has non-consecutive 1-bits"));
        }
        if run.trailing_ones() < hardware.min_bits {
            return Err(format!(
                "Need at least {} bits in the mask",
                hardware.min_bits
            ));
        }
        Ok(mask)
    }

    fn bandwidth(&self, text: &str) -> Result<u64, String> {
        let (min, max, step) = self.hardware.bandwidth.unwrap_or((0, 0, 1));
        let value: u64 = text
            .parse()
            .map_err(|_| format!("Invalid MB value {text}"))?;
        if value < min || value > max {
            return Err(format!("MB value {value} out of range [{min},{max}]"));
        }
        Ok(value.div_ceil(step) * step)
    }

    pub(super) fn make_dir(&self, path: &Path) -> io::Result<()> {
        let name = path.file_name().and_then(|name| name.to_str());
        let outcome = if path.exists() {
            Err((EEXIST, "ok".to_owned()))
        } else if path.parent() != Some(&self.dir)
            || name.is_none_or(|name| name.parse::<ResctrlGroup>().is_err())
        {
            Err((EPERM, "ok".to_owned()))
        } else if self.groups().len() >= self.hardware.groups() {
            Err((ENOSPC, "Out of CLOSIDs".to_owned()))
        } else {
            Ok(())
        };
        self.record_status(outcome)?;
        fs::create_dir(path)?;
        self.fill(path)
    }

    /// Removes a group; its tasks return to the root group.
    pub(super) fn remove_dir(&self, path: &Path) -> io::Result<()> {
        if !path.is_dir() {
            return Err(errno(ENOENT));
        }
        if path == self.dir {
            return Err(errno(EBUSY));
        }
        if !self.groups().iter().any(|group| group == path) {
            return Err(errno(EPERM));
        }
        let mut tasks = fs::read_to_string(self.dir.join("tasks"))?;
        tasks.push_str(&fs::read_to_string(path.join("tasks"))?);
        fs::write(self.dir.join("tasks"), tasks)?;
        fs::remove_dir_all(path)
    }
}
