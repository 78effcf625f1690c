//! Device reports: publishes the devices of this machine as the node's Device object.
//!
//! | source | finds | with gate |
//! |---|---|---|
//! | [`files`] | accelerators that vendors' tools describe | `Accelerators` |
//! | NVIDIA's library, if there are no such files | GPUs | `Accelerators` |
//! | sysfs | RDMA adapters | `RDMADevices` |
//!
//! [`koord_model::device_report`] plans the object. The API server is read when the report or the object has
//! changed, which a watch of the one object shows, and written to when the object must change.

pub mod files;
mod finder;
mod nvidia;

pub use finder::DeviceFinder;

use crate::states::States;
use crate::status::{self, StatusHandle};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use koord_api::scheduling::{Device, DeviceType};
use koord_app::Clock;
use koord_kube::api::PostParams;
use koord_kube::informer::{ObjectKey, Store};
use koord_kube::{Api, Client, Informer, ResourceExt, Scope, patch};
use koord_model::device_report::{Detected, MANAGER, Owner, Report, plan};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Timeout of a write.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Settings of the Device report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Directory of the files of vendors' tools.
    pub files: PathBuf,
    /// True if accelerators are reported only from the files.
    pub files_only: bool,
    /// Path or name of NVIDIA's library.
    pub library: PathBuf,
    /// Interval between two searches for devices.
    pub interval: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            files: "/var/run/koordlet/xpu-device-infos/".into(),
            files_only: false,
            library: koord_host::nvml::LIBRARY.into(),
            interval: Duration::from_secs(3),
        }
    }
}

/// Reports devices until shutdown.
pub(crate) struct DeviceReporter {
    pub(crate) node: String,
    pub(crate) client: Client,
    pub(crate) states: Arc<States>,
    pub(crate) clock: Clock,
    pub(crate) finder: DeviceFinder,
    /// Status page that shows the reported devices.
    pub(crate) status: StatusHandle,
    pub(crate) interval: Duration,
}

impl DeviceReporter {
    pub(crate) async fn run(self, shutdown: CancellationToken) {
        let scope = Scope {
            fields: Some(format!("metadata.name={}", self.node)),
            ..Scope::default()
        };
        let stored = Informer::<Device>::start_store(self.client.clone(), scope, shutdown.clone());
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = self.report(stored) => {}
        }
    }

    /// Reports the devices in the Device object of the node, until shutdown.
    async fn report(self, stored: Store<Device>) {
        let Self {
            node,
            client,
            states,
            clock,
            mut finder,
            status,
            interval,
        } = self;
        if !stored.wait_synced().await {
            return;
        }
        let key = ObjectKey::new("", node.as_str());
        // The Device's version, the node's UID and the report for which no write was needed. The
        // watch does not show field owners, so only the API server's copy can decide.
        let mut written_report = None;
        loop {
            // Files, and libraries that query drivers, may be slow.
            let task = tokio::task::spawn_blocking(move || {
                let report = finder.find();
                (finder, report)
            });
            let Ok((returned, (report, complaints))) = task.await else {
                tracing::error!("device search panicked, stopping device reports");
                return;
            };
            finder = returned;
            for (object, malformed) in complaints {
                states.malformed_inputs.replace(&object, malformed);
            }
            let devices = report.devices.iter().map(device_status).collect();
            status.update(|status| status.devices = devices);
            // The Node's UID is needed for the owner reference; it arrives within seconds.
            let Some(info) = states.node.load_full() else {
                sleep(interval.min(Duration::from_secs(1))).await;
                continue;
            };
            let owner = Owner {
                name: &node,
                uid: &info.uid,
            };
            let version = stored
                .get(&key)
                .and_then(|device| device.resource_version());
            let new_report = (version, info.uid.clone(), report);
            if written_report.as_ref() != Some(&new_report) {
                let written = write(&client, owner, &new_report.2, Time(clock.now()));
                match timeout(WRITE_TIMEOUT, written).await {
                    Ok(Ok(version)) => written_report = Some((version, new_report.1, new_report.2)),
                    Ok(Err(error)) => tracing::warn!(%error, "failed to report Device"),
                    Err(_) => tracing::warn!(
                        limit = ?WRITE_TIMEOUT,
                        "failed to report Device: the API server does not answer"
                    ),
                }
            }
            sleep(interval).await;
        }
    }
}

