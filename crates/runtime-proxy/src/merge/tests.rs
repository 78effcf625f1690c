//! Upstream's rules, field by field.

use super::*;

fn of(quota: i64, shares: i64, cpus: &str, score: i64) -> Resources {
    Resources {
        cpu_quota: quota,
        cpu_shares: shares,
        cpuset_cpus: cpus.to_owned(),
        oom_score_adj: score,
        ..Default::default()
    }
}

#[test]
fn an_update_changes_what_it_says() {
    let known = of(1000, 512, "0-3", 937);
    let cases = [
        (of(0, 0, "", 0), of(1000, 512, "0-3", 937)),
        (of(-1, -1, "", 5), of(-1, 512, "0-3", 937)),
        (of(2000, 1024, "1", 0), of(2000, 1024, "1", 937)),
    ];
    for (asked, wanted) in cases {
        let mut now = known.clone();
        update(&mut now, &asked);
        assert_eq!(now, wanted, "{asked:?}");
    }
}

#[test]
fn an_answer_says_sets_and_score_always() {
    let asked = of(1000, 512, "0-3", 937);
    let cases = [
        (of(0, 0, "", 0), of(1000, 512, "", 0)),
        (of(-1, 0, "0-3", 937), of(-1, 512, "0-3", 937)),
        (of(0, 2, "1", 1001), of(1000, 2, "1", 937)),
        (of(0, -2, "1", -1000), of(1000, 512, "1", -1000)),
    ];
    for (said, wanted) in cases {
        let mut now = asked.clone();
        answer(&mut now, &said);
        assert_eq!(now, wanted, "{said:?}");
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
    let said = Resources {
        unified: map(&[("memory.high", "2"), ("io.weight", "50")]),
        hugepage_limits: vec![page("1GB", 8)],
        ..Default::default()
    };
    let wanted = map(&[
        ("io.weight", "50"),
        ("memory.high", "2"),
        ("memory.max", "1"),
    ]);
    for merge in [update, answer] {
        merge(&mut now, &said);
        assert_eq!(now.unified, wanted);
        assert_eq!(now.hugepage_limits, [page("2MB", 4)]);
    }
}
