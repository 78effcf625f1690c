use super::*;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use std::sync::Arc;

/// Returns a budget for pods with label `app=APP` and `left` remaining disruptions.
fn budget(app: &str, left: i32, over: Value) -> Arc<PodDisruptionBudget> {
    let budget = json!({
        "metadata": {"name": format!("of-{app}"), "namespace": "default", "generation": 1},
        "spec": {"selector": {"matchLabels": {"app": app}}},
        "status": {"disruptionsAllowed": left, "observedGeneration": 1, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1},
    });
    Arc::new(serde_json::from_value(merged(budget, over)).unwrap())
}

fn labelled(app: &str) -> Value {
    json!({"metadata": {"labels": {"app": app}}})
}

#[test]
fn exhausted_budget_blocks_its_pods() {
    let mut world = TestCluster::default();
    let web = world.pod("web", "n", labelled("web"));
    let db = world.pod("db", "n", labelled("db"));
    let elsewhere = world.pod(
        "other",
        "n",
        merged(labelled("web"), json!({"metadata": {"namespace": "other"}})),
    );
    let starting = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]}});
    let starting = world.pod("starting", "n", merged(labelled("web"), starting));
    let mut snapshot = world.snapshot();
    let mut refusal = |budgets: Vec<Arc<PodDisruptionBudget>>, pod: &crate::state::PodInfo| {
        snapshot.budgets = budgets;
        let reason = Budgets::new(&snapshot).check(pod).err();
        reason.map(|reason| reason.to_string()).unwrap_or_default()
    };
    let used_up = || budget("web", 0, json!({}));
    let expected = "PodDisruptionBudget: budget of-web allows no more disruptions";
    assert_eq!(refusal(vec![used_up()], &web), expected);
    assert_eq!(refusal(vec![budget("web", 1, json!({}))], &web), "");
    assert_eq!(refusal(vec![used_up()], &db), "");
    assert_eq!(refusal(vec![used_up()], &elsewhere), "");
    // Whether a pod that is not ready may be evicted depends on more than the snapshot has.
    assert_eq!(refusal(vec![used_up()], &starting), "");
    // The status is older than the last change, or missing.
    assert_eq!(
        refusal(
            vec![budget("web", 0, json!({"metadata": {"generation": 2}}))],
            &web
        ),
        ""
    );
    assert_eq!(
        refusal(vec![budget("web", 0, json!({"status": null}))], &web),
        ""
    );
    // An empty selector selects every pod, a missing one none.
    assert_eq!(
        refusal(
            vec![budget("web", 0, json!({"spec": {"selector": null}}))],
            &web
        ),
        ""
    );
    let every = budget(
        "every",
        0,
        json!({"spec": {"selector": {"matchLabels": null}}}),
    );
    assert!(refusal(vec![every.clone()], &db).contains("of-every"));
    let refusal_of_both = refusal(vec![budget("db", 1, json!({})), every], &db);
    assert!(
        refusal_of_both.contains("of-db and of-every both select it"),
        "{refusal_of_both}"
    );
}

#[test]
fn pods_that_go_use_budgets_up() {
    let mut world = TestCluster::default();
    let pods: Vec<_> = ["a", "b", "c"]
        .map(|name| world.pod(name, "n", labelled("web")))
        .into();
    let mut snapshot = world.snapshot();
    snapshot.budgets = vec![budget("web", 2, json!({}))];
    let mut budgets = Budgets::new(&snapshot);
    // A pod counts once.
    for pod in [&pods[0], &pods[0]] {
        budgets.count(pod);
        assert_eq!(budgets.check(&pods[1]), Ok(()));
    }
    budgets.count(&pods[1]);
    assert_eq!(
        budgets.check(&pods[2]).unwrap_err().rule,
        "PodDisruptionBudget"
    );
}

/// Budgets are indexed by one of their labels; the result must equal that of checking each budget.
#[test]
fn budget_index_agrees_with_a_linear_search() {
    let mut random = fastrand::Rng::with_seed(7);
    let mut verdicts = [0; 3];
    for _ in 0..50 {
        let mut world = TestCluster::default();
        let labels = |random: &mut fastrand::Rng| {
            let mut labels = serde_json::Map::new();
            for key in ["app", "tier", "team"] {
                if random.u8(..4) > 0 {
                    labels.insert(key.to_owned(), json!(format!("v{}", random.u8(..3))));
                }
            }
            labels
        };
        let pods: Vec<_> = (0..20)
            .map(|i| {
                let over = json!({"metadata": {"labels": labels(&mut random)}});
                world.pod(&format!("p{i}"), "n", over)
            })
            .collect();
        let budgets: Vec<_> = (0..6)
            .map(|i| {
                let mut selector = json!({"matchLabels": labels(&mut random)});
                if random.bool() {
                    let key = ["app", "tier"][random.usize(..2)];
                    let operator = ["Exists", "DoesNotExist"][random.usize(..2)];
                    selector["matchExpressions"] = json!([{"key": key, "operator": operator}]);
                }
                let name = format!("b{i}");
                let over = json!({"metadata": {"name": name}, "spec": {"selector": null}});
                let mut budget = PodDisruptionBudget::clone(&budget("", random.i32(0..3), over));
                let selector = serde_json::from_value(selector).unwrap();
                budget.spec.as_mut().unwrap().selector = Some(selector);
                Arc::new(budget)
            })
            .collect();
        let mut snapshot = world.snapshot();
        snapshot.budgets = budgets.clone();
        let mut indexed = Budgets::new(&snapshot);
        let mut remaining: Vec<_> = budgets
            .iter()
            .map(|budget| budget.status.as_ref().unwrap().disruptions_allowed)
            .collect();
        for pod in &pods {
            let matching: Vec<_> = (0..budgets.len())
                .filter(|i| {
                    let selector = budgets[*i].spec.as_ref().unwrap().selector.as_ref();
                    koord_api::selector::matches(selector.unwrap(), &pod.shape.labels).unwrap()
                })
                .collect();
            let expected = match &matching[..] {
                [] => None,
                [one] => (remaining[*one] <= 0)
                    .then(|| format!("budget b{one} allows no more disruptions")),
                [one, other, ..] => Some(format!(
                    "budgets b{one} and b{other} both select it: no such pod is evicted"
                )),
            };
            let actual = indexed.check(pod).err().map(|reason| reason.to_string());
            let expected = expected.map(|text| format!("PodDisruptionBudget: {text}"));
            assert_eq!(actual, expected);
            verdicts[matching.len().min(2)] += 1;
            if actual.is_none() {
                indexed.count(pod);
                matching.iter().for_each(|i| remaining[*i] -= 1);
            }
        }
    }
    assert!(verdicts.iter().all(|count| *count > 20), "{verdicts:?}");
}
