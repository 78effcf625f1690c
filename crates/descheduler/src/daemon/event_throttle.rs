//! Throttling of the events that explain why nothing was moved from a hot node.

use crate::report::{NodeReport, Report};
use jiff::{SignedDuration, Timestamp};
use rustc_hash::FxHashMap;
use std::fmt::Write as _;

/// Minimum time between two events for one node.
const PAUSE: SignedDuration = SignedDuration::from_mins(10);
/// Time after which the event of a node that is still hot is repeated: events expire after an hour.
const AGAIN: SignedDuration = SignedDuration::from_hours(1);
/// Longest text of an event in bytes; the API server accepts 1024.
const LONGEST: usize = 1000;
/// Most events per cycle; the next cycle has the others.
const MOST: usize = 20;

/// The last event of each node.
#[derive(Debug, Default)]
pub(super) struct EventThrottle {
    last_events: FxHashMap<String, LastEvent>,
}

#[derive(Debug)]
struct LastEvent {
    at: Timestamp,
    /// Reasons that kept pods on the node, without figures that differ from cycle to cycle; `None` once the
    /// node is no longer hot.
    reasons: Option<Vec<String>>,
}

impl EventThrottle {
    /// Returns the events that are due after the cycle of `report`: a node and a text. A node's event is
    /// repeated every hour, or 10 minutes after the last one if the reasons changed or the node was not hot
    /// in between.
    pub(super) fn due(&mut self, report: &Report) -> Vec<(String, String)> {
        self.last_events
            .retain(|name, _| report.nodes.contains_key(name));
        for (name, last_event) in &mut self.last_events {
            if report.nodes.get(name).is_some_and(|node| !node.hot) {
                last_event.reasons = None;
            }
        }
        let mut due = Vec::new();
        for (name, node) in &report.nodes {
            if due.len() == MOST {
                break;
            }
            let moved = node.actions.iter().any(|action| action.success);
            let reasons = causes(report, node);
            // A node that has not been hot for long enough needs no explanation yet.
            if !node.hot || moved || (node.early && reasons.is_empty()) {
                continue;
            }
            let reasons = Some(reasons);
            if let Some(last_event) = self.last_events.get(name) {
                let passed = report.at.duration_since(last_event.at);
                if passed < PAUSE || (last_event.reasons == reasons && passed < AGAIN) {
                    continue;
                }
            }
            due.push((name.clone(), truncated_message(report, node)));
            let now = report.at;
            self.last_events
                .insert(name.clone(), LastEvent { at: now, reasons });
        }
        due
    }
}

/// Returns the reasons that keep pods on a node.
fn causes(report: &Report, node: &NodeReport) -> Vec<String> {
    let failed = node.actions.iter().filter(|action| !action.success);
    let failed = failed.map(|action| format!("{} failed", action.strategy));
    let error = report.error.iter().map(|_| "error".to_owned());
    let about = report.notes.iter().filter(|_| has_no_pod_reasons(node));
    let about = about.map(|note| note.replace(|c: char| c.is_ascii_digit(), ""));
    let mut causes: Vec<_> = node
        .kept
        .keys()
        .cloned()
        .chain(failed)
        .chain(error)
        .chain(about)
        .collect();
    causes.sort_unstable();
    causes.dedup();
    causes
}

/// Returns true if the report has no reason for any pod of the node, so that the notes about the whole
/// cluster apply.
fn has_no_pod_reasons(node: &NodeReport) -> bool {
    node.kept.is_empty() && node.actions.is_empty()
}

/// Returns [`not_moved_message`] in the length that an event may have.
fn truncated_message(report: &Report, node: &NodeReport) -> String {
    let mut text = not_moved_message(report, node);
    if text.len() > LONGEST {
        text.truncate(text.floor_char_boundary(LONGEST));
        text.push_str(" …");
    }
    text
}

