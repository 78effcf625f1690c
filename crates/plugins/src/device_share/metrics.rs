//! Metrics about Device objects.

use super::DeviceShare;
use koord_scheduler::framework::{Family, Kind, Readings};

static NOT_WELL_PLANNED: Family = Family {
    name: "scheduler_secondary_device_not_well_planned",
    help: "Nodes whose Device object says that its secondary devices are not well planned.",
    labels: &["node_name"],
    kind: Kind::Gauge,
};

impl DeviceShare {
    pub(super) fn measured(&self, out: &mut Readings) {
        out.renew(&NOT_WELL_PLANNED);
        for (node, known) in &self.known {
            if known.badly_planned && !known.gone {
                out.add(&NOT_WELL_PLANNED, &[node], 1.0);
            }
        }
    }
}
