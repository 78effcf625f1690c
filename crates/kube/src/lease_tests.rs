use super::*;
use crate::client::in_process;
use crate::testing;
use futures::poll;
use http::StatusCode;
use parking_lot::Mutex;
use serde_json::Value;
use std::pin::pin;
use std::sync::Arc;

/// A server with one Lease. The state is the Lease, its version, and whether requests fail.
#[derive(Clone, Default)]
struct OneLease {
    state: Arc<Mutex<(Option<Lease>, u64, bool)>>,
}

impl OneLease {
    fn client(&self) -> kube::Client {
        let state = self.state.clone();
        in_process(testing::answer(move |request| {
            let mut state = state.lock();
            if state.2 {
                return (
                    StatusCode::INTERNAL_SERVER_ERROR,
                    json!({"message": "down"}),
                );
            }
            let refuse = |code: StatusCode| {
                (
                    code,
                    json!({"status": "Failure", "code": code.as_u16(), "message": "", "reason": ""}),
                )
            };
            let current = state.0.clone();
            match (request.method().as_str(), current) {
                ("GET", Some(lease)) => (StatusCode::OK, json!(lease)),
                ("GET" | "PATCH", None) => refuse(StatusCode::NOT_FOUND),
                ("POST", Some(_)) => refuse(StatusCode::CONFLICT),
                (method, current) => {
                    let mut value: Value = serde_json::from_slice(request.body()).unwrap();
                    if method == "PATCH" {
                        let mut merged = json!(current);
                        json_patch::merge(&mut merged, &value);
                        value = merged;
                    }
                    let mut lease: Lease = serde_json::from_value(value).unwrap();
                    let version = current.and_then(|lease| lease.metadata.resource_version);
                    if method == "PUT" && lease.metadata.resource_version != version {
                        return refuse(StatusCode::CONFLICT);
                    }
                    state.1 += 1;
                    lease.metadata.resource_version = Some(state.1.to_string());
                    state.0 = Some(lease.clone());
                    (StatusCode::OK, json!(lease))
                }
            }
        }))
    }

    fn spec(&self) -> LeaseSpec {
        self.state.lock().0.clone().unwrap().spec.unwrap()
    }

    fn elector(&self, identity: &str) -> LeaderElector {
        let clock = Clock::following_tokio("2026-01-01T00:00:00Z".parse().unwrap());
        LeaderElector::new(self.client(), Election::new("ns", "l", identity), clock).unwrap()
    }
}

async fn lead_until_cancelled(token: CancellationToken) -> &'static str {
    token.cancelled().await;
    "stopped"
}

#[tokio::test(start_paused = true)]
async fn leader_releases_the_lease_on_shutdown() {
    let server = OneLease::default();
    let (stop_a, stop_b) = (CancellationToken::new(), CancellationToken::new());
    let a = tokio::spawn(
        server
            .elector("a")
            .run(stop_a.clone(), lead_until_cancelled),
    );
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(server.spec().holder_identity.as_deref(), Some("a"));
    assert_eq!(server.spec().lease_transitions, Some(0));
    let mut b = pin!(server.elector("b").run(stop_b.clone(), async |_| "led"));
    tokio::select! {
        _ = &mut b => panic!("two leaders"),
        () = tokio::time::sleep(Duration::from_secs(120)) => {}
    }
    let spec = server.spec();
    assert_eq!(spec.holder_identity.as_deref(), Some("a"));
    assert!(spec.renew_time.unwrap().0 > spec.acquire_time.unwrap().0);
    stop_a.cancel();
    assert_eq!(a.await.unwrap().unwrap(), Some("stopped"));
    assert_eq!(server.spec().holder_identity.as_deref(), Some(""));
    let start = Instant::now();
    assert_eq!(b.await.unwrap(), Some("led"));
    assert!(
        start.elapsed() <= Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
    // One transition, from a to b; the release does not count as a transition.
    assert_eq!(server.spec().lease_transitions, Some(1));
    assert!(poll!(pin!(stop_b.cancelled())).is_pending());
}

#[tokio::test(start_paused = true)]
async fn silent_leader_is_replaced_after_the_lease_duration() {
    let server = OneLease::default();
    let mut dead = server.elector("dead");
    assert!(dead.try_acquire_or_renew().await);
    let start = Instant::now();
    let led = server
        .elector("heir")
        .run(CancellationToken::new(), async |_| ())
        .await;
    assert_eq!(led.unwrap(), Some(()));
    let waited = start.elapsed().as_secs_f64();
    assert!((15.0..20.0).contains(&waited), "took over after {waited} s");
    assert_eq!(server.spec().lease_transitions, Some(1));
    assert!(!dead.try_acquire_or_renew().await || waited > 15.0);
}

#[tokio::test(start_paused = true)]
async fn unreachable_server_ends_leadership_after_the_renew_deadline() {
    let server = OneLease::default();
    let shutdown = CancellationToken::new();
    let leader = tokio::spawn(server.elector("a").run(shutdown, lead_until_cancelled));
    tokio::time::sleep(Duration::from_secs(1)).await;
    server.state.lock().2 = true;
    let start = Instant::now();
    let error = leader.await.unwrap().unwrap_err();
    assert!(matches!(error, ElectionError::Lost { .. }));
    assert!(error.to_string().contains("ns/l"));
    assert!(
        start.elapsed() <= Duration::from_secs(13),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn shutdown_before_leadership_returns_nothing() {
    let server = OneLease::default();
    assert!(server.elector("a").try_acquire_or_renew().await);
    let shutdown = CancellationToken::new();
    shutdown.cancel();
    assert_eq!(
        server
            .elector("b")
            .run(shutdown, async |_| ())
            .await
            .unwrap(),
        None
    );
    assert_eq!(server.spec().holder_identity.as_deref(), Some("a"));
}

#[tokio::test]
async fn invalid_settings_are_rejected() {
    let check = |change: &dyn Fn(&mut Election), names: &str| {
        let mut election = Election::new("ns", "l", "me");
        change(&mut election);
        let client = OneLease::default().client();
        let error = LeaderElector::new(client, election, Clock::system()).unwrap_err();
        assert!(error.to_string().contains(names), "{error}");
    };
    check(&|e| e.identity.clear(), "identity");
    check(&|e| e.lease_duration = e.renew_deadline, "lease duration");
    check(&|e| e.retry_period = e.renew_deadline, "renew deadline");
    check(&|e| e.retry_period = Duration::ZERO, "retry period");
}

#[tokio::test(start_paused = true)]
async fn node_lease_is_created_and_renewed() {
    let server = OneLease::default();
    let shutdown = CancellationToken::new();
    let clock = Clock::following_tokio("2026-01-01T00:00:00Z".parse().unwrap());
    let lease = NodeLease::new("n1", Some("uid-1".to_owned()));
    let beat = tokio::spawn(lease.run(server.client(), clock.clone(), shutdown.clone()));
    tokio::time::sleep(Duration::from_secs(25)).await;
    let lease = server.state.lock().0.clone().unwrap();
    let spec = lease.spec.unwrap();
    assert_eq!(spec.holder_identity.as_deref(), Some("n1"));
    assert_eq!(spec.lease_duration_seconds, Some(40));
    let age = clock.now().duration_since(spec.renew_time.unwrap().0);
    assert!(age.as_secs() <= 6, "last renewal is {age} old");
    assert_eq!(lease.metadata.owner_references.unwrap()[0].uid, "uid-1");
    shutdown.cancel();
    beat.await.unwrap();
}
