//! Reads the cluster into the files of a bundle.

use super::archive::BundleFiles;
use super::redact::RULES;
use crate::check;
use crate::check::collect::leases;
use crate::check::rules::components::COMPONENT;
use crate::fetch::{Fetched, Fetcher, LogRequest, elements, integer, label, name, text};
use crate::status;
use crate::top::{self, TopSubject};
use jiff::Timestamp;
use koord_api::configmap;
use serde_json::{Value, json};

/// Objects of the cluster: file and collection.
const CLUSTER: [(&str, &str); 14] = [
    ("cluster/nodes.json", "/api/v1/nodes"),
    (
        "cluster/mutatingwebhookconfigurations.json",
        "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    ),
    (
        "cluster/validatingwebhookconfigurations.json",
        "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
    ),
    (
        "cluster/priorityclasses.json",
        "/apis/scheduling.k8s.io/v1/priorityclasses",
    ),
    (
        "koord/nodemetrics.json",
        "/apis/slo.koordinator.sh/v1alpha1/nodemetrics",
    ),
    (
        "koord/nodeslos.json",
        "/apis/slo.koordinator.sh/v1alpha1/nodeslos",
    ),
    (
        "koord/devices.json",
        "/apis/scheduling.koordinator.sh/v1alpha1/devices",
    ),
    (
        "koord/reservations.json",
        "/apis/scheduling.koordinator.sh/v1alpha1/reservations",
    ),
    (
        "koord/podmigrationjobs.json",
        "/apis/scheduling.koordinator.sh/v1alpha1/podmigrationjobs",
    ),
    (
        "koord/podgroups.json",
        "/apis/scheduling.sigs.k8s.io/v1alpha1/podgroups",
    ),
    (
        "koord/elasticquotas.json",
        "/apis/scheduling.sigs.k8s.io/v1alpha1/elasticquotas",
    ),
    (
        "koord/clustercolocationprofiles.json",
        "/apis/config.koordinator.sh/v1alpha1/clustercolocationprofiles",
    ),
    (
        "koord/noderesourcetopologies.json",
        "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies",
    ),
    (
        "koord/recommendations.json",
        "/apis/analysis.koordinator.sh/v1alpha1/recommendations",
    ),
];
/// Objects of the components' namespace: file, API and plural name.
const NAMESPACED: [(&str, &str, &str); 5] = [
    ("namespace/deployments.json", "apis/apps/v1", "deployments"),
    ("namespace/daemonsets.json", "apis/apps/v1", "daemonsets"),
    ("namespace/events.json", "api/v1", "events"),
    ("namespace/services.json", "api/v1", "services"),
    (
        "namespace/poddisruptionbudgets.json",
        "apis/policy/v1",
        "poddisruptionbudgets",
    ),
];

/// Limits of the logs.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogLimits {
    /// Lines of a container.
    pub(super) lines: i64,
    /// Pods with logs.
    pub(super) pods: usize,
}

/// Collects the files of a bundle.
pub(super) struct Collector<'a> {
    pub(super) fetcher: &'a Fetcher,
    /// Namespace of the components.
    pub(super) namespace: &'a str,
    pub(super) files: BundleFiles,
    /// What could not be read, with the reason.
    pub(super) failures: Vec<String>,
    /// Kinds that the cluster does not serve.
    pub(super) not_served: Vec<String>,
}

