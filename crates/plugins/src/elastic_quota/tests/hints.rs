//! Upstream's rows of queueing hints: the events after which a rejected pod is retried. Upstream checks
//! whether an event might help; here a pod is retried exactly when its quota admits it. So the expected value
//! is whether the pod is tried and placed.

use super::*;

/// Event while pod `p` waits.
#[derive(Debug, Clone)]
enum HintEvent {
    Quota(Value),
    Gone(Value),
}

struct Row {
    name: &'static str,
    args: Value,
    gates: &'static [&'static str],
    quotas: Vec<Value>,
    /// Pods on the node.
    pods: Vec<Value>,
    /// Pod that waits in addition to `p`.
    waits: Option<Value>,
    p: Value,
    event: HintEvent,
    tried: bool,
}

impl Row {
    /// Builds a row in which quota `q` may use 10 cores and pod `x` uses 8 of them when `p` requests 5.
    fn new(name: &'static str, event: HintEvent, tried: bool) -> Self {
        Self {
            name,
            args: json!({}),
            gates: &[],
            quotas: vec![quota("q", "", (10, 100), (0, 0))],
            pods: vec![pod("x", "q", 8, 1)],
            waits: None,
            p: pod("p", "q", 5, 1),
            event,
            tried,
        }
    }
}

/// Builds quotas `a` and `b` below `parent`, where `a` has enough free and the parent has not.
fn family(check: bool) -> (Value, Vec<Value>) {
    let args = json!({"enableCheckParentQuota": check, "enableRuntimeQuota": false});
    let quotas = vec![
        quota("parent", "", (10, 100), (0, 0)),
        quota("a", "parent", (50, 100), (0, 0)),
        quota("b", "parent", (50, 100), (0, 0)),
    ];
    (args, quotas)
}

/// Builds a pod without a quota that the node rejects, because it has none of the requested resource.
fn unlucky() -> Value {
    let mut pod = pod("p", "", 0, 0);
    pod["spec"]["containers"][0]["resources"]["requests"] = json!({"example.com/none": "1"});
    pod
}

fn with_tree(mut quota: Value, tree: &str) -> Value {
    quota["metadata"]["labels"][labels::QUOTA_TREE_ID] = json!(tree);
    quota
}

fn after_quotas() -> Vec<Row> {
    let weighted = |weight: &str| {
        let mut quota = quota("q", "", (100, 1000), (0, 0));
        quota["metadata"]["annotations"][annotations::QUOTA_SHARED_WEIGHT] =
            json!(format!("{{\"cpu\":\"{weight}\",\"memory\":\"1000Gi\"}}"));
        quota
    };
    let (checked, family_of) = family(true);
    let (unchecked, _) = family(false);
    let larger = HintEvent::Quota(quota("parent", "", (50, 100), (0, 0)));
    vec![
        Row::new(
            "its maximum grows",
            HintEvent::Quota(quota("q", "", (13, 100), (0, 0))),
            true,
        ),
        Row {
            quotas: vec![quota("q", "", (50, 100), (4, 4))],
            p: firm(pod("p", "q", 5, 1)),
            ..Row::new(
                "its minimum grows",
                HintEvent::Quota(quota("q", "", (50, 100), (5, 5))),
                true,
            )
        },
        Row {
            quotas: vec![weighted("1"), quota("r", "", (100, 1000), (0, 0))],
            waits: Some(pod("w", "r", 100, 101)),
            ..Row::new(
                "its weight grows",
                HintEvent::Quota(weighted("10000")),
                true,
            )
        },
        Row {
            gates: &["DisableDefaultQuota"],
            p: unlucky(),
            ..Row::new(
                "the pod has no quota",
                HintEvent::Quota(quota("q", "", (50, 100), (0, 0))),
                false,
            )
        },
        Row {
            gates: &["MultiQuotaTree"],
            quotas: vec![
                quota("q", "", (10, 100), (0, 0)),
                with_tree(quota("r", "", (10, 100), (0, 0)), "t"),
            ],
            ..Row::new(
                "a quota of another tree",
                HintEvent::Quota(with_tree(quota("r", "", (99, 100), (0, 0)), "t")),
                false,
            )
        },
        Row {
            args: checked,
            quotas: family_of.clone(),
            pods: vec![pod("x", "b", 8, 1)],
            p: pod("p", "a", 5, 1),
            ..Row::new("an ancestor's maximum grows", larger.clone(), true)
        },
        Row {
            args: unchecked,
            quotas: family_of.clone(),
            pods: vec![pod("x", "a", 48, 1)],
            p: pod("p", "a", 5, 1),
            ..Row::new("an ancestor's, which is not checked", larger, false)
        },
        Row {
            quotas: vec![
                quota("q", "", (10, 100), (0, 0)),
                quota("r", "", (10, 100), (0, 0)),
            ],
            ..Row::new(
                "a sibling's maximum grows",
                HintEvent::Quota(quota("r", "", (90, 100), (0, 0))),
                false,
            )
        },
        Row::new(
            "nothing changes",
            HintEvent::Quota(quota("q", "", (10, 100), (0, 0))),
            false,
        ),
    ]
}

