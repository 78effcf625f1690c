//! `koord explain`: explains the scheduling of a pod, the batch resources of a node with its pressure guard,
//! the decisions of the descheduler, and objects of koord's APIs.

mod descheduler;
mod device;
mod gang;
mod hints;
mod numa;
mod objects;
mod outline;
mod profile;
mod quota;
mod render;
mod reservation;
mod resources;

use crate::cluster_args::ClusterArgs;
use crate::{cluster_files, http_get, node};
use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use koord_api::configmap;
use koord_api::topology::v1alpha2::NodeResourceTopology;
use koord_app::console;
use koord_app::daemon::runtime;
use koord_kube::api::ListParams;
use koord_kube::client::{Peer, to_peer};
use koord_kube::tls::install_crypto_provider;
use koord_kube::{Api, Client};
use koordlet::qos::guard::NAME as GUARD;
use koordlet::status::Guard;
use objects::{ObjectKind, ObjectRef};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::PathBuf;

const DESCHEDULER: &str = "descheduler";
/// Reason of a pending pod whose status has none.
const UNREPORTED: &str = "no scheduler has reported on it";

/// Arguments of `koord explain`.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Args {
    /// Object to explain, as in kubectl: `pod NAME`, `pod/NAME`, `pod NAMESPACE/NAME`; kinds are pod, node, quota,
    /// gang, reservation, device (of a node) and profile. `profile NAME POD` explains whether a profile
    /// matches a pod, `descheduler` the last cycle of the descheduler, `descheduler NODE` one node in it.
    #[arg(required = true, num_args = 1..=3, value_name = "KIND/NAME")]
    pub what: Vec<String>,
    /// Namespace of the pod, gang or quota [default: default; any for a quota].
    #[arg(short, long, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Output format.
    #[arg(short, long, default_value = "text", value_parser = ["text", "json"])]
    pub output: String,
    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// URL of the scheduler's HTTP server or, with https://, of its secure port; for `descheduler`, of the
    /// descheduler's. Not needed for a `koord up` cluster.
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
    /// For a node: address of the HTTP server of its koordlet. Not needed for a `koord up` cluster.
    #[arg(long, value_name = "HOST:PORT")]
    pub address: Option<String>,
    /// For https: file with the bearer token.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// For https: certificate authority of the server, instead of the system's authorities.
    #[arg(long, value_name = "FILE")]
    pub certificate_authority: Option<PathBuf>,
    /// For https: accept any certificate, for example with a port-forward.
    #[arg(long)]
    pub insecure_skip_tls_verify: bool,
    /// Same as `-o json`.
    #[arg(long)]
    pub json: bool,
}

/// The object to explain.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Subject {
    Pod {
        namespace: String,
        name: String,
    },
    Node(String),
    /// The descheduler's last cycle; for one node if it is named.
    Descheduler(Option<String>),
    Object(ObjectRef),
}

impl Args {
    fn is_json(&self) -> bool {
        self.json || self.output == "json"
    }

    /// Parses the positional arguments.
    fn subject(&self) -> Result<Subject> {
        let (kind, name, pod) = match &self.what[..] {
            [one] if one == DESCHEDULER => return Ok(Subject::Descheduler(None)),
            [one] => {
                let parts = one.split_once('/');
                let (kind, name) = parts
                    .with_context(|| format!("{one:?}: expected KIND/NAME, such as pod/web"))?;
                (kind, name, None)
            }
            [first, second] => match first.split_once('/') {
                Some((kind, name)) => (kind, name, Some(second)),
                None => (first.as_str(), second.as_str(), None),
            },
            [kind, name, pod] => (kind.as_str(), name.as_str(), Some(pod)),
            _ => bail!("expected KIND/NAME, such as pod/web"),
        };
        let object = ObjectKind::from_name(kind);
        if pod.is_some() && object != Some(ObjectKind::Profile) {
            bail!("expected KIND/NAME, such as pod/web; a pod may follow a profile only");
        }
        if let Some(kind) = object {
            let mut object = ObjectRef {
                kind,
                namespace: self.namespace.clone(),
                name: name.to_owned(),
                pod: None,
            };
            if kind.is_namespaced() {
                (object.namespace, object.name) = self.split_namespace(name)?;
            } else if let Some(pod) = pod {
                let (namespace, pod) = self.split_namespace(pod)?;
                (object.namespace, object.pod) = (namespace, Some(pod));
            }
            return Ok(Subject::Object(object));
        }
        match kind {
            "pod" | "pods" | "po" => {
                let (namespace, name) = self.split_namespace(name)?;
                let namespace = namespace.unwrap_or_else(|| "default".to_owned());
                Ok(Subject::Pod { namespace, name })
            }
            "node" | "nodes" | "no" => Ok(Subject::Node(name.to_owned())),
            DESCHEDULER => Ok(Subject::Descheduler(Some(name.to_owned()))),
            _ => bail!(
                "cannot explain {kind:?}: expected pod, node, quota, gang, reservation, device, profile or \
                 {DESCHEDULER}"
            ),
        }
    }

