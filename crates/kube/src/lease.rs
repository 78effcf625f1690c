//! Leader election and node heartbeats with `coordination.k8s.io/v1` Leases.
//!
//! The election uses client-go's protocol, so that replicas of both implementations can compete for the same
//! Lease: durations are measured locally, from the time when a renewal was *observed*.

mod args;
mod metrics;

pub use args::ElectionArgs;
pub use metrics::LeaderMetrics;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use koord_api::GoDuration;
use koord_app::Clock;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
use std::future::Future;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::component_config::LeaderElection;
use crate::failure_log::{FailureLog, causes};
use crate::patch::{is_conflict, is_not_found};

/// Namespace of the Leases of nodes.
pub const NODE_LEASE_NAMESPACE: &str = "kube-node-lease";

/// The Lease to compete for, and the timing of the election.
#[derive(Debug, Clone)]
pub struct Election {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// Identity of this replica; must be unique, for example `<host>_<uuid>`.
    pub identity: String,
    /// Time that other replicas wait after the last renewal that they observed. Default 15 s.
    pub lease_duration: Duration,
    /// Time for which the leader retries a renewal before it stops. Default 10 s.
    pub renew_deadline: Duration,
    /// Time between two attempts. Default 2 s.
    pub retry_period: Duration,
}

impl Election {
    /// Creates an election with the default timing.
    #[must_use]
    pub fn new(
        namespace: impl Into<String>,
        name: impl Into<String>,
        identity: impl Into<String>,
    ) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
            identity: identity.into(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }

    /// Creates the election of a configuration section, which must be valid.
    #[must_use]
    pub fn from_config<C>(section: &LeaderElection<C>, identity: impl Into<String>) -> Self {
        let duration = |value: GoDuration| value.to_std().unwrap_or_default();
        let (namespace, name) = (&section.resource_namespace, &section.resource_name);
        Self {
            lease_duration: duration(section.lease_duration),
            renew_deadline: duration(section.renew_deadline),
            retry_period: duration(section.retry_period),
            ..Self::new(namespace, name, identity)
        }
    }
}

/// Returns an identity that no other process has: `<host>_<random>`, the random part in the format of a UUID.
#[must_use]
pub fn unique_identity() -> String {
    let id = format!("{:032x}", fastrand::u128(..));
    let parts = [&id[..8], &id[8..12], &id[12..16], &id[16..20], &id[20..]];
    format!("{}_{}", host_name(), parts.join("-"))
}

/// Returns the name of this host.
#[must_use]
pub fn host_name() -> String {
    let host = std::env::var("HOSTNAME")
        .or_else(|_| std::fs::read_to_string("/proc/sys/kernel/hostname"))
        .unwrap_or_default();
    let host = host.trim();
    if host.is_empty() { "localhost" } else { host }.to_owned()
}

/// Reasons why an election failed to start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum ElectionError {
    /// A setting is invalid.
    #[error("leader election {field}: {value} {problem}")]
    Setting {
        /// Name of the setting.
        field: &'static str,
        /// Value of the setting.
        value: String,
        /// The rule that the value violates.
        problem: &'static str,
    },
    /// The Lease could not be renewed in time. Another replica may be the leader now, so this one must stop.
    #[error("leadership of lease {namespace}/{name} was lost")]
    Lost {
        /// Namespace of the Lease.
        namespace: String,
        /// Name of the Lease.
        name: String,
    },
}

/// Jitter of the time between attempts to become leader: up to 120 % longer, like client-go.
const ACQUIRE_JITTER: f64 = 1.2;

/// A participant in the election for a Lease.
#[derive(Debug)]
pub struct LeaderElector {
    api: crate::Api<Lease>,
    election: Election,
    clock: Clock,
    observed: Option<Observed>,
    failures: FailureLog,
}

/// The Lease as last seen, and the time when this state was first seen.
#[derive(Debug)]
struct Observed {
    lease: Lease,
    since: Instant,
}

