//! Leases of the simulated nodes, renewed in slices so that the load is even.

use crate::usage::hash;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use koord_app::Context;
use koord_kube::lease::NodeLease;
use koord_kube::{Client, Store};
use std::time::Duration;
use tokio::time::MissedTickBehavior;

/// Slices a heartbeat interval is cut into.
const SLICES: u32 = 10;

/// Renews the leases of all managed nodes until shutdown, each once in `interval`.
pub(crate) async fn run(
    nodes: Store<Node>,
    interval: Duration,
    concurrency: usize,
    client: Client,
    ctx: Context,
) {
    let mut ticks = tokio::time::interval(interval / SLICES);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut slice = 0;
    let mut first_round = true;
    loop {
        tokio::select! {
            () = ctx.shutdown.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let due: Vec<NodeLease> = nodes
            .list()
            .into_iter()
            .filter(|node| koord_api::simulation::is_simulated(node))
            .filter_map(|node| {
                let name = node.metadata.name.clone()?;
                let own = hash(0, &name) % u64::from(SLICES) == u64::from(slice);
                (own || first_round).then(|| {
                    let lease = NodeLease::new(name, node.metadata.uid.clone());
                    NodeLease {
                        interval,
                        duration: interval * 4,
                        ..lease
                    }
                })
            })
            .collect();
        first_round &= due.is_empty();
        slice = (slice + 1) % SLICES;
        let renewals = futures::stream::iter(due).for_each_concurrent(concurrency, |lease| {
            let (client, clock) = (&client, &ctx.clock);
            async move {
                if let Err(error) = lease.renew(client, clock).await {
                    tracing::warn!(node = %lease.node, %error, "failed to renew the lease of a simulated node");
                }
            }
        });
        tokio::select! {
            () = ctx.shutdown.cancelled() => return,
            () = renewals => {}
        }
    }
}