    /// Splits `NAMESPACE/NAME`. A name alone is in the namespace of the arguments, if they set one.
    fn split_namespace(&self, name: &str) -> Result<(Option<String>, String)> {
        let (within, name) = match name.split_once('/') {
            Some((namespace, name)) => (Some(namespace.to_owned()), name),
            None => (None, name),
        };
        let namespace = match (within, self.namespace.clone()) {
            (Some(a), Some(b)) if a != b => bail!("{a}/{name} is not in namespace {b}"),
            (within, given) => within.or(given),
        };
        Ok((namespace, name.to_owned()))
    }
}

/// Queries the scheduler, koordlet or the descheduler, or reads objects, and prints the explanation.
///
/// # Errors
/// No component can be reached, or the object does not exist.
pub fn main(args: &Args) -> Result<()> {
    let subject = args.subject()?;
    runtime()?.block_on(run(args, &subject))
}

async fn run(args: &Args, what: &Subject) -> Result<()> {
    install_crypto_provider();
    match what {
        Subject::Node(name) => explain_node(args, name).await,
        Subject::Descheduler(node) => descheduler::explain(args, node.as_deref()).await,
        Subject::Pod { namespace, name } => explain_pod(args, namespace, name).await,
        Subject::Object(object) => objects::explain(args, object).await,
    }
}

/// Explains a quota, gang, reservation, device or profile of the cluster of `client`, as
/// `koord explain --output json` prints it. `args` name the object.
///
/// # Errors
/// The arguments name no such object, it does not exist, or it cannot be read.
pub async fn object(client: Client, args: &Args) -> Result<Value> {
    match args.subject()? {
        Subject::Object(object) => Ok(json!(objects::outline(client, &object).await?)),
        _ => bail!("expected a quota, gang, reservation, device or profile"),
    }
}

/// The selected cluster.
struct SelectedCluster {
    client: Client,
    /// Addresses of the components of a `koord up` cluster.
    parts: Option<ConfigMap>,
}

impl SelectedCluster {
    async fn find(args: &Args) -> Result<Self> {
        let client = args.cluster.connect().await?;
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), configmap::NAMESPACE);
        // A user without the right to read it must pass the addresses, as for other clusters.
        let parts = match maps.get_opt(cluster_files::ADDRESSES_NAME).await {
            Err(error) if !matches!(error, koord_kube::Error::Api(_)) => {
                return Err(error).context("failed to query the cluster");
            }
            found => found.ok().flatten(),
        };
        Ok(Self { client, parts })
    }

    /// Returns the NodeResourceTopology of the node of `pod`, if it can be read.
    async fn report_about(&self, pod: &Pod) -> Option<NodeResourceTopology> {
        let node = pod.spec.as_ref()?.node_name.as_deref()?;
        let reports: Api<NodeResourceTopology> = Api::all(self.client.clone());
        reports.get_opt(node).await.ok().flatten()
    }

    /// Returns the address of a component of a `koord up` cluster. Only addresses on this machine are
    /// trusted.
    fn part(&self, name: &str) -> Option<String> {
        let url = self.parts.as_ref()?.data.as_ref()?.get(name)?;
        url.starts_with("http://127.0.0.1:").then(|| url.clone())
    }
}

