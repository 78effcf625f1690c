//! Events from informers and the binder.

use super::cluster::Record;
use super::pod_waker::PodWaker;
use super::{BindError, Engine, Output, Point};
use crate::framework::{Action, ClusterEvent, Effects, ObjectChange, Problem, Subject};
use crate::queue::PluginSet;
use crate::state::{NodeInfo, NodeProblem, ParsedPod, PodError, PodInfo};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use std::sync::Arc;

impl Engine {
    /// Handles a pod that an informer reports as created or changed.
    pub fn apply_parsed_pod(&mut self, pod: &ParsedPod, now: Timestamp) {
        match pod {
            ParsedPod::Pod(info) => self.info_applied(info.clone(), now),
            ParsedPod::Broken(broken) => {
                let (pod, error) = &**broken;
                let uid = pod.metadata.uid.as_deref().unwrap_or_default();
                self.pod_left(uid, now);
                self.outbox.push(invalid_pod(pod, error));
            }
        }
    }

    /// Handles a pod that was created or changed. A bound pod is trimmed as informers do it.
    pub fn pod_applied(&mut self, pod: Arc<Pod>, now: Timestamp) {
        let spec = pod.spec.as_ref();
        let resources = &self.cluster.resources;
        let parsed = if spec.is_some_and(|spec| spec.node_name.is_some()) {
            ParsedPod::new(Arc::unwrap_or_clone(pod), resources)
        } else {
            match PodInfo::new(pod.clone(), resources) {
                Ok(info) => ParsedPod::Pod(Arc::new(info)),
                Err(error) => ParsedPod::Broken(Box::new((Arc::unwrap_or_clone(pod), error))),
            }
        };
        self.apply_parsed_pod(&parsed, now);
    }

    /// Handles a pod, or an object scheduled like one, that was created or changed.
    pub(super) fn info_applied(&mut self, info: Arc<PodInfo>, now: Timestamp) {
        let mut fx = Effects::default();
        self.cluster.indexes.on_pod(&info);
        let tracking_plugins = self.table.tracking_plugins_for(&info);
        let plugins = self.table.plugins_of(tracking_plugins);
        for role in plugins.filter_map(|plugin| plugin.pod_events()) {
            let view = self.cluster.view(now);
            role.on_pod(&info, view, &mut fx);
        }
        self.apply(fx, now);
        if info.terminal {
            self.pod_gone(&info.uid, now);
        } else if let Some(node) = info.node.clone() {
            self.pod_bound(info, &node, now);
        } else {
            self.pod_pending(info, now);
        }
    }

    /// Handles a deleted pod.
    pub fn pod_deleted(&mut self, pod: &Pod, now: Timestamp) {
        if let Some(uid) = pod.metadata.uid.as_deref() {
            self.pod_left(uid, now);
        }
    }

    /// Handles the end of the pod, or object scheduled like one, with this uid.
    pub fn pod_left(&mut self, uid: &str, now: Timestamp) {
        let mut fx = Effects::default();
        self.cluster.indexes.on_pod_gone(uid);
        let plugins = self.table.plugins_of(PluginSet::MAX);
        for role in plugins.filter_map(|plugin| plugin.pod_events()) {
            let view = self.cluster.view(now);
            role.on_pod_gone(uid, view, &mut fx);
        }
        self.apply(fx, now);
        self.pod_gone(uid, now);
    }

    pub(super) fn pod_gone(&mut self, uid: &str, now: Timestamp) {
        let queued = self.queue.remove(uid);
        self.waits
            .stop(uid, super::REFUSED, now, &self.telemetry.meter);
        self.preemptor.nominator.drop_expectation(uid);
        let was_nominated = self
            .preemptor
            .nominator
            .remove_nomination(&mut self.cluster.nodes, uid);
        if let Some(pod) = self.unbook(uid, now) {
            PodWaker::new(self)
                .wake_for(&ClusterEvent::for_assigned_pod(Action::DELETE, &pod), now);
        } else if let Some(queued) = queued.filter(|_| was_nominated) {
            PodWaker::new(self).wake_for_freed(&queued.info, now);
        }
    }

