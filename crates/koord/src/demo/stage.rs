//! Services, files and bystanders of a scenario.

use super::result::Phase;
use super::scene::{Scene, poll};
use anyhow::{Context, Result};
use koord_kube::api::PostParams;
use koord_workload::pods::{self, SERVICE, UNLIMITED};
use koord_workload::scenario::{self, Scenario};
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;

/// CPU time to receive and answer a request in addition to its work, in microseconds.
const OVERHEAD_US: f64 = 25.0;
/// CPU time of a bystander's request in microseconds, and its requests per second.
const BYSTANDER: (u64, f64) = (100, 20.0);

/// The scenario that is set up.
pub(super) struct ScenarioStage {
    pub(super) scenario: &'static Scenario,
    /// Mean arrivals per second.
    pub(super) rate: f64,
    /// Address of the service that is measured.
    address: SocketAddr,
    /// Address of the same service without a CPU limit; `None` if the measured one has no limit.
    unlimited: Option<SocketAddr>,
    pub(super) services: usize,
    /// Load of the bystanders; it ends with the stage.
    _bystanders: Vec<tokio::process::Child>,
}

impl ScenarioStage {
    /// Returns the pod that is measured in `phase`, and its address.
    pub(super) fn measured(&self, phase: Phase) -> (&'static str, SocketAddr) {
        match self.unlimited {
            Some(address) if phase == Phase::Alone => (UNLIMITED, address),
            _ => (SERVICE, self.address),
        }
    }
}

impl Scene {
    /// Returns the reason why `scenario` cannot be played here, if so.
    pub(super) fn obstacle(&self, scenario: &Scenario) -> Option<String> {
        if let Some(why) = &self.setup.unenforced
            && scenario.name != "cpu"
        {
            return Some(format!(
                "needs root and control groups that can be written: {why}"
            ));
        }
        let missing = |name: &&&str| scenario::program(name).is_none();
        let missing: Vec<&str> = scenario
            .programs()
            .iter()
            .filter(missing)
            .copied()
            .collect();
        if !missing.is_empty() {
            let names = missing.join(" and ");
            return Some(format!(
                "{names} not found in PATH (Debian: apt install {names})"
            ));
        }
        let pods = self.pod_parent().ok()?;
        if scenario.service.limit.is_some() && pods.cfs_burst().ok().flatten().is_none() {
            return Some(
                "this kernel has no CFS burst (cpu.cfs_burst_us, cpu.max.burst)".to_owned(),
            );
        }
        if scenario.pod_memory_mib.is_some() && pods.memory_limit().is_err() {
            return Some("memory is not limited on this machine: no memory controller".to_owned());
        }
        None
    }