/// Explains a pod by the scheduler's response, hints from API objects, or its own status.
async fn explain_pod(args: &Args, namespace: &str, name: &str) -> Result<()> {
    let cluster = match SelectedCluster::find(args).await {
        Ok(cluster) => Some(cluster),
        // The scheduler can be queried without the cluster.
        Err(error) if args.server.is_some() && args.cluster.kubeconfig.is_none() => {
            console::warn(format_args!(
                "koord: querying only the scheduler: {error:#}"
            ));
            None
        }
        Err(error) => return Err(error),
    };
    let part = cluster
        .as_ref()
        .and_then(|cluster| cluster.part("scheduler"));
    let server = args.server.clone().or(part);
    let mut pod_object = None;
    let mut nodes = Vec::new();
    if let Some(cluster) = &cluster {
        let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), namespace);
        let fetched = pods.get_opt(name).await?;
        pod_object = Some(fetched.with_context(|| format!("there is no pod {namespace}/{name}"))?);
        let all: Api<Node> = Api::all(cluster.client.clone());
        nodes = all
            .list(&ListParams::default())
            .await
            .map_or_else(|_| Vec::new(), |list| list.items);
    }
    let mut schedulers = None;
    let mut answer = None;
    let mut missing = "the address of the scheduler is unknown, set --server".to_owned();
    if let Some(server) = &server {
        let path = format!("/debug/scheduler/pods/{namespace}/{name}");
        match query(args, "the scheduler", server, &path).await {
            Ok((200, body)) => {
                answer = Some(
                    serde_json::from_str::<Value>(&body)
                        .context("invalid response from the scheduler")?,
                );
            }
            Ok((_, body)) => {
                let value: Value = serde_json::from_str(&body).unwrap_or_default();
                missing = value["message"].as_str().unwrap_or(&body).to_owned();
            }
            Err(error) if pod_object.is_some() => missing = format!("{error:#}"),
            Err(error) => return Err(error),
        }
        schedulers = served_names(args, server).await;
    }
    let Some(pod) = pod_object else {
        let answer = answer.with_context(|| missing)?;
        return print_answer(args, &answer, &[]);
    };
    let mut hints = hints::hints(&pod, &nodes, schedulers.as_deref());
    if let Some(cluster) = &cluster {
        hints.extend(numa::explain_choice(
            &pod,
            cluster.report_about(&pod).await.as_ref(),
        ));
        hints.extend(reclaimed_sums(cluster, &pod, &nodes, answer.as_ref()).await);
    }
    match answer {
        Some(answer) => print_answer(args, &answer, &hints),
        None if args.is_json() => {
            let output = json!({"pod": format!("{namespace}/{name}"), "hints": hints,
                "condition": condition(&pod), "scheduler": missing});
            console::print_line(serde_json::to_string_pretty(&output)?);
            Ok(())
        }
        None => {
            let mut text = format!("{namespace}/{name} {}\n", condition(&pod));
            for hint in &hints {
                let _ = writeln!(text, "  {hint}");
            }
            let _ = writeln!(text, "  ({missing})");
            console::print_line(text.trim_end());
            Ok(())
        }
    }
}

/// Returns the sums of the reclaimed resources that a pending pod lacks, each on one node.
async fn reclaimed_sums(
    cluster: &SelectedCluster,
    pod: &Pod,
    nodes: &[Node],
    answer: Option<&Value>,
) -> Vec<String> {
    let nearest = answer.and_then(|answer| answer["nearest"].as_array());
    let nearest: Vec<(&str, &str)> = nearest
        .into_iter()
        .flatten()
        .filter_map(|it| Some((it["node"].as_str()?, it["lacks"].as_str()?)))
        .collect();
    let mut lines = Vec::new();
    for (resource, name) in hints::reclaimed_shortages(pod, nodes, &nearest) {
        let node = nodes
            .iter()
            .find(|it| it.metadata.name.as_ref() == Some(&name));
        let Some(node) = node else { continue };
        // Without the right to read the objects behind the sum, there is no line.
        if let Ok(explanation) = resources::fetch_explanation(&cluster.client, node.clone()).await {
            lines.extend(resources::sum_line(&explanation, resource));
        }
    }
    lines
}

fn print_answer(args: &Args, answer: &Value, hints: &[String]) -> Result<()> {
    if args.is_json() {
        let mut answer = answer.clone();
        if !hints.is_empty() {
            answer["hints"] = json!(hints);
        }
        console::print_line(serde_json::to_string_pretty(&answer)?);
        return Ok(());
    }
    let mut text = render::render(answer);
    for hint in hints {
        let _ = writeln!(text, "  {hint}");
    }
    console::print_line(text.trim_end());
    Ok(())
}

