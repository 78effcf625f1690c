//! Upstream's rows of node handlers: the total to divide after nodes were added, changed and removed.

use super::*;

/// Node with cores and GiB; `None` if it was deleted.
type NodeStep = (&'static str, Option<(i64, i64)>);
/// Name, initial nodes, changes, and the resulting total.
type Row<'a> = (&'static str, &'a [NodeStep], &'a [NodeStep], (i64, i64));

#[test]
fn quota_total_is_the_nodes_total() {
    let three: &[NodeStep] = &[
        ("n1", Some((100, 1000))),
        ("n2", Some((100, 1000))),
        ("n3", Some((100, 1000))),
    ];
    let rows: [Row<'_>; 10] = [
        ("no node", &[], &[], (0, 0)),
        ("two nodes", &[], &three[..2], (200, 2000)),
        ("one node twice", &three[..1], &three[..1], (100, 1000)),
        ("none changes", three, &[], (300, 3000)),
        (
            "two grow",
            three,
            &[("n1", Some((200, 2000))), ("n2", Some((200, 2000)))],
            (500, 5000),
        ),
        (
            "two shrink",
            three,
            &[("n1", Some((50, 500))), ("n2", Some((50, 500)))],
            (200, 2000),
        ),
        (
            "two more",
            three,
            &[("n4", Some((50, 500))), ("n5", Some((50, 500)))],
            (400, 4000),
        ),
        ("one goes", three, &[("n1", None)], (200, 2000)),
        ("two go", three, &[("n1", None), ("n2", None)], (100, 1000)),
        (
            "all go",
            three,
            &[("n1", None), ("n2", None), ("n3", None)],
            (0, 0),
        ),
    ];
    for (name, before, then, (cpu, memory)) in rows {
        let mut engine = engine_with(&json!({}), &[]);
        apply(&mut engine, &quota("a", "", (9000, 9000), (0, 0)), 0);
        add(&mut engine, &pod("p", "a", 9000, 9000), 0);
        for (node_name, size) in before.iter().chain(then) {
            match size {
                Some((cpu, memory)) => {
                    engine.node_applied(node(node_name, *cpu, *memory), at(0));
                }
                None => engine.node_deleted(node_name, at(0)),
            }
        }
        let mut expected = list(cpu, memory);
        if memory == 0 {
            expected["memory"] = json!("0");
        }
        assert_eq!(summary(&mut engine, "a")["runtime"], expected, "{name}");
    }
}