    /// Sets `scenario` up: services, files and bystanders.
    pub(super) async fn enter(
        &mut self,
        scenario: &'static Scenario,
        rate: Option<f64>,
    ) -> Result<()> {
        self.step(&format!("{}: starting the service", scenario.name));
        let cpus = self.setup.cpus;
        let us = scenario.service.us;
        #[allow(clippy::cast_precision_loss, reason = "a count of CPUs")]
        let rate = rate.unwrap_or(scenario.load.share * cpus as f64 * 1e6 / us);
        if let Some(mib) = scenario.pod_memory_mib {
            self.limit_pods(i64::from(mib) << 20)?;
        }
        let (mib, pages) = scenario.service.file;
        let file = self.directory.path().join("service.data");
        let mut command = vec![
            self.executable.display().to_string(),
            "workload".to_owned(),
            "serve".to_owned(),
        ];
        let mut option = |name: &str, value: String| command.extend([name.to_owned(), value]);
        option("--steps", self.steps(us - OVERHEAD_US).to_string());
        option("--workers", cpus.to_string());
        if pages > 0 {
            let path = file.clone();
            tokio::task::spawn_blocking(move || cold_file(&path, mib))
                .await
                .context("service file")??;
            option("--file", file.display().to_string());
            option("--pages", pages.to_string());
        }
        let (table, walk) = scenario.service.table;
        option("--table-mib", table.to_string());
        option("--walk", walk.to_string());
        let mut listening = None;
        if scenario.service.nginx {
            let (nginx, address) = self.nginx()?;
            (command, listening) = (nginx, Some(address));
        }

        let request = 450 * cpus as u64;
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "milli-CPUs"
        )]
        let limit = scenario
            .service
            .limit
            .map(|times| (times * rate * us / 1000.0) as u64);
        let address = self
            .serve(
                SERVICE,
                &command,
                listening,
                limit.unwrap_or(request),
                limit,
            )
            .await?;
        let unlimited = match limit {
            Some(limit) => Some(self.serve(UNLIMITED, &command, None, limit, None).await?),
            None => None,
        };
        let mut stage = ScenarioStage {
            scenario,
            rate,
            address,
            unlimited,
            services: 1 + usize::from(unlimited.is_some()),
            _bystanders: Vec::new(),
        };
        for number in 0..scenario.bystanders {
            #[allow(clippy::cast_precision_loss, reason = "microseconds of a request")]
            let steps = self.steps(BYSTANDER.0 as f64).to_string();
            let command = [
                &self.executable.display().to_string(),
                "workload",
                "serve",
                "--workers",
                "1",
                "--steps",
                &steps,
            ];
            let command: Vec<String> = command.map(str::to_owned).into();
            let name = format!("bystander-{number}");
            let address = self.serve(&name, &command, None, 20, None).await?;
            stage.services += 1;
            let load = tokio::process::Command::new(&self.executable)
                .args([
                    "workload",
                    "load",
                    "--seconds",
                    "86400",
                    "--connections",
                    "1",
                ])
                .args(["--connect", &address.to_string()])
                .args(["--rate", &BYSTANDER.1.to_string()])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .kill_on_drop(true)
                .spawn();
            stage
                ._bystanders
                .push(load.context("cannot start a bystander's load")?);
        }
        self.setup.rate = if self.setup.rate > 0.0 {
            self.setup.rate
        } else {
            rate
        };
        self.setup.service_us = if self.setup.service_us > 0.0 {
            self.setup.service_us
        } else {
            us
        };
        self.stage = Some(stage);
        Ok(())
    }

    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a step count"
    )]
    pub(super) fn steps(&self, us: f64) -> u64 {
        (self.steps_per_us * us.max(1.0)) as u64
    }

    /// Returns nginx's command line, and the address on which it will listen.
    fn nginx(&self) -> Result<(Vec<String>, SocketAddr)> {
        let directory = self.directory.path().join("nginx");
        std::fs::create_dir_all(&directory).context("nginx's directory")?;
        let shown = directory.display().to_string();
        // Free now; if another process takes it meanwhile, nginx fails, which is reported.
        let free = std::net::TcpListener::bind(("127.0.0.1", 0)).context("a free port")?;
        let address = free.local_addr().context("a free port")?;
        let user = if rustix::process::geteuid().is_root() {
            "user root root;"
        } else {
            ""
        };
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {shown}/{kind};\n"))
            .concat();
        let config = format!(
            "{user}\nworker_processes {};\ndaemon off;\npid {shown}/pid;\nerror_log stderr;\n\
             events {{ worker_connections 512; }}\nhttp {{\naccess_log off;\n\
             keepalive_requests 1000000000;\nkeepalive_timeout 1h;\n{temporary}\
             server {{ listen {address}; root {shown}; }}\n}}\n",
            self.setup.cpus
        );
        let write = |name: &str, bytes: &[u8]| {
            let path = directory.join(name);
            std::fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))
        };
        write("nginx.conf", config.as_bytes())?;
        write("file", &[b'x'; 4096])?;
        let program = scenario::program("nginx").context("nginx is not installed")?;
        let command = [
            program.display().to_string(),
            "-p".into(),
            shown.clone(),
            "-c".into(),
            format!("{shown}/nginx.conf"),
            "-e".into(),
            "stderr".into(),
        ];
        Ok((command.into(), address))
    }

    /// Starts a service and waits until it listens: on `listening`, or on the address that it writes to its
    /// ready file.
    async fn serve(
        &self,
        name: &str,
        command: &[String],
        listening: Option<SocketAddr>,
        request: u64,
        limit: Option<u64>,
    ) -> Result<SocketAddr> {
        let ready_file = self.directory.path().join(format!("{name}.address"));
        let _ = std::fs::remove_file(&ready_file);
        let pod = pods::service(&pods::Service {
            name: name.to_owned(),
            command: command.to_vec(),
            request,
            limit,
            ready_file: listening.is_none().then_some(&*ready_file),
        });
        let created = self.pods().create(&PostParams::default(), &pod).await;
        created.with_context(|| format!("pod {name}"))?;
        let listens = poll("the service's address", 60, async || {
            if let Some(address) = listening {
                let open = tokio::net::TcpStream::connect(address).await;
                return Ok(open.is_ok().then_some(address));
            }
            Ok(std::fs::read_to_string(&ready_file)
                .ok()
                .and_then(|text| text.parse().ok()))
        })
        .await;
        match listens {
            Ok(address) => Ok(address),
            Err(error) => Err(self.stuck().await.unwrap_or(error)),
        }
    }

    /// Clears the scenario away.
    pub(super) async fn leave(&mut self) -> Result<()> {
        let Some(stage) = self.stage.take() else {
            return Ok(());
        };
        self.delete(pods::BATCH_LABEL).await?;
        self.delete(pods::SERVICE_LABEL).await?;
        if stage.scenario.pod_memory_mib.is_some() {
            self.limit_pods(-1)?;
        }
        Ok(())
    }

    /// Limits the memory of all pods together; -1 for no limit.
    fn limit_pods(&self, bytes: i64) -> Result<()> {
        self.pod_parent()?
            .set_memory_limit(bytes)
            .context("memory limit of all pods")?;
        Ok(())
    }
}

/// Writes a file and drops it from the page cache, so that the cgroup that reads it first is charged.
fn cold_file(path: &Path, mib: u32) -> Result<()> {
    let write = || -> std::io::Result<()> {
        let mut file = std::fs::File::create(path)?;
        let block = vec![0xa5_u8; 1 << 20];
        for _ in 0..mib {
            file.write_all(&block)?;
        }
        file.sync_all()?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        Ok(())
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}