/// Returns the scheduler names that a scheduler serves; `None` if they are unknown.
async fn served_names(args: &Args, server: &str) -> Option<Vec<String>> {
    let (code, body) = query(args, "the scheduler", server, "/debug/scheduler/plugins")
        .await
        .ok()?;
    let profiles: Vec<Value> = serde_json::from_str(&body).ok().filter(|_| code == 200)?;
    let names = profiles
        .iter()
        .filter_map(|profile| profile["schedulerName"].as_str());
    let names: Vec<String> = names.map(str::to_owned).collect();
    (!names.is_empty()).then_some(names)
}

/// Explains the batch resources of a node, and the state of its pressure guard.
async fn explain_node(args: &Args, name: &str) -> Result<()> {
    let cluster = match SelectedCluster::find(args).await {
        Ok(cluster) => Some(cluster),
        // koordlet can be queried without the cluster.
        Err(error) if args.address.is_some() && args.cluster.kubeconfig.is_none() => {
            console::warn(format_args!("koord: querying only koordlet: {error:#}"));
            None
        }
        Err(error) => return Err(error),
    };
    let mut explanation = None;
    let mut simulated = false;
    if let Some(cluster) = &cluster {
        let nodes: Api<Node> = Api::all(cluster.client.clone());
        let fetched = nodes.get_opt(name).await?;
        let node = fetched.with_context(|| format!("there is no node {name:?}"))?;
        simulated = koord_api::simulation::is_simulated(&node);
        explanation = Some(resources::fetch_explanation(&cluster.client, node).await?);
    }
    let part = cluster
        .as_ref()
        .and_then(|cluster| cluster.part("koordlet"));
    let guard = match args.address.clone().or(part) {
        _ if simulated && args.address.is_none() => Err(format!(
            "{name} is a simulated node: no koordlet runs there"
        )),
        None => Err(format!(
            "the address of koordlet on {name} is unknown, set --address"
        )),
        Some(address) => match fetch_guard(&address, name).await {
            // An address that was passed must respond.
            Err(error) if args.address.is_some() => return Err(error),
            answer => answer.map_err(|error| format!("{error:#}")),
        },
    };
    if args.is_json() {
        let guard = match guard {
            Ok((guard, _)) => json!(guard),
            Err(why) => json!({"unknown": why}),
        };
        let answer = json!({"resources": explanation, "pressureGuard": guard});
        console::print_line(serde_json::to_string_pretty(&answer)?);
        return Ok(());
    }
    let mut text = explanation
        .as_ref()
        .map_or_else(String::new, resources::render);
    match guard {
        Ok((Some(guard), _)) => text.push_str(&node::render_guard(&guard)),
        Ok((None, why)) => {
            let _ = writeln!(text, "pressure guard: inactive ({why})");
        }
        Err(why) => {
            let _ = writeln!(text, "pressure guard: unknown ({why})");
        }
    }
    console::print_line(text.trim_end());
    Ok(())
}

/// Returns the guard of koordlet on node `name`, and why it is inactive.
async fn fetch_guard(address: &str, name: &str) -> Result<(Option<Guard>, String)> {
    let status = node::fetch_status(address).await?;
    if status.node != name {
        let actual = &status.node;
        bail!("koordlet at {address} belongs to node {actual}, not {name}: set --address");
    }
    let row = status.strategies.iter().find(|s| s.name == GUARD);
    let reason = row.map_or("this koordlet has no pressure guard", |row| {
        row.why.as_str()
    });
    let reason = reason.to_owned();
    Ok((status.guard, reason))
}

/// Returns the status code and body of a GET at `server`, which errors name as `who`.
///
/// # Errors
/// The server cannot be reached.
pub async fn query(args: &Args, who: &str, server: &str, path: &str) -> Result<(u16, String)> {
    if !server.starts_with("https://") {
        let token = match &args.token_file {
            None => None,
            Some(path) => {
                let cannot = || format!("--token-file: {}", path.display());
                Some(std::fs::read_to_string(path).with_context(cannot)?)
            }
        };
        return http_get::get_as(token.as_deref(), server, who, path).await;
    }
    let client = to_peer(&Peer {
        url: server.to_owned(),
        token_file: args.token_file.clone(),
        authority: args.certificate_authority.clone(),
        insecure: args.insecure_skip_tls_verify,
    })
    .await?;
    let request = hyper::Request::get(path).body(Vec::new())?;
    match client.request_text(request).await {
        Ok(body) => Ok((200, body)),
        Err(koord_kube::Error::Api(status)) => {
            let body = json!({"message": status.message});
            Ok((status.code, body.to_string()))
        }
        Err(error) => Err(error).with_context(|| format!("failed to reach {who} at {server}")),
    }
}

