//! Rejection of pods by a simulated node, as by a kubelet: a scheduler would never have chosen the node, but
//! the pod was bound without one.

use k8s_openapi::api::core::v1::{Container, ContainerPort, Node, Pod};
use koord_api::quantity::Quantity;
use koord_api::requests::{self, Total};
use std::collections::BTreeMap;
use std::convert::Infallible;

/// Amounts by resource, in billionths of its unit.
#[derive(Debug, Clone, Default)]
struct Need(BTreeMap<String, i128>);

impl Total for Need {
    fn add(&mut self, other: &Self) {
        for (name, amount) in &other.0 {
            let sum = self.0.entry(name.clone()).or_default();
            *sum = sum.saturating_add(*amount);
        }
    }

    fn raise(&mut self, other: &Self) {
        for (name, amount) in &other.0 {
            let most = self.0.entry(name.clone()).or_default();
            *most = (*most).max(*amount);
        }
    }
}

impl Need {
    fn from_container(container: &Container) -> Self {
        let resources = container.resources.as_ref();
        let requests = resources.and_then(|r| r.requests.as_ref());
        let amounts = requests.into_iter().flatten().filter_map(|(name, given)| {
            let amount: Quantity = given.0.parse().ok()?;
            Some((name.clone(), amount.nanos()))
        });
        Self(amounts.collect())
    }
}

/// Returns reason and message if the node must refuse the pod. `all_pods` returns the pods of all nodes; it is
/// called only for a pod with host ports whose node no scheduler chose.
pub(crate) fn check<I>(
    pod: &Pod,
    node: &Node,
    all_pods: impl FnOnce() -> I,
) -> Option<(String, String)>
where
    I: IntoIterator<Item = Pod>,
{
    let spec = pod.spec.as_ref()?;
    let Ok(need) = requests::peak(spec, |_, c| Ok::<_, Infallible>(Need::from_container(c)));
    let status = node.status.as_ref();
    let allocatable = status.and_then(|status| status.allocatable.as_ref());
    for (name, has) in allocatable.into_iter().flatten() {
        let (Some(requested), Ok(has)) = (need.0.get(name), has.0.parse::<Quantity>()) else {
            continue;
        };
        if *requested > has.nanos() {
            let message = format!(
                "Pod was rejected: Node didn't have enough resource: {name}, capacity: {has}"
            );
            return Some((format!("OutOf{name}"), message));
        }
    }
    let host_ports = ports(pod);
    if host_ports.is_empty() || is_scheduled(pod) {
        return None;
    }
    let conflict = all_pods().into_iter().any(|other| {
        other.metadata.uid != pod.metadata.uid
            && other.spec.as_ref().and_then(|s| s.node_name.as_ref()) == spec.node_name.as_ref()
            && !ended(&other)
            && ports(&other)
                .iter()
                .any(|port| host_ports.iter().any(|own| ports_conflict(port, own)))
    });
    let message = "Pod was rejected: Predicate NodePorts failed: node(s) didn't have free ports for \
                   the requested pod ports";
    conflict.then(|| ("NodePorts".to_owned(), message.to_owned()))
}

/// Returns whether the pod has ended for good.
pub(crate) fn ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Returns whether a scheduler bound the pod.
fn is_scheduled(pod: &Pod) -> bool {
    let conditions = pod.status.iter().filter_map(|s| s.conditions.as_ref());
    conditions
        .flatten()
        .any(|c| c.type_ == "PodScheduled" && c.status == "True")
}

fn ports(pod: &Pod) -> Vec<&ContainerPort> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let ports = containers.filter_map(|c| c.ports.as_ref()).flatten();
    ports.filter(|port| port.host_port.is_some()).collect()
}

/// Returns whether two host ports conflict: equal port and protocol, on overlapping addresses.
fn ports_conflict(a: &ContainerPort, b: &ContainerPort) -> bool {
    let protocol = |port: &ContainerPort| port.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
    let address = |port: &ContainerPort| {
        let host_ip = port.host_ip.clone();
        host_ip.filter(|ip| !ip.is_empty() && ip != "0.0.0.0")
    };
    a.host_port == b.host_port
        && protocol(a) == protocol(b)
        && match (address(a), address(b)) {
            (Some(a), Some(b)) => a == b,
            _ => true,
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(name: &str, container: Value, status: Value) -> Pod {
        let mut container = container;
        container["name"] = "c".into();
        let pod = json!({"metadata": {"name": name, "uid": name},
            "spec": {"nodeName": "n", "containers": [container]}, "status": status});
        serde_json::from_value(pod).unwrap()
    }

    fn refused(pod: &Pod, others: &[Pod]) -> Option<String> {
        let node = json!({"status": {"allocatable": {"cpu": "2", "memory": "1Gi"}}});
        let node = serde_json::from_value(node).unwrap();
        check(pod, &node, || others.to_vec()).map(|(reason, _)| reason)
    }

    #[test]
    fn a_pod_that_is_larger_than_the_node_is_refused() {
        let of = |cpu: &str| {
            let container = json!({"resources": {"requests": {"cpu": cpu, "example.com/x": "1"}}});
            refused(&pod("p", container, json!({})), &[])
        };
        assert_eq!(of("2").as_deref(), None);
        assert_eq!(of("2001m").as_deref(), Some("OutOfcpu"));
    }

    #[test]
    fn a_port_of_the_host_is_given_once() {
        let with =
            |name: &str, port: Value, status: Value| pod(name, json!({"ports": [port]}), status);
        let port = json!({"containerPort": 80, "hostPort": 80});
        let first = with("a", port.clone(), json!({"phase": "Running"}));
        let second = with("b", port.clone(), json!({}));
        let is = |others: &[Pod]| refused(&second, others);
        assert_eq!(
            is(std::slice::from_ref(&first)).as_deref(),
            Some("NodePorts")
        );
        assert_eq!(is(std::slice::from_ref(&second)), None, "itself");
        let udp = json!({"containerPort": 80, "hostPort": 80, "protocol": "UDP"});
        assert_eq!(is(&[with("c", udp, json!({}))]), None);
        assert_eq!(
            is(&[with("d", port.clone(), json!({"phase": "Failed"}))]),
            None
        );
        let bound = json!({"conditions": [{"type": "PodScheduled", "status": "True"}]});
        assert_eq!(
            refused(&with("e", port, bound), &[first]),
            None,
            "a scheduler knows"
        );
    }
}
