//! Reads the objects behind an explanation, and prints it.

use super::outline::Outline;
use super::profile::{PodWebhooks, ProfileObjects};
use super::{Args, device, gang, profile, quota, reservation};
use crate::cluster_files;
use crate::fetch::{Fetched, Fetcher, elements, name, text};
use anyhow::{Context as _, Result, anyhow, bail};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use koord_api::configmap;
use koord_api::scheduling::{ElasticQuota, PodGroup};
use koord_app::console;
use koord_kube::Client;
use koord_manager::webhook::MUTATING;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::time::Duration;

/// Time within which each request has to be answered.
const TIMEOUT: Duration = Duration::from_secs(10);
const PODS: &str = "/api/v1/pods";

/// Kinds of objects that are explained from what the cluster stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ObjectKind {
    /// ElasticQuota.
    Quota,
    /// PodGroup, or the annotations of a gang's pods.
    Gang,
    /// Reservation.
    Reservation,
    /// Device; named like its node.
    Device,
    /// ClusterColocationProfile.
    Profile,
}

impl ObjectKind {
    /// Names of kinds, each in the forms that kubectl accepts and the short ones.
    const NAMES: [(Self, &'static [&'static str]); 5] = [
        (
            Self::Quota,
            &["quota", "quotas", "elasticquota", "elasticquotas", "eq"],
        ),
        (
            Self::Gang,
            &["gang", "gangs", "podgroup", "podgroups", "pg"],
        ),
        (Self::Reservation, &["reservation", "reservations"]),
        (Self::Device, &["device", "devices"]),
        (
            Self::Profile,
            &[
                "profile",
                "profiles",
                "clustercolocationprofile",
                "clustercolocationprofiles",
            ],
        ),
    ];

    /// Returns the kind with this name.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        let found = Self::NAMES.iter().find(|(_, names)| names.contains(&name));
        found.map(|(kind, _)| *kind)
    }

    /// Returns whether objects of the kind are in a namespace.
    pub(super) const fn is_namespaced(self) -> bool {
        matches!(self, Self::Quota | Self::Gang)
    }
}

/// The object to explain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ObjectRef {
    pub(super) kind: ObjectKind,
    /// Namespace of the object or, for a profile, of the pod; `None` if it was not given.
    pub(super) namespace: Option<String>,
    pub(super) name: String,
    /// For a profile: the pod in question.
    pub(super) pod: Option<String>,
}

/// Explains an object of the selected cluster and prints the explanation.
///
/// # Errors
/// The cluster cannot be reached, there is no such object, or it cannot be read.
pub(super) async fn explain(args: &Args, object: &ObjectRef) -> Result<()> {
    let client = args.cluster.connect().await?;
    let outline = outline(client, object).await?;
    if args.is_json() {
        console::print_line(serde_json::to_string_pretty(&outline)?);
    } else {
        console::print_line(outline.render().trim_end());
    }
    Ok(())
}

/// Reads the objects of a cluster, and returns the explanation.
pub(super) async fn outline(client: Client, object: &ObjectRef) -> Result<Outline> {
    let fetcher = Fetcher::new(client, TIMEOUT);
    let now = Timestamp::now();
    match object.kind {
        ObjectKind::Quota => {
            let quotas = "/apis/scheduling.sigs.k8s.io/v1alpha1/elasticquotas";
            let quotas: Vec<ElasticQuota> = needed(fetcher.list(quotas).await)?;
            let quota = find_quota(&quotas, object)?;
            Ok(quota::explain(quota, &quotas, &pods(&fetcher).await?))
        }
        ObjectKind::Gang => {
            let groups = fetcher
                .list("/apis/scheduling.sigs.k8s.io/v1alpha1/podgroups")
                .await;
            let groups: Vec<PodGroup> = match groups {
                // Gangs of annotations need no PodGroup.
                Fetched::NotServed(_) => Vec::new(),
                groups => needed(groups)?,
            };
            let namespace = object.namespace.as_deref().unwrap_or("default");
            gang::explain(namespace, &object.name, &groups, &pods(&fetcher).await?)
                .with_context(|| format!("there is no gang {namespace}/{}", object.name))
        }
        ObjectKind::Reservation => {
            let reservation =
                get(&fetcher, "scheduling.koordinator.sh", "Reservation", object).await?;
            Ok(reservation::explain(
                &reservation,
                &pods(&fetcher).await?,
                now,
            ))
        }
        ObjectKind::Device => {
            let device = get(&fetcher, "scheduling.koordinator.sh", "Device", object).await?;
            let node = fetcher.get("/api/v1/nodes", &object.name).await;
            let node = node.value().cloned().flatten();
            let node = node.and_then(|node| serde_json::from_value(node).ok());
            let selected = format!("spec.nodeName={}", object.name);
            let pods: Vec<Pod> = needed(fetcher.list_selected(PODS, Some(&selected)).await)?;
            let reservations = fetcher
                .list("/apis/scheduling.koordinator.sh/v1alpha1/reservations")
                .await;
            let reservations = reservations.value().cloned().unwrap_or_default();
            Ok(device::explain(
                &device,
                node.as_ref(),
                &pods,
                &decode(reservations),
            ))
        }
        ObjectKind::Profile => {
            let group = "config.koordinator.sh";
            let found = get(&fetcher, group, "ClusterColocationProfile", object).await?;
            let objects = profile_objects(&fetcher).await?;
            let pod = match &object.pod {
                None => None,
                Some(name) => {
                    let namespace = object.namespace.as_deref().unwrap_or("default");
                    let is_named = |pod: &&Pod| {
                        pod.metadata.name.as_deref() == Some(name)
                            && pod.metadata.namespace.as_deref() == Some(namespace)
                    };
                    let pod = objects.pods.iter().find(is_named);
                    Some(pod.with_context(|| format!("there is no pod {namespace}/{name}"))?)
                }
            };
            Ok(profile::explain(&found, pod, &objects))
        }
    }
}

