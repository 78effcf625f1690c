//! Upstream's rules, field by field.

use super::*;

fn resources_of(quota: i64, shares: i64, cpus: &str, score: i64) -> Resources {
    Resources {
        cpu_quota: quota,
        cpu_shares: shares,
        cpuset_cpus: cpus.to_owned(),
        oom_score_adj: score,
        ..Default::default()
    }
}

#[test]
fn update_sets_only_its_fields() {
    let current = resources_of(1000, 512, "0-3", 937);
    let cases = [
        (
            resources_of(0, 0, "", 0),
            resources_of(1000, 512, "0-3", 937),
        ),
        (
            resources_of(-1, -1, "", 5),
            resources_of(-1, 512, "0-3", 937),
        ),
        (
            resources_of(2000, 1024, "1", 0),
            resources_of(2000, 1024, "1", 937),
        ),
    ];
    for (target, wanted) in cases {
        let mut now = current.clone();
        update(&mut now, &target);
        assert_eq!(now, wanted, "{target:?}");
    }
}

#[test]
fn answer_always_sets_cpusets_and_score() {
    let target = resources_of(1000, 512, "0-3", 937);
    let cases = [
        (resources_of(0, 0, "", 0), resources_of(1000, 512, "", 0)),
        (
            resources_of(-1, 0, "0-3", 937),
            resources_of(-1, 512, "0-3", 937),
        ),
        (
            resources_of(0, 2, "1", 1001),
            resources_of(1000, 2, "1", 937),
        ),
        (
            resources_of(0, -2, "1", -1000),
            resources_of(1000, 512, "1", -1000),
        ),
    ];
    for (answered, wanted) in cases {
        let mut now = target.clone();
        apply_answer(&mut now, &answered);
        assert_eq!(now, wanted, "{answered:?}");
    }
}

#[test]
fn unified_is_merged_by_key_and_huge_pages_stay() {
    let map = |entries: &[(&str, &str)]| -> BTreeMap<String, String> {
        let entries = entries.iter();
        entries
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    };
    let page = |size: &str, limit| koord_rpc::hooks::HugepageLimit {
        page_size: size.to_owned(),
        limit,
    };
    let mut now = Resources {
        unified: map(&[("memory.max", "1"), ("memory.high", "1")]),
        hugepage_limits: vec![page("2MB", 4)],
        ..Default::default()
    };
    let answered = Resources {
        unified: map(&[("memory.high", "2"), ("io.weight", "50")]),
        hugepage_limits: vec![page("1GB", 8)],
        ..Default::default()
    };
    let expected = map(&[
        ("io.weight", "50"),
        ("memory.high", "2"),
        ("memory.max", "1"),
    ]);
    for merge in [update, apply_answer] {
        merge(&mut now, &answered);
        assert_eq!(now.unified, expected);
        assert_eq!(now.hugepage_limits, [page("2MB", 4)]);
    }
}