impl Observed {
    fn spec(&self) -> LeaseSpec {
        self.lease.spec.clone().unwrap_or_default()
    }

    fn holder(&self) -> Option<String> {
        self.spec()
            .holder_identity
            .filter(|holder| !holder.is_empty())
    }
}

impl LeaderElector {
    /// Creates a participant, which makes no request yet.
    ///
    /// # Errors
    ///
    /// Fails if a duration or a name is invalid.
    pub fn new(
        client: kube::Client,
        election: Election,
        clock: Clock,
    ) -> Result<Self, ElectionError> {
        let wrong = |field, value: String, problem| {
            Err(ElectionError::Setting {
                field,
                value,
                problem,
            })
        };
        for (field, value) in [
            ("namespace", &election.namespace),
            ("name", &election.name),
            ("identity", &election.identity),
        ] {
            if value.is_empty() {
                return wrong(field, format!("{value:?}"), "must not be empty");
            }
        }
        let Election {
            lease_duration,
            renew_deadline,
            retry_period,
            ..
        } = &election;
        if lease_duration <= renew_deadline {
            let value = format!("{lease_duration:?}");
            return wrong(
                "lease duration",
                value,
                "must be longer than the renew deadline",
            );
        }
        if renew_deadline.as_secs_f64() <= ACQUIRE_JITTER * retry_period.as_secs_f64() {
            let value = format!("{renew_deadline:?}");
            return wrong(
                "renew deadline",
                value,
                "must be longer than 1.2 retry periods",
            );
        }
        if retry_period.is_zero() {
            return wrong("retry period", "0s".to_owned(), "must be positive");
        }
        let api = crate::Api::namespaced(client, &election.namespace);
        Ok(Self {
            api,
            election,
            clock,
            observed: None,
            failures: FailureLog::default(),
        })
    }

    /// Waits until this replica is the leader, then runs the future that `lead` returns.
    ///
    /// `lead` gets a token that is cancelled with `shutdown`, or when the Lease could not be renewed in time.
    /// After `shutdown` the future is awaited while the Lease is still renewed. The Lease is then released,
    /// so that the next leader need not wait. If the future ends by itself, the Lease is released too and the
    /// output of the future is returned.
    ///
    /// Returns `None` if `shutdown` was cancelled before this replica became leader.
    ///
    /// # Errors
    ///
    /// [`ElectionError::Lost`]; the future has been dropped then.
    pub async fn run<F: Future>(
        mut self,
        shutdown: CancellationToken,
        lead: impl FnOnce(CancellationToken) -> F,
    ) -> Result<Option<F::Output>, ElectionError> {
        tokio::select! {
            () = shutdown.cancelled() => return Ok(None),
            () = self.acquire() => {}
        }
        tracing::info!(lease = %self.lease(), identity = %self.election.identity, "became leader");
        let token = shutdown.child_token();
        let _stop_on_drop = token.clone().drop_guard();
        let output = tokio::select! {
            output = lead(token) => output,
            () = self.renew_until_lost() => {
                let Election { namespace, name, .. } = self.election;
                return Err(ElectionError::Lost { namespace, name });
            }
        };
        self.release().await;
        Ok(Some(output))
    }

    fn lease(&self) -> String {
        format!("{}/{}", self.election.namespace, self.election.name)
    }

    async fn acquire(&mut self) {
        while !self.try_acquire_or_renew().await {
            let jitter = 1.0 + ACQUIRE_JITTER * fastrand::f64();
            tokio::time::sleep(self.election.retry_period.mul_f64(jitter)).await;
        }
    }

    async fn renew_until_lost(&mut self) {
        let Election {
            renew_deadline,
            retry_period,
            ..
        } = self.election;
        loop {
            tokio::time::sleep(retry_period).await;
            let attempts = async {
                while !self.try_acquire_or_renew().await {
                    tokio::time::sleep(retry_period).await;
                }
            };
            if tokio::time::timeout(renew_deadline, attempts)
                .await
                .is_err()
            {
                tracing::error!(lease = %self.lease(), "failed to renew lease in time");
                return;
            }
        }
    }