impl Collector<'_> {
    /// Reads everything, and returns the manifest. `server_version` is that of the API server.
    pub(super) async fn collect(
        &mut self,
        server_version: &str,
        logs: LogLimits,
        now: Timestamp,
    ) -> Value {
        self.versions(server_version).await;
        for (path, collection) in CLUSTER {
            let fetched = self.fetcher.list(collection).await;
            if let Some(mut objects) = self.read(path, fetched) {
                trim(path, &mut objects);
                self.files.add_objects(path, objects);
            }
        }
        for (path, api, plural) in NAMESPACED {
            let collection = self.within(api, plural);
            let fetched = self.fetcher.list(&collection).await;
            if let Some(objects) = self.read(path, fetched) {
                self.files.add_objects(path, objects);
            }
        }
        let path = "namespace/leases.json";
        let fetched = leases(self.fetcher, self.namespace).await;
        if let Some(objects) = self.read(path, fetched) {
            self.files.add_objects(path, objects);
        }
        self.settings().await;
        self.pods(logs).await;
        self.reports().await;
        self.failures.sort();
        json!({
            "createdAt": now.to_string(),
            "koord": env!("CARGO_PKG_VERSION"),
            "kubernetes": server_version,
            "namespace": self.namespace,
            "failures": self.failures,
            "notServed": self.not_served,
            "redacted": RULES,
        })
    }

    /// Returns the collection of a kind in the components' namespace.
    fn within(&self, api: &str, plural: &str) -> String {
        format!("/{api}/namespaces/{}/{plural}", self.namespace)
    }

    /// Returns what was read; otherwise records the reason.
    fn read<T>(&mut self, path: &str, fetched: Fetched<T>) -> Option<T> {
        match fetched {
            Fetched::Read(value) => return Some(value),
            Fetched::NotServed(kind) => self.not_served.push(kind),
            refused => {
                let reason = refused.read().err().unwrap_or_default();
                self.failures.push(format!("{path}: {reason}"));
            }
        }
        None
    }

    async fn versions(&mut self, server_version: &str) {
        let path = "versions.json";
        let fetched = self.fetcher.group_versions().await;
        let groups = self.read(path, fetched);
        self.files.add_value(
            path,
            &json!({
                "koord": env!("CARGO_PKG_VERSION"),
                "kubernetes": server_version,
                "groupVersions": groups,
            }),
        );
    }

    /// Adds the ConfigMaps of the components. Dashboards of Grafana are left out.
    async fn settings(&mut self) {
        let path = "namespace/configmaps.json";
        let fetched = self
            .fetcher
            .list(&self.within("api/v1", "configmaps"))
            .await;
        if let Some(mut maps) = self.read(path, fetched) {
            maps.retain(|map| {
                let name = name(map);
                let is_dashboard = name.starts_with("koord-dashboard-");
                name == configmap::NAME || (name.starts_with("koord") && !is_dashboard)
            });
            self.files.add_objects(path, maps);
        }
    }

    /// Adds the pods of the namespace, and logs of the components' pods.
    async fn pods(&mut self, limits: LogLimits) {
        let path = "namespace/pods.json";
        let fetched = self.fetcher.list(&self.within("api/v1", "pods")).await;
        let Some(pods) = self.read(path, fetched) else {
            self.failures.push("logs: the pods are unknown".to_owned());
            return;
        };
        let (chosen, others) = choose(&pods, limits.pods);
        if others > 0 {
            self.files.leave_out(format!("logs of {others} pods"));
        }
        let requests = chosen
            .iter()
            .flat_map(|pod| log_requests(pod, limits.lines));
        let mut logs = self.fetcher.logs(requests.collect()).await;
        logs.sort_by_cached_key(|(log, _)| log_path(log));
        for (request, fetched) in logs {
            let path = log_path(&request);
            match fetched.read() {
                Ok(log) => self.files.add_text(&path, log),
                Err(reason) => self.failures.push(format!("{path}: {reason}")),
            }
        }
        self.files.add_objects(path, pods);
    }

    /// Adds the output of commands.
    async fn reports(&mut self) {
        let (check_text, check_json) = check::report(self.fetcher, self.namespace).await;
        self.files.add_text("reports/check.txt", &check_text);
        self.files.add_value("reports/check.json", &check_json);
        for (path, report) in [
            (
                "reports/top-nodes.txt",
                top::report(self.fetcher, TopSubject::Nodes).await,
            ),
            (
                "reports/top-pods.txt",
                top::report(self.fetcher, TopSubject::Pods).await,
            ),
            (
                "reports/status.txt",
                status::report_with(self.fetcher, self.namespace)
                    .await
                    .map(|it| status::render(&it)),
            ),
        ] {
            match report {
                Ok(report) => self
                    .files
                    .add_text(path, &format!("{}\n", report.trim_end())),
                Err(error) => self.failures.push(format!("{path}: {error:#}")),
            }
        }
    }
}

