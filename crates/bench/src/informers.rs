//! `koord bench informers`: the bytes per object in the scheduler's informers, for whole objects (without
//! managedFields) and for the stored form. The objects resemble those of real clusters.

mod objects;

use crate::meter::rss_mib;
use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use koord_api::scheduling::{Device, Reservation};
use koord_api::topology::v1alpha2::NodeResourceTopology;
use koord_model::resources::ResourceTable;
use koord_scheduler::Watch;
use koord_scheduler::framework::{Action, BuildContext, ObjectChange};
use koord_scheduler::state::PodInterner;
use objects::object;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::any::Any;
use std::fmt::Write as _;
use std::process::{Command, Stdio};
use std::sync::Arc;

/// Objects that are parsed before memory is measured, so that the memory of program and allocator is not in
/// the figures.
const FIRST: usize = 100;

/// Name of the kind "scheduled pods, twenty of each workload".
const PODS: &str = "pods.v1.";
/// Name of the kind "pods that are each of a different StatefulSet, with a claim".
const ALONE: &str = "pods.v1. (alone)";

const KINDS: [&str; 9] = [
    PODS,
    ALONE,
    "persistentvolumeclaims.v1.",
    "persistentvolumes.v1.",
    "volumeattachments.v1.storage.k8s.io",
    "csinodes.v1.storage.k8s.io",
    "reservations.v1alpha1.scheduling.koordinator.sh",
    "devices.v1alpha1.scheduling.koordinator.sh",
    "noderesourcetopologies.v1alpha2.topology.node.k8s.io",
];

/// Flags of `koord bench informers`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// Kinds to measure, comma-separated [default: all].
    #[arg(long, value_delimiter = ',', value_name = "KIND", value_parser = KINDS)]
    only: Vec<String>,
    /// Number of objects per kind.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1000..=1_000_000))]
    objects: u32,
    /// Measure the single kind of --only, held in this form, in this process, and print the bytes.
    #[arg(long, hide = true, value_enum)]
    here: Option<ObjectForm>,
}

/// Form in which objects are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ObjectForm {
    Whole,
    Kept,
}

/// The figures.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct InformerFigures {
    /// Objects of each kind.
    objects: u32,
    kinds: Vec<KindBytes>,
}

/// The bytes of an object of one kind.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct KindBytes {
    kind: String,
    /// Resident bytes of an object.
    whole_bytes: f64,
    /// Resident bytes of the stored form.
    kept_bytes: f64,
}

/// Measures; `None` for a process that measured one kind for another process.
///
/// # Errors
/// A kind is not watched, or its objects cannot be read.
pub(super) fn run(args: &Args) -> Result<Option<InformerFigures>> {
    let count = args.objects as usize;
    if let (Some(part), [kind]) = (args.here, &args.only[..]) {
        koord_app::console::print_line(measure(kind, part, count)?);
        return Ok(None);
    }
    let program = std::env::current_exe().context("this program's path")?;
    let mut kinds = Vec::new();
    for kind in KINDS {
        if !args.only.is_empty() && !args.only.iter().any(|only| only == kind) {
            continue;
        }
        // In a separate process, so that freed memory is not reused.
        let bytes = |part: &str| -> Result<f64> {
            let out = Command::new(&program)
                .args(["bench", "informers", "--only", kind, "--here", part])
                .args(["--objects", &args.objects.to_string()])
                .stderr(Stdio::inherit())
                .output()?;
            let text = String::from_utf8_lossy(&out.stdout);
            text.trim()
                .parse()
                .with_context(|| format!("{kind}: {text:?}"))
        };
        kinds.push(KindBytes {
            kind: kind.to_owned(),
            whole_bytes: bytes("whole")?,
            kept_bytes: bytes("kept")?,
        });
    }
    Ok(Some(InformerFigures {
        objects: args.objects,
        kinds,
    }))
}

/// Returns the table, as Markdown.
pub(super) fn table(report: &InformerFigures) -> String {
    let mut text =
        String::from("| kind | whole, bytes | kept | kept / whole |\n|---|---:|---:|---:|\n");
    for row in &report.kinds {
        let (whole, kept) = (row.whole_bytes, row.kept_bytes);
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "| {} | {whole:.0} | {kept:.0} | {:.2} |",
            row.kind,
            kept / whole
        );
    }
    text
}

/// Objects that are kept in memory until it is measured.
type HeldObjects = Vec<Arc<dyn Any + Send + Sync>>;

