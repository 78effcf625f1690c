//! NVIDIA's management library (NVML), loaded at run time: lists GPUs and reports their faults. On machines
//! without the library [`Nvml::load`] returns the reason.
//!
//! The functions and structures are those of NVML 11 and later, whose names carry versions: they do not
//! change. The library may be called from any thread.

mod library;

use library::Library;
pub use library::NvmlError;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Name of the library as installed by the driver.
pub const LIBRARY: &str = "libnvidia-ml.so.1";

/// Xids that an application causes: the GPU is healthy. Source: Koordinator
/// `pkg/koordlet/statesinformer/impl/states_device_linux.go`, after NVIDIA's list of Xid errors.
pub const XIDS_OF_APPLICATIONS: [u64; 6] = [13, 31, 43, 45, 68, 109];

/// A GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// UUID, such as `GPU-1f…`.
    pub uuid: String,
    /// Product name, such as `NVIDIA A100-SXM4-80GB`; empty where the library does not report it.
    pub name: String,
    /// The number of its device file.
    pub minor: i32,
    /// Memory in bytes.
    pub memory: u64,
    /// PCI address, such as `0000:3b:00.0`, in small letters.
    pub address: String,
}

/// A GPU error that NVIDIA's driver reports (Xid).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Xid {
    /// NVIDIA's Xid number.
    pub code: u64,
    /// PCI address of the GPU; `None` means every GPU.
    pub address: Option<String>,
}

/// The initialized library. It is shut down with the last clone.
#[derive(Debug, Clone)]
pub struct Nvml(Arc<Library>);

impl Nvml {
    /// Loads the library by its path, or by its name from the loader's search path.
    ///
    /// # Errors
    /// When it does not exist, lacks a function, or fails to start.
    pub fn load(path: &Path) -> Result<Self, NvmlError> {
        Ok(Self(Arc::new(Library::load(path)?)))
    }

    /// Returns the driver's version, such as `535.104.05`.
    ///
    /// # Errors
    /// The library's error.
    pub fn driver(&self) -> Result<String, NvmlError> {
        self.0.driver_version()
    }

    /// Returns the GPUs, and the errors of those that could not be queried.
    ///
    /// # Errors
    /// When even their number is not available.
    pub fn gpus(&self) -> Result<(Vec<Gpu>, Vec<NvmlError>), NvmlError> {
        let (mut gpus, mut lost) = (Vec::new(), Vec::new());
        for index in 0..self.0.count()? {
            match self.gpu(index) {
                Ok(gpu) => gpus.push(gpu),
                Err(error) => lost.push(error),
            }
        }
        Ok((gpus, lost))
    }

    /// Reads the properties of the GPU at `index`.
    fn gpu(&self, index: u32) -> Result<Gpu, NvmlError> {
        let library = &*self.0;
        let device = library.by_index(index)?;
        let minor = library.minor(device)?;
        Ok(Gpu {
            uuid: library.uuid(device)?,
            // The name is only for users and labels.
            name: library.name(device).unwrap_or_default(),
            minor: i32::try_from(minor).map_err(|_| {
                NvmlError::answer(
                    "nvmlDeviceGetMinorNumber",
                    format!("minor {minor} is too large"),
                )
            })?,
            memory: library.memory(device)?,
            address: library.address(device)?,
        })
    }

    /// Subscribes to critical Xids of the GPUs with these PCI addresses. The result lists GPUs that do not
    /// support events, and those for which the subscription failed.
    ///
    /// # Errors
    /// When the library has no events.
    pub fn watch(&self, addresses: &[String]) -> Result<HealthSubscription, NvmlError> {
        let set = library::EventSet::new(self.0.clone())?;
        let (mut mute, mut lost) = (Vec::new(), Vec::new());
        for address in addresses {
            let device = self.0.by_address(address);
            match device.and_then(|device| set.register(device)) {
                Ok(true) => {}
                Ok(false) => mute.push(address.clone()),
                Err(error) => lost.push((address.clone(), error)),
            }
        }
        Ok(HealthSubscription { set, mute, lost })
    }
}

/// A subscription to health events of GPUs.
#[derive(Debug)]
pub struct HealthSubscription {
    set: library::EventSet,
    /// PCI addresses of GPUs that do not support health events.
    pub mute: Vec<String>,
    /// Addresses of GPUs whose subscription failed, with the error.
    pub lost: Vec<(String, NvmlError)>,
}

impl HealthSubscription {
    /// Waits at most `patience` for the next critical Xid. Returns `None` if there is none until then, or if
    /// an application caused it, so that the GPU is healthy.
    ///
    /// # Errors
    /// The library's error. It may return at once each time: wait before the next call.
    pub fn next(&self, patience: Duration) -> Result<Option<Xid>, NvmlError> {
        let xid = self.set.wait(patience)?;
        Ok(xid.filter(|xid| !XIDS_OF_APPLICATIONS.contains(&xid.code)))
    }

    /// Returns the error for a GPU that is no longer present at this address; `None` when it is present.
    #[must_use]
    pub fn absence(&self, address: &str) -> Option<NvmlError> {
        self.set.library().by_address(address).err()
    }
}