async fn pods(fetcher: &Fetcher) -> Result<Vec<Pod>> {
    needed(fetcher.list(PODS).await)
}

/// Reads what a profile is explained by. Only pods are required.
async fn profile_objects(fetcher: &Fetcher) -> Result<ProfileObjects> {
    let namespaces = fetcher.list("/api/v1/namespaces").await;
    let classes = fetcher
        .list("/apis/scheduling.k8s.io/v1/priorityclasses")
        .await;
    let configurations = format!("/api/v1/namespaces/{}/configmaps", configmap::NAMESPACE);
    let addresses = fetcher
        .get(&configurations, cluster_files::ADDRESSES_NAME)
        .await;
    let webhooks = if matches!(addresses, Fetched::Read(Some(_))) {
        PodWebhooks::InProcess
    } else {
        let path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
        match fetcher.get(path, MUTATING).await.read() {
            Ok(found) => {
                let entries = found.iter().flat_map(|it| elements(it, "/webhooks"));
                let of_pods = entries.filter(|it| text(it, "/name").starts_with("mpod"));
                PodWebhooks::Registered(decode(of_pods.cloned().collect()))
            }
            Err(reason) => PodWebhooks::Unreadable(reason),
        }
    };
    let classes = classes.value();
    Ok(ProfileObjects {
        namespaces: namespaces.read().map(|all| decode(all.clone())),
        pods: pods(fetcher).await?,
        webhooks,
        classes: classes.map(|all| all.iter().map(|it| name(it).to_owned()).collect()),
    })
}

/// Decodes objects; leaves out those that are invalid.
fn decode<T: DeserializeOwned>(objects: Vec<Value>) -> Vec<T> {
    let decoded = objects.into_iter().map(serde_json::from_value);
    decoded.filter_map(Result::ok).collect()
}

/// Returns the decoded objects of a list.
fn needed<T: DeserializeOwned>(fetched: Fetched<Vec<Value>>) -> Result<Vec<T>> {
    match fetched {
        Fetched::Read(objects) => Ok(decode(objects)),
        refused => bail!(
            "failed to read the cluster: {}",
            refused.read().err().unwrap_or_default()
        ),
    }
}

/// Returns the cluster-scoped object of a kind of koord.
async fn get<T: DeserializeOwned>(
    fetcher: &Fetcher,
    group: &str,
    kind: &str,
    object: &ObjectRef,
) -> Result<T> {
    let path = format!("/apis/{group}/v1alpha1/{}s", kind.to_lowercase());
    let fetched = fetcher.get(&path, &object.name).await;
    let found = fetched
        .read()
        .map_err(|reason| anyhow!("failed to read the cluster: {reason}"))?;
    let found = found.clone();
    let found = found.with_context(|| format!("there is no {kind} {:?}", object.name))?;
    serde_json::from_value(found).with_context(|| format!("{kind} {:?}", object.name))
}

/// Finds a quota by its name, which is unique in a working cluster, or by namespace and name.
fn find_quota<'a>(quotas: &'a [ElasticQuota], object: &ObjectRef) -> Result<&'a ElasticQuota> {
    let is_named = |quota: &&ElasticQuota| {
        let metadata = &quota.metadata;
        let namespace = object.namespace.as_ref();
        metadata.name.as_ref() == Some(&object.name)
            && namespace.is_none_or(|it| metadata.namespace.as_ref() == Some(it))
    };
    let found: Vec<_> = quotas.iter().filter(is_named).collect();
    match found.as_slice() {
        [] => bail!("there is no quota {:?}", object.name),
        [one] => Ok(one),
        several => {
            let namespaces = several
                .iter()
                .filter_map(|it| it.metadata.namespace.as_deref());
            let namespaces: Vec<&str> = namespaces.collect();
            bail!(
                "quota {:?} is in several namespaces, set --namespace: {}",
                object.name,
                namespaces.join(", ")
            )
        }
    }
}
