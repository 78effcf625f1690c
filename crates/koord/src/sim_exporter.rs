//! Exporter of a simulated node: the same as on real nodes, with the socket and the files of the simulated
//! kubelet.

use anyhow::{Context as _, Result};
use koord_app::Context;
use koord_kube::Client;
use koord_kube::events::Recorder;
use koord_sim::Kubelets;
use koordlet::exporter::{
    ConfigSource, Exporter, ExporterSettings, FIELD_MANAGER, Metrics, TakeOver,
};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

/// Longest path of a Unix socket that the kernel accepts, in bytes.
const LONGEST_PATH: usize = 107;

/// Returns the simulated nodes with a pod resources API for an exporter: only the first node. The simulation
/// itself reports the others.
pub(crate) fn kubelets(data_dir: &Path) -> Kubelets {
    let mut kubelets = Kubelets {
        dir: data_dir.join("kubelets"),
        ..Kubelets::default()
    };
    let name = koord_sim::node_name(0);
    let socket = Kubelets::socket(&kubelets.dir.join(&name));
    if socket.as_os_str().len() <= LONGEST_PATH {
        // A socket of an earlier start has no server any more.
        let _ = std::fs::remove_file(&socket);
        kubelets.nodes.insert(name);
    }
    kubelets
}

/// Runs the exporter of a simulated node once its kubelet is up.
pub(crate) async fn export(
    kubelets: Kubelets,
    node: String,
    client: Client,
    context: Context,
) -> Result<()> {
    let dir = kubelets.dir.join(&node);
    let socket = Kubelets::socket(&dir);
    while !socket.exists() {
        tokio::select! {
            () = context.shutdown.cancelled() => return Ok(()),
            () = tokio::time::sleep(Duration::from_millis(100)) => {}
        }
    }
    let root = koord_host::Root::below(&dir).context("the simulated node's /sys")?;
    let settings = ExporterSettings {
        node: node.clone(),
        socket,
        interval: Duration::from_secs(60),
        kubelet: ConfigSource::File(dir.join("config.yaml")),
        state_dir: Some(dir),
        fingerprint: true,
        exclude: BTreeSet::new(),
        publish: true,
        take_over: TakeOver::From("koord-sim"),
    };
    let metrics = Metrics::new(&context.metrics).context("metrics")?;
    let (clock, stop) = (context.clock.clone(), context.shutdown.clone());
    let recorder = Recorder::start(client.clone(), FIELD_MANAGER, &node, clock, stop);
    let exporter = Exporter::new(settings, root, client, recorder, metrics);
    exporter.run(context.shutdown).await;
    Ok(())
}
