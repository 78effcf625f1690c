//! `NodePorts`: keeps pods off nodes on which one of their host ports is in use.

use k8s_openapi::api::core::v1::ContainerPort;
use koord_model::resources::ResourceTable;
use koord_scheduler::framework::{
    Action, BoxedPlugin, BuildContext, BuildError, ClusterEvent, Cycle, Effects, Filter, Holders,
    Interest, Plugin, PodEvents, Points, PreFilter, PreFilterResult, QueueHints, QueueingHint,
    Rejection, Roles, Sign, Signable, Signature, State, Subject, Verdict, View,
};
use koord_scheduler::state::{NodeIndex, PodInfo};
use serde_json::Value;
use std::sync::Arc;

const PORT_IN_USE: &str = "node(s) didn't have free ports for the requested pod ports";
const ANY_ADDRESS: &str = "0.0.0.0";

/// State of the `NodePorts` plugin.
#[derive(Debug, Default)]
pub(crate) struct NodePorts {
    /// Number of pods with host ports, by row.
    users: Vec<u32>,
}

/// Builds the plugin.
pub(crate) fn build(
    _value: Option<&Value>,
    _context: &BuildContext,
) -> Result<BoxedPlugin, BuildError> {
    Ok(Box::<NodePorts>::default())
}

/// Host port of a container, with address and protocol defaulted.
#[derive(Debug, Clone, PartialEq, Eq)]
struct HostPort {
    address: String,
    protocol: String,
    port: i32,
}

impl HostPort {
    /// Returns the host port of a container port, if it has one.
    fn from_container_port(port: &ContainerPort) -> Option<Self> {
        let number = port.host_port.filter(|number| *number > 0)?;
        let or = |text: &Option<String>, fallback: &str| match text.as_deref() {
            None | Some("") => fallback.to_owned(),
            Some(text) => text.to_owned(),
        };
        Some(Self {
            address: or(&port.host_ip, ANY_ADDRESS),
            protocol: or(&port.protocol, "TCP"),
            port: number,
        })
    }

    /// Returns true if both ports cannot be used on one node.
    fn collides(&self, other: &Self) -> bool {
        self.port == other.port
            && self.protocol == other.protocol
            && (self.address == other.address
                || self.address == ANY_ADDRESS
                || other.address == ANY_ADDRESS)
    }
}

/// Returns the host ports of containers and sidecars; other init containers do not keep theirs.
fn ports(pod: &PodInfo) -> impl Iterator<Item = HostPort> {
    let containers = pod.object.containers.iter();
    containers
        .filter(|container| !container.init || container.is_sidecar())
        .flat_map(|container| &container.ports)
        .filter_map(HostPort::from_container_port)
}

/// Returns true if one of `host_ports` collides with a port of `pod`.
fn collide(host_ports: &[HostPort], pod: &PodInfo) -> bool {
    ports(pod).any(|port| host_ports.iter().any(|own| own.collides(&port)))
}

impl NodePorts {
    /// Updates the number of pods with host ports on `node`.
    fn update_users(&mut self, pod: &PodInfo, node: NodeIndex, added: bool) {
        if ports(pod).next().is_none() {
            return;
        }
        if self.users.len() <= node.row() {
            self.users.resize(node.row() + 1, 0);
        }
        let users = &mut self.users[node.row()];
        *users = if added {
            users.saturating_add(1)
        } else {
            users.saturating_sub(1)
        };
    }
}

impl Plugin for NodePorts {
    const ROLES: Roles<Self> = Roles::none()
        .queue_hints()
        .sign()
        .pre_filter()
        .filter()
        .pod_events();

    fn name(&self) -> &'static str {
        "NodePorts"
    }
    fn points(&self) -> Points {
        Points::PRE_FILTER.or(Points::FILTER)
    }
    fn holders(&self) -> Holders {
        Holders::Booked
    }
}

impl Sign for NodePorts {
    fn sign(&self, pod: &PodInfo, _: &ResourceTable, signature: &mut Signature) -> Signable {
        for port in ports(pod) {
            signature.number(port.port.into());
            signature.text(&port.protocol);
            signature.text(&port.address);
        }
        Signable::Yes
    }
}

impl PreFilter for NodePorts {
    fn pre_filter(&self, cycle: &Cycle<'_>) -> PreFilterResult {
        let host_ports: Vec<HostPort> = ports(cycle.pod).collect();
        if host_ports.is_empty() {
            return PreFilterResult::Skip;
        }
        PreFilterResult::ready(host_ports)
    }
}

impl Filter for NodePorts {
    fn filter(&self, cycle: &Cycle<'_>, state: &State, node: NodeIndex) -> Verdict {
        let Some(host_ports) = state.get::<Vec<HostPort>>() else {
            return Ok(());
        };
        let users = self.users.get(node.row()).copied().unwrap_or(0);
        if users == 0 && cycle.overlay.added.is_empty() {
            return Ok(());
        }
        if cycle.booked(node).any(|pod| collide(host_ports, pod)) {
            return Err(Rejection::unschedulable(PORT_IN_USE));
        }
        Ok(())
    }
}

impl QueueHints for NodePorts {
    fn interests(&self) -> Vec<Interest> {
        vec![
            Interest {
                subject: Subject::AssignedPod,
                actions: Action::DELETE,
            },
            Interest {
                subject: Subject::Node,
                actions: Action::ADD,
            },
        ]
    }
    fn hint(&self, pod: &PodInfo, event: &ClusterEvent<'_>, _view: View<'_>) -> QueueingHint {
        let host_ports: Vec<HostPort> = ports(pod).collect();
        match event.pod {
            Some(other) if !collide(&host_ports, other) => QueueingHint::Skip,
            _ => QueueingHint::Queue,
        }
    }
}

impl PodEvents for NodePorts {
    fn on_assigned(
        &mut self,
        pod: &Arc<PodInfo>,
        node: NodeIndex,
        _view: View<'_>,
        _fx: &mut Effects,
    ) {
        self.update_users(pod, node, true);
    }
    fn on_unassigned(
        &mut self,
        pod: &Arc<PodInfo>,
        node: NodeIndex,
        _view: View<'_>,
        _fx: &mut Effects,
    ) {
        self.update_users(pod, node, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_collide_by_number_protocol_and_address() {
        let port = |address: &str, protocol: &str, number| {
            let port = ContainerPort {
                host_ip: Some(address.to_owned()),
                protocol: Some(protocol.to_owned()),
                host_port: Some(number),
                ..ContainerPort::default()
            };
            HostPort::from_container_port(&port).unwrap()
        };
        let web = port("", "", 80);
        for (name, other, expected) in [
            ("the same", port("0.0.0.0", "TCP", 80), true),
            ("one address of all", port("10.0.0.1", "TCP", 80), true),
            ("another protocol", port("", "UDP", 80), false),
            ("another number", port("", "TCP", 81), false),
        ] {
            assert_eq!(web.collides(&other), expected, "{name}");
            assert_eq!(other.collides(&web), expected, "{name}, the other way");
        }
        let (a, b) = (port("10.0.0.1", "TCP", 80), port("10.0.0.2", "TCP", 80));
        assert!(!a.collides(&b), "two addresses");
        assert!(HostPort::from_container_port(&ContainerPort::default()).is_none());
    }
}
