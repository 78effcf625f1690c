//! The node's side of the API server: logs of containers, and commands in them.

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Node, Pod};
use koord_kube::{Api, Client, ResourceExt as _};
use std::sync::OnceLock;

/// Serves the logs of the node's containers, and commands in them, to the API server.
pub(super) struct NodeSide {
    pub(super) logs: koord_node::Logs,
    pub(super) execs: koord_node::Execs,
    /// The only node that has any.
    pub(super) node: String,
    pub(super) client: OnceLock<Client>,
}

impl NodeSide {
    /// Returns the reason why a pod has neither logs nor a place for commands here: it does not run on this machine.
    /// `None` if it does, or if its node is unknown.
    async fn not_here_reason(&self, namespace: &str, pod: &str) -> Option<String> {
        let client = self.client.get()?;
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let object = pods.get_opt(pod).await.ok()??;
        let node = object.spec?.node_name?;
        if node == self.node {
            return None;
        }
        let nodes: Api<Node> = Api::all(client.clone());
        let simulated = nodes.get_opt(&node).await.ok()?;
        let label = koord_node::HOST_LABEL;
        Some(match simulated {
            Some(node) if koord_sim::is_simulated(&node) => format!(
                "pod {pod} is on {}, a simulated node: nothing runs there, so there is neither a log nor a place for a command. \
                 With nodeSelector {label}: \"true\" and a toleration of the taint {label} it runs on this machine ({})",
                node.name_any(),
                self.node
            ),
            Some(_) => format!("pod {pod} is on node {node}, which this koord up does not run"),
            None => format!("pod {pod} is on node {node}, which is gone"),
        })
    }
}

impl koord_apiserver::PodLogs for NodeSide {
    fn logs<'a>(
        &'a self,
        namespace: &'a str,
        pod: &'a str,
        container: &'a str,
        options: koord_apiserver::LogOptions,
    ) -> BoxFuture<'a, Result<koord_apiserver::LogStream, String>> {
        let options = koord_node::LogOptions {
            follow: options.follow,
            tail_lines: options.tail_lines,
            since_seconds: options.since_seconds,
            now: None,
            since_time: options.since_time,
            limit_bytes: options.limit_bytes,
            timestamps: options.timestamps,
            previous: options.previous,
        };
        Box::pin(async move {
            if let Some(why) = self.not_here_reason(namespace, pod).await {
                return Err(why);
            }
            self.logs.open(namespace, pod, container, options).await
        })
    }
}

impl koord_apiserver::PodExec for NodeSide {
    fn check<'a>(
        &'a self,
        namespace: &'a str,
        pod: &'a str,
        container: &'a str,
    ) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move {
            if let Some(why) = self.not_here_reason(namespace, pod).await {
                return Err(why);
            }
            self.execs.check(namespace, pod, container)
        })
    }

    fn start<'a>(
        &'a self,
        namespace: &'a str,
        pod: &'a str,
        container: &'a str,
        options: koord_apiserver::ExecOptions,
    ) -> BoxFuture<'a, Result<koord_apiserver::ExecSession, String>> {
        let options = koord_node::ExecOptions {
            command: options.command,
            stdin: options.stdin,
            tty: options.tty,
        };
        Box::pin(async move {
            let session = self.execs.start(namespace, pod, container, options).await?;
            let koord_node::Session {
                stdin,
                output,
                exit,
                terminal,
            } = session;
            Ok(koord_apiserver::ExecSession {
                stdin,
                output,
                exit: Box::pin(exit.wait()),
                resize: terminal.map(|terminal| {
                    let resize = move |columns, rows| terminal.resize(columns, rows);
                    Box::new(resize) as Box<dyn Fn(u16, u16) + Send + Sync>
                }),
            })
        })
    }
}
