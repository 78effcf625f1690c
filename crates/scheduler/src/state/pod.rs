//! Parsed pods: all fields are parsed once, when the informer delivers the pod.

use super::PodObject;
use super::ShapeId;
use super::facets::Facets;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, ContainerStatus, ObjectReference, Pod, PodSpec, PodStatus, ResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use koord_api::priority::PriorityClass;
use koord_api::qos::{self, KubeQos};
use koord_api::requests::{self, ContainerPosition};
use koord_api::texts::Texts;
use koord_model::gang::spec::HasMetadata;
use koord_model::resources::{self, Amounts, CPU, MEMORY, ResourceId, ResourceTable};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Millicores assumed, for scoring only, for a container without a CPU request.
const SCORING_MILLI_CPU: i64 = 100;
/// Bytes assumed, for scoring only, for a container without a memory request: 200 MiB.
const SCORING_MEMORY: i64 = 200 * 1024 * 1024;

/// The error of an invalid pod; it is not scheduled until it changes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PodError {
    /// The pod has no `spec`, or no name or uid.
    #[error("pod has no {0}")]
    Missing(&'static str),
    /// A resource amount is not a quantity.
    #[error("{field}: invalid quantity {value:?}: {reason}")]
    Quantity {
        /// The path of the field.
        field: String,
        /// The value of the field.
        value: String,
        /// The reason why the value is invalid.
        reason: String,
    },
}

