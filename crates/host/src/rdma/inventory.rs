//! Inventory of RDMA adapters.

use crate::error::{HostError, Malformed, Result};
use crate::pci::{PciLocation, is_address, name_of, names, place_of, resolve_link};
use crate::root::Root;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// PCI class of network controllers, of which InfiniBand's are a kind.
const NETWORK: u32 = 0x02;

/// A physical function with RDMA.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adapter {
    /// Names of the RDMA devices of this PCI function, sorted; the first one determines `minor`.
    pub devices: Vec<String>,
    /// Number at the end of the first device's name: 3 for `mlx5_3`.
    pub minor: i32,
    /// Location on the PCI bus.
    pub place: PciLocation,
    /// True if each of its ports is active; false for an adapter without ports.
    pub active: bool,
    /// Addresses of its virtual functions, sorted.
    pub functions: Vec<String>,
}

/// Result of the search for adapters.
#[derive(Debug, Default)]
pub struct Adapters {
    /// Adapters that can be allocated, by minor.
    pub adapters: Vec<Adapter>,
    /// RDMA devices that cannot be allocated, with the reason: their drivers do not number devices, or their
    /// files cannot be parsed.
    pub left_out: Vec<(String, String)>,
}

/// Lists the RDMA adapters. Virtual functions belong to their physical function; software devices have no PCI
/// function and are left out.
///
/// Only devices that are named `mlx<d>_<n>` can be allocated, as in Koordinator: `n` is the minor that pods
/// and the scheduler use.
///
/// # Errors
/// When the list of RDMA devices exists and cannot be read. Errors of a single device are in
/// [`Adapters::left_out`].
pub fn adapters(root: &Root) -> Result<Adapters> {
    let class = root.sys("class/infiniband");
    let mut by_function: BTreeMap<PathBuf, Vec<String>> = BTreeMap::new();
    let mut inventory = Adapters::default();
    for name in names(&class)?.unwrap_or_default() {
        match resolve_link(&class.join(&name).join("device")) {
            Ok(Some(function)) if is_address(&name_of(&function)) => {
                by_function.entry(function).or_default().push(name);
            }
            Ok(_) => {}
            Err(error) => inventory.left_out.push((name, error.to_string())),
        }
    }
    for (function, devices) in by_function {
        let Some(first) = devices.first().cloned() else {
            continue;
        };
        match adapter(root, &function, devices) {
            Ok(Some(adapter)) => inventory.adapters.push(adapter),
            Ok(None) => {}
            Err(error) => inventory.left_out.push((first, error.to_string())),
        }
    }
    inventory.adapters.sort_by_key(|adapter| adapter.minor);
    Ok(inventory)
}

/// Returns the adapter of a PCI function with RDMA devices; `None` for virtual functions and other classes.
fn adapter(root: &Root, function: &Path, devices: Vec<String>) -> Result<Option<Adapter>> {
    let class = root.read_with(&function.join("class"), |text| {
        let number = text.trim().strip_prefix("0x");
        let number = number.and_then(|number| u32::from_str_radix(number, 16).ok());
        number.ok_or_else(|| Malformed::new("a PCI class such as 0x020700", text))
    })?;
    let is_network = class.is_some_and(|class| class >> 16 == NETWORK);
    if !is_network || function.join("physfn").exists() {
        return Ok(None);
    }
    let minor = devices
        .first()
        .and_then(|name| minor(name))
        .ok_or_else(|| {
            let device_names = devices.join(",");
            let malformed = Malformed::new("an RDMA device named as mlx5_0", &device_names);
            HostError::malformed(&function.join("infiniband"), malformed)
        })?;
    let mut functions = Vec::new();
    for name in names(function)?.unwrap_or_default() {
        let number = name.strip_prefix("virtfn");
        if number.is_some_and(|number| number.parse::<u32>().is_ok())
            && let Some(virtual_function) = resolve_link(&function.join(&name))?
        {
            functions.push(name_of(&virtual_function));
        }
    }
    functions.sort_unstable();
    Ok(Some(Adapter {
        minor,
        place: place_of(root, function)?,
        active: is_active(root, devices.first().map_or("", String::as_str))?,
        functions,
        devices,
    }))
}

/// Parses the number in a name such as `mlx5_3`.
fn minor(name: &str) -> Option<i32> {
    let (driver, number) = name.strip_prefix("mlx")?.split_once('_')?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (digits(driver) && digits(number)).then(|| number.parse().ok())?
}

