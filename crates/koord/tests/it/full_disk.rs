//! A start on a disk that is full: a small tmpfs. Needs root.

use crate::harness::{Up, exclusive};
use k8s_openapi::api::core::v1::ConfigMap;
use koord_host::testing::{eventually_blocking, skip};
use koord_kube::Api;
use koord_kube::api::PostParams;
use serde_json::json;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

const COMPONENTS: &str = "--components=*,-koordlet,-descheduler,-scheduler";

/// A mounted tmpfs; unmounted when dropped.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount() -> Result<Self, String> {
        let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
        let mut mount = Command::new("mount");
        let mount = mount.args(["-t", "tmpfs", "-o", "size=32m", "tmpfs"]);
        let output = mount.arg(dir.path()).output();
        let output = output.map_err(|error| format!("mount: {error}"))?;
        if output.status.success() {
            Ok(Self(dir))
        } else {
            Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
        }
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

/// A process that is killed when dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn config_map(name: &str) -> ConfigMap {
    let map = json!({"metadata": {"name": name}, "data": {"x": "y".repeat(10_000)}});
    serde_json::from_value(map).expect("a ConfigMap")
}

#[test]
fn a_restart_on_a_full_disk_serves_reads_until_there_is_room() {
    let disk = match SmallDisk::mount() {
        Ok(disk) => disk,
        Err(why) => return skip("mount", why),
    };
    let _machine = exclusive();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let dir = disk.path().join("data");
    let mut up = Up::start(&dir, &[COMPONENTS]);
    let maps = |up: &Up| {
        let client = runtime.block_on(up.client());
        Api::<ConfigMap>::namespaced(client, "default")
    };
    let api = maps(&up);
    let create = |api: &Api<ConfigMap>, name: &str| {
        runtime.block_on(api.create(&PostParams::default(), &config_map(name)))
    };
    create(&api, "kept").expect("a ConfigMap is written");
    let kubeconfig = std::fs::read_to_string(&up.kubeconfig).expect("a kubeconfig");
    let server = kubeconfig.lines().find_map(|line| {
        let port = line
            .trim()
            .strip_prefix("server: ")?
            .rsplit_once(':')?
            .1
            .to_owned();
        Some(port)
    });
    let port = server.expect("an address");
    up.kill();

    let ballast = disk.path().join("ballast");
    let mut file = std::fs::File::create(&ballast).expect("a file");
    while file.write_all(&[0; 4096]).is_ok() {}
    // A file that is open keeps its space when it is removed.
    drop(file);
    let mut command = Command::new(env!("CARGO_BIN_EXE_koord"));
    let command = command.args(["up", "--port", &port, COMPONENTS, "--data-dir"]);
    let command = command.arg(&dir).env("RUST_LOG", "error");
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut restarted = Killed(child.expect("koord starts"));
    let (sender, is_up) = mpsc::channel();
    let output = restarted.0.stdout.take().expect("a pipe");
    std::thread::spawn(move || {
        let lines = BufReader::new(output).lines().map_while(Result::ok);
        for line in lines.filter(|line| line.contains("export KUBECONFIG=")) {
            let _ = sender.send(line);
        }
    });
    let api = maps(&up);
    eventually_blocking("the server to serve", || {
        assert!(
            matches!(restarted.0.try_wait(), Ok(None)),
            "koord up has ended on the full disk"
        );
        runtime.block_on(api.get("kept")).ok()
    });
    let error = create(&api, "late").expect_err("nothing fits").to_string();
    assert!(error.contains("No space left"), "{error}");
    assert!(is_up.try_recv().is_err(), "it is up without its objects");

    std::fs::remove_file(&ballast).expect("the ballast goes");
    let line = eventually_blocking("the cluster to be up", || is_up.try_recv().ok());
    assert!(line.contains("kubeconfig"), "{line}");
    create(&api, "late").expect("there is room");
    let pid = rustix::process::Pid::from_child(&restarted.0);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("signal");
    let ended = eventually_blocking("the cluster to stop", || {
        restarted.0.try_wait().ok().flatten()
    });
    assert!(ended.success(), "{ended}");
}