    /// Makes one attempt. Returns whether this replica holds the Lease now.
    async fn try_acquire_or_renew(&mut self) -> bool {
        match self.attempt().await {
            Ok(held) => {
                self.failures.clear();
                held
            }
            Err(error) if is_conflict(&error) => false,
            Err(error) => {
                let error = causes(&error);
                if self.failures.record(&error) {
                    tracing::warn!(lease = %self.lease(), error, "failed to get or renew lease");
                }
                false
            }
        }
    }

    /// Tries to get or renew the lease; returns whether this process holds it.
    async fn attempt(&mut self) -> Result<bool, kube::Error> {
        let stored = match self.api.get(&self.election.name).await {
            Ok(lease) => lease,
            Err(error) if is_not_found(&error) => {
                let lease = Lease {
                    metadata: ObjectMeta {
                        name: Some(self.election.name.clone()),
                        namespace: Some(self.election.namespace.clone()),
                        ..ObjectMeta::default()
                    },
                    spec: Some(self.record(&LeaseSpec::default())),
                };
                let lease = self.api.create(&PostParams::default(), &lease).await?;
                self.observe(lease);
                return Ok(true);
            }
            Err(error) => return Err(error),
        };
        self.observe(stored.clone());
        let spec = stored.spec.clone().unwrap_or_default();
        let holder = spec
            .holder_identity
            .clone()
            .filter(|holder| !holder.is_empty());
        let is_own = holder.as_deref() == Some(&self.election.identity);
        let fresh = self.observed.as_ref().is_some_and(|observed| {
            // Like client-go, this uses the duration that the holder wrote.
            let patience = spec
                .lease_duration_seconds
                .and_then(|s| u64::try_from(s).ok());
            let patience = patience.map_or(self.election.lease_duration, Duration::from_secs);
            observed.since.elapsed() < patience
        });
        if holder.is_some() && !is_own && fresh {
            return Ok(false);
        }
        let lease = Lease {
            spec: Some(self.record(&spec)),
            ..stored
        };
        let lease = self
            .api
            .replace(&self.election.name, &PostParams::default(), &lease)
            .await?;
        self.observe(lease);
        Ok(true)
    }

    /// Returns the new content of the Lease, given the current one.
    fn record(&self, before: &LeaseSpec) -> LeaseSpec {
        let now = MicroTime(self.clock.now());
        let is_own = before.holder_identity.as_deref() == Some(&self.election.identity);
        let transitions = before.lease_transitions.unwrap_or(0);
        let first = before.holder_identity.is_none() && before.acquire_time.is_none();
        LeaseSpec {
            holder_identity: Some(self.election.identity.clone()),
            lease_duration_seconds: Some(seconds(self.election.lease_duration)),
            acquire_time: before
                .acquire_time
                .clone()
                .filter(|_| is_own)
                .or(Some(now.clone())),
            renew_time: Some(now),
            lease_transitions: Some(transitions.saturating_add(i32::from(!is_own && !first))),
            ..before.clone()
        }
    }

    /// Stores `lease` and the time of this observation, if its spec differs from the stored one.
    fn observe(&mut self, lease: Lease) {
        let is_unchanged = self
            .observed
            .as_ref()
            .is_some_and(|observed| observed.spec() == lease.spec.clone().unwrap_or_default());
        if !is_unchanged {
            self.observed = Some(Observed {
                lease,
                since: Instant::now(),
            });
        }
    }

