//! Small clusters for tests.

use crate::config::Configuration;
use crate::framework::{
    EvictionRequest, Evictor, Filter, Framework, Intent, Plan, Profile, SkipReason, Strategy,
};
use crate::registry::Registry;
use crate::state::{NodeInfo, NodeUsage, PodInfo, Shapes, Snapshot};
use jiff::Timestamp;
use koord_api::scheduling::PodMigrationJob;
use koord_model::resources::ResourceTable;
use serde_json::{Value, json};
use std::sync::Arc;

/// A cluster under construction.
#[derive(Debug, Clone)]
pub(crate) struct TestCluster {
    pub(crate) shapes: Shapes,
    pub(crate) now: Timestamp,
    pub(crate) nodes: Vec<Arc<NodeInfo>>,
    pub(crate) pods: Vec<Arc<PodInfo>>,
    pub(crate) usage: Vec<Arc<NodeUsage>>,
    pub(crate) jobs: Vec<Arc<PodMigrationJob>>,
}

impl Default for TestCluster {
    fn default() -> Self {
        Self {
            shapes: Shapes::new(Arc::new(ResourceTable::new())),
            now: "2026-01-01T12:00:00Z".parse().unwrap(),
            nodes: Vec::new(),
            pods: Vec::new(),
            usage: Vec::new(),
            jobs: Vec::new(),
        }
    }
}

/// Merges `over` into `value` recursively, like a JSON merge patch.
pub(crate) fn merged(mut value: Value, over: Value) -> Value {
    match (&mut value, over) {
        (Value::Object(members), Value::Object(over)) => {
            for (key, over) in over {
                let old = members.remove(&key).unwrap_or(Value::Null);
                members.insert(key, merged(old, over));
            }
        }
        (value, over) => *value = over,
    }
    value
}

impl TestCluster {
    /// Adds a ready node with 4 CPUs, 3 GB and 110 pods, modified by `over`.
    pub(crate) fn node(&mut self, name: &str, over: Value) -> Arc<NodeInfo> {
        let node = json!({
            "metadata": {"name": name, "uid": name, "labels": {"kubernetes.io/hostname": name}},
            "status": {
                "allocatable": {"cpu": "4", "memory": "3G", "pods": "110"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        });
        let node = serde_json::from_value(merged(node, over)).unwrap();
        let node = Arc::new(NodeInfo::new(node, self.shapes.table()));
        self.nodes.push(node.clone());
        node
    }

    /// Adds a ready pod of a ReplicaSet on `node` without requests, modified by `over`.
    pub(crate) fn pod(&mut self, name: &str, node: &str, over: Value) -> Arc<PodInfo> {
        let pod = json!({
            "metadata": {
                "name": name, "namespace": "default", "uid": format!("uid-{name}"),
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "rs", "controller": true}],
            },
            "spec": {
                "nodeName": node, "schedulerName": "koord-scheduler",
                "containers": [{"name": "c", "image": "c"}],
            },
            "status": {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        });
        let pod = serde_json::from_value(merged(pod, over)).unwrap();
        let pod = Arc::new(PodInfo::new(pod, &self.shapes).unwrap());
        self.pods.push(pod.clone());
        pod
    }

    /// Adds a current NodeMetric of `node`; `pods` are `(name, usage)` in namespace `default`.
    pub(crate) fn usage(
        &mut self,
        node: &str,
        usage: Value,
        system: Value,
        pods: &[(&str, Value)],
    ) {
        let pods = pods.iter().map(|(name, usage)| {
            json!({"namespace": "default", "name": name, "podUsage": {"resources": usage}, "priority": "koord-prod"})
        });
        let metric = json!({
            "metadata": {"name": node, "uid": node},
            "spec": {},
            "status": {
                "updateTime": self.now,
                "nodeMetric": {"nodeUsage": {"resources": usage}, "systemUsage": {"resources": system}},
                "podsMetric": pods.collect::<Vec<_>>(),
            },
        });
        let metric = serde_json::from_value(metric).unwrap();
        self.usage
            .push(Arc::new(NodeUsage::new(metric, self.shapes.table())));
    }

    /// Returns a snapshot of the current state.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot::empty(self.now, self.shapes.table().clone())
            .with(self.nodes.clone(), self.pods.clone());
        let usage = self.usage.iter();
        snapshot.usage = usage
            .map(|usage| (usage.name.clone(), usage.clone()))
            .collect();
        snapshot.jobs.clone_from(&self.jobs);
        snapshot
            .jobs
            .sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        snapshot
    }
}

