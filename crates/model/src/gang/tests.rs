use super::*;
use serde_json::json;

mod values;

fn ids(names: &[&str]) -> Vec<Arc<str>> {
    names.iter().map(|name| Arc::from(*name)).collect()
}

fn described(min: usize, policy: &str, group: &[&str]) -> GangDescription {
    GangDescription {
        min,
        total: min,
        mode: GangMode::Strict,
        policy: policy.into(),
        wait: Duration::from_secs(10),
        group: ids(group),
        topology: None,
        created: None,
    }
}

fn member_view(name: &str, gang: &str, own: Option<GangDescription>, bound: bool) -> MemberView {
    MemberView {
        uid: name.into(),
        key: format!("ns/{name}").into(),
        gang: gang.into(),
        own,
        bound,
        promised: false,
        ready: true,
        phase: Phase::Pending,
        owners: String::new(),
    }
}

fn sets(gangs: &Gangs, id: &str) -> Option<[usize; 4]> {
    let gang = gangs.gangs.get(id)?;
    Some([
        gang.members.len(),
        gang.pending.len(),
        gang.waiting(),
        gang.bound,
    ])
}

#[test]
fn permission_follows_the_policy() {
    /// Policy, number of waiting members, number of running members, whether the gang was satisfied
    /// before, the other gang's minimum and waiting members, and the answer to the pod.
    type PermitCase = (
        &'static str,
        &'static str,
        usize,
        usize,
        bool,
        Option<(usize, usize)>,
        Permission,
    );
    let wait = Permission::Wait(Duration::from_secs(10));
    let rows: Vec<PermitCase> = vec![
        ("too few", "once-satisfied", 1, 0, false, None, wait),
        (
            "enough",
            "once-satisfied",
            2,
            0,
            false,
            None,
            Permission::Go,
        ),
        (
            "once satisfied",
            "once-satisfied",
            1,
            0,
            true,
            None,
            Permission::Go,
        ),
        (
            "once satisfied, another policy",
            "only-waiting",
            1,
            0,
            true,
            None,
            wait,
        ),
        (
            "running ones do not count",
            "only-waiting",
            1,
            1,
            true,
            None,
            wait,
        ),
        (
            "running ones count",
            "waiting-and-running",
            1,
            1,
            true,
            None,
            Permission::Go,
        ),
        (
            "the other gang is short",
            "once-satisfied",
            2,
            0,
            false,
            Some((2, 1)),
            wait,
        ),
        (
            "both have enough",
            "once-satisfied",
            2,
            0,
            false,
            Some((3, 3)),
            Permission::Go,
        ),
    ];
    for (name, policy, waiting, running, once, other, expected) in rows {
        let group: &[&str] = if other.is_some() {
            &["ns/a", "ns/b"]
        } else {
            &["ns/a"]
        };
        let mut gangs = Gangs::default();
        let mut moves = Moves::default();
        gangs.declare(
            &"ns/a".into(),
            Some(described(3, policy, group)),
            &mut moves,
        );
        for at in 0..running {
            gangs.observe(
                member_view(&format!("r{at}"), "ns/a", None, true),
                &mut moves,
            );
        }
        if let Some((min, placed)) = other {
            gangs.declare(
                &"ns/b".into(),
                Some(described(min, policy, group)),
                &mut moves,
            );
            for at in 0..placed {
                gangs.observe(
                    member_view(&format!("b{at}"), "ns/b", None, false),
                    &mut moves,
                );
                gangs.permit(&format!("b{at}"), &mut moves);
            }
        }
        gangs.groups.get_mut(&*group.join(",")).unwrap().once = once || running > 0;
        for at in 0..waiting {
            gangs.observe(
                member_view(&format!("w{at}"), "ns/a", None, false),
                &mut moves,
            );
            gangs.permit(&format!("w{at}"), &mut moves);
        }
        gangs.observe(member_view("p", "ns/a", None, false), &mut moves);
        moves = Moves::default();
        assert_eq!(gangs.permit("p", &mut moves), expected, "{name}");
        // Pods that were allowed before are not allowed again.
        let least_allowed = if expected == Permission::Go && policy != "once-satisfied" {
            waiting
        } else {
            0
        };
        assert!(moves.allow.len() >= least_allowed, "{name}: {moves:?}");
    }
    let mut gangs = Gangs::default();
    assert_eq!(
        gangs.permit("p", &mut Moves::default()),
        Permission::NotFound
    );
}

