//! HTTP client of extenders. The engine decides when they are called and what follows from their results.

mod wire;

use crate::config::Extender;
use crate::engine::{
    BindError, ExtenderCall, ExtenderNodeResult, ExtenderPreemptResult, ExtenderRequest,
    ExtenderResult, Proposal,
};
use crate::state::{NodeInfo, PodInfo};
use bytes::Bytes;
use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use koord_kube::client::ClientError;
use koord_kube::webhook_client::{Address, Poster};
use koord_kube::{Api, patch};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// The factor between extender scores, which end at 10, and scores in the cluster.
const SCALE: i64 = 10;
/// Limit of a response in bytes: twice the request, plus this for each node in the request.
const PER_NODE: usize = 4096;
const LEAST: usize = 64 * 1024;

/// The extenders of a configuration, in call order.
#[derive(Debug, Clone, Default)]
pub(super) struct Extenders(Arc<Vec<Server>>);

#[derive(Debug)]
struct Server {
    config: Extender,
    poster: Poster,
}

impl Extenders {
    /// Reads the files that the configuration names, without connecting to the servers.
    pub(super) async fn new(extenders: &[Extender]) -> Result<Self, ClientError> {
        let mut servers = Vec::with_capacity(extenders.len());
        for config in crate::config::sort_extenders(extenders) {
            let poster = Poster::new(&address(&config)).await?;
            servers.push(Server { config, poster });
        }
        Ok(Self(Arc::new(servers)))
    }

    /// Calls the extenders of a request and returns the combined result. Always returns, as each call has a
    /// timeout.
    pub(super) async fn answer(&self, call: ExtenderCall) -> ExtenderResult {
        let ExtenderCall {
            pod,
            extenders,
            request,
            ..
        } = call;
        let is_about_nodes = matches!(request, ExtenderRequest::Nodes(_));
        let servers = self.clone();
        let ask = async move {
            let called = extenders.iter().filter_map(|index| servers.0.get(*index));
            let called: Vec<&Server> = called.collect();
            match request {
                ExtenderRequest::Nodes(nodes) => {
                    ExtenderResult::Nodes(nodes_for(&called, &pod, nodes).await)
                }
                ExtenderRequest::Victims(all) => {
                    ExtenderResult::Victims(victims_for(&called, &pod, all).await)
                }
            }
        };
        // Even if this task panics, the pod must not wait forever.
        tokio::spawn(ask).await.unwrap_or_else(|error| {
            let message = format!("asking extenders failed: {error}");
            if is_about_nodes {
                ExtenderResult::Nodes(Err(message))
            } else {
                ExtenderResult::Victims(Err(message))
            }
        })
    }

    /// Calls the extender at position `at` to bind a pod. Returns `Ok(false)` if an ignorable extender
    /// failed.
    pub(super) async fn bind(&self, at: usize, pod: &PodInfo, node: &str) -> Result<bool, String> {
        let Some(server) = self.0.get(at) else {
            return Ok(false);
        };
        let body = wire::binding(pod, node).to_string().into_bytes();
        let verb = &server.config.bind_verb;
        let bound = match server.post(verb, body, 0).await {
            Ok(answer) => wire::read::<wire::BindingResult>(&answer)
                .map_err(|error| format!("{verb}: {error}")),
            Err(error) => Err(error),
        };
        let bound = bound.and_then(|result| response_error(&result.error));
        match bound.map_err(|error| server.named(&error)) {
            Ok(()) => Ok(true),
            Err(error) => server.ignored(&error).map(|()| false),
        }
    }

    /// Waits until the pod that the extender reported as bound has a node: otherwise the pod would stay
    /// assumed forever. The informer delivers which node.
    pub(super) async fn has_bound(
        &self,
        api: &Api<Pod>,
        at: usize,
        pod: &PodInfo,
    ) -> Result<(), BindError> {
        const EVERY: Duration = Duration::from_millis(100);
        let Some(server) = self.0.get(at) else {
            return Ok(());
        };
        let until = tokio::time::Instant::now() + server.config.timeout();
        loop {
            let current = api.get(&pod.name).await.map_err(|error| BindError {
                gone: patch::is_not_found(&error),
                message: error.to_string(),
            })?;
            let is_other_pod = current.metadata.uid.as_deref() != Some(&*pod.uid);
            if is_other_pod || current.spec.is_some_and(|spec| spec.node_name.is_some()) {
                return Ok(());
            }
            if tokio::time::Instant::now() >= until {
                let name = &server.config.url_prefix;
                let message = format!("extender {name:?} says that it bound the pod, and did not");
                return Err(BindError {
                    message,
                    gone: false,
                });
            }
            tokio::time::sleep(EVERY).await;
        }
    }
}

