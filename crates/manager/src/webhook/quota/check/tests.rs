//! Upstream's tables of `pkg/webhook/elasticquota/quota_topology_test.go`, and the property that
//! whatever is admitted keeps the trees whole.

mod property;

use super::*;
use crate::webhook::quota::testing::{Pods, quota, topology};
use crate::webhook::quota::topology::QuotaWrite;
use koord_api::quota::DEFAULT_QUOTA;
use serde_json::{Value, json};

const NO_PODS: &Pods = &Pods(Vec::new());

fn text(result: Result<impl Sized, Refusal>) -> String {
    result.err().map(|reason| reason.0).unwrap_or_default()
}

#[test]
fn inconsistent_quota_is_refused() {
    let rows = [
        (json!({"max": [120, 1048576]}), ""),
        (
            json!({"max": [-1, 1048576]}),
            "temp quota.Spec.Max's value < 0, in dimensions :[cpu]",
        ),
        (
            json!({"min": [-1, 1048576], "max": [1, 1048576]}),
            "temp quota.Spec.Min's value < 0, in dimensions :[cpu]",
        ),
        (
            json!({"min": [1, 1048576], "max": {"cpu": 10}}),
            "resourceKey memory of quota temp is included in min, which is not included in max",
        ),
        (
            json!({"min": {"cpu": 12}, "max": {"cpu": 10}}),
            "resourceKey cpu of quota temp min 12 > max 10",
        ),
        (
            json!({"weight": [-1, 1048576], "max": [0, 1048576]}),
            "temp quota.Annotation[quota.scheduling.koordinator.sh/shared-weight]'s value < 0, in dimension :[cpu]",
        ),
        (
            json!({"strict": ["cpu", "memory"], "max": [0, 1048576], "used": [0, 10485760]}),
            "resourceKey memory of quota temp max 1048576 < used 10485760",
        ),
        (
            json!({"strict": ["cpu"], "max": [0, 1048576], "used": [0, 10485760]}),
            "",
        ),
        (
            json!({"strict": ["cpu", "memory"], "max": [0, 1048576], "used": {"cpu": 0}}),
            "",
        ),
        (
            json!({"strict": ["cpu", "memory"], "max": {"cpu": 0}, "used": [0, 10485760]}),
            "resourceKey memory of quota temp is included in used, which is not included in max but should check max >= used",
        ),
    ];
    for (words, want) in rows {
        assert_eq!(
            text(check_values(&quota("temp", words.clone()))),
            want,
            "{words}"
        );
    }
}

/// Upstream's row whose maps contradict each other has no counterpart: ours cannot.
#[test]
fn relatives_limit_the_same_resources() {
    let big = [120, 1048576];
    let parent = |words: Value| quota("temp", words);
    let child = |words: Value| {
        let mut fields = words;
        fields["parent"] = json!("temp");
        quota("temp-bu1", fields)
    };
    let pair = |of_parent: Value, of_child: Value| vec![parent(of_parent), child(of_child)];
    // (the relatives, which of them is written, whether children may have fewer keys, allowed)
    let rows = [
        (
            pair(json!({"max": big}), json!({"max": big})),
            0,
            false,
            true,
        ),
        (
            vec![quota("temp-bu1", json!({"parent": ROOT_QUOTA, "max": big}))],
            0,
            false,
            true,
        ),
        (
            pair(json!({"max": [10, 120]}), json!({"max": {"cpu": 120}})),
            0,
            false,
            false,
        ),
        (
            pair(json!({"max": {"cpu": 10}}), json!({"max": {"cpu": 120}})),
            0,
            false,
            true,
        ),
        (
            pair(json!({"max": [10, 120]}), json!({"max": {"cpu": 120}})),
            0,
            true,
            true,
        ),
        (
            pair(
                json!({"max": {"memory": 120}}),
                json!({"max": {"cpu": 120}}),
            ),
            0,
            true,
            false,
        ),
        (
            pair(json!({"max": [10, 120]}), json!({"max": {"cpu": 120}})),
            1,
            false,
            false,
        ),
        (
            pair(json!({"max": {"cpu": 10}}), json!({"max": {"cpu": 120}})),
            1,
            false,
            true,
        ),
        (
            pair(json!({"max": [10, 120]}), json!({"max": {"cpu": 120}})),
            1,
            true,
            true,
        ),
        (
            pair(
                json!({"max": {"memory": 120}}),
                json!({"max": {"cpu": 120}}),
            ),
            1,
            true,
            false,
        ),
        (
            pair(json!({"min": [10, 120]}), json!({"min": {"cpu": 120}})),
            1,
            false,
            true,
        ),
        (
            pair(json!({"min": {"cpu": 10}}), json!({"min": [120, 120]})),
            1,
            false,
            false,
        ),
        (
            pair(json!({"min": [10, 120]}), json!({"min": {"cpu": 120}})),
            1,
            true,
            true,
        ),
        (
            pair(json!({"min": {"cpu": 10}}), json!({"min": [120, 120]})),
            1,
            true,
            false,
        ),
    ];
    for (at, (quotas, written, fewer_keys, allowed)) in rows.into_iter().enumerate() {
        let rules = QuotaRules {
            fewer_keys,
            ..QuotaRules::default()
        };
        let result = check_keys(
            &topology(&quotas),
            &QuotaInfo::from_quota(&quotas[written]),
            rules,
        );
        assert_eq!(result.is_ok(), allowed, "row {at}: {result:?}");
    }
}