fn is_active(root: &Root, device: &str) -> Result<bool> {
    let ports = root.sys(&format!("class/infiniband/{device}/ports"));
    let names = names(&ports)?.unwrap_or_default();
    for name in &names {
        // `4: ACTIVE`; DOWN, INIT and ARMED are not. ACTIVE_DEFER is a link that is expected back at once.
        let state = root.read(&ports.join(name).join("state"))?;
        if state.is_none_or(|state| !state.contains("ACTIVE")) {
            return Ok(false);
        }
    }
    Ok(!names.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Tree;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// Creates a function in sysfs like the kernel, below the root complex `pci0000:3a`.
    fn function(tree: &Tree, address: &str, class: &str, node: &str) -> PathBuf {
        let dir = format!("sys/devices/pci0000:3a/{address}");
        tree.put(&format!("{dir}/class"), &format!("{class}\n"))
            .unwrap();
        tree.put(&format!("{dir}/numa_node"), &format!("{node}\n"))
            .unwrap();
        tree.dir().join(dir)
    }

    fn device(tree: &Tree, function: &Path, name: &str, ports: &[&str]) {
        let dir = function.join("infiniband").join(name);
        for (number, state) in ports.iter().enumerate() {
            let port = dir.join(format!("ports/{}", number + 1));
            fs::create_dir_all(&port).unwrap();
            fs::write(port.join("state"), format!("{state}\n")).unwrap();
        }
        fs::create_dir_all(&dir).unwrap();
        symlink("../..", dir.join("device")).unwrap();
        let class = tree.dir().join("sys/class/infiniband");
        fs::create_dir_all(&class).unwrap();
        symlink(&dir, class.join(name)).unwrap();
    }

    #[test]
    fn adapters_list_virtual_functions() {
        let tree = Tree::hybrid("0").unwrap();
        let root = tree.root();
        assert!(
            adapters(root).unwrap().adapters.is_empty(),
            "no RDMA at all"
        );

        let second = function(&tree, "0000:3b:00.1", "0x020700", "1");
        device(&tree, &second, "mlx5_1", &["4: ACTIVE", "1: DOWN"]);
        let first = function(&tree, "0000:3b:00.0", "0x020000", "-1");
        device(&tree, &first, "mlx5_0", &["4: ACTIVE"]);
        for (number, address) in [(0, "0000:3b:00.3"), (1, "0000:3b:00.2")] {
            let virtual_function = function(&tree, address, "0x020000", "0");
            symlink(&first, virtual_function.join("physfn")).unwrap();
            symlink(&virtual_function, first.join(format!("virtfn{number}"))).unwrap();
            device(
                &tree,
                &virtual_function,
                &format!("mlx5_{}", number + 5),
                &["4: ACTIVE"],
            );
        }
        let silent = function(&tree, "0000:3c:00.0", "0x020700", "0");
        device(&tree, &silent, "mlx5_2", &[]);
        let storage = function(&tree, "0000:3d:00.0", "0x010802", "0");
        device(&tree, &storage, "mlx5_3", &["4: ACTIVE"]);
        let soft = tree.dir().join("sys/devices/virtual/rxe");
        device(&tree, &soft, "rxe0", &["4: ACTIVE"]);

        let inventory = adapters(root).unwrap();
        assert_eq!(inventory.left_out, []);
        let listed: Vec<_> = inventory
            .adapters
            .iter()
            .map(|adapter| {
                let place = &adapter.place;
                (
                    adapter.minor,
                    place.address.as_str(),
                    place.numa_node,
                    adapter.active,
                )
            })
            .collect();
        assert_eq!(
            listed,
            [
                (0, "0000:3b:00.0", 0, true),
                (1, "0000:3b:00.1", 1, false),
                (2, "0000:3c:00.0", 0, false)
            ]
        );
        let first = &inventory.adapters[0];
        assert_eq!(first.functions, ["0000:3b:00.2", "0000:3b:00.3"]);
        assert_eq!(first.place.root_complex, "pci0000:3a");
    }

    #[test]
    fn what_cannot_be_given_away_is_named_and_hides_nothing() {
        let tree = Tree::hybrid("0").unwrap();
        let good = function(&tree, "0000:01:00.0", "0x020000", "0");
        device(&tree, &good, "mlx5_7", &["4: ACTIVE"]);
        let other = function(&tree, "0000:02:00.0", "0x020000", "0");
        device(&tree, &other, "bnxt_re0", &["4: ACTIVE"]);
        let broken = function(&tree, "0000:03:00.0", "0x020000", "middle");
        device(&tree, &broken, "mlx5_8", &["4: ACTIVE"]);
        let odd = function(&tree, "0000:04:00.0", "network", "0");
        device(&tree, &odd, "mlx5_9", &["4: ACTIVE"]);

        let inventory = adapters(tree.root()).unwrap();
        let minors: Vec<i32> = inventory
            .adapters
            .iter()
            .map(|adapter| adapter.minor)
            .collect();
        assert_eq!(minors, [7]);
        let names: Vec<&str> = inventory
            .left_out
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        assert_eq!(names, ["bnxt_re0", "mlx5_8", "mlx5_9"]);
        for (at, text) in [(0, "bnxt_re0"), (1, "middle"), (2, "network")] {
            assert!(
                inventory.left_out[at].1.contains(text),
                "{:?}",
                inventory.left_out[at]
            );
        }
        for name in [
            "mlx_1",
            "mlx5_",
            "mlx5_-1",
            "mlx5_1x",
            "mlx5_99999999999",
            "mlx5",
            "",
        ] {
            assert_eq!(minor(name), None, "{name}");
        }
    }
}
