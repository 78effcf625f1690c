//! `koord node topology`: shows the NUMA nodes of this machine, and what the kubelet allocated of them.

use anyhow::{Context as _, Result};
use koord_api::resources;
use koord_api::topology::{Zone, zone_name};
use koord_app::console;
use koord_model::export::{MachineTopology, Node};
use koordlet::exporter::{self, ListError, PodResourcesSnapshot};
use serde_json::json;
use std::fmt::Write as _;
use std::path::PathBuf;

/// Arguments of `koord node topology`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Socket of the kubelet's PodResources service.
    #[arg(long, value_name = "PATH", default_value = exporter::SOCKET)]
    pub socket: PathBuf,
    /// Print the zones as JSON, in the format of a NodeResourceTopology.
    #[arg(long)]
    pub json: bool,
}

/// Reads the topology and the kubelet's allocations, and prints them.
///
/// # Errors
/// The kernel's files are missing or invalid; with `--json`, also if no kubelet responds.
pub(super) fn main(args: &Args) -> Result<()> {
    let root = koord_host::Root::system().context("the kernel's file systems")?;
    let machine = exporter::machine(&root).context("NUMA nodes")?;
    let listed = koord_app::daemon::runtime()?.block_on(exporter::list(&machine, &args.socket));
    if args.json {
        let listed = listed?;
        let value = json!({
            "zones": listed.zones.zones,
            "fingerprint": listed.fingerprint,
            "pods": listed.pods,
            "problems": listed.zones.problems,
        });
        console::print_line(serde_json::to_string_pretty(&value)?);
    } else {
        console::print_line(render(&machine, listed.as_ref()).trim_end());
    }
    Ok(())
}

/// Formats the NUMA nodes of a machine, with allocated resources if the kubelet lists them.
fn render(machine: &MachineTopology, listed: Result<&PodResourcesSnapshot, &ListError>) -> String {
    let mut out = String::new();
    let zones = listed.iter().flat_map(|listed| &listed.zones.zones);
    let resources = zones.flat_map(|zone| &zone.resources);
    let exclusive = resources
        .filter(|resource| resource.name == resources::CPU)
        .any(|cpus| cpus.allocatable.signum() > 0);
    for (id, node) in machine {
        let name = zone_name(u32::from(*id));
        let _ = writeln!(out, "{name}  {}", node_resources(node));
        let distances = node.distances.iter();
        let distances: Vec<String> = distances
            .map(|(to, distance)| format!("{} {distance}", zone_name(u32::from(*to))))
            .collect();
        if distances.len() > 1 {
            let _ = writeln!(out, "  distance to {}", distances.join(", "));
        }
        let zones = listed.iter().flat_map(|listed| &listed.zones.zones);
        for zone in zones.filter(|zone| zone.name == name) {
            render_resources(&mut out, zone, exclusive);
        }
    }
    match listed {
        Ok(listed) => {
            if !exclusive {
                // The kubelet does not report its policy; with the static one some CPUs are allocatable.
                let _ = writeln!(out, "no exclusive CPUs (cpuManagerPolicy none)");
            }
            let _ = writeln!(
                out,
                "{} pods listed, fingerprint {}",
                listed.pods, listed.fingerprint
            );
            for problem in &listed.zones.problems {
                let _ = writeln!(out, "  skipped: {problem}");
            }
        }
        Err(error) => {
            let _ = writeln!(out, "free resources unknown: {error}");
        }
    }
    out
}

/// Formats the CPUs and memory of a NUMA node.
fn node_resources(node: &Node) -> String {
    let cpus = match node.cpus.is_empty() {
        true => "no CPUs".to_owned(),
        false => format!("CPUs {} ({})", node.cpus, node.cpus.len()),
    };
    let memory = node.memory.iter().filter(|(_, bytes)| **bytes > 0);
    let memory = memory.map(|(kind, bytes)| format!("{kind} {} MiB", bytes >> 20));
    std::iter::once(cpus)
        .chain(memory)
        .collect::<Vec<_>>()
        .join(", ")
}

/// Draws a bar of allocated amounts for each resource; for CPUs only if some can be exclusive.
fn render_resources(out: &mut String, zone: &Zone, exclusive: bool) {
    const WIDTH: i64 = 20;
    let all = zone.resources.iter();
    for resource in all.filter(|it| exclusive || it.name != resources::CPU) {
        let (all, free) = (resource.allocatable.value(), resource.available.value());
        let allocated = all.saturating_sub(free).max(0);
        let filled = allocated
            .saturating_mul(WIDTH)
            .checked_div(all)
            .unwrap_or(0);
        let filled = usize::try_from(filled.clamp(0, WIDTH)).unwrap_or(0);
        let empty = usize::try_from(WIDTH).unwrap_or(0) - filled;
        let _ = writeln!(
            out,
            "  [{}{}] {}: {} free of {} ({} in total)",
            "#".repeat(filled),
            ".".repeat(empty),
            resource.name,
            resource.available,
            resource.allocatable,
            resource.capacity,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_model::export::{Share, zones};

    #[test]
    fn numa_nodes_are_drawn_with_free_cpus() {
        let node = |list: &str, distances: [u32; 2]| Node {
            cpus: list.parse().unwrap(),
            memory: [("memory".to_owned(), 8 << 30)].into(),
            distances: [(0, distances[0]), (1, distances[1])].into(),
        };
        let machine: MachineTopology = [(0, node("0-3", [10, 21])), (1, node("", [21, 10]))].into();
        let share = |list: &str| Share {
            cpus: list.parse().unwrap(),
            ..Share::default()
        };
        let listed = PodResourcesSnapshot {
            zones: zones(&machine, &share("0-3"), &[share("1"), share("1,9")]),
            pods: 2,
            fingerprint: "pfp0v001a5e1c50c557adb9d".to_owned(),
        };
        assert_eq!(
            render(&machine, Ok(&listed)),
            "node-0  CPUs 0-3 (4), memory 8192 MiB\n  \
             distance to node-0 10, node-1 21\n  \
             [#####...............] cpu: 3 free of 4 (4 in total)\n\
             node-1  no CPUs, memory 8192 MiB\n  \
             distance to node-0 21, node-1 10\n  \
             [....................] cpu: 0 free of 0 (0 in total)\n\
             2 pods listed, fingerprint pfp0v001a5e1c50c557adb9d\n  \
             skipped: a container has CPUs 9, which are not allocatable\n  \
             skipped: two containers have CPUs 1\n"
        );
    }

    /// Verifies a kubelet with CPU manager policy none, which lists no CPUs.
    #[test]
    fn missing_exclusive_cpus_are_reported() {
        let node = Node {
            cpus: "0-3".parse().unwrap(),
            ..Node::default()
        };
        let machine: MachineTopology = [(0, node)].into();
        let listed = PodResourcesSnapshot {
            zones: zones(&machine, &Share::default(), &[]),
            pods: 0,
            fingerprint: "pfp0v001ef46db3751d8e999".to_owned(),
        };
        assert_eq!(
            render(&machine, Ok(&listed)),
            "node-0  CPUs 0-3 (4)\n\
             no exclusive CPUs (cpuManagerPolicy none)\n\
             0 pods listed, fingerprint pfp0v001ef46db3751d8e999\n"
        );
    }
}
