//! The library's functions, and their calling interface.

use super::Xid;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

const SUCCESS: c_int = 0;
const NOT_SUPPORTED: c_int = 3;
const TIMEOUT: c_int = 10;

/// `nvmlEventTypeXidCriticalError`.
const XID: c_ulonglong = 8;

/// Maximum length of the library's texts, the final zero included (`NVML_DEVICE_UUID_V2_BUFFER_SIZE` and
/// `NVML_DEVICE_NAME_V2_BUFFER_SIZE`).
const TEXT: usize = 96;

/// An error of loading the library or of a call to it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NvmlError {
    /// The library cannot be loaded; `why` is the loader's error.
    #[error("{}: {why}", path.display())]
    Absent {
        /// Path of the library.
        path: PathBuf,
        /// The loader's error.
        why: String,
    },
    /// A call failed.
    #[error("{call}: {why}")]
    Call {
        /// The function.
        call: &'static str,
        /// The library's error text, with its number.
        why: String,
    },
}

impl NvmlError {
    pub(super) fn answer(call: &'static str, why: String) -> Self {
        Self::Call { call, why }
    }
}

/// The library's handle of a GPU, valid while it is loaded.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub(super) struct NvmlDevice(*mut c_void);

#[repr(C)]
#[derive(Default)]
struct NvmlMemory {
    total: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

#[repr(C)]
struct Pci {
    bus_id_legacy: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    device_id: c_uint,
    subsystem_id: c_uint,
    bus_id: [c_char; 32],
}

#[repr(C)]
struct EventData {
    device: NvmlDevice,
    kind: c_ulonglong,
    data: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

macro_rules! functions {
    ($($field:ident: $name:literal ($($arg:ty),*);)+) => {
        struct Functions {
            error_string: unsafe extern "C" fn(c_int) -> *const c_char,
            $($field: unsafe extern "C" fn($($arg),*) -> c_int,)+
        }

        #[allow(unsafe_code, reason = "symbols have no types")]
        impl Functions {
            fn load(handle: &Handle) -> Result<Self, NvmlError> {
                let error_string = handle.symbol(c"nvmlErrorString")?;
                // SAFETY: this is the function's type in nvml.h, and it is there as long as the handle.
                let error_string = unsafe {
                    std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int) -> *const c_char>(
                        error_string,
                    )
                };
                $(
                    let $field = handle.symbol($name)?;
                    // SAFETY: this is the function's type in nvml.h, and it is there as long as the handle.
                    let $field = unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) -> c_int>(
                            $field,
                        )
                    };
                )+
                Ok(Self { error_string, $($field,)+ })
            }
        }
    };
}

functions! {
    init: c"nvmlInit_v2"();
    shutdown: c"nvmlShutdown"();
    driver_version: c"nvmlSystemGetDriverVersion"(*mut c_char, c_uint);
    count: c"nvmlDeviceGetCount_v2"(*mut c_uint);
    by_index: c"nvmlDeviceGetHandleByIndex_v2"(c_uint, *mut NvmlDevice);
    by_address: c"nvmlDeviceGetHandleByPciBusId_v2"(*const c_char, *mut NvmlDevice);
    uuid: c"nvmlDeviceGetUUID"(NvmlDevice, *mut c_char, c_uint);
    name: c"nvmlDeviceGetName"(NvmlDevice, *mut c_char, c_uint);
    minor: c"nvmlDeviceGetMinorNumber"(NvmlDevice, *mut c_uint);
    memory: c"nvmlDeviceGetMemoryInfo"(NvmlDevice, *mut NvmlMemory);
    pci: c"nvmlDeviceGetPciInfo_v3"(NvmlDevice, *mut Pci);
    new_events: c"nvmlEventSetCreate"(*mut *mut c_void);
    register: c"nvmlDeviceRegisterEvents"(NvmlDevice, c_ulonglong, *mut c_void);
    wait: c"nvmlEventSetWait_v2"(*mut c_void, *mut EventData, c_uint);
    free_events: c"nvmlEventSetFree"(*mut c_void);
}

/// A loaded library; unloaded on drop.
struct Handle(*mut c_void);

impl Handle {
    #[allow(unsafe_code, reason = "the loader has no safe interface")]
    fn open(path: &Path) -> Result<Self, NvmlError> {
        let absent = |why: String| NvmlError::Absent {
            path: path.to_owned(),
            why,
        };
        let name = CString::new(path.as_os_str().as_bytes());
        let name = name.map_err(|error| absent(error.to_string()))?;
        // SAFETY: the name ends with a zero. What the library does when it is loaded is its business: it
        // is the driver's, named by the user.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(absent(loader_error()));
        }
        Ok(Self(handle))
    }

    #[allow(unsafe_code, reason = "the loader has no safe interface")]
    fn symbol(&self, name: &'static CStr) -> Result<*mut c_void, NvmlError> {
        // SAFETY: the handle is open, and the name ends with a zero.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        if address.is_null() {
            let call = name.to_str().unwrap_or("a function");
            return Err(NvmlError::answer(
                call,
                "the library has no such function".to_owned(),
            ));
        }
        Ok(address)
    }
}

