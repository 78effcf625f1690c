//! A dry run answers the runtime without adjustments, and records them.

use super::*;
use crate::audit;
use crate::runtime::AdjustmentAudit;
use koord_rpc::nri::Event;

#[tokio::test]
async fn dry_run_adjusts_nothing_and_records_values() {
    let mut rig = Rig::new();
    let log = audit::Log::default();
    log.mark_dry_run();
    rig.ctx.dry_run = Some(AdjustmentAudit {
        log: log.clone(),
        clock: koord_app::Clock::system(),
    });
    rig.tree.group("kubepods/besteffort/podu").unwrap();
    // Those of the group itself.
    drop(rig.tree.writes());
    let plugin = rig.plugin(Policy::Ignore);
    let requested = nri_resources(2, -1, 0, "");
    let request = container(requested.clone());
    let reply = plugin.create(&batch_pod(), &request).unwrap();
    assert_eq!(reply, koord_rpc::nri::Reply::default());
    let updates = plugin.update(&batch_pod(), &request, &requested);
    assert_eq!(updates, Ok(Vec::new()));
    assert_eq!(plugin.synchronize(&[batch_pod()], &[request]), []);
    plugin
        .event(Event::RunPodSandbox, &batch_pod(), None)
        .unwrap();
    assert_eq!(rig.tree.writes(), []);
    let entries = log.entries();
    let reasons: Vec<&str> = entries.iter().map(|it| it.reason.as_str()).collect();
    assert_eq!(
        reasons,
        ["CreateContainer", "UpdateContainer", "Synchronize"]
    );
    let created = &entries[0];
    assert_eq!((&*created.name, &*created.container), ("p", "c"));
    assert!(
        created.dry_run && created.message.contains("cpu.shares=512 (BatchResource)"),
        "{created:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn dry_run_leaves_sockets_and_registrations_alone() {
    let mut rig = Rig::new();
    rig.ctx.dry_run = Some(AdjustmentAudit {
        log: audit::Log::default(),
        clock: koord_app::Clock::system(),
    });
    for mode in [Mode::Proxy, Mode::Standalone, Mode::Nri] {
        let config = rig.config(mode);
        let stop = CancellationToken::new();
        assert!(start(&config, rig.ctx.clone(), stop.clone()).is_none());
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!config.server.socket.exists(), "{mode:?}");
        assert!(!config.server.directory.exists(), "{mode:?}");
        stop.cancel();
    }
    // The registration of another koordlet stays.
    let config = rig.config(Mode::Nri);
    std::fs::create_dir_all(&config.server.directory).unwrap();
    let file = config.server.directory.join("koordlet.json");
    std::fs::write(&file, "{}").unwrap();
    let stop = CancellationToken::new();
    assert!(start(&config, rig.ctx.clone(), stop.clone()).is_none());
    assert!(file.exists());
    stop.cancel();
}
