//! A fake of NVIDIA's library: a shared object that the test compiles, so that the code that loads the
//! library is tested.

use super::skip;
use crate::fake::Tree;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = include_str!("nvml.c");

/// A GPU that the fake NVML library reports.
#[derive(Debug, Clone, Copy)]
pub struct FakeGpu {
    /// UUID.
    pub uuid: &'static str,
    /// Product name.
    pub name: &'static str,
    /// Number of the device file.
    pub minor: u32,
    /// Memory in bytes.
    pub memory: u64,
    /// PCI bus, in the address `0000:<bus>:00.0`.
    pub bus: u8,
    /// True if its health can be watched.
    pub watched: bool,
}

/// A compiled fake of the NVML library, in a directory with the files of the results that it returns.
#[derive(Debug)]
pub struct FakeNvml {
    dir: PathBuf,
}

impl FakeNvml {
    /// Compiles a fake NVML with these GPUs and driver version 535.104.05 into the existing directory `dir`.
    /// If there is no C compiler, reports the test as skipped and returns `None`.
    ///
    /// # Errors
    /// When the compiler refuses or files cannot be written.
    #[track_caller]
    pub fn build(dir: &Path, gpus: &[FakeGpu]) -> io::Result<Option<Self>> {
        if Command::new("cc").arg("--version").output().is_err() {
            skip("cc", "a library is compiled for this test");
            return Ok(None);
        }
        let fake = Self {
            dir: dir.to_owned(),
        };
        let lines = gpus.iter().map(|gpu| {
            let watched = u8::from(gpu.watched);
            let FakeGpu { uuid, name, .. } = gpu;
            format!(
                "{uuid}|{name}|{}|{}|{:x}|{watched}\n",
                gpu.minor, gpu.memory, gpu.bus
            )
        });
        fake.put("cards", &lines.collect::<String>())?;
        fake.put("driver", "535.104.05")?;
        let source = dir.join("nvml.c");
        fs::write(&source, SOURCE)?;
        let output = Command::new("cc")
            .args(["-shared", "-fPIC", "-O0", "-o"])
            .arg(fake.library())
            .arg(format!("-DDIR=\"{}\"", dir.display()))
            .arg(source)
            .output()?;
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            return Err(io::Error::other(stderr.trim().to_owned()));
        }
        Ok(Some(fake))
    }

    /// Returns the path of the library.
    #[must_use]
    pub fn library(&self) -> PathBuf {
        self.dir.join(koord_host::nvml::LIBRARY)
    }

    /// Changes an answer of the library: replaces the file `file` atomically. The comment at the start of
    /// `nvml.c` describes the files.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn put(&self, file: &str, content: &str) -> io::Result<()> {
        let draft = self.dir.join("draft");
        fs::write(&draft, content)?;
        fs::rename(draft, self.dir.join(file))
    }

    /// Returns the content of a file of the library; empty if there is none.
    #[must_use]
    pub fn read(&self, file: &str) -> String {
        fs::read_to_string(self.dir.join(file)).unwrap_or_default()
    }

    /// Adds the GPU of `bus` to sysfs, with NVIDIA's driver, on this NUMA node and below `root_complex`.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn plug(tree: &Tree, bus: u8, numa_node: i32, root_complex: &str) -> io::Result<()> {
        let address = format!("0000:{bus:02x}:00.0");
        let function = format!("sys/devices/{root_complex}/{address}");
        tree.put(&format!("{function}/numa_node"), &format!("{numa_node}\n"))?;
        tree.put(&format!("{function}/class"), "0x030200\n")?;
        for dir in ["sys/bus/pci/devices", "sys/bus/pci/drivers/nvidia"] {
            let dir = tree.dir().join(dir);
            fs::create_dir_all(&dir)?;
            symlink(tree.dir().join(&function), dir.join(&address))?;
        }
        Ok(())
    }
}