/// The kinds of objects that are queued and placed in the form of a pod.
#[derive(Debug, Clone, Copy)]
pub enum Booked<'a> {
    /// A pod.
    Pod(&'a PodInfo),
    /// A holder: it reserves capacity on a node for later pods and runs nothing. With the object it stands
    /// for.
    Holder(&'a ObjectReference),
}

/// A parsed pod.
#[derive(Debug, Clone)]
pub struct PodInfo {
    /// The object. For a bound pod, it holds only what matters to other pods and nothing specific to this
    /// pod, so that equal pods share it; [`PodInfo::named_object`] adds the rest.
    pub object: Arc<PodObject>,
    /// `metadata.uid`.
    pub uid: Arc<str>,
    /// `metadata.namespace`.
    pub namespace: Arc<str>,
    /// `metadata.name`.
    pub name: Arc<str>,
    /// `metadata.resourceVersion`.
    pub resource_version: Option<Box<str>>,
    /// `spec.priority`, 0 when unset.
    pub priority: i32,
    /// Koordinator's priority class, defaulted.
    pub priority_class: PriorityClass,
    /// The Kubernetes QoS class.
    pub qos: KubeQos,
    /// The pod's resource requests: containers, init containers and overhead combined. During an in-place
    /// resize, the maximum of requested, allocated and actual resources of each container.
    pub requests: Amounts,
    /// The pod's limits, combined in the same way.
    pub limits: Amounts,
    /// CPU (millicores) and memory (bytes) for scoring: requests, with defaults for containers without.
    pub scoring: [i64; 2],
    /// `spec.nodeName`; `None` if the pod is not bound.
    pub node: Option<Arc<str>>,
    /// `status.nominatedNodeName`.
    pub nominated: Option<Arc<str>>,
    /// `metadata.creationTimestamp`.
    pub created: Timestamp,
    /// `status.startTime`.
    pub started: Option<Timestamp>,
    /// The time at which the `PodScheduled` condition became true.
    pub scheduled_at: Option<Timestamp>,
    /// The time at which the `Initialized` condition became true.
    pub initialized_at: Option<Timestamp>,
    /// Names of the scheduling gates that are not removed yet.
    pub gates: Vec<String>,
    /// True if a DaemonSet owns the pod.
    pub daemon: bool,
    /// True if the pod is being deleted.
    pub deleting: bool,
    /// True if the pod has finished: phase Succeeded or Failed.
    pub terminal: bool,
    /// The object that is scheduled in the form of this pod; `None` for real pods.
    holds_for: Option<Arc<ObjectReference>>,
    facets: Facets,
}

impl PodInfo {
    /// Parses `pod` and adds its resource names to `table`.
    ///
    /// # Errors
    /// Fails if a required field is missing, or if an amount is not a quantity.
    pub fn new(pod: Arc<Pod>, table: &ResourceTable) -> Result<Self, PodError> {
        let meta = &pod.metadata;
        let uid: Arc<str> = meta
            .uid
            .as_deref()
            .ok_or(PodError::Missing("metadata.uid"))?
            .into();
        let name: Arc<str> = meta
            .name
            .as_deref()
            .ok_or(PodError::Missing("metadata.name"))?
            .into();
        let namespace: Arc<str> = meta.namespace.as_deref().unwrap_or_default().into();
        let spec = pod.spec.as_ref().ok_or(PodError::Missing("spec"))?;
        let status = pod.status.as_ref();
        let running = ContainerStatuses::from_status(status);
        let requests = combined(spec, &running, table, AmountKind::Requests)?;
        let limits = combined(spec, &running, table, AmountKind::Limits)?;
        let scoring = combined(spec, &running, table, AmountKind::Scoring)?;
        let since = |kind: &str| {
            status
                .and_then(|s| s.conditions.as_ref())
                .and_then(|all| all.iter().find(|c| c.type_ == kind && c.status == "True"))
                .and_then(|c| c.last_transition_time.as_ref())
                .map(|time| time.0)
        };
        let phase = status.and_then(|s| s.phase.as_deref());
        let shared = |text: &Option<String>| {
            text.as_deref()
                .filter(|t| !t.is_empty())
                .map(Arc::<str>::from)
        };
        Ok(Self {
            uid,
            name,
            namespace,
            resource_version: meta.resource_version.as_deref().map(Box::from),
            priority: spec.priority.unwrap_or(0),
            priority_class: koord_api::priority::pod_priority_class_or_default(&pod),
            requests,
            limits,
            scoring: [scoring.get(CPU), scoring.get(MEMORY)],
            node: shared(&spec.node_name),
            nominated: status.and_then(|s| shared(&s.nominated_node_name)),
            created: meta
                .creation_timestamp
                .as_ref()
                .map_or(Timestamp::UNIX_EPOCH, |t| t.0),
            started: status
                .and_then(|s| s.start_time.as_ref())
                .map(|time| time.0),
            scheduled_at: since("PodScheduled"),
            initialized_at: since("Initialized"),
            gates: spec
                .scheduling_gates
                .iter()
                .flatten()
                .map(|gate| gate.name.clone())
                .collect(),
            daemon: meta
                .owner_references
                .iter()
                .flatten()
                .any(|owner| owner.kind == "DaemonSet"),
            deleting: meta.deletion_timestamp.is_some(),
            terminal: matches!(phase, Some("Succeeded" | "Failed")),
            holds_for: None,
            facets: Facets::default(),
            qos: qos::pod_kube_qos(&pod),
            object: Arc::new(PodObject::new(pod)),
        })
    }

    /// Returns this pod as a holder for `object`.
    #[must_use]
    pub fn into_holder(self, object: ObjectReference) -> Self {
        Self {
            holds_for: Some(Arc::new(object)),
            facets: Facets::default(),
            ..self
        }
    }

    /// Returns this pod as it would be without a node, with `object` as its content. The parsed resources
    /// stay unchanged.
    #[must_use]
    pub fn without_node(&self, object: Arc<Pod>) -> Self {
        Self {
            qos: qos::pod_kube_qos(&object),
            object: Arc::new(PodObject::new(object)),
            node: None,
            nominated: None,
            started: None,
            scheduled_at: None,
            initialized_at: None,
            gates: Vec::new(),
            deleting: false,
            terminal: false,
            facets: Facets::default(),
            ..self.clone()
        }
    }

    /// Returns whether this is a pod or a holder.
    #[must_use]
    pub fn booked(&self) -> Booked<'_> {
        match &self.holds_for {
            None => Booked::Pod(self),
            Some(object) => Booked::Holder(object),
        }
    }

    /// Returns true if this is a holder, which only reserves capacity for later pods.
    #[must_use]
    pub fn is_holder(&self) -> bool {
        self.holds_for.is_some()
    }

    /// Returns the pod's `spec`; for a bound pod, without the parts that [`PodInfo::object`] holds
    /// separately.
    #[must_use]
    pub fn spec(&self) -> Option<&PodSpec> {
        self.object.pod.spec.as_ref()
    }

    /// Returns the pod's `status`; for a bound pod, only the parts that are kept.
    #[must_use]
    pub fn status(&self) -> Option<&PodStatus> {
        self.object.pod.status.as_ref()
    }

    /// Returns `metadata.labels`.
    #[must_use]
    pub fn labels(&self) -> &Texts {
        &self.object.labels
    }

    /// Returns the value of label `key`.
    #[must_use]
    pub fn label(&self, key: &str) -> Option<&str> {
        self.object.labels.get(key)
    }

    /// Returns the object with the parts that are specific to the pod, for display or sending.
    #[must_use]
    pub fn named_object(&self) -> Pod {
        let mut object = self.object.to_pod();
        let time = |at: Timestamp| Some(Time(at));
        let meta = &mut object.metadata;
        if !self.namespace.is_empty() {
            meta.namespace = Some(self.namespace.to_string());
        }
        meta.name.get_or_insert_with(|| self.name.to_string());
        meta.uid.get_or_insert_with(|| self.uid.to_string());
        meta.resource_version = self.resource_version.as_deref().map(str::to_owned);
        if self.created != Timestamp::UNIX_EPOCH {
            meta.creation_timestamp = time(self.created);
        }
        if let Some(spec) = &mut object.spec {
            spec.node_name = self.node.as_deref().map(str::to_owned);
        }
        if let Some(started) = self.started {
            object.status.get_or_insert_default().start_time = time(started);
        }
        object
    }

    /// Returns `spec.schedulerName`, or `default-scheduler` if unset.
    #[must_use]
    pub fn scheduler_name(&self) -> &str {
        self.spec()
            .and_then(|s| s.scheduler_name.as_deref())
            .unwrap_or("default-scheduler")
    }

    /// Returns the value of annotation `key`.
    #[must_use]
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.object.annotations.get(key)
    }

    /// Returns the value that `read` derives from this pod, computed once per type. For what a plugin would
    /// otherwise parse at every step; it must depend on the pod only.
    pub fn facet<T: Any + Send + Sync>(&self, read: impl Fn(&Self) -> T) -> &T {
        self.facets.get(|| read(self))
    }

    /// Returns the shape that `sign` computes for the profile with this index, computed once. `None` if the
    /// pod shares nothing.
    pub(crate) fn shape(
        &self,
        profile: usize,
        sign: impl Fn() -> Option<ShapeId>,
    ) -> Option<ShapeId> {
        self.facets.shape(profile, sign)
    }

    /// Returns true if something that scheduling reads differs: spec, labels or annotations.
    #[must_use]
    pub fn differs_for_scheduling(&self, other: &Self) -> bool {
        self.object.differs_for_scheduling(&other.object)
            || self.requests != other.requests
            || self.limits != other.limits
            || self.deleting != other.deleting
    }

    /// Returns true if all requests and limits are 0.
    #[must_use]
    pub fn is_best_effort(&self) -> bool {
        self.requests.iter().all(|(_, amount)| amount == 0)
            && self.limits.iter().all(|(_, amount)| amount == 0)
    }
}

