//! Metrics about Device objects.

use super::DeviceShare;
use koord_scheduler::framework::{Family, MetricKind, MetricSamples};

static NOT_WELL_PLANNED: Family = Family {
    name: "scheduler_secondary_device_not_well_planned",
    help: "Nodes whose Device object says that its secondary devices are not well planned.",
    labels: &["node_name"],
    kind: MetricKind::Gauge,
};

impl DeviceShare {
    /// Exports the nodes whose secondary devices are not well planned.
    pub(super) fn export_metrics(&self, out: &mut MetricSamples) {
        out.renew(&NOT_WELL_PLANNED);
        for (node, record) in &self.records {
            if record.not_well_planned && !record.deleted {
                out.add(&NOT_WELL_PLANNED, &[node], 1.0);
            }
        }
    }
}
