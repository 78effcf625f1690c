//! BlkIOReconcile: limits of cgroups for reads and writes, per disk.
//!
//! The cgroup of batch work has the limits of `beClass.blkioQOS`, a pod those of its annotation
//! `koordinator.sh/blkioQOS`, and the root cgroup the latency targets and cost models of
//! `cgroupRoot.blkioQOS`. Lines and defaults are in [`koord_model::blkio`]; a device that has lines but no
//! block (any more) gets the defaults. Files that this kernel lacks are skipped.

use crate::claims::{Claim, Classes, Level};
use crate::gates::Gate;
use crate::health::State;
use crate::qos::reconcile::{Reconcile, ReconcileReason};
use crate::qos::{Plan, Planner, StrategySpec, View, Write};
use crate::states::pod::VolumeSource;
use crate::states::{Malformed, Phase, PodInfo};
use koord_api::annotations::POD_BLKIO_QOS;
use koord_api::qos::{KubeQos, QosClass};
use koord_api::slo::{BlkIOQOSCfg, BlockCfg, BlockType};
use koord_host::{CgroupPath, Resource, Target, TargetKind};
use koord_model::blkio::{self, BlockError, IoCgroupKind, IoFile, Storage};
use rustc_hash::FxHashSet;
use std::collections::BTreeSet;

/// The strategy's name.
pub const NAME: &str = "BlkIOReconcile";
/// Reason in audit records.
const REASON: &str = "UpdateBlkIO";

const fn claim(file: IoFile, level: Level, classes: Classes) -> Claim {
    Claim {
        file: TargetKind::Cgroup(resource(file)),
        level,
        classes,
    }
}

const fn group_claims(file: IoFile) -> [Claim; 2] {
    let labelled = Classes::except(&[QosClass::None]);
    [
        claim(file, Level::Qos, Classes::BE),
        claim(file, Level::Pod, labelled),
    ]
}

/// Claims of the strategy.
pub const CLAIMS: &[Claim] = &[
    group_claims(IoFile::ReadIops)[0],
    group_claims(IoFile::ReadIops)[1],
    group_claims(IoFile::WriteIops)[0],
    group_claims(IoFile::WriteIops)[1],
    group_claims(IoFile::ReadBps)[0],
    group_claims(IoFile::ReadBps)[1],
    group_claims(IoFile::WriteBps)[0],
    group_claims(IoFile::WriteBps)[1],
    group_claims(IoFile::Weight)[0],
    group_claims(IoFile::Weight)[1],
    claim(IoFile::CostQos, Level::Node, Classes::ALL),
    claim(IoFile::CostModel, Level::Node, Classes::ALL),
];

/// The row of the table of strategies.
pub const STRATEGY: StrategySpec = StrategySpec {
    name: NAME,
    gates: &[Gate::BlkIOReconcile],
    every: |settings| settings.qos_reconcile_interval_ms,
    claims: CLAIMS,
    make: |_, _| Box::new(BlockIo::default()),
};

const fn resource(file: IoFile) -> Resource {
    match file {
        IoFile::ReadIops => Resource::BlkioReadIops,
        IoFile::WriteIops => Resource::BlkioWriteIops,
        IoFile::ReadBps => Resource::BlkioReadBps,
        IoFile::WriteBps => Resource::BlkioWriteBps,
        IoFile::Weight => Resource::BlkioCostWeight,
        IoFile::CostQos => Resource::BlkioCostQos,
        IoFile::CostModel => Resource::BlkioCostModel,
    }
}

#[derive(Debug, Default)]
struct BlockIo {
    reconcile: Reconcile,
    /// UIDs of pods that were given limits. The limits are reset when the annotation is removed.
    limited: FxHashSet<String>,
    /// True if this strategy ever set limits at the root; otherwise settings of other programs there are
    /// kept.
    root: bool,
    /// Objects with an active report of invalid settings.
    bad: BTreeSet<String>,
}