impl HasMetadata for PodInfo {
    fn label(&self, key: &str) -> Option<&str> {
        self.label(key)
    }
    fn annotation(&self, key: &str) -> Option<&str> {
        self.annotation(key)
    }
    fn created(&self) -> Option<Time> {
        (self.created != Timestamp::UNIX_EPOCH).then_some(Time(self.created))
    }
}

impl std::fmt::Display for PodInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[derive(Clone, Copy, PartialEq)]
enum AmountKind {
    Requests,
    Limits,
    Scoring,
}

/// The state of a pod's containers, from its status.
#[derive(Default)]
struct ContainerStatuses<'a> {
    main: &'a [ContainerStatus],
    init: &'a [ContainerStatus],
    /// True if the node can never provide what the spec requests.
    infeasible: bool,
}

impl<'a> ContainerStatuses<'a> {
    fn from_status(status: Option<&'a PodStatus>) -> Self {
        let Some(status) = status else {
            return Self::default();
        };
        let pending = status.conditions.iter().flatten();
        let pending = pending.into_iter().find(|c| c.type_ == "PodResizePending");
        Self {
            main: status.container_statuses.as_deref().unwrap_or_default(),
            init: status
                .init_container_statuses
                .as_deref()
                .unwrap_or_default(),
            infeasible: pending.is_some_and(|c| c.reason.as_deref() == Some("Infeasible")),
        }
    }

