//! The demo's service in a separate container, and the demo's load on it.

use super::koordlet::fixture::{Groups, Shape};
use anyhow::{Context as _, Result, bail};
use koord_host::Cgroup;
use koord_workload::load;
use koord_workload::sampler::Sampler;
use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

/// Time limit for a service to listen.
const TIMEOUT: Duration = Duration::from_secs(40);

/// A service in a separate container.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) pod: Cgroup,
    pub(super) container: Cgroup,
    address: SocketAddr,
}

impl Service {
    /// Starts a service in the container of burstable pod `index`, and waits until it listens. `options`
    /// are those of `koord workload serve`.
    ///
    /// # Errors
    /// When its groups cannot be made or it does not listen in time.
    pub(super) async fn start(
        groups: &mut Groups,
        index: u32,
        options: &[String],
        work: &Path,
    ) -> Result<Self> {
        let pod = groups.make(&format!("kubepods/burstable/pod{}", Shape::uid(index)))?;
        let name = format!("{}/{}", pod.path().as_str(), Shape::container(index, 0));
        let container = groups.make(&name)?;
        let ready = work.join(format!("address-{index}"));
        let options = options.iter().map(OsStr::new);
        let workload: Vec<&OsStr> = std::iter::once(OsStr::new("serve"))
            .chain(options)
            .chain([OsStr::new("--ready-file"), ready.as_os_str()])
            .collect();
        groups.run(&container, &workload)?;
        let end = Instant::now() + TIMEOUT;
        loop {
            if let Ok(text) = std::fs::read_to_string(&ready) {
                let address = text.parse().context("the service's address")?;
                return Ok(Self {
                    pod,
                    container,
                    address,
                });
            }
            if Instant::now() > end {
                bail!("the service did not start within {TIMEOUT:?}");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Generates load on it; `options` are those of `koord workload load`.
    ///
    /// # Errors
    /// When the generator cannot be started or fails.
    pub(super) async fn load(
        &self,
        sampler: &Sampler,
        options: &[(&str, String)],
    ) -> Result<load::Outcome> {
        let connect = ("--connect", self.address.to_string());
        let options = std::iter::once(connect).chain(options.iter().cloned());
        load::run_apart(&std::env::current_exe()?, options, |pid| {
            sampler.set_load_pid(pid);
        })
        .await
    }
}