    /// Releases the Lease if this replica still holds it. Best effort: it expires anyway.
    async fn release(&mut self) {
        let Some(observed) = &self.observed else {
            return;
        };
        if observed.holder().as_deref() != Some(&self.election.identity) {
            return;
        }
        let now = MicroTime(self.clock.now());
        let spec = LeaseSpec {
            holder_identity: Some(String::new()),
            lease_duration_seconds: Some(1),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            ..observed.spec()
        };
        let name = &self.election.name;
        let released = async {
            // Get the current version: another replica may hold the Lease by now.
            let current = self.api.get(name).await?;
            if current
                .spec
                .as_ref()
                .and_then(|spec| spec.holder_identity.as_deref())
                != Some(&self.election.identity)
            {
                return Ok(());
            }
            let lease = Lease {
                spec: Some(spec),
                ..current
            };
            self.api
                .replace(name, &PostParams::default(), &lease)
                .await
                .map(drop)
        };
        match tokio::time::timeout(self.election.renew_deadline, released).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(lease = %self.lease(), error = causes(&error), "failed to release lease")
            }
            Err(_) => tracing::warn!(lease = %self.lease(), "failed to release lease in time"),
        }
    }
}

fn seconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_secs()).unwrap_or(i32::MAX)
}

/// The heartbeat of a node: a Lease in `kube-node-lease` with the name of the node.
#[derive(Debug, Clone)]
pub struct NodeLease {
    /// Name of the node.
    pub node: String,
    /// Uid of the node. The Lease is garbage collected with the node; without it, it stays.
    pub owner_uid: Option<String>,
    /// Time that a renewal is valid. The kubelet's default is 40 s.
    pub duration: Duration,
    /// Time between renewals. The kubelet's default is a quarter of the duration.
    pub interval: Duration,
}

impl NodeLease {
    /// Creates a heartbeat with the kubelet's timing: 40 s, renewed every 10 s.
    #[must_use]
    pub fn new(node: impl Into<String>, owner_uid: Option<String>) -> Self {
        let (duration, interval) = (Duration::from_secs(40), Duration::from_secs(10));
        Self {
            node: node.into(),
            owner_uid,
            duration,
            interval,
        }
    }

    /// Renews the Lease until `shutdown`. A failure is logged, and the next attempt follows after the
    /// interval.
    pub async fn run(self, client: kube::Client, clock: Clock, shutdown: CancellationToken) {
        let mut failures = FailureLog::default();
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                result = self.renew(&client, &clock) => match result {
                    Ok(_) => {
                        failures.clear();
                    }
                    Err(error) => {
                        let error = causes(&error);
                        if failures.record(&error) {
                            tracing::warn!(node = %self.node, error, "failed to renew node lease");
                        }
                    }
                },
            }
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(self.interval) => {}
            }
        }
    }

    /// Renews the Lease once, or creates it.
    ///
    /// # Errors
    ///
    /// The error of the API server or of the transport.
    pub async fn renew(&self, client: &kube::Client, clock: &Clock) -> Result<Lease, kube::Error> {
        let api: crate::Api<Lease> = crate::Api::namespaced(client.clone(), NODE_LEASE_NAMESPACE);
        let spec = LeaseSpec {
            holder_identity: Some(self.node.clone()),
            lease_duration_seconds: Some(seconds(self.duration)),
            renew_time: Some(MicroTime(clock.now())),
            ..LeaseSpec::default()
        };
        let patch = json!({ "spec": &spec });
        match api
            .patch(&self.node, &PatchParams::default(), &Patch::Merge(&patch))
            .await
        {
            Err(error) if is_not_found(&error) => {}
            other => return other,
        }
        let owner = self.owner_uid.clone().map(|uid| {
            vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Node".to_owned(),
                name: self.node.clone(),
                uid,
                ..OwnerReference::default()
            }]
        });
        let metadata = ObjectMeta {
            name: Some(self.node.clone()),
            namespace: Some(NODE_LEASE_NAMESPACE.to_owned()),
            owner_references: owner,
            ..ObjectMeta::default()
        };
        api.create(
            &PostParams::default(),
            &Lease {
                metadata,
                spec: Some(spec),
            },
        )
        .await
    }
}

#[cfg(test)]
#[path = "lease_tests.rs"]
mod tests;
