//! NVIDIA GPUs, found through NVIDIA's library.

use super::files::{DeviceProblems, malformed};
use crate::states::malformed::Malformed;
use koord_api::scheduling::{DeviceInfo, DeviceTopology, DeviceType};
use koord_api::{Quantity, labels, resources};
use koord_host::nvml::{Gpu, Nvml, NvmlError, Xid};
use koord_host::{Root, pci};
use koord_model::device_report::xpu::label;
use koord_model::device_report::{Detected, Health, Report};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Number of searches between two attempts to load the library: a minute with the default interval.
const RETRY_ROUNDS: u32 = 20;

/// Timeout of one wait for GPU events. The watch ends within that time after its owner.
const EVENT_TIMEOUT: Duration = Duration::from_millis(500);

/// Delay before the library is called again after an error, which it may repeat at once.
const ERROR_DELAY: Duration = Duration::from_secs(5);

/// Health of failed GPUs, by address. A failure remains until koordlet is restarted, because no event reports
/// a recovery.
type GpuHealth = Arc<Mutex<BTreeMap<String, Health>>>;

/// NVIDIA's library, and the GPUs that it reported.
#[derive(Debug)]
pub(super) struct Nvidia {
    root: Root,
    library: PathBuf,
    loaded: Option<LoadedLibrary>,
    /// Number of searches until the next attempt.
    wait: u32,
    wrong: Vec<Malformed>,
}

#[derive(Debug)]
struct LoadedLibrary {
    /// GPUs with their addresses.
    gpus: Vec<(String, Detected)>,
    labels: BTreeMap<String, String>,
    wrong: Vec<Malformed>,
    health_by_address: GpuHealth,
    stop: Arc<AtomicBool>,
}

impl Drop for LoadedLibrary {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Nvidia {
    pub(super) fn new(root: Root, library: PathBuf) -> Self {
        Self {
            root,
            library,
            loaded: None,
            wait: 0,
            wrong: Vec::new(),
        }
    }

    /// Returns the GPUs; none if NVIDIA's driver has none. The library is queried once for values that do not
    /// change.
    pub(super) fn find(&mut self) -> (Option<Report>, DeviceProblems) {
        self.load();
        let wrong = match &self.loaded {
            Some(loaded) => loaded.wrong.clone(),
            None => self.wrong.clone(),
        };
        let report = self.loaded.as_ref().map(LoadedLibrary::report);
        (report, vec![("NVIDIA GPUs".to_owned(), wrong)])
    }

    /// Loads the library if the machine has NVIDIA functions; after a failure, only some rounds later.
    fn load(&mut self) {
        if self.loaded.is_some() {
            return;
        }
        let addresses = match pci::list_by_driver(&self.root, "nvidia") {
            Ok(addresses) => addresses,
            Err(error) => {
                self.wrong = vec![Malformed::new("", "", &error)];
                return;
            }
        };
        if addresses.is_empty() {
            self.wrong.clear();
            self.wait = 0;
            return;
        }
        if self.wait > 0 {
            self.wait -= 1;
            return;
        }
        self.wait = RETRY_ROUNDS;
        self.wrong.clear();
        match LoadedLibrary::new(&self.root, &self.library, &addresses) {
            Ok(loaded) => self.loaded = Some(loaded),
            Err(error) => {
                let library = self.library.display().to_string();
                self.wrong = vec![Malformed::new("library", library, &error)];
            }
        }
    }
}

impl LoadedLibrary {
    /// Loads the library and lists its GPUs; `addresses` are the functions bound to its driver.
    fn new(root: &Root, library: &Path, addresses: &[String]) -> Result<Self, NvmlError> {
        let nvml = Nvml::load(library)?;
        let (gpus, lost) = nvml.gpus()?;
        let lost = lost.iter().map(|error| Malformed::new("gpu", "", error));
        let mut wrong: Vec<Malformed> = lost.collect();
        let mut problems = Vec::new();
        let driver = nvml.driver();
        let names: Vec<&str> = gpus.iter().map(|gpu| gpu.name.as_str()).collect();
        let mut labels = BTreeMap::new();
        labels.insert(labels::NODE_GPU_VENDOR.to_owned(), "nvidia".to_owned());
        match (&driver, names.first()) {
            (Ok(driver), Some(first)) if names.iter().all(|name| name == first) => {
                let model = first.strip_prefix("NVIDIA ").unwrap_or(first);
                label(&mut labels, labels::NODE_GPU_MODEL, model, &mut problems);
                if labels.contains_key(labels::NODE_GPU_MODEL) {
                    let key = labels::NODE_GPU_DRIVER_VERSION;
                    label(&mut labels, key, driver, &mut problems);
                }
            }
            (Ok(_), Some(_)) => {
                let why = "GPUs of several models: neither model nor driver is a label";
                wrong.push(Malformed::new("name", names.join(","), why));
            }
            (Ok(_), None) => {}
            (Err(error), _) => wrong.push(Malformed::new("driver", "", error)),
        }
        wrong.extend(problems.into_iter().map(malformed));
        let gpus = gpus.iter().map(|gpu| {
            let place = pci::place(root, &gpu.address).unwrap_or_else(|error| {
                wrong.push(Malformed::new("address", gpu.address.as_str(), &error));
                None
            });
            (gpu.address.clone(), detected(gpu, place))
        });
        let gpus: Vec<(String, Detected)> = gpus.collect();
        let health_by_address = GpuHealth::default();
        let stop = Arc::new(AtomicBool::new(false));
        if let Err(error) = watch(&nvml, addresses, &health_by_address, &stop, &mut wrong) {
            wrong.push(Malformed::new("health", "", &error));
        }
        tracing::info!(
            gpus = gpus.len(),
            driver = driver.unwrap_or_default(),
            "loaded NVIDIA library"
        );
        Ok(Self {
            gpus,
            labels,
            wrong,
            health_by_address,
            stop,
        })
    }