    /// Returns the `(actual, allocated)` resources of a long-running container, if its status has them.
    fn resources(
        &self,
        place: ContainerPosition,
        container: &Container,
    ) -> Option<[Option<&'a BTreeMap<String, Quantity>>; 2]> {
        let all = match place {
            ContainerPosition::Main(_) => self.main,
            ContainerPosition::Init(_) if requests::is_sidecar(container) => self.init,
            ContainerPosition::Init(_) => &[],
        };
        let status = all.iter().find(|status| status.name == container.name)?;
        let actual = status.resources.as_ref()?;
        Some([
            actual.requests.as_ref(),
            status.allocated_resources.as_ref(),
        ])
    }
}

/// Combines the amounts of containers: the sum of main containers and sidecars, or the peak while init
/// containers run, whichever is larger. Pod-level amounts replace it; overhead is added.
fn combined(
    spec: &PodSpec,
    running: &ContainerStatuses<'_>,
    table: &ResourceTable,
    side: AmountKind,
) -> Result<Amounts, PodError> {
    let own = |place: ContainerPosition, container: &Container| {
        container_amounts(container, running, table, side, place)
    };
    let mut total = requests::peak(spec, own)?;
    if let Some(pod_level) = &spec.resources {
        let listed = amounts(list(pod_level, side), table, || "spec.resources".to_owned())?;
        for (id, amount) in listed.iter() {
            total.set(id, amount);
        }
    }
    let overhead = amounts(spec.overhead.as_ref(), table, || "spec.overhead".to_owned())?;
    for (id, amount) in overhead.iter() {
        // A limit that is not set stays unlimited.
        if side != AmountKind::Limits || total.get(id) > 0 {
            total.add(id, amount);
        }
    }
    total.bound();
    Ok(total)
}

/// Returns the amounts of one container. Rules for in-place resize: `k8s.io/component-helpers/resource`,
/// `PodRequests` with `UseStatusResources`.
fn container_amounts(
    container: &Container,
    running: &ContainerStatuses<'_>,
    table: &ResourceTable,
    side: AmountKind,
    place: ContainerPosition,
) -> Result<Amounts, PodError> {
    let listed = container
        .resources
        .as_ref()
        .and_then(|resources| list(resources, side));
    let mut own = amounts(listed, table, || format!("{place}.resources"))?;
    if side != AmountKind::Limits
        && let Some(lists) = running.resources(place, container)
    {
        if running.infeasible {
            own = Amounts::new();
        }
        for list in lists {
            // Amounts in the status that cannot be parsed are ignored; those of the spec count.
            let read = amounts_but(list, table, String::new, |_, _| Ok(()));
            requests::Total::raise(&mut own, &read.unwrap_or_default());
        }
    }
    if side == AmountKind::Scoring {
        for (id, fallback) in [(CPU, SCORING_MILLI_CPU), (MEMORY, SCORING_MEMORY)] {
            if !own.contains(id) {
                own.set(id, fallback);
            }
        }
    }
    Ok(own)
}

fn list(resources: &ResourceRequirements, side: AmountKind) -> Option<&BTreeMap<String, Quantity>> {
    match side {
        AmountKind::Requests | AmountKind::Scoring => resources.requests.as_ref(),
        AmountKind::Limits => resources.limits.as_ref(),
    }
}

/// Parses a resource list.
pub(super) fn amounts(
    list: Option<&BTreeMap<String, Quantity>>,
    table: &ResourceTable,
    field: impl Fn() -> String,
) -> Result<Amounts, PodError> {
    amounts_but(list, table, field, |_, error| Err(error))
}

