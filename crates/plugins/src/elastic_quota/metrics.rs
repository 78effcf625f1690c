//! Metrics of quotas and of the time that quota updates take.

use super::ElasticQuotas;
use super::objects::STATUS_ANNOTATIONS;
use koord_api::quota::ROOT_QUOTA;
use koord_model::resources::{Amounts, ResourceTable};
use koord_scheduler::framework::{Family, MetricKind, MetricSamples};
use std::time::Instant;

static STATUS: Family = Family {
    name: "scheduler_elastic_quota_status",
    help: "What quotas may have, ask for and use; CPU in thousandths.",
    labels: &["name", "resource", "tree", "is_parent", "parent", "field"],
    kind: MetricKind::Gauge,
};
/// QuotaSpec values of quotas. Upstream registers this metric and never sets it, but its dashboard selects quotas
/// by it.
static SPEC: Family = Family {
    name: "scheduler_elastic_quota_spec",
    help: "What quotas are guaranteed and may use at most; CPU in thousandths.",
    labels: &["name", "resource", "tree", "is_parent", "parent", "field"],
    kind: MetricKind::Gauge,
};
static LATENCY: Family = Family {
    name: "scheduler_elastic_quota_process_latency",
    help: "Time of one change of the books, in seconds; of pods, of one change in sixteen.",
    labels: &["operation"],
    kind: MetricKind::Histogram(|| (-7..24).map(|n| 0.000_01 * 2_f64.powi(n)).collect()),
};
/// Duration of status writes.
pub(super) static WRITTEN: Family = Family {
    name: "scheduler_update_elastic_quota_status_duration_seconds",
    help: "Time to write what an ElasticQuota shows.",
    labels: &[],
    kind: MetricKind::Histogram(|| (0..15).map(|n| 0.001 * 2_f64.powi(n)).collect()),
};

/// Common prefix of quota annotations; the rest is the name of the field.
const PREFIX: &str = "quota.scheduling.koordinator.sh/";
/// Sampling rate: one in this many changes by pods is timed.
const SAMPLE_RATE: u32 = 16;
/// Maximum number of samples that are stored until the metrics are read.
const MAX_SAMPLES: usize = 4096;

/// Durations of operations in seconds, by upstream's operation names.
#[derive(Debug, Default)]
pub(super) struct OperationTimes {
    counter: u32,
    samples: Vec<(&'static str, f64)>,
}

impl OperationTimes {
    /// Returns the start time of a frequent operation if this one is sampled.
    pub(super) fn sample(&mut self) -> Option<Instant> {
        self.counter = (self.counter + 1) % SAMPLE_RATE;
        (self.counter == 1).then(Instant::now)
    }

    /// Records the end of an operation that started at `began`, if it is sampled.
    pub(super) fn record(&mut self, operation: &'static str, began: Option<Instant>) {
        if let Some(began) = began
            && self.samples.len() < MAX_SAMPLES
        {
            self.samples
                .push((operation, began.elapsed().as_secs_f64()));
        }
    }
}

impl ElasticQuotas {
    /// Reports the metrics of all quotas, and clears the stored samples.
    pub(super) fn report_metrics(&mut self, table: &ResourceTable, out: &mut MetricSamples) {
        out.renew(&STATUS);
        out.renew(&SPEC);
        let runtime = self.uses_runtime();
        let trees = &mut self.trees;
        trees.rebuild();
        for (key, object) in self.objects.iter() {
            if !self.objects.is_in_force(key) {
                continue;
            }
            let name = &key.1;
            if runtime {
                let began = Instant::now();
                trees.refresh(name);
                let seconds = began.elapsed().as_secs_f64();
                out.add(&LATENCY, &["RefreshRuntime"], seconds);
            }
            let Some(quota) = trees.quota(name) else {
                continue;
            };
            let tree = &*object.tree;
            let spec = &quota.spec;
            let parent = if spec.parent.is_empty() && name != ROOT_QUOTA {
                ROOT_QUOTA
            } else {
                &spec.parent
            };
            let is_parent = if spec.is_parent { "true" } else { "false" };
            let sums = &quota.sums;
            let amounts_by_field = [
                &quota.runtime,
                &sums.request,
                &quota.child_request,
                &quota.guaranteed,
                &quota.allocated,
                &sums.non_preemptible_request,
                &sums.non_preemptible_used,
            ];
            let fields = STATUS_ANNOTATIONS.map(|key| key.trim_start_matches(PREFIX));
            let spec_fields = [
                ("used", &sums.used),
                ("min", &spec.min),
                ("max", &spec.max),
                ("sharedWeight", &spec.weight),
            ];
            let unschedulable = unschedulable(&object.object, table);
            let unschedulable = unschedulable.iter();
            let unschedulable = unschedulable.map(|amounts| ("unschedulable-resource", amounts));
            let all = fields.into_iter().zip(amounts_by_field).chain(spec_fields);
            for (field, amounts) in all.chain(unschedulable) {
                // Resources that a quota limits are reported even at zero: a graph needs the zero.
                let listed = [&spec.max, &spec.min, amounts];
                let ids = listed.into_iter().flat_map(|amounts| amounts.iter());
                let mut ids: Vec<_> = ids.map(|(id, _)| id).collect();
                ids.sort_unstable();
                ids.dedup();
                for id in ids {
                    let resource = table.name(id);
                    let labels = [name, &*resource, tree, is_parent, parent, field];
                    #[allow(clippy::cast_precision_loss, reason = "metrics are floating point")]
                    let value = amounts.get(id) as f64;
                    out.add(&STATUS, &labels, value);
                    if matches!(field, "min" | "max") {
                        out.add(&SPEC, &labels, value);
                    }
                }
            }
        }
        for (operation, seconds) in self.times.samples.drain(..) {
            out.add(&LATENCY, &[operation], seconds);
        }
    }
}

/// Returns the annotated resources of a root quota that its nodes cannot provide.
fn unschedulable(
    object: &koord_api::scheduling::ElasticQuota,
    table: &ResourceTable,
) -> Option<Amounts> {
    let labels = object.metadata.labels.as_ref()?;
    if labels.get(koord_api::labels::QUOTA_IS_ROOT)? != "true" {
        return None;
    }
    let annotations = object.metadata.annotations.as_ref()?;
    let text = annotations.get(koord_api::annotations::QUOTA_UNSCHEDULABLE_RESOURCE)?;
    let list = serde_json::from_str(text).ok()?;
    Some(super::objects::amounts(&list, table))
}