fn after_pods() -> Vec<Row> {
    let (checked, family_of) = family(true);
    let (unchecked, _) = family(false);
    let deleted = |name: &str, quota: &str, cpu| HintEvent::Gone(pod(name, quota, cpu, 1));
    vec![
        Row::new("of its quota", deleted("x", "q", 8), true),
        Row {
            waits: Some(pod("w", "q", 8, 1)),
            ..Row::new(
                "of its quota, which only waited",
                deleted("w", "q", 8),
                false,
            )
        },
        Row {
            args: checked,
            quotas: family_of.clone(),
            pods: vec![pod("x", "parent", 8, 1)],
            p: pod("p", "a", 5, 1),
            ..Row::new("of its parent", deleted("x", "parent", 8), true)
        },
        Row {
            args: unchecked.clone(),
            quotas: family_of.clone(),
            pods: vec![pod("x", "parent", 8, 1), pod("y", "a", 48, 1)],
            p: pod("p", "a", 5, 1),
            ..Row::new(
                "of its parent, which is not checked",
                deleted("x", "parent", 8),
                false,
            )
        },
        Row {
            gates: &["MultiQuotaTree"],
            quotas: vec![
                quota("q", "", (10, 100), (0, 0)),
                with_tree(quota("r", "", (10, 100), (0, 0)), "t"),
            ],
            pods: vec![pod("x", "q", 8, 1), pod("y", "r", 8, 1)],
            ..Row::new("of another tree", deleted("y", "r", 8), false)
        },
        Row {
            gates: &["DisableDefaultQuota"],
            pods: vec![pod("x", "q", 8, 1), pod("y", "", 8, 1)],
            ..Row::new("of no quota", deleted("y", "", 8), false)
        },
        Row {
            args: unchecked,
            quotas: family_of,
            pods: vec![pod("x", "b", 8, 1), pod("y", "a", 48, 1)],
            p: pod("p", "a", 5, 1),
            ..Row::new("of a sibling", deleted("x", "b", 8), false)
        },
    ]
}

#[test]
fn rejected_pod_is_retried_only_when_admitted() {
    for row in after_quotas().into_iter().chain(after_pods()) {
        let mut engine = engine_with(&row.args, row.gates);
        engine.node_applied(node("n", 100, 1000), at(0));
        for quota in &row.quotas {
            apply(&mut engine, quota, 0);
        }
        for pod in &row.pods {
            add(&mut engine, &bound(pod.clone()), 0);
        }
        for pod in row.waits.iter().chain([&row.p]) {
            add(&mut engine, pod, 0);
        }
        let tried = |engine: &mut Engine, seconds| {
            let all = schedule(engine, seconds).into_iter();
            all.filter(|(name, _)| name == "p").collect::<Vec<_>>()
        };
        let first = tried(&mut engine, 0);
        assert_eq!(first.len(), 1, "{}: {first:?}", row.name);
        assert_ne!(first[0].1, "n", "{}: it has to wait", row.name);
        assert_eq!(tried(&mut engine, 20), [], "{}: for nothing", row.name);
        match &row.event {
            HintEvent::Quota(quota) => apply(&mut engine, quota, 30),
            HintEvent::Gone(pod) if row.pods.contains(pod) => {
                delete(&mut engine, &bound(pod.clone()), 30);
            }
            HintEvent::Gone(pod) => delete(&mut engine, pod, 30),
        }
        let mut expected = vec![("p".to_owned(), "n".to_owned())];
        expected.retain(|_| row.tried);
        assert_eq!(tried(&mut engine, 60), expected, "{}", row.name);
    }
}
