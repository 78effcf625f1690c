//! The local disks: their device numbers, partitions, volumes and mounts.
//!
//! Read from `/sys/class/block` and the mount table of the first process, so that no `lsblk`, `vgs` or
//! `findmnt` is needed. Device-mapper names of logical volumes follow LVM: volume group and volume joined by
//! a hyphen, hyphens of their own doubled.

use koord_host::{HostError, Malformed, Root};
use koord_model::blkio::Storage;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A device number, as cgroup files name it: `8:16`.
type DeviceNumber = String;

/// Reads sysfs and the mount table.
///
/// # Errors
/// When the existing list of block devices or mount table cannot be read or parsed.
pub fn read(root: &Root) -> Result<Storage, HostError> {
    let mut scan = StorageScan::default();
    let class = root.sys("class/block");
    let entries = match fs::read_dir(&class) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(scan.storage),
        Err(source) => {
            return Err(HostError::Io {
                operation: "list",
                path: class,
                source,
            });
        }
    };
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort_unstable();
    for name in &names {
        scan.add(root, &class, name)?;
    }
    scan.read_mounts(root)?;
    Ok(scan.storage)
}

/// State of a scan of the disks.
#[derive(Default)]
struct StorageScan {
    storage: Storage,
    /// Every block device by its number.
    names: BTreeMap<DeviceNumber, String>,
}

impl StorageScan {
    /// Adds the block device `name`, with its disks and its volume group.
    fn add(&mut self, root: &Root, class: &Path, name: &str) -> Result<(), HostError> {
        let dir = class.join(name);
        let device = format!("/dev/{name}");
        // Skip a device that has been removed meanwhile.
        let Some(number) = root.read_with(&dir.join("dev"), device_number)? else {
            return Ok(());
        };
        let mut disks = BTreeSet::new();
        disks_below(&dir, 8, &mut disks);
        let storage = &mut self.storage;
        if disks.contains(&device) {
            storage.numbers.insert(device.clone(), number.clone());
        }
        storage.disks.insert(device.clone(), disks.clone());
        self.names.insert(number, device);
        let text = |file: &str| {
            let read = root.read(&dir.join("dm").join(file));
            read.map(|text| text.map(|text| text.trim().to_owned()))
        };
        let (Some(uuid), Some(mapped)) = (text("uuid")?, text("name")?) else {
            return Ok(());
        };
        let group = uuid.starts_with("LVM-").then(|| volume_group(&mapped));
        if let Some(group) = group.flatten() {
            let all = storage.groups.entry(group).or_default();
            all.extend(disks.iter().cloned());
        }
        let volume = format!("/dev/mapper/{mapped}");
        storage.disks.insert(volume, disks);
        Ok(())
    }