impl Planner for BlockIo {
    fn plan(&mut self, view: &View<'_>, plan: &mut Plan) {
        let Some(storage) = view.storage else {
            plan.report_state(State::Unavailable, "the local disks are not known yet");
            return;
        };
        let every = view.facts.settings.reconcile_interval_ms;
        let (Some(round), Some(_)) = (self.reconcile.due(view, every), view.pods) else {
            return;
        };
        plan.verify(round == ReconcileReason::Periodic);
        let root = CgroupPath::root();
        let of_group = IoFile::for_kind(IoCgroupKind::Group).iter();
        let of_root = IoFile::for_kind(IoCgroupKind::Root).iter();
        let files: Vec<IoFile> = of_group
            .filter(|file| view.facts.machine.has(resource(**file)))
            .chain(of_root.filter(|file| view.kernel.value(&root, resource(**file)).is_some()))
            .copied()
            .collect();
        if files.is_empty() {
            plan.report_state(State::Unavailable, "this kernel has none of its files");
            return;
        }
        let names: Vec<_> = files.iter().map(|file| resource(*file).name()).collect();
        plan.report_state(State::Active, names.join(", "));
        let mut round = BlkioRun {
            view,
            plan,
            files,
            bad: BTreeSet::new(),
        };
        if view.facts.slo.known {
            self.root |= !enabled(view.facts.slo.root_blkio()).is_empty();
            round.classes(storage, self.root);
        }
        self.pods(&mut round, storage);
        let BlkioRun { plan, bad, .. } = round;
        for object in self.bad.difference(&bad) {
            plan.report_malformed(object.as_str(), Vec::new());
        }
        self.bad = bad;
    }
}

impl BlockIo {
    /// Plans the I/O limits of running pods, and removes them from pods that lost their settings.
    fn pods(&mut self, round: &mut BlkioRun<'_, '_>, storage: &Storage) {
        let view = round.view;
        let mut listed = FxHashSet::default();
        for pod in view.pods().map(|pod| pod.info) {
            listed.insert(pod.uid.as_str());
            if pod.qos == QosClass::None || pod.phase != Phase::Running {
                continue;
            }
            let blocks = match &pod.settings().blkio_qos {
                Some(config) if claims_are_resolved(view, pod) => {
                    self.limited.insert(pod.uid.clone());
                    &config.blocks[..]
                }
                None if self.limited.contains(&pod.uid) => &[],
                _ => continue,
            };
            let write = Write::pod(pod);
            let result = round.group(IoCgroupKind::Group, &write, blocks, |block| {
                devices_of_pod(view, pod, storage, block)
            });
            round.report_errors(
                &format!("blkio Pod {}/{}", pod.namespace, pod.name),
                POD_BLKIO_QOS,
                result.errors,
            );
            if blocks.is_empty() && !result.changes {
                self.limited.remove(&pod.uid);
            }
        }
        self.limited.retain(|uid| listed.contains(uid.as_str()));
    }
}

/// Result of applying the blocks of a cgroup.
struct ApplyResult {
    errors: Vec<BlockError>,
    /// True if the files differ from the desired values.
    changes: bool,
}

/// Run of the block I/O strategy in one tick.
struct BlkioRun<'t, 'v> {
    view: &'t View<'v>,
    plan: &'t mut Plan,
    /// Files that this kernel has.
    files: Vec<IoFile>,
    /// Objects with invalid settings in this run.
    bad: BTreeSet<String>,
}

impl BlkioRun<'_, '_> {
    /// Writes the limits of the cgroup of batch work, and of the root cgroup if it was ever limited.
    fn classes(&mut self, storage: &Storage, root_too: bool) {
        let (slo, node) = (self.view.facts.slo, self.view.facts.node_name());
        for (class, name) in [(QosClass::Lsr, "lsrClass"), (QosClass::Ls, "lsClass")] {
            let blocks = enabled(slo.blkio_qos(class));
            if let Some(block) = blocks.first() {
                let error = "only beClass and cgroupRoot have block I/O settings";
                let field = format!("{name}.blkioQOS.blocks");
                let malformed = Malformed::new(field, &block.name, error);
                self.report_malformed(&format!("blkio {name}"), vec![malformed]);
            }
        }
        let root = Target::cgroup(&CgroupPath::root(), Resource::BlkioCostQos);
        let mut at_root = Write::to(Level::Node, root, QosClass::None);
        let best_effort = self.view.facts.layout.qos(KubeQos::BestEffort);
        let at_class = best_effort.map(|group| Write::class(&group, QosClass::Be, node));
        if let Ok(at_class) = &at_class {
            at_root.subject = at_class.subject.clone();
        }
        for (kind, name, settings, at) in [
            (
                IoCgroupKind::Group,
                "beClass",
                slo.blkio_qos(QosClass::Be),
                at_class.ok(),
            ),
            (
                IoCgroupKind::Root,
                "cgroupRoot",
                slo.root_blkio(),
                Some(at_root).filter(|_| root_too),
            ),
        ] {
            // Without a section nothing is written; a disabled section sets the defaults.
            if let (Some(_), Some(at)) = (settings, at) {
                let blocks = enabled(settings);
                let result = self.group(kind, &at, blocks, |block| storage.devices(block, None));
                let field = format!("{name}.blkioQOS.blocks");
                self.report_errors(&format!("blkio {name}"), &field, result.errors);
            }
        }
    }