    fn report(&self) -> Report {
        let health_by_address = self.health_by_address.lock();
        let devices = self.gpus.iter().map(|(address, gpu)| {
            let mut gpu = gpu.clone();
            let problem = health_by_address.get(address).cloned();
            gpu.info.health = problem.is_none();
            gpu.health = problem;
            gpu
        });
        // Upstream sets no labels on a machine on which the library finds no GPU.
        let devices: Vec<Detected> = devices.collect();
        let labels = if devices.is_empty() {
            BTreeMap::new()
        } else {
            self.labels.clone()
        };
        Report {
            devices,
            labels,
            annotations: BTreeMap::new(),
        }
    }
}

/// Returns the report of a GPU; without a topology if sysfs does not have its root complex.
fn detected(gpu: &Gpu, place: Option<pci::PciLocation>) -> Detected {
    let memory = i64::try_from(gpu.memory).unwrap_or(i64::MAX);
    let amounts = [
        (resources::GPU_CORE, Quantity::from_value(100)),
        (resources::GPU_MEMORY, Quantity::from_bytes(memory)),
        (resources::GPU_MEMORY_RATIO, Quantity::from_value(100)),
    ];
    let place = place.filter(|place| !place.root_complex.is_empty());
    let topology = place.map(|place| DeviceTopology {
        socket_id: -1,
        node_id: place.numa_node,
        pcie_id: place.root_complex,
        bus_id: place.address,
    });
    Detected {
        info: DeviceInfo {
            id: gpu.uuid.clone(),
            minor: Some(gpu.minor),
            type_: Some(DeviceType::Gpu),
            health: true,
            resources: amounts
                .map(|(name, amount)| (name.to_owned(), amount))
                .into(),
            topology,
            ..DeviceInfo::default()
        },
        health: None,
    }
}

/// Starts a thread that records failures of the GPUs with these addresses, until `stop` is set.
fn watch(
    nvml: &Nvml,
    addresses: &[String],
    health_by_address: &GpuHealth,
    stop: &Arc<AtomicBool>,
    wrong: &mut Vec<Malformed>,
) -> Result<(), NvmlError> {
    let watch = nvml.watch(addresses)?;
    for address in &watch.mute {
        let health = unhealthy(
            "DeviceHealthCheckNotSupported",
            "device does not support health checking",
        );
        health_by_address.lock().insert(address.clone(), health);
    }
    for (address, error) in &watch.lost {
        wrong.push(Malformed::new("health", address.as_str(), error));
    }
    let (all, health_by_address, stop) =
        (addresses.to_vec(), health_by_address.clone(), stop.clone());
    let listen = move || {
        while !stop.load(Ordering::Relaxed) {
            match watch.next(EVENT_TIMEOUT) {
                Ok(None) => {}
                Ok(Some(xid)) => {
                    record_xid(&xid, &all, &health_by_address);
                    for address in &all {
                        if let Some(error) = watch.absence(address) {
                            let message = format!("failed to get device, error: {error}");
                            let health = unhealthy(&format!("Xid{}", xid.code), &message);
                            health_by_address.lock().insert(address.clone(), health);
                        }
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to query the health of NVIDIA GPUs, retrying");
                    std::thread::park_timeout(ERROR_DELAY);
                }
            }
        }
    };
    let thread = std::thread::Builder::new().name("gpu-health".to_owned());
    if let Err(error) = thread.spawn(listen) {
        wrong.push(Malformed::new("health", "", &error));
    }
    Ok(())
}

fn record_xid(xid: &Xid, all: &[String], health_by_address: &GpuHealth) {
    let code = xid.code;
    let message = format!("Xid error detected on device, error code: {code}");
    tracing::warn!(
        xid = code,
        gpu = xid.address.as_deref().unwrap_or("all"),
        "GPU failed"
    );
    let health = unhealthy(&format!("Xid{code}"), &message);
    let addresses = match &xid.address {
        Some(address) => std::slice::from_ref(address),
        None => all,
    };
    let mut health_by_address = health_by_address.lock();
    for address in addresses {
        health_by_address.insert(address.clone(), health.clone());
    }
}

fn unhealthy(code: &str, message: &str) -> Health {
    Health {
        healthy: false,
        code: code.to_owned(),
        message: message.to_owned(),
    }
}