    /// Reads the mount points of the node's block devices.
    fn read_mounts(&mut self, root: &Root) -> Result<(), HostError> {
        // The agent may run in another mount namespace; the first process is in the node's.
        let mounts = root.read(&root.proc("1/mountinfo"))?;
        let mounts = match mounts {
            Some(mounts) => mounts,
            None => root.read(&root.proc("self/mountinfo"))?.unwrap_or_default(),
        };
        for line in mounts.lines() {
            // "36 35 8:1 / /mnt rw … - ext4 /dev/sda1 rw"
            let mut fields = line.split_ascii_whitespace().skip(2);
            let (Some(number), Some(_), Some(at)) = (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            // Some file systems have device numbers of their own, and name the block device as their source.
            let source = || {
                let (_, rest) = line.split_once(" - ")?;
                let source = rest.split_ascii_whitespace().nth(1)?;
                self.storage.disks.contains_key(source).then_some(source)
            };
            let device = self.names.get(number).map(String::as_str).or_else(source);
            if let Some(device) = device {
                let device = device.to_owned();
                self.storage.mounts.insert(unescaped(at), device);
            }
        }
        Ok(())
    }
}

fn device_number(text: &str) -> Result<DeviceNumber, Malformed> {
    let text = text.trim();
    let valid = text
        .split_once(':')
        .is_some_and(|(major, minor)| major.parse::<u32>().is_ok() && minor.parse::<u32>().is_ok());
    if valid {
        Ok(text.to_owned())
    } else {
        Err(Malformed::new("a device number such as 8:0", text))
    }
}

/// Returns the disk of a partition: the parent of the directory that its link leads to.
fn disk_of(dir: &Path) -> Option<String> {
    let real = fs::canonicalize(dir).ok()?;
    Some(real.parent()?.file_name()?.to_str()?.to_owned())
}

/// Collects the disks that a mapped device consists of, through partitions and other mapped devices.
fn disks_below(dir: &Path, depth: u8, into: &mut BTreeSet<String>) {
    let slaves: Vec<PathBuf> = fs::read_dir(dir.join("slaves"))
        .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default();
    if slaves.is_empty() || depth == 0 {
        let disk = if dir.join("partition").exists() {
            disk_of(dir)
        } else {
            dir.file_name()
                .and_then(|name| name.to_str())
                .map(str::to_owned)
        };
        into.extend(disk.map(|disk| format!("/dev/{disk}")));
        return;
    }
    for slave in slaves {
        disks_below(&slave, depth - 1, into);
    }
}

/// Returns the volume group of a logical volume's mapped name: `my--vg-data` is `data` in `my-vg`.
fn volume_group(mapped: &str) -> Option<String> {
    let mut group = String::new();
    let mut letters = mapped.chars().peekable();
    while let Some(letter) = letters.next() {
        if letter == '-' && letters.next_if_eq(&'-').is_none() {
            return (!group.is_empty() && letters.peek().is_some()).then_some(group);
        }
        group.push(letter);
    }
    None
}

/// Undoes the octal escapes of mountinfo.
fn unescaped(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut remaining = text;
    while let Some((before, after)) = remaining.split_once('\\') {
        plain.push_str(before);
        let code = after
            .get(..3)
            .and_then(|code| u8::from_str_radix(code, 8).ok());
        match code {
            Some(code) => {
                plain.push(char::from(code));
                remaining = after.get(3..).unwrap_or("");
            }
            None => {
                plain.push('\\');
                remaining = after;
            }
        }
    }
    plain.push_str(remaining);
    plain
}

/// Puts a block device into the sysfs of a fake machine.
#[cfg(test)]
pub(crate) fn put_device(tree: &koord_host::fake::Tree, path: &str, number: &str) {
    let name = path.rsplit('/').next().unwrap();
    let dir = format!("sys/devices/{path}");
    tree.put(&format!("{dir}/dev"), &format!("{number}\n"))
        .unwrap();
    let link = tree.dir().join("sys/class/block").join(name);
    fs::create_dir_all(link.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(tree.dir().join(dir), link).unwrap();
}

#[cfg(test)]
mod tests {
    use super::put_device as device;
    use super::*;
    use koord_host::fake::Tree;
    use std::os::unix::fs::symlink;

    #[test]
    fn disks_partitions_volumes_and_mounts() {
        let tree = Tree::v1("0-1").unwrap();
        device(&tree, "pci/sda", "8:0");
        device(&tree, "pci/sda/sda1", "8:1");
        tree.put("sys/devices/pci/sda/sda1/partition", "1\n")
            .unwrap();
        device(&tree, "pci/nvme0n1", "259:0");
        device(&tree, "virtual/dm-0", "253:0");
        let dm = "sys/devices/virtual/dm-0";
        tree.put(&format!("{dm}/dm/uuid"), "LVM-abc\n").unwrap();
        tree.put(&format!("{dm}/dm/name"), "my--vg-data--1\n")
            .unwrap();
        fs::create_dir_all(tree.dir().join(dm).join("slaves")).unwrap();
        for (slave, path) in [("sda1", "pci/sda/sda1"), ("nvme0n1", "pci/nvme0n1")] {
            let to = tree.dir().join("sys/devices").join(path);
            symlink(to, tree.dir().join(dm).join("slaves").join(slave)).unwrap();
        }
        tree.put(
            "proc/1/mountinfo",
            "36 35 8:1 / /mnt/with\\040space rw - ext4 /dev/sda1 rw\n\
             37 35 0:5 / /proc rw - proc proc rw\n\
             39 35 0:44 / /b rw - btrfs /dev/sda1 rw\n\
             38 35 253:0 / /data rw shared:1 - xfs /dev/mapper/my--vg-data--1 rw\n",
        )
        .unwrap();
        let scan = read(tree.root()).unwrap();
        let set = |disks: &[&str]| disks.iter().map(ToString::to_string).collect();
        let two_disks: BTreeSet<String> = set(&["/dev/nvme0n1", "/dev/sda"]);
        assert_eq!(scan.numbers.len(), 2, "{:?}", scan.numbers);
        assert_eq!(scan.numbers["/dev/sda"], "8:0");
        assert_eq!(scan.numbers["/dev/nvme0n1"], "259:0");
        assert_eq!(scan.disks["/dev/sda1"], set(&["/dev/sda"]));
        assert_eq!(scan.disks["/dev/sda"], set(&["/dev/sda"]));
        assert_eq!(scan.disks["/dev/mapper/my--vg-data--1"], two_disks);
        assert_eq!(scan.groups["my-vg"], two_disks);
        assert_eq!(scan.mounts.len(), 3, "{:?}", scan.mounts);
        assert_eq!(scan.mounts["/mnt/with space"], "/dev/sda1");
        assert_eq!(scan.mounts["/data"], "/dev/dm-0");
        assert_eq!(scan.mounts["/b"], "/dev/sda1", "btrfs");

        tree.put("sys/devices/pci/sda/dev", "eight\n").unwrap();
        let error = read(tree.root()).unwrap_err().to_string();
        assert!(
            error.contains("sda/dev") && error.contains("eight"),
            "{error}"
        );
    }

    #[test]
    fn names_of_volume_groups() {
        for (mapped, want) in [
            ("vg-lv", Some("vg")),
            ("a--b-c--d", Some("a-b")),
            ("plain", None),
            ("vg-", None),
            ("-lv", None),
            ("vg--lv", None),
        ] {
            assert_eq!(volume_group(mapped).as_deref(), want, "{mapped}");
        }
    }

    #[test]
    fn this_machine() {
        let storage = read(&Root::system().unwrap()).unwrap();
        for (device, disks) in &storage.disks {
            let all_numbered = disks.iter().all(|disk| storage.numbers.contains_key(disk));
            assert!(
                all_numbered && !disks.is_empty(),
                "{device} is on {disks:?}"
            );
        }
    }
}
