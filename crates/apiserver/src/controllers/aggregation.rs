//! Controller that fills aggregated cluster roles (`aggregationRule`) with the rules of the roles they
//! select.

use super::queue::{Reconcile, ReconcileFuture, Source};
use crate::authz::bootstrap::GROUP;
use crate::rest::{Api, roles};
use crate::store::Key;
use futures::FutureExt as _;

/// The ClusterRole aggregation controller.
pub(super) struct Aggregation;

impl Reconcile for Aggregation {
    fn name(&self) -> &'static str {
        "clusterrole-aggregation-controller"
    }

    fn sources(&self) -> Vec<Source> {
        // There are few aggregated roles, and any role may be part of any of them.
        vec![Source::new(GROUP, "clusterroles", |api, entry| {
            let all = |e: &crate::store::Entry| {
                let key = b"\"clusterRoleSelectors\"";
                e.bytes.windows(key.len()).any(|window| window == key)
            };
            let sums = api.store().all(&entry.table, None, &all);
            sums.iter().map(|sum| sum.key.clone()).collect()
        })]
    }

    fn reconcile<'a>(&'a self, api: &'a Api, key: &'a Key) -> ReconcileFuture<'a> {
        async move { roles::aggregate(api, &key.name).await.map(|()| None) }.boxed()
    }
}