#[test]
fn tree_id_is_unique() {
    let own = [10, 20];
    let rows = [
        (["", "", ""], true),
        (["tree-1", "tree-1", "tree-1"], true),
        (["", "tree-1", "tree-1"], false),
        (["tree-1", "", "tree-1"], false),
        (["tree-1", "tree-1", ""], false),
    ];
    for (trees, allowed) in rows {
        let quotas = [
            quota(
                "parent",
                json!({"max": own, "min": own, "isParent": true, "tree": trees[0]}),
            ),
            quota(
                "temp",
                json!({"parent": "parent", "max": own, "min": own, "isParent": true, "tree": trees[1]}),
            ),
            quota(
                "child",
                json!({"parent": "temp", "max": own, "min": own, "tree": trees[2]}),
            ),
        ];
        let result = check_tree_id(&topology(&quotas), None, &QuotaInfo::from_quota(&quotas[1]));
        assert_eq!(result.is_ok(), allowed, "{trees:?}: {result:?}");
    }
}

/// Upstream's row whose maps contradict each other has no counterpart: ours cannot.
#[test]
fn siblings_are_not_guaranteed_more_than_their_parent() {
    let max = [120, 1048576];
    let above = |min: Value| quota("temp", json!({"max": max, "min": min, "isParent": true}));
    let below = |min: Value| quota("sub-1", json!({"parent": "temp", "max": max, "min": min}));
    let rows = [
        (
            vec![above(json!([10, 51200])), below(json!([16, 12800]))],
            0,
            false,
        ),
        (
            vec![above(json!([10, 51200])), below(json!([16, 12800]))],
            1,
            false,
        ),
        (
            vec![above(json!([16, 12800])), below(json!([16, 12801]))],
            0,
            false,
        ),
        (
            vec![above(json!([19, 51200])), below(json!([16, 12800]))],
            0,
            true,
        ),
        (
            vec![
                quota("temp", json!({"isParent": true})),
                below(json!([19, 51200])),
            ],
            1,
            false,
        ),
    ];
    for (at, (quotas, written, allowed)) in rows.into_iter().enumerate() {
        let result = check_min_sums(&topology(&quotas), &QuotaInfo::from_quota(&quotas[written]));
        assert_eq!(result.is_ok(), allowed, "row {at}: {result:?}");
    }
}

/// A forced quota or the root of a tree is exempt from the sums that apply to all others.
#[test]
fn forced_quotas_skip_checks_and_count_for_others() {
    let max = [120, 1048576];
    let above = |more: Value| parent("temp", &more);
    let below = |name: &str, min: i64, more: Value| {
        let mut fields = json!({"parent": "temp", "max": max, "min": [min, 0]});
        fields
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        quota(name, fields)
    };
    let (forced, root) = (json!({"forced": true}), json!({"isRoot": true}));
    for (written, ok) in [
        // The parent has 64.
        (below("sub-1", 65, json!({})), false),
        (below("sub-1", 65, forced.clone()), true),
        (below("sub-1", 65, root.clone()), true),
        (below("sub-1", 5, json!({})), false),
        (below("sub-1", 4, json!({})), true),
    ] {
        let quotas = [above(json!({})), below("forced", 60, forced.clone())];
        let result = check_min_sums(&topology(&quotas), &QuotaInfo::from_quota(&written));
        assert_eq!(result.is_ok(), ok, "{written:?}: {result:?}");
    }
    // The same seen from above.
    for (written, ok) in [
        (above(json!({"min": [59, 0]})), false),
        (above(json!({"min": [59, 0], "forced": true})), true),
        (above(json!({"min": [59, 0], "isRoot": true})), true),
    ] {
        let quotas = [written.clone(), below("sub-1", 60, json!({}))];
        let result = check_min_sums(&topology(&quotas), &QuotaInfo::from_quota(&written));
        assert_eq!(result.is_ok(), ok, "{written:?}: {result:?}");
    }
}

