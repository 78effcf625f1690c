//! Environment and mounts that make a pod's allocated GPUs available to its containers.
//!
//! Source: Koordinator `pkg/koordlet/runtimehooks/hooks/gpu`.

use crate::resources::current;
use koord_api::extension::DeviceAllocations;
use koord_api::labels::GPU_ISOLATION_HAMI_CORE;
use koord_api::resources::{GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO};
use koord_api::scheduling::DeviceType;
use std::collections::BTreeMap;

/// Minor numbers of the GPUs, for the NVIDIA runtime.
pub const VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";

/// Directory of HAMi-core's lock file, which HAMi-core does not create (HAMi issue 696).
const LOCK_DIRECTORY: &str = "/tmp/vgpulock";

/// Recursive bind mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Path on the host.
    pub source: String,
    /// Path in the container.
    pub destination: String,
}

/// Environment and mounts of a container.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GpuEnv {
    /// Environment variables.
    pub env: BTreeMap<String, String>,
    /// Mounts.
    pub mounts: Vec<Mount>,
    /// Directory on the host that must exist, empty and writable for all, when the container starts.
    pub fresh_directory: Option<String>,
}

/// Error for an allocation without an amount that its isolation needs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the GPU of a pod isolated by HAMi-core has no {0}")]
pub struct MissingAmount(&'static str);

/// Container and its GPU allocation.
#[derive(Debug, Clone, Copy)]
pub struct GpuEnvRequest<'a> {
    /// Devices allocated to the pod.
    pub devices: &'a DeviceAllocations,
    /// The label `koordinator.sh/gpu-isolation-provider`.
    pub isolation: Option<&'a str>,
    /// Path of HAMi-core's library on the host.
    pub library: &'a str,
    /// True if HAMi-core shares its usage with a monitor on the host.
    pub monitored: bool,
    /// UID of the pod.
    pub uid: &'a str,
    /// Name of the container.
    pub container: &'a str,
}