/// Returns the address of an extender. As in kube-scheduler, any server is trusted if HTTPS is enabled
/// without a CA.
fn address(config: &Extender) -> Address {
    let tls = config.tls_config.clone().unwrap_or_default();
    let has_authority = tls.has_authority();
    let non_empty = |text: String| Some(text).filter(|text| !text.is_empty());
    Address {
        url: config.url_prefix.clone(),
        server_name: non_empty(tls.server_name),
        insecure: tls.insecure || (config.enable_https && !has_authority),
        ca_file: non_empty(tls.ca_file),
        ca_data: tls.ca_data,
        cert_file: non_empty(tls.cert_file),
        cert_data: tls.cert_data,
        key_file: non_empty(tls.key_file),
        key_data: tls.key_data,
    }
}

/// Returns an error if the extender reported one in the error field of its response.
fn response_error(error: &str) -> Result<(), String> {
    if error.is_empty() {
        return Ok(());
    }
    Err(error.chars().take(512).collect())
}

/// Runs work that blocks, such as decoding large JSON, on a thread pool, so that it delays no scheduling
/// decision.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let result = tokio::task::spawn_blocking(work).await;
    result.unwrap_or_else(|error| Err(error.to_string()))
}

fn json(value: &impl serde::Serialize) -> Result<Vec<u8>, String> {
    serde_json::to_vec(value).map_err(|error| error.to_string())
}

impl Server {
    fn named(&self, error: &str) -> String {
        format!("extender {:?}: {error}", self.config.url_prefix)
    }

    /// Logs and drops the error of an ignorable extender; returns that of another one.
    fn ignored(&self, error: &str) -> Result<(), String> {
        if !self.config.ignorable {
            return Err(error.to_owned());
        }
        tracing::info!(error, "ignoring the failure of an ignorable extender");
        Ok(())
    }

    async fn post(&self, verb: &str, body: Vec<u8>, nodes: usize) -> Result<Bytes, String> {
        let longest = 2 * body.len() + PER_NODE * nodes + LEAST;
        let patience = self.config.timeout();
        let answer = self.poster.post(verb, body, longest, patience).await;
        answer.map_err(|error| format!("{verb}: {error}"))
    }

    /// Returns the accepted ones of `nodes`, and adds the reasons for the others to `refused`.
    async fn filter(
        &self,
        pod: &Arc<PodInfo>,
        nodes: &[Arc<NodeInfo>],
        refused: &mut BTreeMap<Arc<str>, (String, bool)>,
    ) -> Result<Vec<Arc<NodeInfo>>, String> {
        let by_name = self.config.node_cache_capable;
        let body = self.args(pod, nodes).await?;
        let answer = self
            .post(&self.config.filter_verb, body, nodes.len())
            .await?;
        let verb = &self.config.filter_verb;
        let read = run_blocking(move || wire::read::<wire::FilterResult>(&answer)).await;
        let result = read.map_err(|error| format!("{verb}: {error}"))?;
        response_error(&result.error)?;
        let names: BTreeSet<String> = match (result.names, result.nodes) {
            (Some(names), _) if by_name => names.into_iter().collect(),
            (_, Some(list)) => list.items.into_iter().map(|it| it.metadata.name).collect(),
            _ => BTreeSet::new(),
        };
        let mut rejected: BTreeSet<&str> = nodes.iter().map(|node| &*node.name).collect();
        if let Some(stranger) = names.iter().find(|name| !rejected.contains(name.as_str())) {
            return Err(format!(
                "claims a filtered node {stranger:?} which is not found in the input node list"
            ));
        }
        rejected.retain(|name| !names.contains(*name));
        for name in rejected {
            let reason = match (result.unresolvable.get(name), result.failed.get(name)) {
                (Some(reason), _) => (reason.clone(), true),
                (None, Some(reason)) => (reason.clone(), false),
                (None, None) => (self.default_reason(), true),
            };
            let reason = match reason {
                (text, code) if text.trim().is_empty() => (self.default_reason(), code),
                reason => reason,
            };
            refused.insert(name.into(), reason);
        }
        let accepted = nodes.iter().filter(|node| names.contains(&*node.name));
        Ok(accepted.cloned().collect())
    }

    fn default_reason(&self) -> String {
        format!("node(s) refused by extender {:?}", self.config.url_prefix)
    }

    /// Returns what the extender adds to the scores of nodes.
    async fn prioritize(
        &self,
        pod: &Arc<PodInfo>,
        nodes: &[Arc<NodeInfo>],
    ) -> Result<BTreeMap<String, i64>, String> {
        let body = self.args(pod, nodes).await?;
        let verb = &self.config.prioritize_verb;
        let answer = self.post(verb, body, nodes.len()).await?;
        let read = || wire::read::<Option<Vec<wire::HostPriority>>>(&answer);
        let mut scores: BTreeMap<String, i64> = BTreeMap::new();
        let weight = self.config.weight.saturating_mul(SCALE);
        for entry in read()?.unwrap_or_default() {
            let score = scores.entry(entry.host).or_default();
            *score = score.saturating_add(entry.score.saturating_mul(weight));
        }
        Ok(scores)
    }