    /// Writes the limits that `blocks` specify to the cgroup of `at`.
    fn group(
        &mut self,
        kind: IoCgroupKind,
        at: &Write,
        blocks: &[BlockCfg],
        devices: impl Fn(&BlockCfg) -> Result<BTreeSet<String>, String>,
    ) -> ApplyResult {
        let kernel = self.view.kernel;
        let mut present = BTreeSet::new();
        if let Some(group) = at.target.group() {
            // A cost model alone changes nothing.
            let files = IoFile::for_kind(kind).iter();
            let files =
                files.filter(|file| **file != IoFile::CostModel && self.files.contains(file));
            let contents = files.filter_map(|file| kernel.value(group, resource(*file)));
            present.extend(contents.flat_map(|content| blkio::devices(&content)));
        }
        let (lines, errors) = blkio::plan(kind, blocks, &present, devices);
        let mut changes = false;
        for line in lines {
            let (Some(group), Ok(key)) = (at.target.group().cloned(), line.device.parse()) else {
                continue;
            };
            if self.files.contains(&line.file) {
                let mut write = at.clone().value(line.value);
                write.target = Target::CgroupLine {
                    group,
                    resource: resource(line.file),
                    key,
                };
                write.reason = REASON;
                changes |= kernel.target(&write.target).as_ref() != Some(&write.value);
                self.plan.write(write);
            }
        }
        ApplyResult { errors, changes }
    }

    /// Reports invalid blocks in `field` of `object`, if any.
    fn report_errors(&mut self, object: &str, field: &str, errors: Vec<BlockError>) {
        let malformed = errors.into_iter().map(|error| {
            let name = match &error {
                BlockError::Device { name, .. } | BlockError::Value { name, .. } => name.clone(),
            };
            Malformed::new(field, name, &error)
        });
        let malformed: Vec<_> = malformed.collect();
        if !malformed.is_empty() {
            self.report_malformed(object, malformed);
        }
    }

    fn report_malformed(&mut self, object: &str, malformed: Vec<Malformed>) {
        self.bad.insert(object.to_owned());
        self.plan.report_malformed(object, malformed);
    }
}

fn enabled(settings: Option<&BlkIOQOSCfg>) -> &[BlockCfg] {
    let settings = settings.filter(|settings| settings.enable == Some(true));
    settings.map_or(&[], |settings| &settings.blocks)
}

/// Returns whether every persistent volume claim in the pod's settings was looked up.
fn claims_are_resolved(view: &View<'_>, pod: &PodInfo) -> bool {
    let mut sources = pod.settings().volumes.values();
    sources.all(|source| match source {
        VolumeSource::Claim(name) => {
            let key = (pod.namespace.clone(), name.clone());
            view.claims.contains_key(&key)
        }
        VolumeSource::Csi => true,
    })
}

/// Returns the devices of a pod's block. For a volume, they are found by its mount point in the kubelet's
/// directory.
fn devices_of_pod(
    view: &View<'_>,
    pod: &PodInfo,
    storage: &Storage,
    block: &BlockCfg,
) -> Result<BTreeSet<String>, String> {
    let source = pod.settings().volumes.get(&block.name);
    let Some(source) = source.filter(|_| block.type_ == Some(BlockType::PodVolume)) else {
        return storage.devices(block, None);
    };
    let volume = match source {
        VolumeSource::Csi => block.name.as_str(),
        VolumeSource::Claim(name) => {
            let bound = view.claims.get(&(pod.namespace.clone(), name.clone()));
            let bound = bound.and_then(Option::as_deref);
            bound.ok_or_else(|| format!("claim {name:?} is not bound"))?
        }
    };
    let mount = view.facts.settings.kubelet_dir.join(format!(
        "pods/{}/volumes/kubernetes.io~csi/{volume}/mount",
        pod.uid
    ));
    storage.devices(block, mount.to_str())
}