/// An amount that a quota is already guaranteed is not required again, and counts for its ancestors.
#[test]
fn own_guarantee_counts_for_ancestors() {
    let max = [120, 1048576];
    let root = |guaranteed: Value| {
        quota(
            "temp",
            json!({"max": max, "min": [10, 10], "isParent": true, "tree": "t", "isRoot": true,
                "guaranteed": guaranteed}),
        )
    };
    let below = |more: Value| {
        let mut fields = json!({"parent": "temp", "max": max, "min": [8, 8], "tree": "t"});
        fields
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        quota("sub", fields)
    };
    for (above, written, ok) in [
        // Nothing is guaranteed above: a forced quota, or one without a tree of its own, is not checked.
        (json!([0, 0]), json!({}), false),
        (json!([0, 0]), json!({"forced": true}), true),
        (json!([0, 0]), json!({"isRoot": true}), true),
        (json!([0, 0]), json!({"tree": ""}), true),
        // It has it already.
        (json!([0, 0]), json!({"guaranteed": [8, 8]}), true),
        (json!([0, 0]), json!({"guaranteed": [8, 7]}), false),
        // Its guarantee of one resource exceeds its minimum: its parent must back that, too.
        (json!([10, 30]), json!({"guaranteed": [2, 30]}), true),
        (json!([10, 29]), json!({"guaranteed": [2, 30]}), false),
        // A parent with a larger minimum than its children must have that.
        (json!([9, 10]), json!({}), false),
        (json!([10, 10]), json!({}), true),
    ] {
        let quotas = [root(above.clone()), below(written.clone())];
        let result = check_guaranteed(&topology(&quotas), &QuotaInfo::from_quota(&quotas[1]));
        assert_eq!(result.is_ok(), ok, "{above} {written}: {result:?}");
    }
}

#[test]
fn minimum_is_limited_by_ancestors() {
    let max = [120, 1048576];
    for (min, sibling, allowed) in [
        ([5, 25600], [2, 10000], true),
        ([7, 25600], [3, 10000], true),
        ([8, 25600], [3, 10000], false),
    ] {
        let quotas = [
            quota(
                "temp",
                json!({"max": max, "min": [10, 51200], "isParent": true, "tree": "tree1",
                "isRoot": true, "guaranteed": [10, 51200]}),
            ),
            quota(
                "test1",
                json!({"parent": "temp", "max": max, "min": min, "tree": "tree1",
                "guaranteed": [6, 35600]}),
            ),
            quota(
                "test2",
                json!({"parent": "temp", "max": max, "min": [2, 10000], "tree": "tree1",
                "guaranteed": sibling}),
            ),
        ];
        let result = check_guaranteed(&topology(&quotas), &QuotaInfo::from_quota(&quotas[1]));
        assert_eq!(result.is_ok(), allowed, "{min:?}: {result:?}");
        let rules = |guarantee_usage| QuotaRules {
            guarantee_usage,
            ..QuotaRules::default()
        };
        let with_rule = |on| {
            check_in_tree(
                &topology(&quotas),
                None,
                &QuotaInfo::from_quota(&quotas[1]),
                rules(on),
                NO_PODS,
            )
        };
        assert_eq!(with_rule(false), Ok(()), "the gate is off");
        if !allowed {
            assert_eq!(
                text(with_rule(true)),
                "tree root quota temp can't guarantee for min test1"
            );
        }
    }
}

/// Admits and records quotas as the webhook does.
struct QuotaAdmitter {
    topology: QuotaTopology,
    pods: Pods,
}

impl QuotaAdmitter {
    fn create(&mut self, quota: &ElasticQuota) -> String {
        let result = create(&self.topology, quota, QuotaRules::default(), &self.pods);
        if let Ok(info) = &result {
            self.topology.admit(QuotaWrite::Create(info.clone()));
        }
        text(result)
    }

