//! Weights of cgroup v2, which container runtimes compute by one of two formulas.

use super::*;

/// Returns the weights of the batch pod and of its container.
fn weights(rig: &Rig) -> [String; 2] {
    ["", "/c1"].map(|part| {
        let group = CgroupPath::new(&format!("kubepods/besteffort/podbe{part}")).unwrap();
        rig.tree
            .raw(&group, Resource::CpuShares)
            .unwrap()
            .trim()
            .to_owned()
    })
}

fn rig_with(path: &str, weight: &str) -> Rig {
    let rig = Rig::on(Tree::v2("0-3").unwrap(), Settings::default());
    let group = CgroupPath::new(path).unwrap();
    rig.tree
        .feed(&group, Resource::CpuShares, &format!("{weight}\n"))
        .unwrap();
    rig
}

/// Covers opencontainers/runc#4772 and kubernetes/kubernetes#131216: 2,048 shares are weight 79 by the older
/// formula and 174 by that of runc 1.3.2 and crun 1.23.
#[test]
fn weight_of_current_runtime_is_left_and_used() {
    let be = "kubepods/besteffort/podbe/c1";
    let ls = "kubepods/burstable/podls/c1";
    for (path, weight, expected) in [
        (be, "174", ["174", "174"]),
        (be, "79", ["79", "79"]),
        // Weights of other containers show which formula the runtime uses.
        (ls, "303", ["174", "174"]),
        (ls, "157", ["79", "79"]),
        (ls, "100", ["79", "79"]),
    ] {
        let mut rig = rig_with(path, weight);
        rig.pods(vec![
            pod("ls", "LS", json!({"requests": {"cpu": "4"}})),
            batch_pod(),
        ]);
        for _ in 0..70 {
            rig.step(BUSY);
        }
        assert_eq!(weights(&rig), expected, "{path} {weight}");
        let writes = rig.tree.writes();
        let of_container = writes
            .iter()
            .filter(|it| it.file.ends_with("podbe/c1/cpu.weight"));
        assert!(of_container.count() <= 1, "{path} {weight}: {writes:?}");
    }
}

/// A weight that equals that of the new request by the other formula still belongs to the old request.
#[test]
fn weight_follows_a_request_that_changes() {
    let mut rig = Rig::on(Tree::v2("0-3").unwrap(), Settings::default());
    let request = |milli: &str| {
        let batch = json!({"requests": {"kubernetes.io/batch-cpu": milli}});
        vec![pod("be", "BE", batch)]
    };
    // 4,535 shares are weight 173 by the older formula, and 174 begin at 4,538.
    rig.pods(request("4432"));
    rig.step(BUSY);
    assert_eq!(weights(&rig)[1], "174");
    rig.pods(request("2000"));
    for _ in 0..3 {
        rig.step(BUSY);
    }
    assert_eq!(weights(&rig)[1], "79");
}
