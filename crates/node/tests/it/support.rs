//! A control plane in memory and a node in a directory and a control group of its own.

use k8s_openapi::api::core::v1::{Event, Node, Pod};
use koord_apiserver::{ApiServer, Config};
use koord_app::{Clock, Context};
use koord_host::{CgroupPath, Controller, Root};
use koord_kube::api::{DeleteParams, ListParams, PostParams};
use koord_kube::{Api, Client, Informer, Scope};
use koord_node::{LogOptions, Logs, Options};
use serde_json::{Value, json};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;

/// Timeout that is longer than any operation takes: after it a test has failed.
const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) const NODE: &str = "here";

pub(crate) struct World {
    pub(crate) client: Client,
    clock: Clock,
    pub(crate) dir: tempfile::TempDir,
    pub(crate) root: Root,
    pub(crate) parent: CgroupPath,
    pub(crate) logs: Logs,
    _server: Arc<ApiServer>,
}

/// A running node.
pub(crate) struct RunningNode {
    pub(crate) ctx: Context,
    pub(crate) task: JoinHandle<()>,
}

impl RunningNode {
    pub(crate) async fn stop(self) {
        self.ctx.shutdown.cancel();
        self.task.await.unwrap();
    }

    /// Ends the node like `kill -9`: nothing is cleaned up, and the thread that started the containers is
    /// gone. Returns once the tasks have released `dir`, as at the end of a process.
    pub(crate) async fn crash(self, dir: &std::path::Path) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
        self.ctx.shutdown.cancel();
        let lock = std::fs::File::open(dir.join("lock")).unwrap();
        tokio::time::timeout(TIMEOUT, async {
            while lock.try_lock().is_err() {
                tokio::task::yield_now().await;
            }
        })
        .await
        .unwrap();
    }
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with_clock(Clock::system()).await
    }

    /// Like [`World::new`], with `clock` for the API server and the node.
    pub(crate) async fn with_clock(clock: Clock) -> Self {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let server = ApiServer::open(Config::memory(clock.clone()))
            .await
            .unwrap();
        let client = koord_kube::client::in_process(server.service());
        let dir = tempfile::tempdir().unwrap();
        let logs = Logs::new(dir.path());
        let parent = CgroupPath::new(&format!("koord-node-test-{}-{number}", std::process::id()));
        Self {
            client,
            clock,
            dir,
            root: Root::system().unwrap(),
            parent: parent.unwrap(),
            logs,
            _server: server,
        }
    }

    /// Returns whether groups can be created here; records a skipped test if not.
    pub(crate) fn can_confine(&self) -> bool {
        let group = self.root.cgroup(&self.parent);
        let created = self.root.has_cgroups() && group.create(&[Controller::Cpu]).is_ok();
        // Removed again: the node must be the one that creates it.
        let removed = group.remove().is_ok();
        if !created || !removed {
            koord_host::testing::skip("cgroup-write", "the cgroup tree cannot be written");
        }
        created && removed
    }

    pub(crate) fn options(&self) -> Options {
        Options {
            node_name: NODE.to_owned(),
            data_dir: self.dir.path().to_owned(),
            cgroup_parent: self.parent.clone(),
            backoff_base: Duration::from_millis(50),
            backoff_max: Duration::from_millis(200),
            logs: Some(self.logs.clone()),
            ..Options::default()
        }
    }

    pub(crate) async fn start(&self) -> RunningNode {
        self.start_with(self.options()).await
    }

    /// Starts a node and waits until it is registered.
    pub(crate) async fn start_with(&self, options: Options) -> RunningNode {
        let ctx = Context::with_clock(self.clock.clone());
        let run = koord_node::run(options, self.client.clone(), ctx.clone());
        let task = tokio::spawn(async move { run.await.unwrap() });
        let nodes: Api<Node> = Api::all(self.client.clone());
        self.until("the node is registered", || async {
            let node = nodes.get_opt(NODE).await.unwrap()?;
            node.status?.capacity.is_some().then_some(())
        })
        .await;
        RunningNode { ctx, task }
    }

    /// Creates a service account and returns a token of it.
    pub(crate) async fn token(&self, name: &str) -> String {
        use k8s_openapi::api::authentication::v1::TokenRequest;
        use k8s_openapi::api::core::v1::ServiceAccount;
        let accounts: koord_kube::api::Api<ServiceAccount> =
            koord_kube::api::Api::namespaced(self.client.clone(), "default");
        let account = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        let params = PostParams::default();
        accounts.create(&params, &account).await.unwrap();
        let request = TokenRequest::default();
        let issued = accounts.create_token_request(name, &params, &request).await;
        issued.unwrap().status.unwrap().token
    }

    /// Grants a service account `get` on a cluster-scoped resource.
    pub(crate) async fn allow(&self, account: &str, resource: &str) {
        use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
        let role: ClusterRole = serde_json::from_value(json!({"metadata": {"name": account},
            "rules": [{"apiGroups": [""], "resources": [resource], "verbs": ["get"]}]}))
        .unwrap();
        let binding: ClusterRoleBinding = serde_json::from_value(json!({
            "metadata": {"name": account},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": account},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": "default"}],
        }))
        .unwrap();
        let params = PostParams::default();
        let roles: Api<ClusterRole> = Api::all(self.client.clone());
        roles.create(&params, &role).await.unwrap();
        let bindings: Api<ClusterRoleBinding> = Api::all(self.client.clone());
        bindings.create(&params, &binding).await.unwrap();
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "default")
    }

    /// Creates a pod that is bound to the node already.
    pub(crate) async fn create(&self, name: &str, spec: Value) -> Pod {
        let mut spec = spec;
        spec["nodeName"] = json!(NODE);
        let pod = json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        self.pods()
            .create(&PostParams::default(), &pod)
            .await
            .unwrap()
    }

    /// Creates a pod of one shell script.
    pub(crate) async fn script(&self, name: &str, policy: &str, script: &str) -> Pod {
        let spec = json!({
            "restartPolicy": policy,
            "containers": [{"name": "c", "image": "none", "command": ["/bin/sh", "-c", script]}]
        });
        self.create(name, spec).await
    }

    /// Calls `check` after each change of a pod, and twice a second, until it returns a value.
    pub(crate) async fn until<T, F>(&self, what: &str, check: impl Fn() -> F) -> T
    where
        F: Future<Output = Option<T>>,
    {
        let stop = Context::new().shutdown;
        let mut changes: Informer<Pod> =
            Informer::start(self.client.clone(), Scope::default(), stop.clone());
        let polling = async {
            loop {
                if let Some(answer) = check().await {
                    return answer;
                }
                let change = changes.changes.recv();
                let _ = tokio::time::timeout(Duration::from_millis(100), change).await;
            }
        };
        let answer = tokio::time::timeout(TIMEOUT, polling).await;
        stop.cancel();
        match answer {
            Ok(answer) => answer,
            Err(_) => {
                let pods = self.pods().list(&ListParams::default()).await.unwrap();
                let statuses: Vec<_> = pods.items.iter().map(|pod| &pod.status).collect();
                panic!(
                    "never: {what}; pods: {}",
                    serde_json::to_string(&statuses).unwrap()
                )
            }
        }
    }

    /// Waits until `check` accepts the pod.
    pub(crate) async fn pod_when(&self, name: &str, check: impl Fn(&Pod) -> bool) -> Pod {
        let api = self.pods();
        self.until(name, || async {
            api.get_opt(name).await.unwrap().filter(&check)
        })
        .await
    }

    pub(crate) async fn wait_for_phase(&self, name: &str, phase: &str) -> Pod {
        self.pod_when(name, |pod| phase_of(pod) == phase).await
    }

    pub(crate) async fn delete(&self, name: &str) {
        self.pods()
            .delete(name, &DeleteParams::default())
            .await
            .unwrap();
    }

    pub(crate) async fn wait_for_removal(&self, name: &str) {
        let api = self.pods();
        self.until(name, || async {
            api.get_opt(name).await.unwrap().is_none().then_some(())
        })
        .await;
    }

    pub(crate) async fn log(&self, name: &str) -> String {
        use futures::StreamExt;
        let stream = self
            .logs
            .open("default", name, "c", LogOptions::default())
            .await
            .unwrap();
        let chunks: Vec<_> = stream.collect().await;
        let bytes: Vec<u8> = chunks
            .into_iter()
            .flat_map(|chunk| chunk.unwrap())
            .collect();
        String::from_utf8(bytes).unwrap()
    }

    pub(crate) async fn event(&self, reason: &str) -> Event {
        let events: Api<Event> = Api::namespaced(self.client.clone(), "default");
        self.until(reason, || async {
            let events = events.list(&ListParams::default()).await.unwrap();
            events
                .items
                .into_iter()
                .find(|event| event.reason.as_deref() == Some(reason))
        })
        .await
    }

    /// Returns the group of a pod on this world's node.
    pub(crate) fn group(&self, pod: &Pod) -> koord_host::Cgroup {
        let path = koord_node::pod_cgroup_path(&koord_host::CgroupPath::root(), pod).unwrap();
        self.root.cgroup(&self.parent.join(path.as_str()).unwrap())
    }
}

pub(crate) fn phase_of(pod: &Pod) -> &str {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or("")
}

/// Returns the status of the only container as JSON.
pub(crate) fn container(pod: &Pod) -> Value {
    let status = pod
        .status
        .as_ref()
        .and_then(|status| status.container_statuses.as_ref());
    serde_json::to_value(&status.unwrap()[0]).unwrap()
}