/// Returns a device for the status page.
fn device_status(device: &Detected) -> status::Device {
    let info = &device.info;
    let place = info.topology.as_ref().map_or_else(String::new, |topology| {
        let node = match topology.node_id {
            ..0 => String::new(),
            node => format!("NUMA node {node}"),
        };
        let parts = [&node, &topology.pcie_id, &topology.bus_id];
        let parts = parts.into_iter().filter(|part| !part.is_empty());
        parts.map(String::as_str).collect::<Vec<_>>().join(", ")
    });
    let health = match &device.health {
        _ if info.health => "healthy".to_owned(),
        None => "unhealthy".to_owned(),
        Some(health) => {
            let messages = [&health.code, &health.message];
            let messages = messages.into_iter().filter(|message| !message.is_empty());
            let messages: Vec<&str> = messages.map(String::as_str).collect();
            if messages.is_empty() {
                "unhealthy".to_owned()
            } else {
                messages.join(": ")
            }
        }
    };
    let kind = info.type_.as_ref().map_or("", DeviceType::as_str);
    status::Device {
        kind: kind.to_owned(),
        minor: info.minor.unwrap_or(-1),
        id: info.id.clone(),
        health,
        place,
    }
}

/// Writes the changes of the Device, again after a conflict. Returns the version of the Device that matches
/// the report.
async fn write(
    client: &Client,
    owner: Owner<'_>,
    report: &Report,
    now: Time,
) -> Result<Option<String>, koord_kube::Error> {
    let api: Api<Device> = Api::all(client.clone());
    let params = PostParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PostParams::default()
    };
    patch::retry_on_conflict(|| async {
        let old = api.get_opt(owner.name).await?;
        let Some(new) = plan(old.as_ref(), owner, report, now.clone()) else {
            return Ok(old.and_then(|old| old.resource_version()));
        };
        let written = match old {
            Some(_) => api.replace(owner.name, &params, &new).await?,
            None => api.create(&params, &new).await?,
        };
        let devices = new.spec.devices.len();
        tracing::info!(devices, "reported Device");
        Ok(written.resource_version())
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_model::device_report::Health;
    use serde_json::json;

    #[test]
    fn device_status_has_health_and_place() {
        let show = |info: serde_json::Value, health: Option<(&str, &str)>| {
            let info: koord_api::scheduling::DeviceInfo = serde_json::from_value(info).unwrap();
            let health = health.map(|(code, message)| Health {
                healthy: info.health,
                code: code.to_owned(),
                message: message.to_owned(),
            });
            let status = device_status(&Detected { info, health });
            (status.kind, status.minor, status.health, status.place)
        };
        let row = |kind: &str, minor, health: &str, place: &str| {
            (kind.to_owned(), minor, health.to_owned(), place.to_owned())
        };
        let topology =
            json!({"socketID": -1, "nodeID": 1, "pcieID": "pci0000:3a", "busID": "0000:44:00.0"});
        let well = json!({"type": "gpu", "minor": 2, "health": true, "topology": topology});
        assert_eq!(
            show(well, Some(("DeviceHealthy", "fine"))),
            row("gpu", 2, "healthy", "NUMA node 1, pci0000:3a, 0000:44:00.0")
        );
        let nowhere = json!({"socketID": -1, "nodeID": -1, "pcieID": "", "busID": "0000:44:00.0"});
        let sick = json!({"type": "rdma", "minor": 0, "health": false, "topology": nowhere});
        for (health, want) in [
            (None, "unhealthy"),
            (Some(("", "")), "unhealthy"),
            (Some(("Xid48", "")), "Xid48"),
            (Some(("", "burnt")), "burnt"),
            (Some(("E2", "burnt")), "E2: burnt"),
        ] {
            let want = row("rdma", 0, want, "0000:44:00.0");
            assert_eq!(show(sick.clone(), health), want);
        }
        let plain = json!({"type": "gpu", "minor": 0, "health": true});
        assert_eq!(show(plain, None), row("gpu", 0, "healthy", ""));
    }
}
