//! Entry point of the fuzz targets: the plugin and the hook server of a node with every gate enabled except
//! the one that recreates a directory of the machine.

use super::nri::Plugin;
use super::server::Service;
use super::{HookContext, Policy, responder};
use crate::gates::Gate;
use crate::hooks::{Rules, Sources};
use crate::metrics::Metrics;
use crate::node_events::Warnings;
use crate::settings::Settings;
use crate::states::{NodeInfo, Slo};
use koord_host::{Dirs, Root};
use koord_kube::events::Recorder;
use koord_rpc::hooks::runtime_hook_service_server::RuntimeHookService;
use koord_rpc::nri::Handler;
use std::path::Path;
use std::sync::Arc;

/// Returns the plugin and the hook server of a machine rooted at `root`, which has no files.
///
/// # Panics
/// Panics if `root` is not a directory.
pub fn answering(root: &Path) -> (impl Handler, impl RuntimeHookService) {
    let mut settings = Settings::default();
    for gate in Gate::ALL {
        settings
            .gates
            .set(*gate, *gate != Gate::HamiCoreVGPUMonitor);
    }
    let (slo, _) = Slo::read(&serde_json::json!({}), None);
    let node = NodeInfo {
        normalization_ratio: Some(1.5),
        ..NodeInfo::default()
    };
    let sources = Sources {
        slo: &slo,
        node: Some(&node),
        topology: None,
        settings: &settings,
        batch_quotas_lifted: false,
        batch_idle: true,
        group_identity: true,
        cpu_idle: true,
    };
    let rules = Rules::from_sources(sources, None);
    let stages = responder::ActiveStages::new(&[], &settings.gates);
    let metrics = Metrics::new(&prometheus::Registry::new()).expect("metrics");
    metrics.record_start("n", 0);
    let ctx = HookContext {
        states: Arc::default(),
        rules: Arc::new(Some(Arc::new(rules)).into()),
        settings,
        root: Root::with_dirs(Dirs::below(root)).expect("a directory"),
        metrics,
        warnings: Arc::new(Warnings::new("n", Recorder::silent())),
        dry_run: None,
    };
    let responder = Arc::new(responder::HookResponder::new(Policy::Ignore, stages, ctx));
    let plugin = Plugin::new(
        "nri".to_owned(),
        root.join("hookserver.d"),
        responder.clone(),
    );
    (plugin, Service(responder))
}