    fn update(&mut self, old: &ElasticQuota, new: &ElasticQuota) -> String {
        let result = update(&self.topology, old, new, QuotaRules::default(), &self.pods);
        if let Ok(Some(info)) = &result {
            self.topology.admit(QuotaWrite::Update(info.clone()));
        }
        text(result)
    }

    fn delete(&mut self, quota: &ElasticQuota) -> String {
        let result = delete(&self.topology, quota, &self.pods);
        if let Ok(Some(info)) = &result {
            self.topology.admit(QuotaWrite::Delete(info.clone()));
        }
        text(result)
    }

    fn children(&self, name: &str) -> Vec<&str> {
        let children = self.topology.children(name);
        children.map(|child| child.name.as_str()).collect()
    }
}

fn admitter() -> QuotaAdmitter {
    QuotaAdmitter {
        topology: QuotaTopology::default(),
        pods: Pods::default(),
    }
}

const MAX: [i64; 2] = [120, 1048576];

fn parent(name: &str, more: &Value) -> ElasticQuota {
    let mut fields = json!({"max": MAX, "min": [64, 51200], "isParent": true});
    fields
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    quota(name, fields)
}

#[test]
fn creations_are_checked_sequentially() {
    let mut admitter = admitter();
    let temp = parent("temp", &json!({}));
    assert_eq!(admitter.create(&temp), "");
    assert_eq!(admitter.create(&temp), "AddQuota quota already exist:temp");
    for name in ["sub-1", "sub-2"] {
        let sub = quota(
            name,
            json!({"parent": "temp", "max": MAX, "min": [16, 12800]}),
        );
        assert_eq!(admitter.create(&sub), "");
    }
    assert_eq!(admitter.children("temp"), ["sub-1", "sub-2"]);
    assert_eq!(
        admitter.create(&parent("temp2", &json!({"tree": "tree-1"}))),
        ""
    );
    assert_eq!(
        admitter.create(&parent("sub-3", &json!({"parent": "temp2"}))),
        "sub-3 tree id is different from parent temp2, [] vs [tree-1]"
    );
    assert_eq!(
        admitter.create(&quota(
            "sub-4",
            json!({"parent": "temp", "max": MAX, "min": [33, 12800]})
        )),
        "checkMinQuotaSum all brothers' MinQuota > parent MinQuota, parent: temp"
    );
    assert_eq!(
        admitter.create(&quota(
            "sub-5",
            json!({"parent": "temp", "max": {"cpu": 1}})
        )),
        "failed to check sub and parent group quotaKey, err: checkSubAndParentGroupQuotaKey failed: temp's max keys are not the same with sub-5's"
    );
    assert_eq!(
        admitter.create(&quota("sub-6", json!({"parent": "sub-1", "max": MAX}))),
        "sub-6 has parentName sub-1 but the parentQuotaInfo's IsParent is false"
    );
    assert_eq!(
        admitter.create(&quota("sub-7", json!({"parent": "none", "max": MAX}))),
        "sub-7 has parentName none but not find parentInfo in quotaInfoMap"
    );
}

#[test]
fn updates_are_checked_against_admitted_state() {
    let mut admitter = admitter();
    let temp = parent("temp", &json!({}));
    assert_eq!(admitter.create(&temp), "");
    assert_eq!(admitter.update(&temp, &temp), "");
    let weighted = parent("temp", &json!({"weight": [96, 655360]}));
    assert_eq!(admitter.update(&temp, &weighted), "");
    let temp2 = parent("temp2", &json!({}));
    assert_eq!(admitter.create(&temp2), "");
    let sub = |parent: &str, min: [i64; 2]| {
        quota("sub-1", json!({"parent": parent, "max": MAX, "min": min}))
    };
    let sub1 = sub("temp", [60, 12800]);
    assert_eq!(admitter.create(&sub1), "");
    assert_eq!(admitter.children("temp"), ["sub-1"]);
    let moved = sub("temp2", [60, 12800]);
    assert_eq!(admitter.update(&sub1, &moved), "");
    assert!(admitter.children("temp").is_empty());
    assert_eq!(admitter.children("temp2"), ["sub-1"]);
    assert_eq!(
        admitter.update(&sub1, &sub("temp", [121, 1048576])),
        "resourceKey cpu of quota sub-1 min 121 > max 120"
    );
    assert_eq!(
        admitter.children("temp2"),
        ["sub-1"],
        "a refusal changes nothing"
    );
    let unknown = quota("tmp", json!({"parent": "temp", "max": MAX}));
    assert_eq!(
        admitter.update(&sub1, &unknown),
        "UpdateQuota quota not exist in quotaInfoMap:tmp"
    );
    for name in [ROOT_QUOTA, SYSTEM_QUOTA] {
        let changed = quota(name, json!({"parent": "temp", "max": MAX}));
        assert_eq!(
            admitter.update(&sub1, &changed),
            format!("invalid quota {name}")
        );
    }
    let leaf = parent("temp", &json!({"isParent": false}));
    assert_eq!(admitter.update(&temp, &leaf), "");
    assert_eq!(
        admitter.update(&temp2, &parent("temp2", &json!({"isParent": false}))),
        "quota has children, isParent is forbidden to modify as false, quotaName:temp2"
    );
}

