//! Pods as an informer delivers them: parsed, and without fields that are not read.
//!
//! A cluster has many more running than waiting pods, and the object of a pod takes several kilobytes even if
//! most of it is empty: bound pods with equal content share one object.

use super::{PodError, PodInfo, PodInterner};
use k8s_openapi::api::core::v1::{Pod, Volume};
use koord_kube::Cacheable;
use koord_model::resources::ResourceTable;
use std::sync::Arc;

/// A pod as an informer delivers it.
#[derive(Debug)]
pub enum ParsedPod {
    /// The pod is valid.
    Pod(Arc<PodInfo>),
    /// The pod is invalid; with the reason.
    Broken(Box<(Pod, PodError)>),
}

impl ParsedPod {
    /// Parses `pod` and adds its resource names to `table`. A bound pod is trimmed.
    #[must_use]
    pub fn new(pod: Pod, table: &ResourceTable) -> Self {
        read(pod, table, |info| {
            if let Some(object) = Arc::get_mut(&mut info.object) {
                object.trim();
            }
        })
    }

    /// Parses `pod` as [`Self::new`] does, but does not trim bound pods.
    #[must_use]
    pub fn untrimmed(pod: Pod, table: &ResourceTable) -> Self {
        read(pod, table, |_| ())
    }

    /// Returns `metadata.uid`.
    #[must_use]
    pub fn uid(&self) -> &str {
        match self {
            Self::Pod(info) => &info.uid,
            Self::Broken(broken) => broken.0.metadata.uid.as_deref().unwrap_or_default(),
        }
    }

    /// Returns `spec.nodeName`.
    #[must_use]
    pub fn node(&self) -> Option<&str> {
        match self {
            Self::Pod(info) => info.node.as_deref(),
            Self::Broken(broken) => broken.0.spec.as_ref()?.node_name.as_deref(),
        }
    }
}

impl PodInterner {
    /// Parses `pod` as [`ParsedPod::new`] does; equal parts of the bound pods that are parsed here are shared.
    #[must_use]
    pub fn read(&self, pod: Pod, table: &ResourceTable) -> ParsedPod {
        read(pod, table, |info| {
            if let Some(object) = Arc::get_mut(&mut info.object) {
                object.trim();
            }
            info.requests.shrink_to_fit();
            info.limits.shrink_to_fit();
            info.object = self.object(std::mem::take(&mut info.object));
            info.namespace = self.name(std::mem::take(&mut info.namespace));
            info.node = info.node.take().map(|node| self.name(node));
        })
    }
}

/// Parses `pod` and applies `keep` to it if it is bound.
fn read(pod: Pod, table: &ResourceTable, keep: impl FnOnce(&mut PodInfo)) -> ParsedPod {
    let pod = Arc::new(pod);
    match PodInfo::new(pod.clone(), table) {
        Ok(mut info) => {
            drop(pod);
            if info.node.is_some() {
                keep(&mut info);
            }
            ParsedPod::Pod(Arc::new(info))
        }
        Err(error) => ParsedPod::Broken(Box::new((Arc::unwrap_or_clone(pod), error))),
    }
}

impl Cacheable for ParsedPod {
    fn names(&self) -> (&str, &str) {
        match self {
            Self::Pod(info) => (&info.namespace, &info.name),
            Self::Broken(broken) => broken.0.names(),
        }
    }
    fn is_same(&self, other: &Self) -> bool {
        self.uid() == other.uid()
    }
    fn resource_version(&self) -> Option<&str> {
        match self {
            Self::Pod(info) => info.resource_version.as_deref(),
            Self::Broken(broken) => broken.0.metadata.resource_version.as_deref(),
        }
    }
}

