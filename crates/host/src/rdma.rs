//! RDMA adapters: the list of adapters ([`adapters`]), and their device files with the kernel's numbers.
//! sysfs has path and numbers even where `/dev` is a different one, as in a container.

mod inventory;

pub use inventory::{Adapter, Adapters, adapters};

use crate::error::{HostError, Malformed, Result};
use crate::root::Root;
use std::io;
use std::path::Path;

/// A character device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CharDevice {
    /// Path of its file on the host.
    pub path: String,
    /// Major number, which identifies the driver.
    pub major: u32,
    /// Minor number, which identifies the device of the driver.
    pub minor: u32,
}

/// Returns the character device of the RDMA connection manager (`rdma_cm`), which all adapters share.
///
/// # Errors
/// The machine has none.
pub fn connection_manager(root: &Root) -> Result<CharDevice> {
    numbered(root, "rdma_cm", &root.sys("class/misc/rdma_cm/dev"))
}

/// Returns the verbs device of the PCI function `address`: the first by name, if it has several.
///
/// # Errors
/// There is no such function, or it has no verbs.
pub fn verbs(root: &Root, address: &str) -> Result<CharDevice> {
    let directory = root.sys(&format!("bus/pci/devices/{address}/infiniband_verbs"));
    let failed = |source| HostError::io("list", &directory, source);
    let mut names = Vec::new();
    for entry in directory.read_dir().map_err(failed)? {
        names.push(entry.map_err(failed)?.file_name());
    }
    names.sort_unstable();
    let name = names.first().ok_or_else(|| failed(not_found()))?;
    let name = name.to_string_lossy();
    numbered(root, &name, &directory.join(&*name).join("dev"))
}

fn not_found() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOENT)
}

fn numbered(root: &Root, name: &str, file: &Path) -> Result<CharDevice> {
    let numbers = root.read_with(file, |text| {
        let numbers = text.trim().split_once(':');
        let numbers =
            numbers.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        numbers.ok_or_else(|| Malformed::new("numbers such as 231:192", text))
    })?;
    let (major, minor) = numbers.ok_or_else(|| HostError::io("read", file, not_found()))?;
    Ok(CharDevice {
        path: format!("/dev/infiniband/{name}"),
        major,
        minor,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Tree;

    #[test]
    fn files_and_numbers_are_those_of_sysfs() {
        let tree = Tree::hybrid("0").unwrap();
        let root = tree.root();
        assert!(connection_manager(root).unwrap_err().is_gone());
        assert!(verbs(root, "0000:3b:00.0").unwrap_err().is_gone());
        tree.put("sys/class/misc/rdma_cm/dev", "10:121\n").unwrap();
        let verbs_of = "sys/bus/pci/devices/0000:3b:00.0/infiniband_verbs";
        tree.put(&format!("{verbs_of}/uverbs1/dev"), "231:193\n")
            .unwrap();
        tree.put(&format!("{verbs_of}/uverbs0/dev"), "231:192\n")
            .unwrap();
        let device = |path: &str, major, minor| CharDevice {
            path: path.to_owned(),
            major,
            minor,
        };
        assert_eq!(
            connection_manager(root).unwrap(),
            device("/dev/infiniband/rdma_cm", 10, 121)
        );
        assert_eq!(
            verbs(root, "0000:3b:00.0").unwrap(),
            device("/dev/infiniband/uverbs0", 231, 192)
        );
        std::fs::create_dir_all(root.sys("bus/pci/devices/0000:3b:00.1/infiniband_verbs")).unwrap();
        let error = verbs(root, "0000:3b:00.1").unwrap_err();
        assert!(
            error.is_gone() && error.to_string().contains("0000:3b:00.1"),
            "{error}"
        );
        tree.put(&format!("{verbs_of}/uverbs0/dev"), "nonsense\n")
            .unwrap();
        let error = verbs(root, "0000:3b:00.0").unwrap_err().to_string();
        assert!(error.contains("uverbs0/dev: expected numbers"), "{error}");
    }
}