#[test]
fn quota_with_pods_cannot_become_parent() {
    let sub = |more: Value| parent("sub-1", &more);
    let plain = sub(json!({"isParent": false}));
    let claiming = sub(json!({"isParent": false, "namespaces": ["namespace1", "namespace2"]}));
    let rows = [
        (&plain, vec![("", "pod1", "sub-1")], true),
        (&plain, vec![("sub-1", "pod2", "")], true),
        (&claiming, vec![("sub-2", "pod3", "sub-1")], true),
        (&claiming, vec![("namespace2", "pod4", "")], true),
        (&plain, vec![("namespace2", "pod4", "other")], false),
    ];
    for (old, pods, refused) in rows {
        let mut admitter = admitter();
        assert_eq!(admitter.create(old), "");
        admitter.pods = Pods(pods);
        let want = if refused {
            "quota has bound pods, isParent is forbidden to modify as true, quotaName: sub-1"
        } else {
            ""
        };
        assert_eq!(
            admitter.update(old, &sub(json!({}))),
            want,
            "{:?}",
            admitter.pods
        );
    }
    let mut admitter = admitter();
    assert_eq!(admitter.create(&plain), "");
    let in_tree = sub(json!({"isParent": false, "tree": "tree-1"}));
    assert_eq!(
        admitter.update(&plain, &in_tree),
        "sub-1 tree id changed [] vs [tree-1]"
    );
}

#[test]
fn a_namespace_belongs_to_one_quota() {
    let mut admitter = admitter();
    let claims = |name: &str, namespaces: Value| quota(name, json!({"namespaces": namespaces}));
    let temp = claims("temp", json!(["test1", "test2"]));
    assert_eq!(admitter.create(&temp), "");
    assert_eq!(admitter.topology.claimant("test1"), Some("temp"));
    assert_eq!(
        admitter.create(&claims("temp2", json!(["test1", "test2"]))),
        "AddQuota quota temp2's annotation namespace test1 is already bound to quota temp"
    );
    let changed = claims("temp", json!(["test2", "test3"]));
    assert_eq!(admitter.update(&temp, &changed), "");
    let claimant = |namespace| admitter.topology.claimant(namespace);
    assert_eq!(
        [claimant("test1"), claimant("test2"), claimant("test3")],
        [None, Some("temp"), Some("temp")]
    );
    let temp5 = quota("temp5", json!({}));
    assert_eq!(admitter.create(&temp5), "");
    assert_eq!(
        admitter.update(&temp5, &claims("temp5", json!(["test2"]))),
        "UpdadteQuota, quota temp5 update namespaces, but namespace test2 is already bound to quota temp"
    );
    assert_eq!(admitter.delete(&changed), "");
    assert_eq!(admitter.topology.claimant("test2"), None);
}

