//! Many writers on two replicas, against the embedded API server.

use super::*;
use koord_apiserver::{ApiServer, Config};
use koord_app::Clock;
use koord_kube::api::PostParams;
use koord_kube::{Api, Client, Informer, Scope, patch};
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Barrier;
use tokio_util::sync::CancellationToken;

struct TestCluster {
    client: Client,
    quotas: Api<ElasticQuota>,
    stop: CancellationToken,
    _server: Arc<ApiServer>,
}

impl TestCluster {
    async fn start(quota: &ElasticQuota) -> Self {
        let clock = Clock::following_tokio("2026-01-01T00:00:00Z".parse().unwrap());
        let server = ApiServer::open(Config::memory(clock)).await.unwrap();
        server.install_crds(koord_api::crd_values()).await.unwrap();
        let client = koord_kube::client::in_process(server.service());
        let quotas = Api::namespaced(client.clone(), "default");
        quotas.create(&PostParams::default(), quota).await.unwrap();
        Self {
            client,
            quotas,
            stop: CancellationToken::new(),
            _server: server,
        }
    }

    /// Returns a replica with its own cache.
    async fn replica(
        &self,
        retries: &Retries,
        pace: u64,
        second_writes: &Arc<Barrier>,
    ) -> (Evaluator, Arc<CountingAccess>) {
        let all = Scope::default();
        let store =
            Informer::<ElasticQuota>::start_store(self.client.clone(), all, self.stop.clone());
        assert!(store.wait_synced().await);
        let cached = Box::new(move |key: &ObjectKey| store.get(key));
        let access = Arc::new(CountingAccess {
            inner: ClusterQuotas::new(self.client.clone(), cached, retries.fresh_get),
            written: AtomicU64::default(),
            conflicts: AtomicU64::default(),
            turn: AtomicU64::default(),
            pace,
            second_writes: second_writes.clone(),
        });
        (Evaluator::new(access.clone(), retries.clone()), access)
    }

    async fn used(&self) -> ResourceList {
        let quota = self.quotas.get("q").await.unwrap();
        quota.amounts(annotations::QUOTA_CHILD_REQUEST).unwrap()
    }
}

impl Drop for TestCluster {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Counts how writes end.
struct CountingAccess {
    inner: ClusterQuotas,
    written: AtomicU64,
    conflicts: AtomicU64,
    turn: AtomicU64,
    /// Makes the delays of one replica other than another's.
    pace: u64,
    /// Barrier at which the second write of each replica waits until the other has read: one conflicts.
    second_writes: Arc<Barrier>,
}

impl QuotaAccess for CountingAccess {
    fn get<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Arc<ElasticQuota>, Refusal>> {
        self.inner.get(key)
    }

    fn charge<'a>(
        &'a self,
        quota: &'a ElasticQuota,
        used: &'a ResourceList,
        pause: Duration,
    ) -> BoxFuture<'a, Result<(), Refusal>> {
        async move {
            // The network: long enough for the other replica to read what this is about to write.
            let turn = self.turn.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(1 + turn * self.pace % 7)).await;
            if turn == 1 {
                self.second_writes.wait().await;
            }
            let result = self.inner.charge(quota, used, pause).await;
            let counter = if result.is_ok() {
                &self.written
            } else {
                &self.conflicts
            };
            counter.fetch_add(1, Ordering::Relaxed);
            result
        }
        .boxed()
    }
}

fn limited(cpu: &str) -> ElasticQuota {
    quota(
        "q",
        json!({"namespace": "default", "max": {"cpu": cpu, "memory": "1Ti"}}),
    )
}

