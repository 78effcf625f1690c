//! The kubelet's configuration, from `/configz`.

use super::super::layout::CgroupHint;
use super::super::malformed::Malformed;
use koord_api::lenient::{self, ReadError};
use koord_api::{Quantity, ResourceList, resources};
use koord_host::cpuset::{CpuListError, CpuSet};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeMap;

/// Member of `/configz` with the KubeletConfiguration.
const KEY: &str = "kubeletconfig";

/// Eviction signal whose threshold is subtracted from the allocatable memory.
const MEMORY_AVAILABLE: &str = "memory.available";

/// The parts of a KubeletConfiguration that the agent uses. The rest, which changes its format between
/// releases (`logging` in 1.28), is ignored.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Config {
    /// `cgroupDriver` and `cgroupRoot`.
    pub cgroups: CgroupHint,
    /// `cpuManagerPolicy`; empty is none.
    pub cpu_manager_policy: String,
    /// `cpuManagerPolicyOptions`.
    pub cpu_manager_options: BTreeMap<String, String>,
    /// `reservedSystemCPUs`.
    pub reserved_cpus: CpuSet,
    /// CPU of `kubeReserved` and `systemReserved` together, in milli-cores.
    pub reserved_milli: i64,
    /// `memoryManagerPolicy`; empty is None.
    pub memory_manager_policy: String,
    /// Memory of `kubeReserved` and `systemReserved` together, in bytes.
    pub reserved_memory: i64,
    /// The threshold `memory.available` of `evictionHard`, in bytes or percent; empty is no threshold.
    pub eviction_memory: String,
    /// `topologyManagerPolicy`; empty is none.
    pub topology_policy: String,
    /// `topologyManagerScope`; empty is container.
    pub topology_scope: String,
    /// True if the kubelet enforces CPU limits (`cpuCFSQuota`; true if unset).
    pub cfs_quota: bool,
}

impl Config {
    /// Returns whether the CPU manager assigns exclusive CPUs.
    #[must_use]
    pub fn is_cpu_manager_static(&self) -> bool {
        self.cpu_manager_policy == "static"
    }

    /// Returns whether the memory manager assigns memory of NUMA nodes.
    #[must_use]
    pub fn is_memory_manager_static(&self) -> bool {
        self.memory_manager_policy == "Static"
    }

    /// Parses the response of `/configz`. A field of another type counts as missing and is reported in the
    /// second value.
    ///
    /// # Errors
    /// When the response is no JSON, or has no kubelet configuration.
    pub fn read(answer: &str) -> Result<(Self, Vec<Malformed>), ReadError> {
        let answer: Value =
            serde_json::from_str(answer).map_err(|error| ReadError::Syntax(error.to_string()))?;
        let config = lenient::member(&answer, KEY).filter(|config| config.is_object());
        let Some(config) = config else {
            return Err(ReadError::Field {
                path: KEY.to_owned(),
                message: "is missing or no object".to_owned(),
            });
        };
        let mut fields = ConfigFields {
            config,
            malformed: Vec::new(),
        };
        let reserved_cpus = fields
            .get::<String>("reservedSystemCPUs")
            .unwrap_or_default();
        let reserved_cpus = reserved_cpus.parse().unwrap_or_else(|error: CpuListError| {
            let error = koord_host::Malformed::from(error);
            fields.refuse("reservedSystemCPUs", &reserved_cpus, &error);
            CpuSet::new()
        });
        let (mut milli, mut memory) = (0_i64, 0_i64);
        for name in ["kubeReserved", "systemReserved"] {
            let reserved = fields.get::<ResourceList>(name).unwrap_or_default();
            let cpu = reserved
                .get(resources::CPU)
                .map_or(0, Quantity::milli_value);
            milli = milli.saturating_add(cpu.max(0));
            let bytes = reserved.get(resources::MEMORY).map_or(0, Quantity::value);
            memory = memory.saturating_add(bytes.max(0));
        }
        let eviction = fields.get::<BTreeMap<String, String>>("evictionHard");
        let eviction_memory = match eviction {
            // The kubelet's default.
            None => "100Mi".to_owned(),
            Some(thresholds) => thresholds
                .get(MEMORY_AVAILABLE)
                .cloned()
                .unwrap_or_default(),
        };
        let driver = fields.get::<String>("cgroupDriver").unwrap_or_default();
        let cgroups = CgroupHint::from_config(config);
        if cgroups.driver.is_none() && !driver.is_empty() {
            fields.refuse("cgroupDriver", &driver, &"is neither cgroupfs nor systemd");
        }
        let config = Self {
            cgroups,
            cpu_manager_policy: fields.get("cpuManagerPolicy").unwrap_or_default(),
            cpu_manager_options: fields.get("cpuManagerPolicyOptions").unwrap_or_default(),
            reserved_cpus,
            reserved_milli: milli,
            memory_manager_policy: fields.get("memoryManagerPolicy").unwrap_or_default(),
            reserved_memory: memory,
            eviction_memory,
            topology_policy: fields.get("topologyManagerPolicy").unwrap_or_default(),
            topology_scope: fields.get("topologyManagerScope").unwrap_or_default(),
            cfs_quota: fields.get("cpuCFSQuota").unwrap_or(true),
        };
        Ok((config, fields.malformed))
    }
}

