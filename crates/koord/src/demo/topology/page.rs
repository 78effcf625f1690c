//! The table and the page of `koord demo topology`.

use super::{Chain, ChainResult, NUMA_NODES, TopologyOutcome};
use crate::demo::page::Page;
use crate::demo::table::render;
use comfy_table::{Table, presets};
use std::fmt::Write as _;

/// The picture's size, in its own units.
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 130.0;

/// Returns a sentence about the setup.
fn about(outcome: &TopologyOutcome) -> String {
    let setup = &outcome.setup;
    format!(
        "{} simulated nodes of {} NUMA nodes with {} CPUs each, topologyManagerPolicy {}; a Deployment of {} \
         pods that have {} CPUs each to themselves: one fits into a NUMA node, so {} can run.",
        setup.nodes,
        setup.layout.numa_nodes,
        setup.layout.cpus_per_node,
        setup.layout.policy,
        setup.replicas,
        setup.cpus_of_pod,
        setup.nodes * u32::from(NUMA_NODES),
    )
}

const CAVEAT: &str = "Nothing waits for a container on simulated nodes: the rate is that at which this control \
    plane makes, binds and fails pods. Real kubelets are slower, and do not stop either. These pods are of one size, in \
    scope pod: with several sizes, a kubelet whose CPU manager is static may get them in another order than \
    NodeNUMAResource placed them, and refuse some; with CPU manager none, koordlet gives pods the CPUs that were chosen.";

fn rate(outcome: &TopologyOutcome, chain: Chain) -> f64 {
    let rates = &outcome.failed_pods_per_minute;
    rates.get(&chain).copied().unwrap_or(0.0)
}

/// Returns the table for the terminal.
pub(super) fn table(outcome: &TopologyOutcome) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(["chain", "failed pods/min", "running", "waiting", ""]);
    for watched in &outcome.chains {
        table.add_row([
            watched.chain.name().to_owned(),
            format!("{:.0}", rate(outcome, watched.chain)),
            watched.running.to_string(),
            watched.waiting.to_string(),
            watched.chain.about().to_owned(),
        ]);
    }
    let mut text = render(table, 1..4);
    let _ = write!(text, "\n\n  {}", about(outcome));
    for watched in &outcome.chains {
        if let Some(why) = &watched.why {
            // The page has the details about preemption and single nodes.
            let why = why.split(". ").next().unwrap_or(why);
            let _ = write!(
                text,
                "\n  {}: a waiting pod's message: {why}",
                watched.chain.name()
            );
        }
    }
    let _ = write!(text, "\n  {CAVEAT}");
    text
}

/// Returns the page.
pub(super) fn html(outcome: &TopologyOutcome) -> String {
    let headline = format!(
        "{:.0} pods a minute fail with TopologyAffinityError; {:.0} where the scheduler considers NUMA nodes",
        rate(outcome, Chain::Default),
        rate(outcome, Chain::Koordinator).max(rate(outcome, Chain::Community)),
    );
    Page::document("koord: topology-aware scheduling", "", |page| {
        page.text("h1", &headline);
        page.text("p class=\"soft\"", &about(outcome));
        let top = outcome.chains.iter().map(|watched| watched.failed).max();
        for watched in &outcome.chains {
            section(page, outcome, watched, top.unwrap_or(0));
        }
        page.text("p class=\"soft\"", CAVEAT);
    })
}

/// Appends the section of a chain.
fn section(page: &mut Page, outcome: &TopologyOutcome, watched: &ChainResult, top: u64) {
    page.element("h2", |page| {
        page.text("code", watched.chain.name());
        page.append(watched.chain.about());
    });
    let figures = format!(
        "{:.0} failed pods a minute; at the end {} of {} pods run, {} wait.",
        rate(outcome, watched.chain),
        watched.running,
        outcome.setup.replicas,
        watched.waiting,
    );
    page.panel(|page| {
        page.text("p", &figures);
        if let Some(why) = &watched.why {
            page.text("p class=\"soft\"", why);
        }
        page.chart((WIDTH, HEIGHT), "failed pods over time", |page| {
            let path = curve(&watched.failed_by_second, top);
            write!(page, "<path class=\"cap\" d=\"{path}\"/>");
        });
        let end = format!("{} s", outcome.setup.seconds);
        let middle = format!("failed pods, 0 to {top}");
        page.axis("axis", ["0 s", &middle, &end]);
    });
}

/// Returns the SVG path of the running sum of `by_second`, where `top` is at the top of the picture.
#[allow(clippy::cast_precision_loss, reason = "points of a picture")]
fn curve(by_second: &[u64], top: u64) -> String {
    let step = WIDTH / by_second.len().max(1) as f64;
    let height = |sum: u64| HEIGHT - 1.0 - (HEIGHT - 2.0) * sum as f64 / top.max(1) as f64;
    let mut path = format!("M0 {:.1}", height(0));
    let mut sum = 0;
    for (count, at) in by_second.iter().zip(1u32..) {
        sum += count;
        let _ = write!(path, " L{:.1} {:.1}", f64::from(at) * step, height(sum));
    }
    path
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::demo::topology::{CPUS, TopologySetup};
    use koord_sim::Layout;

    pub(in crate::demo::topology) fn outcome() -> TopologyOutcome {
        let watched = |chain, by_second: [u64; 2], why: Option<&str>| ChainResult {
            chain,
            failed: by_second.iter().sum(),
            failed_by_second: by_second.to_vec(),
            running: 16,
            waiting: usize::from(why.is_some()) * 2,
            why: why.map(str::to_owned),
        };
        TopologyOutcome {
            setup: TopologySetup {
                nodes: 8,
                layout: Layout::new(NUMA_NODES, CPUS.0).unwrap(),
                replicas: 18,
                cpus_of_pod: CPUS.1,
                seconds: 2,
            },
            failed_pods_per_minute: [
                (Chain::Default, 1200.0),
                (Chain::Koordinator, 0.0),
                (Chain::Community, 0.0),
            ]
            .into(),
            chains: vec![
                watched(Chain::Default, [30, 10], None),
                watched(Chain::Koordinator, [0, 0], Some("0/8 nodes <unaligned>")),
                watched(Chain::Community, [0, 0], Some("0/8 nodes")),
            ],
        }
    }

    #[test]
    fn the_table_has_a_row_for_each_chain() {
        let text = table(&outcome());
        let rows: Vec<Vec<&str>> = text
            .lines()
            .skip(1)
            .take(3)
            .map(|line| line.split_whitespace().take(4).collect())
            .collect();
        assert_eq!(
            rows,
            [
                ["default", "1200", "16", "0"],
                ["koordinator", "0", "16", "2"],
                ["community", "0", "16", "2"],
            ]
        );
        assert!(text.contains("so 16 can run."), "{text}");
    }

    #[test]
    fn the_picture_adds_up_and_quotes_nothing_raw() {
        assert_eq!(curve(&[30, 10], 40), "M0 129.0 L500.0 33.0 L1000.0 1.0");
        assert_eq!(curve(&[0, 0], 0), "M0 129.0 L500.0 129.0 L1000.0 129.0");
        let page = html(&outcome());
        assert!(page.contains("0/8 nodes &lt;unaligned&gt;") && !page.contains("NaN"));
        assert_eq!(page.matches("<svg").count(), 3);
    }
}
