//! The sentence about the nearest nodes that follows kube-scheduler's own text in a condition.

use crate::engine::NearestNode;

/// Start of the sentence. The text after it may change without the condition being written again.
const OPENS: &str = " Nearest: ";
/// The maximum length of the sentence in bytes.
const LONGEST: usize = 400;

/// Formats the sentence about the nearest nodes; empty if there are none.
pub(super) fn format_nearest(near: &[NearestNode]) -> String {
    let mut text = String::new();
    for node in near {
        let entry = format!("{} ({})", node.node, node.lacks);
        if text.len() + entry.len() > LONGEST {
            break;
        }
        text.push_str(if text.is_empty() { OPENS } else { ", " });
        text.push_str(&entry);
    }
    if !text.is_empty() {
        text.push('.');
    }
    text
}

/// Returns true if a condition's `message` is `expected`, with or without a sentence about the nearest nodes.
pub(super) fn is_message_of(message: &str, expected: &str) -> bool {
    message
        .strip_prefix(expected)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(OPENS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_sentence_is_short_and_ignored_in_comparison() {
        let node = |name: &str, lacks: &str| NearestNode {
            node: name.into(),
            lacks: lacks.to_owned(),
            distance: 1.0,
        };
        let message = "0/2 nodes are available: 2 Insufficient cpu.";
        let text = format_nearest(&[
            node("a", "cpu: needs 2, free 1"),
            node("b", "cpu: needs 2, free 0"),
        ]);
        assert_eq!(
            text,
            " Nearest: a (cpu: needs 2, free 1), b (cpu: needs 2, free 0)."
        );
        assert!(
            is_message_of(&format!("{message}{text}"), message) && is_message_of(message, message)
        );
        assert!(!is_message_of(
            "0/2 nodes are available: 2 Insufficient cpu. More.",
            message
        ));
        assert_eq!(format_nearest(&[]), "");
        assert!(format_nearest(&[node("a", "x"), node("b", &"y".repeat(500))]).len() < 20);
    }
}