#[test]
fn deletions_leave_no_orphans() {
    let mut admitter = admitter();
    let (temp, temp2) = (parent("temp", &json!({})), parent("temp2", &json!({})));
    let sub = quota(
        "sub-1",
        json!({"parent": "temp", "max": MAX, "min": [60, 12800]}),
    );
    for quota in [&temp, &temp2, &sub] {
        assert_eq!(admitter.create(quota), "");
    }
    assert_eq!(
        admitter.delete(&temp),
        "delete quota failed, quota temp has 1 child quotas"
    );
    assert_eq!(admitter.children("temp"), ["sub-1"]);
    assert_eq!(admitter.delete(&temp2), "");
    admitter.pods = Pods(vec![("sub-1", "pod1", "sub-1")]);
    assert_eq!(
        admitter.delete(&sub),
        "delete quota failed, quota sub-1 has 1 child pods: pod1"
    );
    admitter.pods = Pods(vec![
        ("a", "p1", "sub-1"),
        ("a", "p2", "sub-1"),
        ("b", "p3", "sub-1"),
    ]);
    assert_eq!(
        admitter.delete(&sub),
        "delete quota failed, quota sub-1 has 3 child pods: p1, p2, ..."
    );
    admitter.pods = Pods::default();
    assert_eq!(admitter.delete(&sub), "");
    assert_eq!(admitter.delete(&temp), "");
    assert_eq!(admitter.delete(&temp), "not found quota:temp");
    for name in [ROOT_QUOTA, SYSTEM_QUOTA, DEFAULT_QUOTA] {
        assert_eq!(
            admitter.delete(&quota(name, json!({}))),
            format!("can not delete quotaGroup :{name}")
        );
    }
}

#[test]
fn malformed_annotations_are_refused_with_field_and_value() {
    let with = |annotation: &str, value: &str| {
        quota(
            "bad",
            json!({"max": MAX, "annotations": {annotation: value}}),
        )
    };
    for (key, value, shown) in [
        (annotations::QUOTA_SHARED_WEIGHT, "heavy", "heavy"),
        (
            annotations::QUOTA_SHARED_WEIGHT,
            "{\"cpu\":\"a lot\"}",
            "a lot",
        ),
        (annotations::QUOTA_ADMISSION, "{\"cpu\":[1]}", "cpu"),
        (
            annotations::QUOTA_NAMESPACES,
            "team-a,team-b",
            "team-a,team-b",
        ),
        (annotations::QUOTA_NAMESPACES, "[7]", "7"),
        (
            annotations::QUOTA_MAX_STRICT_CHECK_RESOURCE_KEYS,
            "cpu",
            "cpu",
        ),
    ] {
        let mut admitter = admitter();
        let bad = with(key, value);
        let refusal = admitter.create(&bad);
        assert!(
            refusal.contains(key) && refusal.contains(shown),
            "{key}={value}: {refusal}"
        );
        // It may have come while no webhook was there: then it stops only who touches it.
        admitter.topology.observe(QuotaInfo::from_quota(&bad));
        let mut mended = bad.clone();
        mended
            .spec
            .min
            .insert("cpu".to_owned(), koord_api::Quantity::from_value(1));
        if key == annotations::QUOTA_NAMESPACES || key == annotations::QUOTA_ADMISSION {
            assert_eq!(admitter.update(&bad, &mended), "", "{key}");
        }
        let good = quota("bad", json!({"max": MAX}));
        let refusal = admitter.update(&good, &bad);
        assert!(
            refusal.contains(key) && refusal.contains(shown),
            "{key}={value}: {refusal}"
        );
    }
}

#[test]
fn circular_parents_are_refused() {
    let mut admitter = admitter();
    let below = |name: &str, parent_name: &str| {
        parent(name, &json!({"parent": parent_name, "min": [0, 0]}))
    };
    let a = parent("a", &json!({"min": [0, 0]}));
    assert_eq!(admitter.create(&a), "");
    assert_eq!(admitter.create(&below("b", "a")), "");
    assert_eq!(admitter.create(&below("c", "b")), "");
    for parent_name in ["a", "b", "c"] {
        assert_eq!(
            admitter.update(&a, &below("a", parent_name)),
            format!("a has parentName {parent_name} but that is a itself or below it")
        );
    }
}

#[test]
fn first_of_quotas_with_equal_name_counts() {
    let mut admitter = admitter();
    let first = parent("same", &json!({}));
    let second = parent("same", &json!({"namespace": "other"}));
    assert_eq!(admitter.create(&first), "");
    assert_eq!(
        admitter.create(&second),
        "AddQuota quota already exist:same"
    );
    let changed = parent("same", &json!({"namespace": "other", "min": [1, 1]}));
    assert_eq!(
        admitter.update(&second, &changed),
        "UpdateQuota metadata.name \"same\" of the quota in namespace other is taken by the quota in namespace ns"
    );
    assert_eq!(
        admitter.delete(&second),
        "",
        "whatever got in can be deleted"
    );
    assert_eq!(
        admitter
            .topology
            .get("same")
            .map(|quota| quota.namespace.as_str()),
        Some("ns")
    );
}