/// Returns true if a volume can matter for scheduling: those that need nothing but the node do not.
pub(crate) fn volume_matters(volume: &Volume) -> bool {
    volume.config_map.is_none()
        && volume.downward_api.is_none()
        && volume.empty_dir.is_none()
        && volume.host_path.is_none()
        && volume.projected.is_none()
        && volume.secret.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::PodStatus;
    use koord_model::resources::CPU;
    use serde_json::{Value, json};

    fn pod(number: usize, spec: Value) -> Pod {
        let name = format!("p-{number}");
        let pod = json!({
            "metadata": {"name": name, "uid": format!("u-{number}"), "namespace": "ns",
                "resourceVersion": format!("{number}"), "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {"a": "b"},
                "annotations": {"cni.projectcalico.org/podIP": format!("10.0.0.{number}"), "c": "d"}},
            "spec": spec,
            "status": {"phase": "Running", "podIP": format!("10.0.0.{number}"),
                "startTime": "2026-01-01T00:00:01Z",
                "conditions": [
                    {"type": "Ready", "status": "True"},
                    {"type": "DisruptionTarget", "status": "True"}
                ]}
        });
        serde_json::from_value(pod).unwrap()
    }

    fn info(parsed: ParsedPod) -> Arc<PodInfo> {
        match parsed {
            ParsedPod::Pod(info) => info,
            ParsedPod::Broken(broken) => panic!("{broken:?}"),
        }
    }

    fn parsed(spec: Value) -> ParsedPod {
        ParsedPod::new(pod(1, spec), &ResourceTable::new())
    }

    fn spec() -> Value {
        json!({
            "containers": [
                {"name": "a", "image": "i", "resources": {"requests": {"cpu": "2"}}},
                {"name": "b", "ports": [{"containerPort": 80, "hostPort": 8080}, {"containerPort": 81}]}
            ],
            "tolerations": [{"operator": "Exists"}],
            "affinity": {"nodeAffinity": {}, "podAntiAffinity": {}}
        })
    }

    fn bound(node: &str) -> Value {
        let mut bound = spec();
        bound["nodeName"] = json!(node);
        bound
    }

    #[test]
    fn bound_pod_keeps_fields_that_matter_to_others() {
        let info = info(parsed(bound("n")));
        assert_eq!(info.requests.get(CPU), 2000);
        assert_eq!(info.scoring[0], 2100);
        let trimmed = serde_json::to_value(info.object.to_pod()).unwrap();
        let expected = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}},
            "spec": {
                "containers": [
                    {"name": "a", "resources": {"requests": {"cpu": "2"}}},
                    {"name": "b", "ports": [{"containerPort": 80, "hostPort": 8080}]}
                ],
                "affinity": {"podAntiAffinity": {}}
            },
            "status": {"phase": "Running",
                "conditions": [{"type": "DisruptionTarget", "status": "True"}]}
        });
        assert_eq!(trimmed, expected);
    }

    #[test]
    fn bound_pod_keeps_its_identity() {
        let parsed = parsed(bound("n"));
        assert_eq!(parsed.names(), ("ns", "p-1"));
        assert_eq!((parsed.uid(), parsed.node()), ("u-1", Some("n")));
        assert_eq!(parsed.resource_version(), Some("1"));
        let named = info(parsed).named_object();
        let full_pod = pod(1, bound("n"));
        let (named_meta, meta) = (&named.metadata, &full_pod.metadata);
        assert_eq!((&named_meta.name, &named_meta.uid), (&meta.name, &meta.uid));
        assert_eq!(named_meta.namespace, meta.namespace);
        assert_eq!(named_meta.resource_version, meta.resource_version);
        assert_eq!(named_meta.creation_timestamp, meta.creation_timestamp);
        assert_eq!(named.spec.unwrap().node_name.as_deref(), Some("n"));
        let started = |status: Option<PodStatus>| status.unwrap().start_time;
        assert_eq!(started(named.status), started(full_pod.status));
    }

    #[test]
    fn equal_bound_pods_share_their_object() {
        let (interner, table) = (PodInterner::default(), ResourceTable::new());
        let read = |number, spec| info(interner.read(pod(number, spec), &table));
        let [a, b] = [1, 2].map(|number| read(number, bound("n")));
        assert!(Arc::ptr_eq(&a.object, &b.object));
        assert!(Arc::ptr_eq(&a.namespace, &b.namespace));
        assert!(Arc::ptr_eq(
            a.node.as_ref().unwrap(),
            b.node.as_ref().unwrap()
        ));
        assert_eq!((&*a.name, &*b.name), ("p-1", "p-2"));
        // Likewise on another node; a pod with other requests does not share it.
        let mut other_spec = bound("m");
        assert!(Arc::ptr_eq(&a.object, &read(3, other_spec.clone()).object));
        other_spec["containers"][0]["resources"]["requests"]["cpu"] = json!("3");
        assert!(!Arc::ptr_eq(&a.object, &read(4, other_spec).object));
        // A waiting pod changes when it is bound, so it has its own object.
        let [a, b] = [5, 6].map(|number| read(number, spec()));
        assert_eq!(a.object.pod.metadata.name.as_deref(), Some("p-5"));
        assert!(!Arc::ptr_eq(&a.object, &b.object));
    }

    #[test]
    fn different_bound_pods_share_equal_parts() {
        let (interner, table) = (PodInterner::default(), ResourceTable::new());
        let read = |number: usize| {
            let mut spec = bound("n");
            spec["hostname"] = json!(format!("db-{number}"));
            spec["volumes"] = json!([{"name": "data",
                "persistentVolumeClaim": {"claimName": format!("data-db-{number}")}}]);
            let mut pod = pod(number, spec);
            let labels = pod.metadata.labels.get_or_insert_default();
            let name = "statefulset.kubernetes.io/pod-name".to_owned();
            labels.insert(name, format!("db-{number}"));
            info(interner.read(pod, &table))
        };
        let all = [1, 2].map(read);
        let [a, b] = all.each_ref().map(|info| &info.object);
        assert!(Arc::ptr_eq(&a.pod, &b.pod));
        assert!(Arc::ptr_eq(&a.containers, &b.containers));
        assert!(Arc::ptr_eq(&a.annotations, &b.annotations));
        assert!(Arc::ptr_eq(&a.owners, &b.owners));
        for (info, name) in all.iter().zip(["db-1", "db-2"]) {
            let label = info.label("statefulset.kubernetes.io/pod-name");
            assert_eq!((label, info.label("a")), (Some(name), Some("b")));
            let claims: Vec<_> = info.object.claims().collect();
            assert_eq!(claims, [format!("data-{name}")]);
            let volumes = info.named_object().spec.unwrap().volumes.unwrap();
            let claim = volumes[0].persistent_volume_claim.as_ref().unwrap();
            assert_eq!(claim.claim_name, format!("data-{name}"));
        }
        assert!(size_of_val(&**a) <= 104, "{}", size_of_val(&**a));
    }

    #[test]
    fn a_waiting_pod_keeps_everything() {
        let info = info(parsed(spec()));
        let spec = info.spec().unwrap();
        assert_eq!(spec.containers.len(), 2);
        assert!(spec.tolerations.is_some());
    }

    #[test]
    fn a_broken_pod_is_kept_with_the_reason() {
        let parsed = parsed(json!({"nodeName": "n", "containers": [
            {"name": "a", "resources": {"requests": {"cpu": "x"}}}
        ]}));
        let ParsedPod::Broken(broken) = &parsed else {
            panic!("{parsed:?}")
        };
        let (pod, error) = &**broken;
        assert!(error.to_string().contains("\"x\""), "{error}");
        assert_eq!(pod.spec.as_ref().unwrap().containers.len(), 1);
        assert_eq!((parsed.uid(), parsed.node()), ("u-1", Some("n")));
    }
}