    async fn args(&self, pod: &Arc<PodInfo>, nodes: &[Arc<NodeInfo>]) -> Result<Vec<u8>, String> {
        let (pod, nodes) = (pod.clone(), nodes.to_vec());
        let by_name = self.config.node_cache_capable;
        run_blocking(move || {
            json(&wire::Args {
                pod: &pod,
                nodes: &nodes,
                by_name,
            })
        })
        .await
    }

    /// Returns the victims that the extender accepts.
    async fn preempt(
        &self,
        pod: &Arc<PodInfo>,
        proposals: &[Proposal],
    ) -> Result<Vec<ExtenderPreemptResult>, String> {
        let (about, proposals) = (pod.clone(), proposals.to_vec());
        let by_name = self.config.node_cache_capable;
        let nodes = proposals.len();
        let body = run_blocking(move || {
            json(&wire::PreemptionArgs {
                pod: &about,
                proposals: &proposals,
                by_name,
            })
        });
        let answer = self
            .post(&self.config.preempt_verb, body.await?, nodes)
            .await?;
        let verb = &self.config.preempt_verb;
        let read = wire::read::<wire::PreemptionResult>(&answer);
        let result = read.map_err(|error| format!("{verb}: {error}"))?;
        let mut agreed = Vec::with_capacity(result.nodes.len());
        for (node, victims) in result.nodes {
            let victims = victims.unwrap_or_default();
            let uids: Vec<String> = victims
                .pods
                .into_iter()
                .flatten()
                .map(|it| it.uid)
                .collect();
            if uids.is_empty() {
                if self.config.ignorable {
                    continue;
                }
                return Err(format!("expected at least one victim pod on node {node:?}"));
            }
            agreed.push(ExtenderPreemptResult {
                extender: self.config.url_prefix.clone(),
                node: node.into(),
                victims: uids,
                violations: victims.violations,
            });
        }
        Ok(agreed)
    }
}

/// Calls the filters one after another, each with the nodes that passed the previous ones; then the scores,
/// all at once.
async fn nodes_for(
    servers: &[&Server],
    pod: &Arc<PodInfo>,
    mut nodes: Vec<Arc<NodeInfo>>,
) -> Result<ExtenderNodeResult, String> {
    let mut advised = ExtenderNodeResult::default();
    for server in servers {
        if server.config.filter_verb.is_empty() || nodes.is_empty() {
            continue;
        }
        match server.filter(pod, &nodes, &mut advised.refused).await {
            Ok(left) => nodes = left,
            Err(error) => server.ignored(&server.named(&error))?,
        }
    }
    // A single node needs no score.
    if nodes.len() < 2 {
        return Ok(advised);
    }
    let scorers = servers
        .iter()
        .filter(|server| !server.config.prioritize_verb.is_empty());
    let scored = scorers.map(|server| async {
        let scores = server.prioritize(pod, &nodes).await;
        scores.unwrap_or_else(|error| {
            // The other extenders decide then.
            let error = server.named(&error);
            tracing::info!(error, "failed to get an extender's scores, ignoring them");
            BTreeMap::new()
        })
    });
    for scores in join_all(scored).await {
        for node in &nodes {
            if let Some(score) = scores.get(&*node.name) {
                let sum = advised.scores.entry(node.name.clone()).or_default();
                *sum = sum.saturating_add(*score);
            }
        }
    }
    Ok(advised)
}

/// Calls the extenders one after another, each with the victims that the previous ones accepted.
async fn victims_for(
    servers: &[&Server],
    pod: &Arc<PodInfo>,
    mut proposals: Vec<Proposal>,
) -> Result<Vec<ExtenderPreemptResult>, String> {
    let plain = |proposal: &Proposal| ExtenderPreemptResult {
        extender: String::new(),
        node: proposal.node.clone(),
        victims: proposal
            .victims
            .iter()
            .map(|pod| pod.uid.to_string())
            .collect(),
        violations: proposal.violations,
    };
    let mut agreed: Vec<ExtenderPreemptResult> = proposals.iter().map(plain).collect();
    for server in servers {
        if agreed.is_empty() {
            break;
        }
        match server.preempt(pod, &proposals).await {
            Ok(left) => agreed = left,
            Err(error) => server.ignored(&server.named(&error))?,
        }
        let next = agreed.iter().filter_map(|it| {
            let reviewed = proposals.iter().find(|reviewed| reviewed.node == it.node)?;
            let is_named = |pod: &&Arc<PodInfo>| it.victims.iter().any(|uid| **uid == *pod.uid);
            Some(Proposal {
                node: it.node.clone(),
                victims: reviewed.victims.iter().filter(is_named).cloned().collect(),
                violations: it.violations,
            })
        });
        proposals = next.collect();
    }
    Ok(agreed)
}

#[cfg(test)]
mod tests;