/// Forty writers request one core each, repeatedly, on two replicas with a limit of two hundred, while
/// another client writes the quota, too.
#[tokio::test(start_paused = true)]
async fn two_replicas_never_let_in_more_than_the_limit() {
    const LIMIT: u64 = 200;
    for retries in [
        Retries::default(),
        Retries {
            max: 10,
            jitter: Duration::from_millis(50),
            fresh_get: true,
            ..Retries::default()
        },
    ] {
        let cluster = TestCluster::start(&limited(&LIMIT.to_string())).await;
        let second_writes = Arc::new(Barrier::new(2));
        let (one, one_count) = cluster.replica(&retries, 3, &second_writes).await;
        let (two, two_count) = cluster.replica(&retries, 5, &second_writes).await;
        // Each replica writes once undisturbed, so that both have written whoever wins below.
        for replica in [&one, &two] {
            let request = list(&json!({"cpu": "1"}));
            let key = ObjectKey::new("default", "q");
            replica.evaluate(key, request).await.unwrap();
        }
        let writer = |index: usize| {
            let evaluator = if index.is_multiple_of(2) {
                one.clone()
            } else {
                two.clone()
            };
            async move {
                let mut granted = 0;
                for round in 0..10_u64 {
                    // Not all at once, and not in step.
                    tokio::time::sleep(Duration::from_millis((index as u64 * 7 + round * 13) % 23))
                        .await;
                    let result = evaluator
                        .evaluate(ObjectKey::new("default", "q"), list(&json!({"cpu": "1"})))
                        .await;
                    granted += u64::from(result.is_ok());
                }
                granted
            }
        };
        let other_writers = async {
            for round in 0..20 {
                let change = json!({"metadata": {"annotations": {"round": round.to_string()}}});
                patch::merge(&cluster.quotas, "q", &change).await.unwrap();
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let writers = futures::future::join_all((0..40).map(|index| tokio::spawn(writer(index))));
        let (granted, ()) = futures::join!(writers, other_writers);
        let granted = 2 + granted.into_iter().map(Result::unwrap).sum::<u64>();
        let count = |of: fn(&CountingAccess) -> &AtomicU64| {
            [&one_count, &two_count].map(|counted| of(counted).load(Ordering::Relaxed))
        };
        let (written, conflicts) = (count(|c| &c.written), count(|c| &c.conflicts));
        assert_eq!(
            granted, LIMIT,
            "enough ask to fill it: {written:?} {conflicts:?}"
        );
        let used = cluster.used().await;
        assert_eq!(
            used,
            list(&json!({"cpu": LIMIT})),
            "what is written is what was granted"
        );
        assert!(
            conflicts.iter().sum::<u64>() > 0 && written.iter().all(|n| *n > 0),
            "no contention: {written:?} written, {conflicts:?} conflicts"
        );
    }
}

/// Upstream's table of `quota_accessor_test.go`: what is known after a write.
#[tokio::test(start_paused = true)]
async fn own_write_is_read_before_the_cache_has_it() {
    let cluster = TestCluster::start(&limited("10")).await;
    let old = Arc::new(cluster.quotas.get("q").await.unwrap());
    let key = ObjectKey::new("default", "q");
    let used = |quota: &ElasticQuota| quota.amounts(annotations::QUOTA_CHILD_REQUEST).unwrap();
    let eight = list(&json!({"cpu": "8"}));
    for fresh_get in [false, true] {
        // A cache that never receives a change.
        let stuck = old.clone();
        let access = ClusterQuotas::new(
            cluster.client.clone(),
            Box::new(move |_| Some(stuck.clone())),
            fresh_get,
        );
        let current = Arc::new(cluster.quotas.get("q").await.unwrap());
        access
            .charge(&current, &eight, Duration::ZERO)
            .await
            .unwrap();
        assert_eq!(used(&access.get(&key).await.unwrap()), eight);
        // Another client writes: the next write here fails, and the next read returns the new version.
        let stale = access.get(&key).await.unwrap();
        let change = json!({"metadata": {"annotations": {annotations::QUOTA_CHILD_REQUEST: "{\"cpu\":\"4\"}"}}});
        patch::merge(&cluster.quotas, "q", &change).await.unwrap();
        let nine = list(&json!({"cpu": "9"}));
        let began = tokio::time::Instant::now();
        let refused = access
            .charge(&stale, &nine, Duration::from_millis(40))
            .await;
        let refused = refused.unwrap_err();
        // Half of the pause is random.
        let paused = began.elapsed().as_millis();
        assert!((20..=41).contains(&paused), "{paused} ms");
        assert!(refused.0.contains("default/q"), "{refused}");
        assert_eq!(cluster.used().await, list(&json!({"cpu": "4"})));
        assert_eq!(
            used(&access.get(&key).await.unwrap()),
            list(&json!({"cpu": "4"}))
        );
    }
    let empty = ClusterQuotas::new(cluster.client.clone(), Box::new(|_| None), false);
    assert_eq!(
        used(&empty.get(&key).await.unwrap()),
        list(&json!({"cpu": "4"})),
        "not cached, but there"
    );
    let missing = empty
        .get(&ObjectKey::new("default", "none"))
        .await
        .unwrap_err();
    assert!(
        missing.0.starts_with("elastic quota default/none: "),
        "{missing}"
    );
}