/// A filter and evictor that allows every eviction.
#[derive(Debug)]
pub(crate) struct AllowAll;

impl Filter for AllowAll {
    fn name(&self) -> &'static str {
        "AllowAll"
    }
    fn filter(&self, _: &Snapshot, _: &PodInfo) -> Result<(), SkipReason> {
        Ok(())
    }
}

impl Evictor for AllowAll {
    fn name(&self) -> &'static str {
        "AllowAll"
    }
    fn evict(&mut self, _: &Snapshot, _: &EvictionRequest<'_>) -> Result<Intent, SkipReason> {
        Ok(Intent::Evict(None))
    }
}

/// An evictor that only shows what it would do.
#[derive(Debug)]
pub(crate) struct OnlyShows;

impl Evictor for OnlyShows {
    fn name(&self) -> &'static str {
        "OnlyShows"
    }
    fn evict(&mut self, _: &Snapshot, _: &EvictionRequest<'_>) -> Result<Intent, SkipReason> {
        Ok(Intent::Nothing)
    }
}

/// An evictor that refuses pods of these names.
#[derive(Debug)]
pub(crate) struct Refuses(pub(crate) &'static [&'static str]);

impl Evictor for Refuses {
    fn name(&self) -> &'static str {
        "Refuses"
    }
    fn evict(&mut self, _: &Snapshot, request: &EvictionRequest<'_>) -> Result<Intent, SkipReason> {
        if self.0.contains(&&*request.pod.name) {
            return Err(SkipReason::new("Refuses", "is named"));
        }
        Ok(Intent::Evict(None))
    }
}

/// A filter that allows all pods except those of these names.
#[derive(Debug)]
pub(crate) struct AllBut(pub(crate) &'static [&'static str]);

impl Filter for AllBut {
    fn name(&self) -> &'static str {
        "AllBut"
    }
    fn filter(&self, _: &Snapshot, pod: &PodInfo) -> Result<(), SkipReason> {
        if self.0.contains(&&*pod.name) {
            return Err(SkipReason::new("AllBut", "is named"));
        }
        Ok(())
    }
}

/// Returns a framework in which `strategy` balances, `filters` must all agree, and pods that pass are
/// evicted.
pub(crate) fn balancing(strategy: Box<dyn Strategy>, filters: Vec<Box<dyn Filter>>) -> Framework {
    Framework {
        profiles: vec![Profile {
            name: "test".into(),
            node_selector: None,
            deschedule: Vec::new(),
            balance: vec![strategy],
            filters,
            evictor: Box::new(AllowAll),
        }],
        ..Framework::default()
    }
}

/// Returns the names of the pods that a plan moves, in order.
pub(crate) fn moved(plan: &Plan) -> Vec<String> {
    plan.moves()
        .map(|planned| planned.pod.name.to_string())
        .collect()
}

/// Returns a pod whose container requests `cpu` and `memory`.
pub(crate) fn requests(cpu: &str, memory: &str) -> Value {
    let requests = json!({"cpu": cpu, "memory": memory});
    json!({"spec": {"containers": [{"name": "c", "resources": {"requests": requests}}]}})
}

/// Parses a configuration in which the plugin `name` balances with the arguments `args`.
///
/// # Errors
/// Returns the validation error of the arguments.
pub(crate) fn configured(name: &str, args: Value) -> Result<(), String> {
    let plugins = json!({"balance": {"enabled": [{"name": name}]}});
    let profile = json!({"plugins": plugins, "pluginConfig": [{"name": name, "args": args}]});
    let config = json!({"apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerConfiguration", "profiles": [profile]});
    let registry = Registry::in_tree().with::<Value>(
        "MigrationController",
        false,
        |_| Ok(()),
        |_, _| Ok(Default::default()),
    );
    let config = Configuration::parse(&config.to_string()).unwrap();
    let completed = registry.complete(config);
    completed.map(|_| ()).map_err(|error| error.to_string())
}