    /// Applies a pod that the API server shows as bound to `node`.
    fn pod_bound(&mut self, info: Arc<PodInfo>, node: &str, now: Timestamp) {
        self.queue.remove(&info.uid);
        self.waits.pods.remove(&info.uid);
        self.preemptor.nominator.drop_expectation(&info.uid);
        self.preemptor
            .nominator
            .remove_nomination(&mut self.cluster.nodes, &info.uid);
        let Some(record) = self.cluster.pods.get(&info.uid) else {
            self.book(info.clone(), node, false, now);
            return PodWaker::new(self)
                .wake_for(&ClusterEvent::for_assigned_pod(Action::ADD, &info), now);
        };
        if **self.cluster.nodes.name(record.node) != *node {
            // Bound to another node than assumed: by another scheduler, or by hand.
            self.unbook(&info.uid, now);
            self.book(info.clone(), node, false, now);
            return PodWaker::new(self).wake_for(
                &ClusterEvent::for_assigned_pod(Action::ADD.or(Action::DELETE), &info),
                now,
            );
        }
        let index = record.node;
        let Some((old, was_assumed)) = self.cluster.confirm(&info) else {
            return;
        };
        let mut fx = Effects::default();
        let tracking_plugins = self.table.tracking_plugins_for(&info);
        let plugins = self.table.plugins_of(tracking_plugins);
        for role in plugins.filter_map(|plugin| plugin.pod_events()) {
            let view = self.cluster.view(now);
            role.on_updated(&old, &info, index, view, &mut fx);
        }
        self.apply(fx, now);
        if was_assumed {
            return PodWaker::new(self)
                .wake_for(&ClusterEvent::for_assigned_pod(Action::ADD, &info), now);
        }
        let mut action = Action(0);
        // A holder shrinks as other pods take its place: that frees no capacity.
        if !info.is_holder()
            && old
                .requests
                .iter()
                .any(|(id, amount)| info.requests.get(id) < amount)
        {
            action = action.or(Action::POD_SCALE_DOWN);
        }
        if old.object.labels != info.object.labels {
            action = action.or(Action::POD_LABEL);
        }
        if action.0 != 0 {
            PodWaker::new(self).wake_for(&ClusterEvent::for_assigned_pod(action, &info), now);
        }
    }

    /// Applies a pod that the API server shows without a node.
    pub(super) fn pod_pending(&mut self, info: Arc<PodInfo>, now: Timestamp) {
        if let Some(Record { assumed: true, .. }) = self.cluster.pods.get(&info.uid) {
            // The binding is pending; this is an older update, an echo of our own write, or an edit. If the
            // binding fails, the pod is tried in this new state. A pod that still waits for permission can be
            // removed.
            let leaves = info.deleting || self.table.profile_of(&info).is_none();
            if leaves {
                if self.waits.pods.contains_key(&info.uid) {
                    self.pod_gone(&info.uid, now);
                } else {
                    // If the binding fails, the pod is not tried again.
                    self.queue.remove(&info.uid);
                }
            } else {
                self.queue.store_update(info);
            }
            return;
        }
        let Some(profile) = self.table.profile_of(&info).filter(|_| !info.deleting) else {
            self.pod_gone(&info.uid, now);
            return;
        };
        let gates = self.table.gates_of(&info, profile);
        let old = self.queue.get(&info.uid).map(|queued| queued.info.clone());
        self.preemptor
            .nominator
            .nomination_seen(&mut self.cluster.nodes, old.as_deref(), &info);
        let matters = old
            .as_ref()
            .is_none_or(|old| old.differs_for_scheduling(&info));
        let Some(old) = old else {
            self.queue.add(info.clone(), gates, now);
            return self
                .table
                .sign_early(&info, profile, &self.cluster.resources);
        };
        if self.preemptor.nominator.nomination_was_cleared(&old, &info) {
            PodWaker::new(self).wake_for_freed(&old, now);
        }
        let uid = info.uid.clone();
        self.queue.replace(info.clone());
        self.queue.gate(&uid, gates, now);
        if matters && gates == 0 {
            self.queue.wake(&uid, "UnschedulablePodUpdate", now);
        }
        if matters {
            self.table
                .sign_early(&info, profile, &self.cluster.resources);
        }
    }

    /// Handles a node that was created or changed.
    pub fn node_applied(&mut self, node: Arc<Node>, now: Timestamp) {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let old = self
            .cluster
            .nodes
            .find(name)
            .and_then(|index| self.cluster.nodes.info(index))
            .cloned();
        let (info, ignored) = NodeInfo::new(node, old.as_deref(), &self.cluster.resources);
        let action = old
            .as_ref()
            .map_or(Action::ADD, |old| difference(old, &info));
        let nothing_new = |old: &Arc<NodeInfo>| {
            // Most updates are heartbeats.
            let [old, new] = [&**old, &info].map(|node| node.object.status.as_ref());
            let same_allocatable = ignored.is_empty()
                || old.and_then(|status| status.allocatable.as_ref())
                    == new.and_then(|status| status.allocatable.as_ref());
            same_allocatable
                && old.and_then(|status| status.images.as_ref())
                    == new.and_then(|status| status.images.as_ref())
        };
        if action.0 == 0 && old.as_ref().is_some_and(nothing_new) {
            if self.calls.sends_nodes() {
                self.cluster.nodes.replace_object(Arc::new(info));
            }
            return;
        }
        for NodeProblem(message) in ignored {
            self.outbox.push(Output::Problem(Problem {
                kind: "Node",
                namespace: String::new(),
                name: info.name.to_string(),
                uid: info.object.metadata.uid.clone().unwrap_or_default(),
                message,
            }));
        }
        let info = Arc::new(info);
        let index = self.cluster.nodes.set_node(info.clone());
        let mut fx = Effects::default();
        let plugins = self.table.plugins_of(PluginSet::MAX);
        for role in plugins.filter_map(|plugin| plugin.object_events()) {
            let view = self.cluster.view(now);
            role.on_node(index, view, &mut fx);
        }
        self.apply(fx, now);
        if action.0 == 0 {
            return;
        }
        let event = ClusterEvent {
            subject: Subject::Node,
            action,
            node: Some(&info),
            pod: None,
            object: None,
        };
        PodWaker::new(self).wake_for(&event, now);
    }

