//! Resource requirements of a pod: QoS class, amounts, and the control groups derived from them.
//!
//! Everything here is a function of the pod. The rules are the kubelet's with the cgroupfs driver.

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use koord_api::quantity;
use koord_api::requests::{self, is_sidecar};
use koord_host::CgroupPath;
use std::collections::BTreeMap;
use std::convert::Infallible;

/// The kubelet's QoS class, from CPU and memory requests and limits only: extended resources such as
/// batch-cpu do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "Kubernetes' own names")]
pub enum Qos {
    Guaranteed,
    Burstable,
    BestEffort,
}

impl Qos {
    /// Returns the value of `status.qosClass`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }

    /// Returns the directory of the class below `kubepods`; empty for guaranteed pods.
    #[must_use]
    pub fn dir(self) -> &'static str {
        match self {
            Self::Guaranteed => "",
            Self::Burstable => "burstable",
            Self::BestEffort => "besteffort",
        }
    }
}

/// CPU and memory of one container or pod. `None` means "not set".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amounts {
    /// Requested milli-CPUs.
    pub cpu_request: Option<i64>,
    /// Limit in milli-CPUs.
    pub cpu_limit: Option<i64>,
    /// Requested bytes.
    pub memory_request: Option<i64>,
    /// Limit in bytes.
    pub memory_limit: Option<i64>,
}

/// An invalid quantity in a pod.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("container {container:?}: {field}: {reason}")]
pub struct BadQuantity {
    container: String,
    field: String,
    reason: String,
}

/// Control group settings, in v1 units. `None` leaves the kernel's default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupSettings {
    /// CPU weight.
    pub shares: i64,
    /// CFS quota in microseconds per 100 ms.
    pub quota: Option<i64>,
    /// Memory limit in bytes.
    pub memory_limit: Option<i64>,
}

/// Returns the CPU weight for `milli` requested milli-CPUs: milli · 1024 / 1000, from 2 to 262144.
#[must_use]
pub fn shares_of(milli: i64) -> i64 {
    (milli.max(0).saturating_mul(1024) / 1000).clamp(2, 262_144)
}

/// Returns the CFS quota in microseconds for a limit of `milli` milli-CPUs in a period of 100 ms, at least 1
/// ms.
#[must_use]
pub fn quota_of(milli: i64) -> i64 {
    milli.saturating_mul(100).max(1000)
}

impl Amounts {
    /// Returns the amounts of one container. A missing request defaults to the limit.
    ///
    /// # Errors
    /// When a quantity cannot be understood.
    pub fn from_container(container: &Container) -> Result<Self, BadQuantity> {
        let Some(resources) = &container.resources else {
            return Ok(Self::default());
        };
        let get = |limits: bool, name: &str| -> Result<Option<quantity::Quantity>, BadQuantity> {
            let (list, field) = if limits {
                (&resources.limits, "limits")
            } else {
                (&resources.requests, "requests")
            };
            let Some(raw) = list.as_ref().and_then(|list| list.get(name)) else {
                return Ok(None);
            };
            quantity::parse(raw).map(Some).map_err(|error| BadQuantity {
                container: container.name.clone(),
                field: format!("resources.{field}.{name}"),
                reason: format!("{error}: {:?}", raw.0),
            })
        };
        let cpu_limit = get(true, "cpu")?.map(|q| q.milli_value());
        let memory_limit = get(true, "memory")?.map(|q| q.value());
        Ok(Self {
            cpu_request: get(false, "cpu")?.map(|q| q.milli_value()).or(cpu_limit),
            cpu_limit,
            memory_request: get(false, "memory")?.map(|q| q.value()).or(memory_limit),
            memory_limit,
        })
    }

    /// Returns the settings of the container's cgroup.
    #[must_use]
    pub fn settings(&self) -> GroupSettings {
        let positive = |amount: Option<i64>| amount.filter(|amount| *amount > 0);
        GroupSettings {
            shares: shares_of(self.cpu_request.unwrap_or(0)),
            quota: positive(self.cpu_limit).map(quota_of),
            memory_limit: positive(self.memory_limit),
        }
    }
}

/// Returns the main containers and the sidecars, which keep running next to them.
fn resident(pod: &Pod) -> impl Iterator<Item = &Container> {
    let spec = pod.spec.as_ref();
    let main = spec.into_iter().flat_map(|spec| &spec.containers);
    let init = spec
        .into_iter()
        .flat_map(|spec| spec.init_containers.iter().flatten());
    main.chain(init.filter(|container| is_sidecar(container)))
}

