//! Metrics about reservations.

use super::Reservations;
use jiff::{SignedDuration, Timestamp};
use koord_api::quantity::Quantity;
use koord_api::scheduling::Reservation;
use koord_scheduler::framework::{Family, MetricKind, MetricSamples};

static PHASE: Family = Family {
    name: "scheduler_reservation_status_phase",
    help: "1 for the phase a reservation is in, 0 for the others.",
    labels: &["name", "phase"],
    kind: MetricKind::Gauge,
};
static RESOURCE: Family = Family {
    name: "scheduler_reservation_resource",
    help: "What reservations hold, what of it is taken, and the ratio of both.",
    labels: &["type", "name", "resource", "unit"],
    kind: MetricKind::Gauge,
};

const PHASES: [&str; 4] = ["Pending", "Available", "Succeeded", "Failed"];
/// Up to this many reservations, metrics are refreshed at each scrape; above, once a minute.
const FULL_REFRESH_LIMIT: usize = 200;
const REFRESH_INTERVAL: SignedDuration = SignedDuration::from_mins(1);

impl Reservations {
    /// Exports phase and resources of all reservations, at most once a minute if there are many.
    pub(super) fn export_metrics(&mut self, now: Timestamp, out: &mut MetricSamples) {
        let is_large = self.table.iter().nth(FULL_REFRESH_LIMIT).is_some();
        let lately = |shown| now.duration_since(shown) < REFRESH_INTERVAL;
        if is_large && self.metrics_exported.is_some_and(lately) {
            return;
        }
        self.metrics_exported = Some(now);
        out.renew(&PHASE);
        out.renew(&RESOURCE);
        for record in self.table.iter() {
            export_reservation(&record.object, &record.name, out);
        }
    }
}

/// Exports the metrics of one Reservation object.
fn export_reservation(object: &Reservation, name: &str, out: &mut MetricSamples) {
    let status = object.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_ref());
    let phase = phase.map_or("Pending", |phase| phase.as_str());
    for other in PHASES {
        out.add(&PHASE, &[name, other], f64::from(u8::from(other == phase)));
    }
    let Some(status) = status else { return };
    for (resource, allocatable) in &status.allocatable {
        let (allocatable, unit) = amount(resource, allocatable);
        let allocated = status.allocated.get(resource);
        let allocated = allocated.map_or(0.0, |allocated| amount(resource, allocated).0);
        let mut add = |kind, unit, value| out.add(&RESOURCE, &[kind, name, resource, unit], value);
        add("allocatable", unit, allocatable);
        add("allocated", unit, allocated);
        if allocatable > 0.0 {
            add("utilization", "ratio", allocated / allocatable);
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "metrics are floating point")]
fn amount(resource: &str, quantity: &Quantity) -> (f64, &'static str) {
    match resource {
        "cpu" => (quantity.milli_value() as f64 / 1000.0, "core"),
        "memory" => (quantity.value() as f64 / f64::from(1 << 30), "Gi"),
        _ => (quantity.value() as f64, "raw"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::collections::BTreeMap;

    fn shown(status: serde_json::Value) -> BTreeMap<String, f64> {
        let object = json!({
            "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Reservation",
            "metadata": {"name": "r"}, "spec": {"owners": [], "template": {}}, "status": status
        });
        let object = serde_json::from_value(object).unwrap();
        let mut out = MetricSamples::default();
        export_reservation(&object, "r", &mut out);
        let values = out.into_parts().1.into_iter();
        values
            .map(|reading| (reading.labels.join(" "), reading.value))
            .collect()
    }

    #[test]
    fn metrics_of_phase_and_allocation() {
        let new = shown(json!(null));
        assert_eq!(
            (new["r Pending"], new["r Available"], new.len()),
            (1.0, 0.0, 4)
        );
        let open = shown(json!({
            "phase": "Available",
            "allocatable": {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "2", "none": "0"},
            "allocated": {"cpu": "1500m", "memory": "2Gi"}
        }));
        for (labels, value) in [
            ("r Pending", 0.0),
            ("r Available", 1.0),
            ("r Succeeded", 0.0),
            ("r Failed", 0.0),
            ("allocatable r cpu core", 4.0),
            ("allocated r cpu core", 1.5),
            ("utilization r cpu ratio", 0.375),
            ("allocatable r memory Gi", 8.0),
            ("allocated r memory Gi", 2.0),
            ("utilization r memory ratio", 0.25),
            ("allocatable r nvidia.com/gpu raw", 2.0),
            ("allocated r nvidia.com/gpu raw", 0.0),
            ("utilization r nvidia.com/gpu ratio", 0.0),
            ("allocatable r none raw", 0.0),
            ("allocated r none raw", 0.0),
        ] {
            assert_eq!(open.get(labels), Some(&value), "{labels}: {open:?}");
        }
        assert_eq!(open.len(), 15);
    }
}