/// Parses `count` objects from their JSON, as informers do, and holds the stored form or, if `whole`, the
/// whole object.
fn read<K: DeserializeOwned + Any + Send + Sync>(
    watch: &Watch,
    count: usize,
    whole: bool,
) -> Result<HeldObjects> {
    let parse = |number: usize| -> Result<Arc<dyn Any + Send + Sync>> {
        let object: K = serde_json::from_str(&object(watch.kind(), number).to_string())?;
        let change = ObjectChange {
            kind: watch.kind(),
            action: Action::ADD,
            old: None,
            new: Arc::new(object),
        };
        Ok(if whole {
            change.new
        } else {
            watch.as_delivered(change).new
        })
    };
    (0..count).map(parse).collect()
}

/// Reads `count` pods like [`read`], with equal parts shared.
fn read_pods(kind: &str, count: usize, whole: bool, alike: &PodInterner) -> Result<HeldObjects> {
    let table = ResourceTable::new();
    let parse = |number: usize| -> Result<Arc<dyn Any + Send + Sync>> {
        let mut object: Pod = serde_json::from_str(&object(kind, number).to_string())?;
        Ok(if whole {
            Arc::new(object)
        } else {
            object.spec.as_mut().map(koord_scheduler::trim_pod_spec);
            Arc::new(alike.read(object, &table))
        })
    };
    (0..count).map(parse).collect()
}

/// Returns the resident bytes that each of `count` objects takes.
fn measure(kind: &str, part: ObjectForm, count: usize) -> Result<f64> {
    let alike = PodInterner::default();
    // The first objects account for the memory of program and allocator.
    let warm_up = hold(kind, part, FIRST, &alike)?;
    let before = rss_mib();
    let objects = hold(kind, part, count, &alike)?;
    let after = rss_mib();
    anyhow::ensure!(warm_up.len() + objects.len() > count, "nothing was held");
    Ok((after - before) * 1024.0 * 1024.0 / count as f64)
}

/// Reads `count` objects of a kind and holds a part of each.
fn hold(kind: &str, part: ObjectForm, count: usize, alike: &PodInterner) -> Result<HeldObjects> {
    let whole = part == ObjectForm::Whole;
    if kind == PODS || kind == ALONE {
        return read_pods(kind, count, whole, alike);
    }
    let plugins = koord_plugins::registry().factories;
    let watches = plugins.into_iter().filter_map(|factory| {
        let plugin = (factory.build)(None, &BuildContext::default());
        let plugin = plugin.ok()?;
        Some(plugin.inputs()?.watches())
    });
    let mut watches = watches.flatten();
    let watch = watches.find(|watch| watch.kind() == kind);
    let watch = watch.with_context(|| format!("{kind} is not watched"))?;
    match kind {
        "persistentvolumeclaims.v1." => read::<PersistentVolumeClaim>(&watch, count, whole),
        "persistentvolumes.v1." => read::<PersistentVolume>(&watch, count, whole),
        "volumeattachments.v1.storage.k8s.io" => read::<VolumeAttachment>(&watch, count, whole),
        "csinodes.v1.storage.k8s.io" => read::<CSINode>(&watch, count, whole),
        "reservations.v1alpha1.scheduling.koordinator.sh" => {
            read::<Reservation>(&watch, count, whole)
        }
        "devices.v1alpha1.scheduling.koordinator.sh" => read::<Device>(&watch, count, whole),
        _ => read::<NodeResourceTopology>(&watch, count, whole),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_of_every_kind_are_read_whole_and_kept() {
        for kind in KINDS {
            for part in [ObjectForm::Whole, ObjectForm::Kept] {
                let objects = hold(kind, part, 3, &PodInterner::default());
                let objects = objects.unwrap_or_else(|error| panic!("{kind}: {error:#}"));
                assert_eq!(objects.len(), 3, "{kind}");
            }
        }
    }

    #[test]
    fn table_has_a_row_for_each_kind() {
        let row = KindBytes {
            kind: PODS.to_owned(),
            whole_bytes: 28_857.4,
            kept_bytes: 1394.0,
        };
        let report = InformerFigures {
            objects: 20_000,
            kinds: vec![row],
        };
        let text = table(&report);
        assert!(
            text.ends_with("|---:|\n| pods.v1. | 28857 | 1394 | 0.05 |\n"),
            "{text}"
        );
    }
}