/// Returns the QoS class of a pod: the one in its status, else the computed one.
#[must_use]
pub fn qos_of(pod: &Pod) -> Qos {
    match pod
        .status
        .as_ref()
        .and_then(|status| status.qos_class.as_deref())
    {
        Some("Guaranteed") => return Qos::Guaranteed,
        Some("Burstable") => return Qos::Burstable,
        Some("BestEffort") => return Qos::BestEffort,
        _ => {}
    }
    let spec = pod.spec.as_ref();
    let containers = spec.into_iter().flat_map(|spec| {
        spec.containers
            .iter()
            .chain(spec.init_containers.iter().flatten())
    });
    let (mut any, mut guaranteed) = (false, true);
    for container in containers {
        let resources = container.resources.as_ref();
        for name in ["cpu", "memory"] {
            let positive = |list: Option<&BTreeMap<String, ApiQuantity>>| {
                let amount = quantity::parse(list?.get(name)?).ok()?;
                (!amount.is_zero()).then_some(amount)
            };
            let request = positive(resources.and_then(|list| list.requests.as_ref()));
            let limit = positive(resources.and_then(|list| list.limits.as_ref()));
            any = any || request.is_some() || limit.is_some();
            guaranteed = guaranteed && limit.is_some() && request == limit;
        }
    }
    match (any, guaranteed) {
        (false, _) => Qos::BestEffort,
        (true, true) => Qos::Guaranteed,
        (true, false) => Qos::Burstable,
    }
}

/// Returns the largest sum of milli-CPUs that the containers of a pod request at the same time, see
/// [`requests::peak`].
#[must_use]
pub fn cpu_request_of(pod: &Pod) -> i64 {
    let milli = |_, container: &Container| {
        let amounts = Amounts::from_container(container).ok();
        let request = amounts.and_then(|amounts| amounts.cpu_request);
        Ok::<_, Infallible>(request.unwrap_or(0))
    };
    let Some(spec) = &pod.spec else { return 0 };
    let Ok(total) = requests::peak(spec, milli);
    total
}

/// Returns the settings of the pod's group: sums over its containers; a limit only if every container has
/// one.
///
/// # Errors
/// When a quantity cannot be understood.
pub fn pod_settings(pod: &Pod) -> Result<GroupSettings, BadQuantity> {
    let mut total = Amounts {
        cpu_limit: Some(0),
        memory_limit: Some(0),
        ..Amounts::default()
    };
    for container in resident(pod) {
        let amounts = Amounts::from_container(container)?;
        let add = |sum: Option<i64>, amount: Option<i64>| match (sum, amount) {
            (Some(sum), Some(amount)) if amount > 0 => Some(sum.saturating_add(amount)),
            _ => None,
        };
        total.cpu_limit = add(total.cpu_limit, amounts.cpu_limit);
        total.memory_limit = add(total.memory_limit, amounts.memory_limit);
    }
    total.cpu_request = Some(cpu_request_of(pod));
    Ok(match qos_of(pod) {
        Qos::BestEffort => GroupSettings {
            shares: 2,
            quota: None,
            memory_limit: None,
        },
        _ => total.settings(),
    })
}

/// The groups of this node below `parent`.
#[derive(Debug, Clone)]
pub struct Layout {
    /// `kubepods`, below the configured parent.
    pub kubepods: CgroupPath,
}

impl Layout {
    /// Returns the layout below `parent`.
    ///
    /// # Errors
    /// When the parent is so deep that no group fits below it.
    pub fn below(parent: &CgroupPath) -> Result<Self, koord_host::HostError> {
        Ok(Self {
            kubepods: parent.join("kubepods")?,
        })
    }

    /// Returns the path of a QoS class.
    ///
    /// # Errors
    /// When the path is too long.
    pub fn class(&self, qos: Qos) -> Result<CgroupPath, koord_host::HostError> {
        self.kubepods.join(qos.dir())
    }

    /// Returns the path of a pod's group.
    ///
    /// # Errors
    /// When the uid is no valid directory name.
    pub fn pod(&self, qos: Qos, uid: &str) -> Result<CgroupPath, koord_host::HostError> {
        if uid.contains('/') {
            let path = format!("pod{uid}");
            return Err(koord_host::HostError::Path {
                path,
                reason: "is not one component",
            });
        }
        self.class(qos)?.join(&format!("pod{uid}"))
    }
}

/// Returns the control group of a pod on a node whose groups are below `parent`; `None` when the pod has no
/// uid yet.
#[must_use]
pub fn pod_cgroup_path(parent: &CgroupPath, pod: &Pod) -> Option<CgroupPath> {
    let uid = pod.metadata.uid.as_deref()?;
    Layout::below(parent).ok()?.pod(qos_of(pod), uid).ok()
}