struct ConfigFields<'a> {
    config: &'a Value,
    malformed: Vec<Malformed>,
}

impl ConfigFields<'_> {
    fn get<T: DeserializeOwned>(&mut self, name: &str) -> Option<T> {
        let value = lenient::member(self.config, name).filter(|value| !value.is_null())?;
        match lenient::from_value(value) {
            Ok(read) => Some(read),
            Err(error) => {
                let report = Malformed::new(format!("{KEY}.{name}"), value.to_string(), &error);
                self.malformed.push(report);
                None
            }
        }
    }

    fn refuse(&mut self, name: &str, value: &str, error: &dyn std::fmt::Display) {
        let report = Malformed::new(format!("{KEY}.{name}"), value, error);
        self.malformed.push(report);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::states::Driver;
    use serde_json::json;

    /// Upstream's cases: `logging` as before 1.28 (a number of nanoseconds), and since (a text).
    #[test]
    fn both_forms_of_configz_are_read() {
        for flush in [json!(5_000_000_000_i64), json!("5s")] {
            let answer = json!({"kubeletconfig": {
                "logging": {"format": "text", "flushFrequency": flush, "verbosity": 3},
                "cgroupDriver": "systemd", "cgroupRoot": "/", "cpuManagerPolicy": "static",
                "cpuManagerPolicyOptions": {"full-pcpus-only": "true"},
                "kubeReserved": {"cpu": "500m", "memory": "1Gi"}, "systemReserved": {"cpu": "1"},
                "reservedSystemCPUs": "0-1", "cpuCFSQuota": false,
                "topologyManagerPolicy": "best-effort", "topologyManagerScope": "pod"}});
            let (config, malformed) = Config::read(&answer.to_string()).unwrap();
            assert_eq!(malformed, []);
            assert_eq!(config.cgroups.driver, Some(Driver::Systemd));
            assert_eq!(config.cgroups.cgroup_root.as_deref(), Some("/"));
            assert!(config.is_cpu_manager_static() && !config.cfs_quota);
            assert_eq!(config.cpu_manager_options["full-pcpus-only"], "true");
            assert_eq!(
                (config.reserved_milli, config.reserved_cpus.len()),
                (1500, 2)
            );
            let topology = (
                config.topology_policy.as_str(),
                config.topology_scope.as_str(),
            );
            assert_eq!(topology, ("best-effort", "pod"));
        }
        let (config, _) = Config::read(r#"{"kubeletconfig":{}}"#).unwrap();
        assert!(config.cfs_quota && config.cgroups == CgroupHint::default());
    }

    #[test]
    fn bad_fields_are_named_and_the_rest_is_read() {
        let answer = json!({"kubeletconfig": {"cgroupDriver": "magic", "cpuManagerPolicy": 7,
            "reservedSystemCPUs": "1-0", "kubeReserved": {"cpu": "much"}, "cgroupRoot": "/k"}});
        let (config, mut malformed) = Config::read(&answer.to_string()).unwrap();
        assert_eq!(config.cgroups.cgroup_root.as_deref(), Some("/k"));
        malformed.sort();
        let fields: Vec<_> = malformed
            .iter()
            .map(|m| m.field.trim_start_matches("kubeletconfig."))
            .collect();
        assert_eq!(
            fields,
            [
                "cgroupDriver",
                "cpuManagerPolicy",
                "kubeReserved",
                "reservedSystemCPUs"
            ]
        );
        for (answer, part) in [
            ("", "not JSON"),
            ("[]", "kubeletconfig"),
            (r#"{"kubeletconfig":1}"#, "kubeletconfig"),
        ] {
            let error = Config::read(answer).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
