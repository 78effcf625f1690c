//! Decoding of pods with a field that is newer than the types of this build.
//!
//! Kubernetes 1.36 renamed `spec.workloadRef` to `spec.schedulingGroup`. A decoder skips fields that its
//! types lack, and a pod of a group would be scheduled as if it had none. So the newer field is decoded as
//! the older one, without the name of a Workload, which it does not have.

use k8s_openapi::api::core::v1::{Pod, PodSpec, PodStatus, WorkloadReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, Visitor};
use serde_json::Value;
use std::fmt;

/// The name of the newer field.
const SCHEDULING_GROUP: &str = "schedulingGroup";

/// A pod that is decoded with the newer field.
#[derive(Debug, Clone, Default)]
pub(super) struct DecodedPod(pub(super) Pod);

koord_api::delegate_resource!(DecodedPod as Pod, 0.metadata);

koord_kube::decode!(DecodedPod);

impl<'de> Deserialize<'de> for DecodedPod {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(serde::Deserialize)]
        struct Parts {
            metadata: Option<ObjectMeta>,
            spec: Option<DecodedSpec>,
            status: Option<PodStatus>,
        }
        let parts = Parts::deserialize(deserializer)?;
        Ok(Self(Pod {
            metadata: parts.metadata.unwrap_or_default(),
            spec: parts.spec.map(|DecodedSpec(spec)| spec),
            status: parts.status,
        }))
    }
}

struct DecodedSpec(PodSpec);

impl<'de> Deserialize<'de> for DecodedSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(SpecVisitor)
    }
}

struct SpecVisitor;

impl<'de> Visitor<'de> for SpecVisitor {
    type Value = DecodedSpec;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the spec of a pod")
    }
    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<DecodedSpec, A::Error> {
        let mut group = Value::Null;
        let fields = SpecFields {
            map,
            group: &mut group,
        };
        let mut spec = PodSpec::deserialize(MapAccessDeserializer::new(fields))?;
        if !group.is_null() {
            let name = group.get("podGroupName").and_then(Value::as_str);
            spec.workload_ref.get_or_insert_with(|| WorkloadReference {
                pod_group: name.unwrap_or_default().to_owned(),
                ..WorkloadReference::default()
            });
        }
        Ok(DecodedSpec(spec))
    }
}

/// The fields of a spec without the scheduling group, which is stored separately.
struct SpecFields<'a, A> {
    map: A,
    group: &'a mut Value,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for SpecFields<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        let mut seed = seed;
        loop {
            match self.map.next_key_seed(FieldSeed(seed))? {
                None => return Ok(None),
                Some(Field::Other(field)) => return Ok(Some(field)),
                Some(Field::SchedulingGroup(unused)) => {
                    *self.group = self.map.next_value()?;
                    seed = unused;
                }
            }
        }
    }
    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.map.next_value_seed(seed)
    }
}

/// A field's name: one that the type has, or the newer one, with the seed that would have read it.
enum Field<K, V> {
    SchedulingGroup(K),
    Other(V),
}

struct FieldSeed<K>(K);

impl<'de, K: DeserializeSeed<'de>> DeserializeSeed<'de> for FieldSeed<K> {
    type Value = Field<K, K::Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl<'de, K: DeserializeSeed<'de>> Visitor<'de> for FieldSeed<K> {
    type Value = Field<K, K::Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }
    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<Self::Value, E> {
        if name == SCHEDULING_GROUP {
            return Ok(Field::SchedulingGroup(self.0));
        }
        self.0
            .deserialize(name.into_deserializer())
            .map(Field::Other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_kube::kube_core::ObjectList;
    use serde_json::json;

    fn decode(spec: &Value) -> Pod {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "uid": "u"},
            "spec": spec, "status": {"phase": "Pending"}});
        let DecodedPod(from_text) = serde_json::from_str(&pod.to_string()).unwrap();
        // Watch events are read through a value.
        let DecodedPod(from_value) = serde_json::from_value(pod).unwrap();
        assert_eq!(from_text, from_value);
        from_text
    }

    #[test]
    fn scheduling_group_is_read_as_the_workload_reference() {
        let containers =
            json!([{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}]);
        for (field, value, want) in [
            (
                "schedulingGroup",
                json!({"podGroupName": "g"}),
                Some(("", "g")),
            ),
            ("schedulingGroup", json!({}), Some(("", ""))),
            ("schedulingGroup", json!(7), Some(("", ""))),
            ("schedulingGroup", Value::Null, None),
            (
                "workloadRef",
                json!({"name": "w", "podGroup": "g"}),
                Some(("w", "g")),
            ),
            ("futureField", json!({"a": [1]}), None),
        ] {
            let spec = json!({"containers": containers, (field): value, "schedulerName": "s"});
            let pod = decode(&spec).spec.unwrap();
            let group = pod.workload_ref.as_ref();
            let group = group.map(|group| (&*group.name, &*group.pod_group));
            assert_eq!(group, want, "{spec}");
            assert_eq!(pod.scheduler_name.as_deref(), Some("s"), "{spec}");
            assert_eq!(pod.containers.len(), 1, "{spec}");
        }
    }

    /// All other fields are read as the type itself reads them.
    #[test]
    fn decoded_pod_equals_the_type_s_own_reading() {
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"a": "b"}},
            "spec": {"containers": [{"name": "c", "ports": [{"containerPort": 1}]}], "priority": 7,
                "nodeName": "n", "tolerations": [{"operator": "Exists"}], "overhead": {"cpu": "1m"},
                "volumes": [{"name": "v", "emptyDir": {}}], "schedulingGates": [{"name": "g"}]},
            "status": {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}]}});
        let DecodedPod(decoded) = serde_json::from_value(pod.clone()).unwrap();
        assert_eq!(decoded, serde_json::from_value::<Pod>(pod).unwrap());
        // Items of lists have neither version nor kind, and a pod need not have all parts.
        let list = json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": [
            {"metadata": {"name": "a"}, "spec": null}, {"metadata": {"name": "b"}}]});
        let list: ObjectList<DecodedPod> = serde_json::from_value(list).unwrap();
        assert_eq!(list.items.len(), 2);
    }
}