/// Returns the environment and mounts of a container; empty if the pod has no GPU.
///
/// # Errors
/// The pod shares a GPU through HAMi-core and the amount of its share is missing.
pub fn container_env(ask: GpuEnvRequest<'_>) -> Result<GpuEnv, MissingAmount> {
    let mut gpu_env = GpuEnv::default();
    let gpus = ask.devices.get(DeviceType::Gpu.as_str());
    let Some((first, gpus)) = gpus.and_then(|gpus| Some((gpus.first()?, gpus))) else {
        return Ok(gpu_env);
    };
    let minors: Vec<String> = gpus.iter().map(|gpu| gpu.minor.to_string()).collect();
    gpu_env
        .env
        .insert(VISIBLE_DEVICES.to_owned(), minors.join(","));
    if ask.isolation != Some(GPU_ISOLATION_HAMI_CORE) {
        return Ok(gpu_env);
    }
    let amount = |name: &'static str| {
        let entry = current(&first.resources).find(|(key, _)| *key == name);
        entry.map(|(_, amount)| amount.value())
    };
    if amount(GPU_MEMORY_RATIO).ok_or(MissingAmount(GPU_MEMORY_RATIO))? >= 100 {
        return Ok(gpu_env);
    }
    let memory = amount(GPU_MEMORY).ok_or(MissingAmount(GPU_MEMORY))?;
    let mut set = |name: &str, value: String| gpu_env.env.insert(name.to_owned(), value);
    set("CUDA_DEVICE_MEMORY_LIMIT", memory.to_string());
    if let Some(core) = amount(GPU_CORE) {
        set("CUDA_DEVICE_SM_LIMIT", core.to_string());
    }
    set("LD_PRELOAD", ask.library.to_owned());
    let mount = |path: &str| Mount {
        source: path.to_owned(),
        destination: path.to_owned(),
    };
    gpu_env.mounts = vec![mount(ask.library), mount(LOCK_DIRECTORY)];
    if ask.monitored {
        let directory = ask
            .library
            .rsplit_once('/')
            .map_or("", |(parent, _)| parent);
        let name = format!("{}_{}", ask.uid, ask.container);
        set(
            "CUDA_DEVICE_MEMORY_SHARED_CACHE",
            format!("{directory}/{name}.cache"),
        );
        let source = format!("{directory}/containers/{name}");
        gpu_env.mounts.push(Mount {
            source: source.clone(),
            destination: directory.to_owned(),
        });
        gpu_env.fresh_directory = Some(source);
    }
    Ok(gpu_env)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn device_env(
        devices: serde_json::Value,
        isolation: Option<&str>,
        monitored: bool,
    ) -> Result<GpuEnv, MissingAmount> {
        container_env(GpuEnvRequest {
            devices: &serde_json::from_value(devices).unwrap(),
            isolation,
            library: "/usr/local/vgpu/libvgpu.so",
            monitored,
            uid: "pod-uid",
            container: "container-name",
        })
    }

    fn env(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        pairs.iter().map(owned).collect()
    }

    #[test]
    fn whole_gpus_are_named() {
        let two = device_env(json!({"gpu": [{"minor": 0}, {"minor": 1}]}), None, true).unwrap();
        assert_eq!(two.env, env(&[(VISIBLE_DEVICES, "0,1")]));
        assert_eq!(two.mounts, []);
        for none in [
            json!({"fpga": [{"minor": 0}]}),
            json!({"gpu": []}),
            json!({}),
        ] {
            assert_eq!(
                device_env(none, Some("HAMi-core"), true),
                Ok(GpuEnv::default())
            );
        }
        let whole =
            json!({"gpu": [{"minor": 1, "resources": {"koordinator.sh/gpu-memory-ratio": "100"}}]});
        let whole = device_env(whole, Some("HAMi-core"), true).unwrap();
        assert_eq!(whole.env, env(&[(VISIBLE_DEVICES, "1")]));
    }

    #[test]
    fn shared_gpu_is_limited() {
        let half = json!({"gpu": [{"minor": 1, "resources": {"koordinator.sh/gpu-core": "50",
            "koordinator.sh/gpu-memory": "16Gi", "koordinator.sh/gpu-memory-ratio": "50"}}]});
        let limits = [
            (VISIBLE_DEVICES, "1"),
            ("CUDA_DEVICE_MEMORY_LIMIT", "17179869184"),
            ("CUDA_DEVICE_SM_LIMIT", "50"),
            ("LD_PRELOAD", "/usr/local/vgpu/libvgpu.so"),
        ];
        let mount = |source: &str, destination: &str| Mount {
            source: source.to_owned(),
            destination: destination.to_owned(),
        };
        let library = "/usr/local/vgpu/libvgpu.so";
        let two = vec![
            mount(library, library),
            mount("/tmp/vgpulock", "/tmp/vgpulock"),
        ];
        let plain = device_env(half.clone(), Some("HAMi-core"), false).unwrap();
        assert_eq!((plain.env, &plain.mounts), (env(&limits), &two));
        assert_eq!(plain.fresh_directory, None);

        let watched = device_env(half.clone(), Some("HAMi-core"), true).unwrap();
        let cache = "/usr/local/vgpu/pod-uid_container-name.cache";
        let mut all = env(&limits);
        all.insert(
            "CUDA_DEVICE_MEMORY_SHARED_CACHE".to_owned(),
            cache.to_owned(),
        );
        assert_eq!(watched.env, all);
        let source = "/usr/local/vgpu/containers/pod-uid_container-name";
        let mut three = two;
        three.push(mount(source, "/usr/local/vgpu"));
        assert_eq!(watched.mounts, three);
        assert_eq!(watched.fresh_directory.as_deref(), Some(source));

        let other = device_env(half, Some("else"), true).unwrap();
        assert_eq!(other.env, env(&[(VISIBLE_DEVICES, "1")]));
    }

    #[test]
    fn new_resource_names_take_precedence() {
        let half = json!({"gpu": [{"minor": 1, "resources": {"kubernetes.io/gpu-core": "30",
            "kubernetes.io/gpu-memory": "16Gi", "kubernetes.io/gpu-memory-ratio": "50",
            "koordinator.sh/gpu-core": "50"}}]});
        let limits = device_env(half, Some("HAMi-core"), false).unwrap().env;
        assert_eq!(limits["CUDA_DEVICE_SM_LIMIT"], "50");
        assert_eq!(limits["CUDA_DEVICE_MEMORY_LIMIT"], "17179869184");
    }

    #[test]
    fn share_without_amounts_is_rejected() {
        for resources in [json!({}), json!({"koordinator.sh/gpu-memory-ratio": "50"})] {
            let devices = json!({"gpu": [{"minor": 0, "resources": resources}]});
            assert!(device_env(devices, Some("HAMi-core"), false).is_err());
        }
    }
}