/// Returns why no pod of `node` was moved: its notes, the rules that keep pods with a count and an example, and
/// failed actions; without any of the last two, also the error or the notes of the whole cycle.
fn not_moved_message(report: &Report, node: &NodeReport) -> String {
    let mut text = "nothing was moved: ".to_owned();
    text.push_str(&node.notes.join("; "));
    for (rule, pods) in &node.kept {
        let noun = if pods.count == 1 { "pod" } else { "pods" };
        let _ = write!(text, "; {rule} keeps {} {noun}", pods.count);
        if let Some(first) = pods.pods.first() {
            let _ = write!(text, " ({first})");
        }
    }
    for action in node.actions.iter().filter(|action| !action.success) {
        let _ = write!(text, "; {}: {}", action.what, action.outcome);
    }
    if has_no_pod_reasons(node) {
        let about = match &report.error {
            Some(error) => format!("; {error}"),
            None if report.notes.is_empty() => String::new(),
            None => format!("; {}", report.notes.join("; ")),
        };
        text.push_str(&about);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{ActionReport, KeptPods};

    fn at(report: &Report, seconds: i64) -> Report {
        Report {
            at: Timestamp::from_second(seconds).unwrap(),
            ..report.clone()
        }
    }

    fn keeps(rule: &str, pod: &str) -> NodeReport {
        let pods = KeptPods {
            count: 2,
            pods: vec![format!("{pod}: owned by a DaemonSet")],
        };
        NodeReport {
            hot: true,
            notes: vec!["p/S: hot: cpu 81%".to_owned()],
            kept: [(format!("S: {rule}"), pods)].into(),
            ..NodeReport::default()
        }
    }

    fn report_of(nodes: &[(&str, NodeReport)]) -> Report {
        let nodes = nodes.iter();
        Report {
            nodes: nodes
                .map(|(name, node)| ((*name).to_owned(), node.clone()))
                .collect(),
            ..Report::default()
        }
    }

    #[test]
    fn hot_node_event_is_throttled() {
        let mut throttle = EventThrottle::default();
        let daemons = report_of(&[("a", keeps("DaemonSet", "d/p"))]);
        let events = throttle.due(&at(&daemons, 0));
        assert_eq!(
            events,
            [(
                "a".to_owned(),
                "nothing was moved: p/S: hot: cpu 81%; S: DaemonSet keeps 2 pods (d/p: owned by a DaemonSet)"
                    .to_owned()
            )]
        );
        // Other pods and other figures cause no new event.
        let mut next_report = report_of(&[("a", keeps("DaemonSet", "d/q"))]);
        next_report.nodes.get_mut("a").unwrap().notes = vec!["p/S: hot: cpu 82%".to_owned()];
        assert_eq!(throttle.due(&at(&next_report, 10)), []);
        assert_eq!(throttle.due(&at(&next_report, 3599)), []);
        // The last event has expired by then.
        assert_eq!(throttle.due(&at(&next_report, 3600)).len(), 1);
        assert_eq!(throttle.due(&at(&next_report, 3610)), []);
        // Another rule causes an event after a pause.
        let limit = report_of(&[("a", keeps("MaxMigratingPerNode", "d/p"))]);
        let mut throttle = EventThrottle::default();
        assert_eq!(throttle.due(&at(&daemons, 0)).len(), 1);
        assert_eq!(throttle.due(&at(&limit, 599)), []);
        assert_eq!(throttle.due(&at(&limit, 600)).len(), 1);
        assert_eq!(throttle.due(&at(&daemons, 1199)), []);
        // A node that is created later under the same name is another node.
        assert_eq!(throttle.due(&at(&report_of(&[]), 1200)), []);
        assert_eq!(throttle.due(&at(&daemons, 1201)).len(), 1);
    }

    #[test]
    fn only_hot_nodes_without_moves_get_events() {
        let action = |success| ActionReport {
            what: "move d/p: hot".to_owned(),
            strategy: "S".to_owned(),
            outcome: "eviction: 429".to_owned(),
            success,
        };
        let cold = NodeReport {
            hot: false,
            ..keeps("DaemonSet", "d/p")
        };
        let moved = NodeReport {
            actions: vec![action(true), action(false)],
            ..keeps("DaemonSet", "d/p")
        };
        let refused = NodeReport {
            actions: vec![action(false)],
            kept: Default::default(),
            ..keeps("", "")
        };
        let not_hot_long_enough = NodeReport {
            early: true,
            kept: Default::default(),
            ..keeps("", "")
        };
        let report = report_of(&[
            ("cold", cold),
            ("early", not_hot_long_enough),
            ("moved", moved),
            ("refused", refused),
        ]);
        let events = EventThrottle::default().due(&report);
        let [(node, text)] = &events[..] else {
            panic!("{events:?}");
        };
        assert_eq!(node, "refused");
        assert_eq!(
            text,
            "nothing was moved: p/S: hot: cpu 81%; move d/p: hot: eviction: 429"
        );
    }

    #[test]
    fn event_without_pod_reasons_has_cluster_notes() {
        let alone = NodeReport {
            kept: Default::default(),
            ..keeps("", "")
        };
        let mut report = report_of(&[("a", alone)]);
        report.notes = vec!["p/S: no node is cold".to_owned()];
        let events = EventThrottle::default().due(&report);
        assert!(
            events[0].1.ends_with("; p/S: no node is cold"),
            "{events:?}"
        );
        report.error = Some("fewer than 2 nodes".to_owned());
        let events = EventThrottle::default().due(&report);
        assert!(events[0].1.ends_with("; fewer than 2 nodes"), "{events:?}");
    }

    #[test]
    fn node_that_is_hot_again_gets_an_event() {
        let hot = report_of(&[("a", keeps("DaemonSet", "d/p"))]);
        let mut cool = hot.clone();
        cool.nodes.get_mut("a").unwrap().hot = false;
        let mut throttle = EventThrottle::default();
        assert_eq!(throttle.due(&at(&hot, 0)).len(), 1);
        // A node that is hot now and then does not cause an event in every cycle.
        assert_eq!(throttle.due(&at(&cool, 10)), []);
        assert_eq!(throttle.due(&at(&hot, 20)), []);
        assert_eq!(throttle.due(&at(&hot, 600)).len(), 1);
        assert_eq!(throttle.due(&at(&hot, 1200)), []);
    }

    #[test]
    fn cluster_notes_count_as_reasons() {
        let alone = NodeReport {
            kept: Default::default(),
            ..keeps("", "")
        };
        let noted = |note: &str| {
            let mut report = report_of(&[("a", alone.clone())]);
            report.notes = vec![note.to_owned()];
            report
        };
        let mut throttle = EventThrottle::default();
        assert_eq!(
            throttle.due(&at(&noted("p/S: no node is cold"), 0)).len(),
            1
        );
        let spent = |count: u32| noted(&format!("p/S: {count} evictions are all of a cycle"));
        assert_eq!(throttle.due(&at(&spent(5), 600)).len(), 1);
        assert_eq!(throttle.due(&at(&spent(6), 1200)), []);
    }

    #[test]
    fn event_text_is_shortened_at_a_character() {
        let mut node = keeps("DaemonSet", "d/p");
        let failed = ActionReport {
            what: "move d/pö".to_owned(),
            strategy: "S".to_owned(),
            outcome: "ö".repeat(90),
            success: false,
        };
        node.actions = vec![failed; 100];
        for more in ["", "x"] {
            node.notes = vec![format!("{more}hot")];
            let events = EventThrottle::default().due(&report_of(&[("a", node.clone())]));
            let text = &events[0].1;
            assert!(text.len() <= 1024 && text.ends_with('…'), "{text}");
        }
    }

    #[test]
    fn events_of_many_nodes_are_spread_over_cycles() {
        let nodes: Vec<_> = (0..50).map(|n| format!("n{n:02}")).collect();
        let nodes: Vec<_> = nodes
            .iter()
            .map(|name| (name.as_str(), keeps("DaemonSet", "d/p")))
            .collect();
        let (report, mut throttle) = (report_of(&nodes), EventThrottle::default());
        let counts = [0, 10, 20, 30].map(|second| throttle.due(&at(&report, second)).len());
        assert_eq!(counts, [20, 20, 10, 0]);
    }
}