    /// Handles a deleted node.
    pub fn node_deleted(&mut self, name: &str, now: Timestamp) {
        let Some(index) = self.cluster.nodes.find(name) else {
            return;
        };
        let Some(info) = self.cluster.nodes.info(index).cloned() else {
            return;
        };
        self.cluster.nodes.remove_node(name);
        let mut fx = Effects::default();
        let plugins = self.table.plugins_of(PluginSet::MAX);
        for role in plugins.filter_map(|plugin| plugin.object_events()) {
            let view = self.cluster.view(now);
            role.on_node(index, view, &mut fx);
        }
        self.apply(fx, now);
        let event = ClusterEvent {
            subject: Subject::Node,
            action: Action::DELETE,
            node: Some(&info),
            pod: None,
            object: None,
        };
        PodWaker::new(self).wake_for(&event, now);
    }

    /// Handles a change of an object of a watched kind.
    pub fn object_changed(&mut self, change: &ObjectChange, now: Timestamp) {
        let mut fx = Effects {
            touched: std::mem::take(&mut self.cluster.touched),
            ..Effects::default()
        };
        self.cluster.indexes.on_object(change, &mut fx);
        let plugins = self.table.plugins_of(PluginSet::MAX);
        for role in plugins.filter_map(|plugin| plugin.object_events()) {
            let view = self.cluster.view(now);
            role.on_object(change, view, &mut fx);
        }
        self.apply(fx, now);
        let event = ClusterEvent {
            subject: Subject::Object(change.kind),
            action: change.action,
            node: None,
            pod: None,
            object: Some(change),
        };
        PodWaker::new(self).wake_for(&event, now);
    }

    /// Handles the result of a binding.
    pub fn bind_finished(&mut self, uid: &str, result: Result<(), BindError>, now: Timestamp) {
        let Some(record) = self.cluster.pods.get(uid) else {
            return;
        };
        let (pod, profile) = (record.info.clone(), record.profile);
        let node = self.cluster.nodes.name(record.node).clone();
        match result {
            Ok(()) => {
                self.queue.remove(uid);
                let mut fx = Effects::default();
                self.telemetry.meter.begin_after(now);
                let tracking_plugins = self.table.tracking_plugins_for(&pod);
                if let Some(at) = profile {
                    let mut laps =
                        self.telemetry
                            .meter
                            .start(&self.table.names, at, Point::PostBind);
                    let instances = self.table.profiles[at].post_bind.iter();
                    for instance in instances.filter(|index| tracking_plugins & (1 << **index) != 0)
                    {
                        let view = self.cluster.view(now);
                        if let Some(role) = self.table.plugins[*instance].post_bind() {
                            role.post_bind(&pod, &node, view, &mut fx);
                        }
                        laps.lap(*instance, || "Success");
                    }
                }
                self.telemetry.meter.end_after();
                self.apply(fx, now);
            }
            Err(error) => {
                // The informer may have delivered the bound pod already: then it is no longer only assumed.
                if !self.withdraw_assumed(uid, now) {
                    return;
                }
                if error.gone {
                    self.queue.remove(uid);
                    return;
                }
                let message = format!("binding rejected: {}", error.message);
                self.refuse(&pod, super::cycle::CycleError::Failed(message), now);
            }
        }
    }
}

/// Creates the report of a pod that is invalid.
fn invalid_pod(pod: &Pod, error: &PodError) -> Output {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    Output::Problem(Problem {
        kind: "Pod",
        namespace: text(&pod.metadata.namespace),
        name: text(&pod.metadata.name),
        uid: text(&pod.metadata.uid),
        message: format!("the pod is not scheduled: {error}"),
    })
}

/// Returns which parts of a node changed that matter for scheduling.
fn difference(old: &NodeInfo, new: &NodeInfo) -> Action {
    let mut action = Action(0);
    let mut note = |changed: bool, what: Action| {
        if changed {
            action = action.or(what);
        }
    };
    note(old.allocatable != new.allocatable, Action::NODE_ALLOCATABLE);
    let (a, b) = (&old.object.metadata, &new.object.metadata);
    note(a.labels != b.labels, Action::NODE_LABEL);
    note(a.annotations != b.annotations, Action::NODE_ANNOTATION);
    note(
        old.taints() != new.taints() || old.unschedulable != new.unschedulable,
        Action::NODE_TAINT,
    );
    // The node was deleted and created again under the same name between two updates.
    note(a.uid != b.uid, Action::ADD);
    action
}
