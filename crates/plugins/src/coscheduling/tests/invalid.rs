//! Invalid PodGroups, and members of PodGroups that do not exist.

use super::*;

#[test]
fn pod_group_without_a_minimum_is_reported_once() {
    for min in [0, -3] {
        let mut world = world(json!({}));
        world.node("n", 10);
        for _ in 0..2 {
            world.declare(group("a", min, json!({}), json!({})));
        }
        world.apply(member("m", "a"));
        world.run();
        let problem =
            format!("spec.minMember: \"{min}\": expected 1 or more: members are placed one by one");
        assert_eq!(world.problems, [problem]);
        assert_eq!(world.bound(), ["m"], "as upstream");
        // Another value is reported again.
        world.object(group("a", -9, json!({}), json!({})), Action::UPDATE);
        world.object(group("a", 1, json!({}), json!({})), Action::UPDATE);
        world.run();
        assert_eq!(world.problems.len(), 2);
    }
}

#[test]
fn member_without_a_minimum_is_reported() {
    let mut world = world(json!({}));
    world.node("n", 10);
    let mut negative = annotated("m", "a", 0, json!({}));
    let notes = negative.metadata.annotations.get_or_insert_default();
    let key = "gang.scheduling.koordinator.sh/min-available";
    notes.insert(key.to_owned(), "-1".to_owned());
    world.apply(negative);
    world.run();
    assert_eq!(world.problems.len(), 1, "{:?}", world.problems);
    assert!(
        world.problems[0].starts_with(&format!("{key}: \"-1\"")),
        "{:?}",
        world.problems
    );
}

#[test]
fn member_of_a_missing_gang_has_a_condition() {
    let mut world = world(json!({}));
    world.node("n", 10);
    world.apply(member("m", "a"));
    world.run();
    assert_eq!(
        world.explained,
        BTreeMap::new(),
        "the PodGroup may be on its way"
    );
    world.later(1);
    let text = "gang has not init, gangName: ns/a, podName: ns/m: expected a PodGroup of that name, \
                or a member that sets the minimum";
    assert_eq!(world.explained["m"], text);
    world.apply(pod("other", json!({})));
    world.declare(group("a", 1, json!({}), json!({})));
    world.run();
    assert_eq!(world.bound(), ["m", "other"]);
    // A member whose PodGroup is deleted while it waits.
    world.declare(group("b", 2, json!({}), json!({})));
    world.apply(member("late", "b"));
    world.later(10);
    assert_eq!(world.explained, BTreeMap::new());
    world.object(group("b", 2, json!({}), json!({})), Action::DELETE);
    world.later(1);
    assert!(
        world.explained["late"].contains("ns/b"),
        "{:?}",
        world.explained
    );
}

#[test]
fn pod_group_within_grace_leaves_no_condition() {
    let mut world = world(json!({}));
    world.node("n", 10);
    world.apply(member("m", "a"));
    world.run();
    world.declare(group("a", 1, json!({}), json!({})));
    world.later(5);
    assert_eq!((world.bound(), world.explained.len()), (vec!["m"], 0));
}