/// Removes what is large and of no use, and webhooks of others.
fn trim(path: &str, objects: &mut Vec<Value>) {
    match path {
        "cluster/nodes.json" => {
            for node in objects {
                if let Some(status) = node.get_mut("status").and_then(Value::as_object_mut) {
                    status.remove("images");
                }
            }
        }
        path if path.ends_with("webhookconfigurations.json") => {
            objects.retain(|object| name(object).starts_with("koord"));
        }
        _ => {}
    }
}

/// Returns at most `max` of the components' pods, and the number of the others. Those of Deployments come first, then
/// those that are not ready or were restarted.
fn choose(pods: &[Value], max: usize) -> (Vec<&Value>, usize) {
    let mut ours: Vec<&Value> = pods
        .iter()
        .filter(|pod| !label(pod, COMPONENT).is_empty())
        .collect();
    ours.sort_by_cached_key(|pod| {
        let owners = elements(pod, "/metadata/ownerReferences");
        let is_agent = owners.iter().any(|owner| owner["kind"] == "DaemonSet");
        let containers = elements(pod, "/status/containerStatuses");
        let is_well = |it: &Value| it["ready"] == true && it["restartCount"] == 0;
        let is_well = !containers.is_empty() && containers.iter().all(is_well);
        (is_agent, is_well, name(pod).to_owned())
    });
    let others = ours.len().saturating_sub(max);
    ours.truncate(max);
    (ours, others)
}

/// Returns the logs of a pod: one of each container, and of those that were restarted the one before.
fn log_requests(pod: &Value, lines: i64) -> Vec<LogRequest> {
    let statuses = ["/status/initContainerStatuses", "/status/containerStatuses"];
    let mut requests = Vec::new();
    for status in statuses
        .into_iter()
        .flat_map(|pointer| elements(pod, pointer))
    {
        let restarts = integer(status, "/restartCount").unwrap_or_default();
        for is_previous in [false, true] {
            if !is_previous || restarts > 0 {
                requests.push(LogRequest {
                    namespace: text(pod, "/metadata/namespace").to_owned(),
                    pod: name(pod).to_owned(),
                    container: text(status, "/name").to_owned(),
                    is_previous,
                    lines,
                });
            }
        }
    }
    requests
}

fn log_path(log: &LogRequest) -> String {
    let suffix = if log.is_previous { ".previous" } else { "" };
    format!("logs/{}/{}{suffix}.log", log.pod, log.container)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, owner: &str, restarts: i64) -> Value {
        json!({"metadata": {"name": name, "namespace": "k", "labels": {COMPONENT: "c"},
                "ownerReferences": [{"kind": owner}]},
            "status": {"containerStatuses": [{"name": "main", "ready": true, "restartCount": restarts}]}})
    }

    #[test]
    fn pods_with_faults_and_of_deployments_come_first() {
        let foreign = json!({"metadata": {"name": "x"}});
        let pods = [
            pod("agent-a", "DaemonSet", 0),
            pod("agent-b", "DaemonSet", 2),
            pod("manager", "ReplicaSet", 0),
            foreign,
        ];
        let (chosen, others) = choose(&pods, 2);
        let names: Vec<&str> = chosen.iter().map(|pod| name(pod)).collect();
        assert_eq!((names, others), (vec!["manager", "agent-b"], 1));
    }

    #[test]
    fn restarted_container_has_two_logs() {
        let paths = |restarts| {
            let requests = log_requests(&pod("p", "ReplicaSet", restarts), 10);
            requests.iter().map(log_path).collect::<Vec<_>>()
        };
        assert_eq!(paths(0), ["logs/p/main.log"]);
        assert_eq!(paths(1), ["logs/p/main.log", "logs/p/main.previous.log"]);
    }
}
