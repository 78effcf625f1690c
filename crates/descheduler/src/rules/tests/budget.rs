use super::*;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use std::sync::Arc;

/// A budget of pods with label `app=APP` that has so many disruptions left.
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
fn a_budget_that_is_used_up_keeps_the_pods_that_it_selects() {
    let mut world = World::default();
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
    let mut kept = |budgets: Vec<Arc<PodDisruptionBudget>>, pod: &crate::state::PodInfo| {
        snapshot.budgets = budgets;
        let why = Budgets::new(&snapshot).check(pod).err();
        why.map(|why| why.to_string()).unwrap_or_default()
    };
    let used_up = || budget("web", 0, json!({}));
    let said = "PodDisruptionBudget: budget of-web allows no more disruptions";
    assert_eq!(kept(vec![used_up()], &web), said);
    assert_eq!(kept(vec![budget("web", 1, json!({}))], &web), "");
    assert_eq!(kept(vec![used_up()], &db), "");
    assert_eq!(kept(vec![used_up()], &elsewhere), "");
    // Whether a pod that is not ready may go depends on more than is known here.
    assert_eq!(kept(vec![used_up()], &starting), "");
    // Its controller has not looked at it since it was changed, or at all.
    assert_eq!(
        kept(
            vec![budget("web", 0, json!({"metadata": {"generation": 2}}))],
            &web
        ),
        ""
    );
    assert_eq!(
        kept(vec![budget("web", 0, json!({"status": null}))], &web),
        ""
    );
    // An empty selector selects every pod, none at all does not.
    assert_eq!(
        kept(
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
    assert!(kept(vec![every.clone()], &db).contains("of-every"));
    let both = kept(vec![budget("db", 1, json!({})), every], &db);
    assert!(both.contains("of-db and of-every both select it"), "{both}");
}

#[test]
fn pods_that_go_use_budgets_up() {
    let mut world = World::default();
    let pods: Vec<_> = ["a", "b", "c"]
        .map(|name| world.pod(name, "n", labelled("web")))
        .into();
    let mut snapshot = world.snapshot();
    snapshot.budgets = vec![budget("web", 2, json!({}))];
    let mut budgets = Budgets::new(&snapshot);
    // Twice of the same pod is once.
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