/// Returns the message of the dynamic loader about its last failure in this thread.
#[allow(unsafe_code, reason = "the loader has no safe interface")]
fn loader_error() -> String {
    // SAFETY: what is returned is valid until this thread calls the loader again.
    let message = unsafe { libc::dlerror() };
    if message.is_null() {
        return "cannot be loaded".to_owned();
    }
    // SAFETY: it is a text that ends with a zero, and is copied here.
    unsafe { CStr::from_ptr(message) }
        .to_string_lossy()
        .into_owned()
}

#[allow(unsafe_code, reason = "the loader has no safe interface")]
impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle is open, and nothing of the library is used after its owner.
        unsafe { libc::dlclose(self.0) };
    }
}

/// The initialized library, shut down on drop.
pub(super) struct Library {
    functions: Functions,
    /// Last field, so that it is dropped after the functions.
    _handle: Handle,
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library").finish_non_exhaustive()
    }
}

// SAFETY: NVML may be called from any thread, according to its documentation; the handle is only closed.
#[allow(unsafe_code, reason = "a library that is safe for threads")]
unsafe impl Send for Library {}
// SAFETY: as above.
#[allow(unsafe_code, reason = "a library that is safe for threads")]
unsafe impl Sync for Library {}

#[allow(unsafe_code, reason = "functions of a C library")]
impl Library {
    pub(super) fn load(path: &Path) -> Result<Self, NvmlError> {
        let handle = Handle::open(path)?;
        let functions = Functions::load(&handle)?;
        // SAFETY: as nvml.h has it; nothing has been called before.
        let code = unsafe { (functions.init)() };
        if code != SUCCESS {
            // Not a `Library` yet, whose drop would call shutdown without a start.
            return Err(failure(&functions, "nvmlInit_v2", code));
        }
        Ok(Self {
            functions,
            _handle: handle,
        })
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), NvmlError> {
        if code == SUCCESS {
            return Ok(());
        }
        Err(failure(&self.functions, call, code))
    }

    pub(super) fn driver_version(&self) -> Result<String, NvmlError> {
        // SAFETY: the buffer has the length that is passed.
        text(|buffer, len| unsafe {
            self.check(
                "nvmlSystemGetDriverVersion",
                (self.functions.driver_version)(buffer, len),
            )
        })
    }

    pub(super) fn count(&self) -> Result<u32, NvmlError> {
        let mut count = 0;
        // SAFETY: the pointer is to a number of that type.
        let code = unsafe { (self.functions.count)(&raw mut count) };
        self.check("nvmlDeviceGetCount_v2", code)?;
        Ok(count)
    }

    pub(super) fn by_index(&self, index: u32) -> Result<NvmlDevice, NvmlError> {
        let mut device = NvmlDevice(ptr::null_mut());
        // SAFETY: the pointer is to a handle of that type.
        let code = unsafe { (self.functions.by_index)(index, &raw mut device) };
        self.check("nvmlDeviceGetHandleByIndex_v2", code)?;
        Ok(device)
    }

    pub(super) fn by_address(&self, address: &str) -> Result<NvmlDevice, NvmlError> {
        let call = "nvmlDeviceGetHandleByPciBusId_v2";
        let mut device = NvmlDevice(ptr::null_mut());
        let address = CString::new(address);
        let address = address.map_err(|error| NvmlError::answer(call, error.to_string()))?;
        // SAFETY: the address ends with a zero, and the pointer is to a handle of that type.
        let code = unsafe { (self.functions.by_address)(address.as_ptr(), &raw mut device) };
        self.check(call, code)?;
        Ok(device)
    }

    pub(super) fn uuid(&self, device: NvmlDevice) -> Result<String, NvmlError> {
        // SAFETY: the handle came from the library, and the buffer has the length that is passed.
        text(|buffer, len| unsafe {
            self.check(
                "nvmlDeviceGetUUID",
                (self.functions.uuid)(device, buffer, len),
            )
        })
    }

    pub(super) fn name(&self, device: NvmlDevice) -> Result<String, NvmlError> {
        // SAFETY: the handle came from the library, and the buffer has the length that is passed.
        text(|buffer, len| unsafe {
            self.check(
                "nvmlDeviceGetName",
                (self.functions.name)(device, buffer, len),
            )
        })
    }

    pub(super) fn minor(&self, device: NvmlDevice) -> Result<u32, NvmlError> {
        let mut minor = 0;
        // SAFETY: the handle came from the library, and the pointer is to a number of that type.
        let code = unsafe { (self.functions.minor)(device, &raw mut minor) };
        self.check("nvmlDeviceGetMinorNumber", code)?;
        Ok(minor)
    }

    pub(super) fn memory(&self, device: NvmlDevice) -> Result<u64, NvmlError> {
        let mut memory = NvmlMemory::default();
        // SAFETY: the handle came from the library, and the pointer is to a structure of that type.
        let code = unsafe { (self.functions.memory)(device, &raw mut memory) };
        self.check("nvmlDeviceGetMemoryInfo", code)?;
        Ok(memory.total)
    }