/// Parses a resource list as [`amounts`] does, but leaves out invalid amounts for which `bad` returns `Ok`.
pub(super) fn amounts_but(
    list: Option<&BTreeMap<String, Quantity>>,
    table: &ResourceTable,
    field: impl Fn() -> String,
    mut bad: impl FnMut(ResourceId, PodError) -> Result<(), PodError>,
) -> Result<Amounts, PodError> {
    let mut out = Amounts::new();
    for (name, quantity) in list.into_iter().flatten() {
        // An amount that is listed under both names of a resource counts once.
        let current = resources::canonical(name);
        if current != name && list.is_some_and(|list| list.contains_key(current)) {
            continue;
        }
        let id = table.intern(name);
        let reason = match koord_api::quantity::parse(quantity) {
            Ok(parsed) if parsed.nanos() >= 0 => {
                out.add(id, resources::amount(id, &parsed));
                continue;
            }
            Ok(_) => "expected 0 or more".to_owned(),
            Err(error) => error.to_string(),
        };
        let error = PodError::Quantity {
            field: format!("{}[{name}]", field()),
            value: quantity.0.clone(),
            reason,
        };
        bad(id, error)?;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(spec: serde_json::Value) -> Result<(PodInfo, ResourceTable), PodError> {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": spec
        }))
        .unwrap();
        let table = ResourceTable::new();
        PodInfo::new(Arc::new(pod), &table).map(|info| (info, table))
    }

    fn requests(cpu: &str) -> serde_json::Value {
        json!({"name": "c", "resources": {"requests": {"cpu": cpu}}})
    }

    #[test]
    fn init_containers_count_by_peak_with_earlier_sidecars() {
        let mut sidecar = requests("300m");
        sidecar["restartPolicy"] = json!("Always");
        let (info, _) = pod(json!({
            "containers": [requests("500m"), requests("1")],
            "initContainers": [requests("100m"), sidecar, requests("2")],
            "overhead": {"cpu": "10m"}
        }))
        .unwrap();
        // max(500 + 1000 + 300, 300 + 2000) + 10
        assert_eq!(info.requests.get(CPU), 2310);
    }

    #[test]
    fn pod_info_is_small() {
        assert!(size_of::<PodInfo>() <= 384);
        assert!(size_of::<crate::state::ParsedPod>() <= 16);
    }

    #[test]
    fn containers_without_requests_count_for_scoring_only() {
        let (info, _) = pod(json!({"containers": [{"name": "a"}, requests("1")]})).unwrap();
        assert_eq!(info.requests.get(CPU), 1000);
        assert_eq!(info.scoring, [1100, 2 * SCORING_MEMORY]);
        assert!(!info.is_best_effort());
    }

    #[test]
    fn deprecated_batch_resources_are_renamed() {
        let (info, _) = pod(json!({"containers": [
            {"name": "a", "resources": {"requests": {"koordinator.sh/batch-cpu": "1500"}}}
        ]}))
        .unwrap();
        assert_eq!(info.requests.get(resources::BATCH_CPU), 1500);
        let amounts = json!({"koordinator.sh/batch-cpu": "1500", "kubernetes.io/batch-cpu": "700"});
        let (info, _) = pod(json!({"containers": [
            {"name": "a", "resources": {"requests": amounts}}
        ]}))
        .unwrap();
        assert_eq!(info.requests.get(resources::BATCH_CPU), 700);
    }

    #[test]
    fn pod_resize_counts_largest_amount() {
        let status = |actual: &str, allocated: &str, conditions: serde_json::Value| {
            json!({"conditions": conditions, "containerStatuses": [{"name": "c",
                "image": "i", "imageID": "i", "ready": true, "restartCount": 0,
                "allocatedResources": {"cpu": allocated},
                "resources": {"requests": {"cpu": actual}}}]})
        };
        let waits = |reason: &str| json!([{"type": "PodResizePending", "status": "True", "reason": reason}]);
        for (requested, actual, allocated, conditions, expected) in [
            ("1", "1", "1", json!([]), 1000),
            // Up: requested but not allocated, allocated but not actual; down likewise.
            ("3", "1", "1", json!([]), 3000),
            ("2", "1", "3", json!([]), 3000),
            ("1", "3", "1", json!([]), 3000),
            ("3", "1", "2", waits("Deferred"), 3000),
            // An infeasible request is not reserved.
            ("3", "1", "2", waits("Infeasible"), 2000),
        ] {
            let pod = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"},
                "spec": {"containers": [requests(requested)]},
                "status": status(actual, allocated, conditions)});
            let mut pod: Pod = serde_json::from_value(pod).unwrap();
            let counted = |pod: &Pod| {
                let info = PodInfo::new(Arc::new(pod.clone()), &ResourceTable::new()).unwrap();
                (info.requests.get(CPU), info.scoring[0])
            };
            let case = format!("{requested} {actual} {allocated}");
            assert_eq!(counted(&pod), (expected, expected), "{case}");
            crate::runtime::trim_pod(&mut pod);
            assert_eq!(counted(&pod), (expected, expected), "{case}, as it is kept");
        }
    }

    #[test]
    fn a_bad_quantity_is_named_with_its_path_and_value() {
        let error = pod(json!({"containers": [requests("1x")]})).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("spec.containers[0].resources[cpu]") && text.contains("\"1x\""),
            "{text}"
        );
    }
}