#[test]
fn gangs_follow_their_pods_and_pod_groups() {
    let mut gangs = Gangs::default();
    let mut moves = Moves::default();
    // An unknown pod changes nothing.
    gangs.vanish("unknown", &mut moves);
    assert_eq!((gangs.gangs.len(), &moves), (0, &Moves::default()));
    // Before the PodGroup exists, the pod's gang is not described.
    gangs.observe(member_view("c", "ns/crd", None, false), &mut moves);
    assert_eq!(sets(&gangs, "ns/crd"), Some([1, 1, 0, 0]));
    assert!(!gangs.is_described("ns/crd"));
    gangs.declare(
        &"ns/crd".into(),
        Some(described(1, "once-satisfied", &["ns/crd"])),
        &mut moves,
    );
    assert!(gangs.is_described("ns/crd"));
    gangs.vanish("unknown", &mut moves);
    assert_eq!(sets(&gangs, "ns/crd"), Some([1, 1, 0, 0]));
    gangs.vanish("c", &mut moves);
    assert_eq!(
        sets(&gangs, "ns/crd"),
        Some([0; 4]),
        "the PodGroup keeps it"
    );
    gangs.declare(&"ns/crd".into(), None, &mut moves);
    assert_eq!(sets(&gangs, "ns/crd"), None);

    // The first pod that describes the gang is used.
    let groups = ["ns/a", "ns/b"];
    gangs.observe(
        member_view(
            "a0",
            "ns/a",
            Some(described(2, "once-satisfied", &groups)),
            true,
        ),
        &mut moves,
    );
    gangs.observe(
        member_view(
            "a1",
            "ns/a",
            Some(described(7, "once-satisfied", &["ns/a"])),
            false,
        ),
        &mut moves,
    );
    assert_eq!(sets(&gangs, "ns/a"), Some([2, 1, 0, 1]));
    let summary = gangs.summary("ns/a").unwrap();
    assert_eq!(summary["minRequiredNumber"], 2);
    assert_eq!(summary["gangGroup"], json!(groups));
    assert_eq!(summary["onceResourceSatisfied"], true, "one is bound");
    gangs.vanish("a0", &mut moves);
    assert_eq!(
        gangs.summary("ns/a").unwrap()["onceResourceSatisfied"],
        true,
        "for good"
    );
    gangs.vanish("a1", &mut moves);
    assert_eq!(sets(&gangs, "ns/a"), None, "gone with its last pod");
    assert!(gangs.groups.is_empty() && gangs.gang_by_pod.is_empty());

    // A PodGroup takes precedence over pods; without it, the pods describe the gang again.
    gangs.observe(
        member_view(
            "d0",
            "ns/d",
            Some(described(1, "only-waiting", &["ns/d"])),
            false,
        ),
        &mut moves,
    );
    gangs.declare(
        &"ns/d".into(),
        Some(described(5, "once-satisfied", &["ns/d"])),
        &mut moves,
    );
    assert_eq!(gangs.summary("ns/d").unwrap()["minRequiredNumber"], 5);
    gangs.declare(&"ns/d".into(), None, &mut moves);
    assert_eq!(gangs.summary("ns/d").unwrap()["minRequiredNumber"], 1);
    // A pod may change its gang.
    gangs.observe(member_view("d0", "ns/e", None, false), &mut moves);
    assert_eq!(
        (sets(&gangs, "ns/d"), sets(&gangs, "ns/e")),
        (None, Some([1, 1, 0, 0]))
    );
}

#[test]
fn new_leader_admits_the_rest_of_a_started_group() {
    let group = &["ns/a", "ns/b"];
    for order in [["a", "b"], ["b", "a"]] {
        let mut gangs = Gangs::default();
        let mut moves = Moves::default();
        gangs.observe(member_view("started", "ns/b", None, true), &mut moves);
        gangs.observe(member_view("rest", "ns/a", None, false), &mut moves);
        for name in order {
            let id = format!("ns/{name}").into();
            gangs.declare(&id, Some(described(1, "once-satisfied", group)), &mut moves);
        }
        assert!(moves.activate.contains(&"rest".into()), "{order:?}");
        assert_eq!(gangs.admit("rest"), Ok(()));
    }
}