/// Returns the scheduling state in the pod's own status.
fn condition(pod: &Pod) -> String {
    if let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()) {
        return format!("is bound to {node}");
    }
    match scheduled_message(pod) {
        Some(message) => format!("is pending\n  {message}"),
        None => format!("is pending; {UNREPORTED}"),
    }
}

/// Returns the message of the pod's condition `PodScheduled`.
fn scheduled_message(pod: &Pod) -> Option<&str> {
    let status = pod.status.as_ref()?;
    let mut conditions = status.conditions.iter().flatten();
    let scheduled = conditions.find(|condition| condition.type_ == "PodScheduled");
    scheduled?
        .message
        .as_deref()
        .filter(|message| !message.is_empty())
}

/// Returns the node of a pod; empty if it has none.
fn node_name(pod: &Pod) -> &str {
    let spec = pod.spec.as_ref();
    spec.and_then(|spec| spec.node_name.as_deref())
        .unwrap_or_default()
}

/// Returns whether a pod has ended.
fn is_terminal(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Returns whether a pod waits for a node.
fn is_pending(pod: &Pod) -> bool {
    node_name(pod).is_empty() && !is_terminal(pod)
}

/// Returns `NAMESPACE/NAME`, or the name of an object without a namespace.
fn full_name(metadata: &ObjectMeta) -> String {
    let name = metadata.name.as_deref().unwrap_or_default();
    match metadata.namespace.as_deref() {
        None | Some("") => name.to_owned(),
        Some(namespace) => format!("{namespace}/{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn parse(line: &str) -> Result<Subject> {
        let argv = std::iter::once("explain").chain(line.split_whitespace());
        Line::try_parse_from(argv)?.args.subject()
    }

    #[test]
    fn objects_are_named_like_pods() {
        for (line, kind, namespace, name, pod) in [
            ("quota team", ObjectKind::Quota, None, "team", None),
            ("eq/a/team", ObjectKind::Quota, Some("a"), "team", None),
            (
                "gang web -n shop",
                ObjectKind::Gang,
                Some("shop"),
                "web",
                None,
            ),
            (
                "podgroup shop/web",
                ObjectKind::Gang,
                Some("shop"),
                "web",
                None,
            ),
            ("reservation/r", ObjectKind::Reservation, None, "r", None),
            ("device n1", ObjectKind::Device, None, "n1", None),
            ("profile batch", ObjectKind::Profile, None, "batch", None),
            (
                "profile batch job",
                ObjectKind::Profile,
                None,
                "batch",
                Some("job"),
            ),
            (
                "profile/batch shop/job",
                ObjectKind::Profile,
                Some("shop"),
                "batch",
                Some("job"),
            ),
        ] {
            let object = ObjectRef {
                kind,
                namespace: namespace.map(str::to_owned),
                name: name.to_owned(),
                pod: pod.map(str::to_owned),
            };
            assert_eq!(parse(line).unwrap(), Subject::Object(object), "{line}");
        }
        for line in [
            "pod web job",
            "quota/a b",
            "quota a/b -n c",
            "profile a b c",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn pods_are_named_as_kubectl_names_them() {
        let web = |namespace: &str| Subject::Pod {
            namespace: namespace.to_owned(),
            name: "web".to_owned(),
        };
        for (line, namespace) in [
            ("pod web", "default"),
            ("pod/web", "default"),
            ("po/web -n shop", "shop"),
            ("pods web --namespace=shop", "shop"),
            ("pod shop/web", "shop"),
            ("pod/web -o json -n shop", "shop"),
        ] {
            assert_eq!(parse(line).unwrap(), web(namespace), "{line}");
        }
        for line in ["node/vm", "node vm", "nodes vm", "no/vm -o json"] {
            assert_eq!(
                parse(line).unwrap(),
                Subject::Node("vm".to_owned()),
                "{line}"
            );
        }
        for line in ["descheduler vm", "descheduler/vm"] {
            let vm = Some("vm".to_owned());
            assert_eq!(parse(line).unwrap(), Subject::Descheduler(vm), "{line}");
        }
        assert_eq!(parse("descheduler").unwrap(), Subject::Descheduler(None));
        for (line, says) in [
            ("web", "expected KIND/NAME"),
            ("svc/web", "cannot explain \"svc\""),
            ("pod shop/web -n other", "is not in namespace other"),
        ] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains(says), "{line}: {error}");
        }
    }
}
