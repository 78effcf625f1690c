//! Collects a [`Snapshot`].

use super::access;
use super::snapshot::{Objects, Snapshot};
use crate::cluster_files;
use crate::fetch::{Fetched, Fetcher, label, name, text};
use jiff::Timestamp;
use koord_api::configmap;
use serde_json::Value;
use std::collections::BTreeMap;

/// Name of the Secret with the webhooks' certificates.
const WEBHOOK_SECRET: &str = "koordinator-webhook-certs";

/// Reads the objects of a cluster that answers with `server_version`.
pub(super) async fn collect(
    fetcher: &Fetcher,
    namespace: &str,
    max_kubelets: usize,
    server_version: String,
) -> Snapshot {
    let koordinator = |group: &str, plural: &str| format!("/apis/{group}/v1alpha1/{plural}");
    let slo = |plural: &str| koordinator("slo.koordinator.sh", plural);
    let scheduling = |plural: &str| koordinator("scheduling.koordinator.sh", plural);
    let sigs = |plural: &str| koordinator("scheduling.sigs.k8s.io", plural);
    let within =
        |version: &str, plural: &str| format!("/{version}/namespaces/{namespace}/{plural}");
    let hooks = |plural: &str| format!("/apis/admissionregistration.k8s.io/v1/{plural}");
    let nodes = fetcher.list("/api/v1/nodes").await;
    let kubelets = match nodes.value() {
        Some(nodes) => {
            let chosen = sample_nodes(nodes, max_kubelets);
            fetcher.kubelet_configurations(chosen).await
        }
        None => Vec::new(),
    };
    let accounts = fetcher.list(&within("api/v1", "serviceaccounts")).await;
    let access = match &accounts {
        Fetched::Read(accounts) => {
            let names: Vec<String> = accounts.iter().map(|it| name(it).to_owned()).collect();
            let reviews = access::reviews(namespace, &names);
            fetcher.review_access(reviews).await
        }
        Fetched::Forbidden(permission) => {
            vec![(
                "accounts".to_owned(),
                Fetched::Forbidden(permission.clone()),
            )]
        }
        Fetched::NotServed(why) | Fetched::Failed(why) => {
            vec![("accounts".to_owned(), Fetched::Failed(why.clone()))]
        }
    };
    let maps = within("api/v1", "configmaps");
    Snapshot {
        namespace: namespace.to_owned(),
        server_version,
        group_versions: fetcher.group_versions().await,
        namespace_object: fetcher.get("/api/v1/namespaces", namespace).await,
        nodes,
        pods: fetcher.list("/api/v1/pods").await,
        deployments: fetcher.list(&within("apis/apps/v1", "deployments")).await,
        daemon_sets: fetcher.list(&within("apis/apps/v1", "daemonsets")).await,
        leases: leases(fetcher, namespace).await,
        budgets: fetcher
            .list(&within("apis/policy/v1", "poddisruptionbudgets"))
            .await,
        mutating: fetcher.list(&hooks("mutatingwebhookconfigurations")).await,
        validating: fetcher
            .list(&hooks("validatingwebhookconfigurations"))
            .await,
        endpoint_slices: fetcher
            .list(&within("apis/discovery.k8s.io/v1", "endpointslices"))
            .await,
        webhook_secret: fetcher
            .get(&within("api/v1", "secrets"), WEBHOOK_SECRET)
            .await,
        definitions: fetcher
            .list("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")
            .await,
        access,
        priority_classes: fetcher
            .list("/apis/scheduling.k8s.io/v1/priorityclasses")
            .await,
        node_metrics: fetcher.list(&slo("nodemetrics")).await,
        node_slos: fetcher.list(&slo("nodeslos")).await,
        quotas: fetcher.list(&sigs("elasticquotas")).await,
        pod_groups: fetcher.list(&sigs("podgroups")).await,
        reservations: fetcher.list(&scheduling("reservations")).await,
        migration_jobs: fetcher.list(&scheduling("podmigrationjobs")).await,
        profiles: fetcher
            .list(&koordinator(
                "config.koordinator.sh",
                "clustercolocationprofiles",
            ))
            .await,
        devices: fetcher.list(&scheduling("devices")).await,
        topologies: fetcher
            .list("/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies")
            .await,
        slo_config: fetcher.get(&maps, configmap::NAME).await,
        up_addresses: fetcher
            .get(
                &format!("/api/v1/namespaces/{}/configmaps", configmap::NAMESPACE),
                cluster_files::ADDRESSES_NAME,
            )
            .await,
        kubelets,
        // Last, so that what was written during the collection is not in the future.
        now: Timestamp::now(),
    }
}

/// Returns the Leases of the components' namespace and of kube-system.
pub(crate) async fn leases(fetcher: &Fetcher, namespace: &str) -> Objects {
    let mut all = Vec::new();
    let mut namespaces = vec![namespace, "kube-system"];
    namespaces.dedup();
    for namespace in namespaces {
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases");
        match fetcher.list(&path).await {
            Fetched::Read(leases) => all.extend(leases),
            refused => return refused,
        }
    }
    Fetched::Read(all)
}

/// Chooses at most `max` nodes, first one of each kubelet version, runtime and instance type.
fn sample_nodes(nodes: &[Value], max: usize) -> Vec<String> {
    let mut kinds: BTreeMap<[&str; 3], Vec<&str>> = BTreeMap::new();
    for node in nodes {
        let kind = [
            text(node, "/status/nodeInfo/kubeletVersion"),
            text(node, "/status/nodeInfo/containerRuntimeVersion"),
            label(node, "node.kubernetes.io/instance-type"),
        ];
        kinds.entry(kind).or_default().push(name(node));
    }
    let mut chosen = Vec::new();
    let longest = kinds.values().map(Vec::len).max().unwrap_or_default();
    for position in 0..longest.min(max) {
        let names = kinds.values().filter_map(|names| names.get(position));
        chosen.extend(names.map(|name| (*name).to_owned()));
        if chosen.len() >= max {
            break;
        }
    }
    chosen.truncate(max);
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn sample_has_each_kind_of_node_first() {
        let node = |name: &str, version: &str| json!({"metadata": {"name": name}, "status": {"nodeInfo": {"kubeletVersion": version}}});
        let nodes = [
            node("a", "v1"),
            node("b", "v1"),
            node("c", "v2"),
            node("d", "v1"),
        ];
        assert_eq!(sample_nodes(&nodes, 0), Vec::<String>::new());
        assert_eq!(sample_nodes(&nodes, 2), ["a", "c"]);
        assert_eq!(sample_nodes(&nodes, 9), ["a", "c", "b", "d"]);
    }
}
