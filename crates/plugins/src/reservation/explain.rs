//! Reservations in explanations of pods and in the inspection API.

use super::pod_state::PodReservationState;
use super::table::ReservationRecord;
use super::{Reservations, pod};
use koord_model::resources::Amounts;
use koord_scheduler::framework::View;
use koord_scheduler::inspection;
use koord_scheduler::state::PodInfo;
use serde_json::{Value, json};

impl Reservations {
    /// Returns the reservation that a pod uses, or those it owns and why it cannot use them.
    pub(super) fn explain_pod(&self, pod: &PodInfo, view: View<'_>) -> Option<Value> {
        if let Some(uid) = self.table.used_by(&pod.uid) {
            let record = self
                .table
                .find(uid)
                .and_then(|index| self.table.record(index));
            let name = record.map(|record| record.name.to_string());
            return Some(json!({"uses": {"uid": &**uid, "name": name}}));
        }
        let pod_state =
            match PodReservationState::new(pod, self.table.matching_lists(pod), view.resources) {
                Ok(pod_state) => pod_state,
                Err(message) => return Some(json!({"error": message})),
            };
        let mut listed = Vec::new();
        for record in self.table.owned_reservations(&pod_state).take(20) {
            let checked = self
                .table
                .check(pod, &pod_state, record, view.nodes, self.node_labels);
            listed.push(json!({
                "name": &*record.name,
                "node": record.terms.node.as_deref(),
                "usable": checked.is_ok(),
                "why": checked.err().map(|why| why.to_string()),
                "remaining": pod::resource_list(&record.pod.requests, view.resources),
            }));
        }
        (!listed.is_empty()).then(|| json!({"reservations": listed}))
    }

    /// Returns the reservations on the node with this name.
    pub(super) fn node_reservations(&self, node: &str, view: View<'_>) -> Value {
        let row = view.nodes.find(node);
        let listed = row.into_iter().flat_map(|row| self.table.on_node(row));
        let items: Vec<Value> = listed
            .filter(|(_, record)| record.terms.phase == pod::Phase::Available)
            .map(|(_, record)| self.reservation_json(record, view))
            .collect();
        if items.is_empty() {
            return json!({});
        }
        json!({ "items": items })
    }

    /// Returns a reservation in the form of the inspection API.
    fn reservation_json(&self, record: &ReservationRecord, view: View<'_>) -> Value {
        let list = |amounts: &Amounts| json!(pod::resource_list(amounts, view.resources));
        let restricted = |(id, _): &(_, i64)| record.terms.resources.contains(id);
        let allocated: Amounts = record.taken.iter().filter(restricted).collect();
        let policy = record.object.spec.allocate_policy.as_ref();
        let mut assigned: Vec<&PodInfo> = self
            .table
            .owners(&record.uid)
            .map(|owner| &*owner.pod)
            .collect();
        assigned.sort_unstable_by(|a, b| a.uid.cmp(&b.uid));
        let non_empty = |ports: Value| {
            let any = ports.as_object().is_some_and(|ports| !ports.is_empty());
            if any { ports } else { Value::Null }
        };
        let requirements = assigned.iter().map(|pod| {
            json!({"Namespace": &*pod.namespace, "Name": &*pod.name, "UID": &*pod.uid,
                "Requests": list(&pod.requests),
                "Ports": non_empty(inspection::host_ports(std::iter::once(*pod)))})
        });
        let requirements: Vec<Value> = requirements.collect();
        let item = json!({
            "name": &*record.name,
            "uid": &*record.uid,
            "kind": "Reservation",
            "available": true,
            "allocateOnce": record.terms.allocate_once,
            "allocatable": list(&record.terms.allocatable),
            "reserved": list(&record.terms.reserved),
            "allocated": list(&allocated),
            "remaining": list(&record.pod.requests),
            "allocatablePorts": non_empty(inspection::host_ports(std::iter::once(&record.terms.pod))),
            "allocatedPorts": non_empty(inspection::host_ports(assigned.iter().copied())),
            "availableResource": inspection::amounts(view.resources, |id| {
                let unallocated = record.terms.allocatable.get(id).saturating_sub(allocated.get(id));
                unallocated.saturating_sub(record.terms.reserved.get(id)).max(0)
            }),
            "allocatedResource": inspection::amounts(view.resources, |id| allocated.get(id)),
            "owners": record.object.spec.owners,
            "allocatePolicy": policy.map(|p| p.as_str()).unwrap_or_default(),
            "assignedPods": requirements,
        });
        inspection::without_empty(item)
    }
}

/// Returns a disabled selector index: reservations are indexed by owner labels in another way.
pub(super) fn selector_index() -> Value {
    json!({"enabled": false, "prefixes": null, "indexedReservations": 0})
}