/// Returns the CPU weight of the `burstable` directory: the weight for the summed requests of its pods.
#[must_use]
pub fn burstable_shares<'a>(pods: impl Iterator<Item = &'a Pod>) -> i64 {
    shares_of(
        pods.filter(|pod| qos_of(pod) == Qos::Burstable)
            .map(cpu_request_of)
            .fold(0, i64::saturating_add),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(containers: Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u1"},
            "spec": {"containers": containers}
        }))
        .unwrap()
    }

    fn container(name: &str, resources: Value) -> Value {
        json!({"name": name, "resources": resources})
    }

    #[test]
    fn qos_shares_quota_and_limit() {
        let batch = json!({"requests": {"kubernetes.io/batch-cpu": "1000"}});
        let full = json!({"limits": {"cpu": "500m", "memory": "64Mi"}});
        let cases = [
            (
                json!([container("a", json!({}))]),
                Qos::BestEffort,
                2,
                None,
                None,
            ),
            (
                json!([container("a", batch)]),
                Qos::BestEffort,
                2,
                None,
                None,
            ),
            (
                json!([container("a", json!({"requests": {"cpu": "1500m"}}))]),
                Qos::Burstable,
                1536,
                None,
                None,
            ),
            (
                json!([container("a", full.clone())]),
                Qos::Burstable,
                512,
                Some(50_000),
                Some(64 << 20),
            ),
            (
                json!([container(
                    "a",
                    json!({
                        "limits": {"cpu": "500m", "memory": "64Mi"},
                        "requests": {"cpu": "0.5", "memory": "64Mi"}
                    })
                )]),
                Qos::Guaranteed,
                512,
                Some(50_000),
                Some(64 << 20),
            ),
            (
                json!([
                    container("a", full),
                    container("b", json!({"requests": {"cpu": "1"}}))
                ]),
                Qos::Burstable,
                1536,
                None,
                None,
            ),
            (
                json!([container(
                    "a",
                    json!({"limits": {"cpu": "1m"}, "requests": {"cpu": "0"}})
                )]),
                Qos::Burstable,
                2,
                Some(1000),
                None,
            ),
        ];
        for (containers, qos, shares, quota, memory_limit) in cases {
            let pod = pod(containers.clone());
            assert_eq!(qos_of(&pod), qos, "{containers}");
            assert_eq!(
                pod_settings(&pod).unwrap(),
                GroupSettings {
                    shares,
                    quota,
                    memory_limit
                },
                "{containers}"
            );
        }
    }

    #[test]
    fn groups_of_the_classes() {
        let guaranteed = pod(json!([container(
            "a",
            json!({
                "limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1", "memory": "1Gi"}
            })
        )]));
        assert_eq!(
            pod_cgroup_path(&CgroupPath::root(), &guaranteed)
                .unwrap()
                .as_str(),
            "kubepods/podu1"
        );
        let besteffort = pod(json!([container("a", json!({}))]));
        assert_eq!(
            pod_cgroup_path(&CgroupPath::root(), &besteffort)
                .unwrap()
                .as_str(),
            "kubepods/besteffort/podu1"
        );
        let burstable = pod(json!([container("a", json!({"requests": {"cpu": "2"}}))]));
        assert_eq!(
            pod_cgroup_path(&CgroupPath::root(), &burstable)
                .unwrap()
                .as_str(),
            "kubepods/burstable/podu1"
        );
        let layout = Layout::below(&CgroupPath::new("koord-test").unwrap()).unwrap();
        assert_eq!(
            layout.class(Qos::Guaranteed).unwrap().as_str(),
            "koord-test/kubepods"
        );
        assert!(layout.pod(Qos::Burstable, "../x").is_err());
        assert_eq!(
            burstable_shares([&guaranteed, &besteffort, &burstable].into_iter()),
            2048
        );
        assert_eq!(burstable_shares(std::iter::empty()), 2);
    }

    #[test]
    fn init_containers_count_by_their_largest() {
        let pod: Pod = serde_json::from_value(json!({"spec": {
            "containers": [{"name": "a", "resources": {"requests": {"cpu": "1"}}}],
            "initContainers": [
                {"name": "i", "resources": {"requests": {"cpu": "3"}}},
                {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "500m"}}},
                {"name": "j", "resources": {"requests": {"cpu": "2900m"}}}
            ]
        }}))
        .unwrap();
        assert_eq!(cpu_request_of(&pod), 3400);
    }

    #[test]
    fn absurd_requests_do_not_wrap_around() {
        let huge = json!({"requests": {"cpu": "9223372036854775807"}});
        let pod = pod(json!([container("a", huge.clone()), container("b", huge)]));
        assert_eq!(cpu_request_of(&pod), i64::MAX);
        assert_eq!(burstable_shares([&pod, &pod].into_iter()), 262_144);
    }

    #[test]
    fn a_bad_quantity_is_named() {
        let pod = pod(json!([container("a", json!({"limits": {"cpu": "two"}}))]));
        let error = pod_settings(&pod).unwrap_err().to_string();
        assert!(
            error.contains("\"a\": resources.limits.cpu") && error.contains("two"),
            "{error}"
        );
    }
}
