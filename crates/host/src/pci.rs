//! Location of PCI functions in the machine, from sysfs.

use crate::error::{HostError, Malformed, Result, is_gone};
use crate::root::Root;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// Location of a PCI function.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PciLocation {
    /// Address, such as `0000:3b:00.0`.
    pub address: String,
    /// NUMA node; 0 where the kernel reports none.
    pub numa_node: i32,
    /// The root complex above it, such as `pci0000:3a`; empty where sysfs shows none.
    pub root_complex: String,
}

/// Returns the functions bound to the driver `driver`, by address.
///
/// # Errors
/// When the driver's directory is there and cannot be listed.
pub fn list_by_driver(root: &Root, driver: &str) -> Result<Vec<String>> {
    let dir = root.sys(&format!("bus/pci/drivers/{driver}"));
    let names = names(&dir)?.unwrap_or_default();
    let names = names.into_iter().map(|name| name.to_ascii_lowercase());
    Ok(names.filter(|name| is_address(name)).collect())
}

/// Returns the location of the function `address`; `None` when there is no such function.
///
/// # Errors
/// When its files cannot be read or parsed.
pub fn place(root: &Root, address: &str) -> Result<Option<PciLocation>> {
    if !is_address(address) {
        return Ok(None);
    }
    match resolve_link(&root.sys(&format!("bus/pci/devices/{address}")))? {
        Some(dir) => place_of(root, &dir).map(Some),
        None => Ok(None),
    }
}

/// Returns the location like [`place`], for the function whose resolved directory is `dir`.
pub(crate) fn place_of(root: &Root, dir: &Path) -> Result<PciLocation> {
    let node = root.read_with(&dir.join("numa_node"), |text| {
        let node = text.trim().parse::<i32>();
        node.map_err(|_| Malformed::new("a NUMA node's number, or -1", text))
    })?;
    let mut above = dir.iter().filter_map(OsStr::to_str);
    Ok(PciLocation {
        address: name_of(dir),
        numa_node: node.unwrap_or(0).max(0),
        root_complex: above
            .find(|name| is_root_complex(name))
            .unwrap_or("")
            .to_owned(),
    })
}

/// Returns whether `text` is the address of a PCI function: domain (four digits or more), bus, device and
/// function.
#[must_use]
pub fn is_address(text: &str) -> bool {
    let hex = |text: &str, len: usize| {
        text.len() == len && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let Some((domain, rest)) = text.split_once(':') else {
        return false;
    };
    let Some((bus, rest)) = rest.split_once(':') else {
        return false;
    };
    let Some((device, function)) = rest.split_once('.') else {
        return false;
    };
    (4..=8).contains(&domain.len())
        && hex(domain, domain.len())
        && hex(bus, 2)
        && hex(device, 2)
        && hex(function, 1)
}

/// Returns true for the name of a root complex, such as `pci0000:3a`; domains are hexadecimal.
fn is_root_complex(name: &str) -> bool {
    let Some((domain, bus)) = name
        .strip_prefix("pci")
        .and_then(|rest| rest.split_once(':'))
    else {
        return false;
    };
    let hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    (4..=8).contains(&domain.len()) && bus.len() == 2 && hex(domain) && hex(bus)
}

/// Returns the names in a directory, sorted; `None` where there is no such directory.
pub(crate) fn names(dir: &Path) -> Result<Option<Vec<String>>> {
    let failed = |source| HostError::io("list", dir, source);
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if is_gone(&error) => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        names.push(
            entry
                .map_err(failed)?
                .file_name()
                .to_string_lossy()
                .into_owned(),
        );
    }
    names.sort_unstable();
    Ok(Some(names))
}

/// Resolves a symbolic link of sysfs; `None` if it does not exist.
pub(crate) fn resolve_link(link: &Path) -> Result<Option<PathBuf>> {
    match fs::canonicalize(link) {
        Ok(path) => Ok(Some(path)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(HostError::io("follow", link, error)),
    }
}

/// Returns the last part of a path.
pub(crate) fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Tree;
    use std::os::unix::fs::symlink;

    #[test]
    fn addresses_are_strict() {
        for good in [
            "0000:3b:00.0",
            "10000:e1:1f.7",
            "0000:af:ff.7",
            "000a:00:08.1",
        ] {
            assert!(is_address(good), "{good}");
        }
        for bad in [
            "",
            "3b:00.0",
            "0000:3b:00",
            "0000:3b:0.0",
            "0000:3b:00.x",
            "../0:3b:00.0",
            "bind",
        ] {
            assert!(!is_address(bad), "{bad}");
        }
    }

    /// Upstream: `TestParsePCIEID`, `Test_getNUMANodeID`.
    #[test]
    fn a_function_has_a_node_and_a_root_complex() {
        let tree = Tree::hybrid("0").unwrap();
        let root = tree.root();
        let address = "0000:3b:00.0";
        assert_eq!(place(root, address).unwrap(), None);
        let dir = "sys/devices/pci000a:3a/000a:3a:00.0/0000:3b:00.0";
        tree.put(&format!("{dir}/numa_node"), "-1\n").unwrap();
        tree.put("sys/bus/pci/devices/x", "").unwrap();
        tree.put("sys/bus/pci/drivers/nvidia/bind", "").unwrap();
        let link = tree.dir().join(format!("sys/bus/pci/devices/{address}"));
        symlink(tree.dir().join(dir), link).unwrap();
        let link = tree.dir().join("sys/bus/pci/drivers/nvidia/0000:3B:00.0");
        symlink(tree.dir().join(dir), link).unwrap();
        let expected = PciLocation {
            address: address.to_owned(),
            numa_node: 0,
            root_complex: "pci000a:3a".to_owned(),
        };
        assert_eq!(place(root, address).unwrap(), Some(expected));
        assert_eq!(list_by_driver(root, "nvidia").unwrap(), [address]);
        assert!(list_by_driver(root, "amdgpu").unwrap().is_empty());
        tree.put(&format!("{dir}/numa_node"), "1\n").unwrap();
        assert_eq!(place(root, address).unwrap().unwrap().numa_node, 1);
        tree.put(&format!("{dir}/numa_node"), "left\n").unwrap();
        let error = place(root, address).unwrap_err().to_string();
        assert!(
            error.contains("numa_node") && error.contains("left"),
            "{error}"
        );
        assert_eq!(place(root, "../..").unwrap(), None);
    }
}