#[test]
fn standby_admits_the_rest_once_a_member_is_bound() {
    let mut gangs = Gangs::default();
    let mut moves = Moves::default();
    gangs.declare(
        &"ns/a".into(),
        Some(described(3, "once-satisfied", &["ns/a"])),
        &mut moves,
    );
    for name in ["a0", "a1", "a2"] {
        gangs.observe(member_view(name, "ns/a", None, false), &mut moves);
    }
    let waits = |gangs: &Gangs| ["a0", "a1"].map(|uid| gangs.admit(uid).is_err());
    assert_eq!(waits(&gangs), [true; 2], "the last stands for all");
    // Another scheduler bound it.
    let mut moves = Moves::default();
    gangs.observe(member_view("a2", "ns/a", None, true), &mut moves);
    assert_eq!(waits(&gangs), [false; 2]);
    assert_eq!(
        moves.regate,
        ids(&["a0", "a1"]),
        "the gated pods are checked again"
    );
    assert_eq!(moves.activate, ids(&["a0", "a1"]));
    // Nothing new.
    let mut moves = Moves::default();
    gangs.observe(member_view("a2", "ns/a", None, true), &mut moves);
    assert!(moves.activate.is_empty(), "{:?}", moves.activate);
}

/// A member that is deleted while it waits or is bound, and is kept by a finalizer, is in no queue.
#[test]
fn deleted_member_neither_counts_nor_represents_others() {
    for (what, placed) in [("held", 2), ("on its way", 3)] {
        let mut gangs = Gangs::default();
        let mut moves = Moves::default();
        gangs.declare(
            &"ns/a".into(),
            Some(described(3, "only-waiting", &["ns/a"])),
            &mut moves,
        );
        let names = ["a0", "a1", "a2"];
        for name in names {
            gangs.observe(member_view(name, "ns/a", None, false), &mut moves);
        }
        for name in &names[..placed] {
            gangs.permit(name, &mut moves);
        }
        let deleted = MemberView {
            ready: false,
            ..member_view("a1", "ns/a", None, false)
        };
        gangs.observe(deleted, &mut moves);
        for name in ["a0", "a2", "a1"] {
            gangs.released(name, &mut moves);
        }
        assert_eq!(sets(&gangs, "ns/a"), Some([3, 2, 0, 0]), "{what}");
        let blocked = |gangs: &Gangs, uid: &str| gangs.admit(uid).unwrap_err().to_string();
        let text = blocked(&gangs, "a0");
        assert!(text.contains("not collect enough"), "{what}: {text}");
        // A replacement.
        gangs.observe(member_view("a3", "ns/a", None, false), &mut moves);
        let admitted = |uid: &&str| gangs.admit(uid).is_ok();
        let other_members = ["a0", "a2", "a3"];
        assert_eq!(
            other_members
                .iter()
                .copied()
                .filter(|it| admitted(it))
                .count(),
            1
        );
        let text = blocked(&gangs, "a1");
        assert_eq!(text, "pod ns/a1 is not exists in gangCache", "{what}");
    }
}

#[test]
fn listed_gang_completes_group_of_other_gang() {
    let mut gangs = Gangs::default();
    let mut moves = Moves::default();
    // The second gang does not list the first.
    let (first, second) = (&["ns/a", "ns/b"], &["ns/b"]);
    gangs.declare(
        &"ns/a".into(),
        Some(described(1, "once-satisfied", first)),
        &mut moves,
    );
    gangs.declare(
        &"ns/b".into(),
        Some(described(1, "once-satisfied", second)),
        &mut moves,
    );
    gangs.observe(member_view("a", "ns/a", None, false), &mut moves);
    let text = gangs.admit("a").unwrap_err().to_string();
    assert!(
        text.contains("memberGangs [ns/b] child pod not collect enough"),
        "{text}"
    );
    moves = Moves::default();
    gangs.observe(member_view("b", "ns/b", None, false), &mut moves);
    assert_eq!(moves.regate, ids(&["b", "a"]));
    assert_eq!((gangs.admit("a"), gangs.admit("b")), (Ok(()), Ok(())));
    for uid in ["a", "b"] {
        gangs.vanish(uid, &mut moves);
    }
    for id in ["ns/a", "ns/b"] {
        gangs.declare(&id.into(), None, &mut moves);
    }
    assert!(gangs.listed.is_empty() && gangs.groups.is_empty() && gangs.gangs.is_empty());
}