    /// Returns the PCI address in the format of sysfs.
    pub(super) fn address(&self, device: NvmlDevice) -> Result<String, NvmlError> {
        let mut pci = Pci {
            bus_id_legacy: [0; 16],
            domain: 0,
            bus: 0,
            device: 0,
            device_id: 0,
            subsystem_id: 0,
            bus_id: [0; 32],
        };
        // SAFETY: the handle came from the library, and the pointer is to a structure of that type.
        let code = unsafe { (self.functions.pci)(device, &raw mut pci) };
        self.check("nvmlDeviceGetPciInfo_v3", code)?;
        // GPUs are function 0 of their device.
        let (domain, bus, device) = (pci.domain, pci.bus, pci.device);
        Ok(format!("{domain:04x}:{bus:02x}:{device:02x}.0"))
    }
}

#[allow(unsafe_code, reason = "functions of a C library")]
impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: it was initialized, once, and nothing of it is used any more.
        unsafe { (self.functions.shutdown)() };
    }
}

/// Returns the error for a result code, with the library's description of it.
#[allow(unsafe_code, reason = "a function of a C library")]
fn failure(functions: &Functions, call: &'static str, code: c_int) -> NvmlError {
    // SAFETY: any number is a valid argument.
    let description = unsafe { (functions.error_string)(code) };
    if description.is_null() {
        return NvmlError::answer(call, format!("code {code}"));
    }
    // SAFETY: the library has a constant text for each code.
    let description = unsafe { CStr::from_ptr(description) }.to_string_lossy();
    NvmlError::answer(call, format!("{description} (code {code})"))
}

/// Returns the text that `write` puts into a buffer of the length that it gets.
fn text(
    write: impl FnOnce(*mut c_char, c_uint) -> Result<(), NvmlError>,
) -> Result<String, NvmlError> {
    let mut buffer = [0_u8; TEXT];
    // One byte less than the buffer, so that the text always ends with a zero.
    write(buffer.as_mut_ptr().cast(), (TEXT - 1) as c_uint)?;
    let end = buffer.iter().position(|byte| *byte == 0).unwrap_or(TEXT);
    Ok(String::from_utf8_lossy(&buffer[..end]).into_owned())
}

/// Events of the library; freed on drop.
#[derive(Debug)]
pub(super) struct EventSet {
    library: Arc<Library>,
    set: *mut c_void,
}

// SAFETY: NVML may be called from any thread, with any set.
#[allow(unsafe_code, reason = "a library that is safe for threads")]
unsafe impl Send for EventSet {}

#[allow(unsafe_code, reason = "functions of a C library")]
impl EventSet {
    pub(super) fn new(library: Arc<Library>) -> Result<Self, NvmlError> {
        let mut set = ptr::null_mut();
        // SAFETY: the pointer is to a handle of that type.
        let code = unsafe { (library.functions.new_events)(&raw mut set) };
        library.check("nvmlEventSetCreate", code)?;
        Ok(Self { library, set })
    }

    pub(super) fn library(&self) -> &Library {
        &self.library
    }

    /// Subscribes to critical Xids of a device. Returns false if the device does not support them.
    pub(super) fn register(&self, device: NvmlDevice) -> Result<bool, NvmlError> {
        // SAFETY: both handles came from the library.
        let code = unsafe { (self.library.functions.register)(device, XID, self.set) };
        if code == NOT_SUPPORTED {
            return Ok(false);
        }
        self.library.check("nvmlDeviceRegisterEvents", code)?;
        Ok(true)
    }

    /// Waits at most `patience` for an XID error; returns `None` if there was none.
    pub(super) fn wait(&self, patience: Duration) -> Result<Option<Xid>, NvmlError> {
        let mut event = EventData {
            device: NvmlDevice(ptr::null_mut()),
            kind: 0,
            data: 0,
            gpu_instance: 0,
            compute_instance: 0,
        };
        let patience = c_uint::try_from(patience.as_millis()).unwrap_or(c_uint::MAX);
        // SAFETY: the set came from the library, and the pointer is to a structure of that type.
        let code = unsafe { (self.library.functions.wait)(self.set, &raw mut event, patience) };
        if code == TIMEOUT {
            return Ok(None);
        }
        self.library.check("nvmlEventSetWait_v2", code)?;
        if event.kind != XID {
            return Ok(None);
        }
        // An event without a device is about all of them, and so is one of a device that cannot be
        // identified.
        let device = Some(event.device).filter(|device| !device.0.is_null());
        let device =
            device.filter(|device| self.library.uuid(*device).is_ok_and(|id| !id.is_empty()));
        Ok(Some(Xid {
            code: event.data,
            address: device.and_then(|device| self.library.address(device).ok()),
        }))
    }
}

#[allow(unsafe_code, reason = "a function of a C library")]
impl Drop for EventSet {
    fn drop(&mut self) {
        // SAFETY: the set came from the library, and is not used any more.
        unsafe { (self.library.functions.free_events)(self.set) };
    }
}
