//! Property test: after any sequence of events, the state equals that after a restart.

use super::*;
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum RebuildStep {
    /// Quota, parent, max, min, whether it lends, claimed namespaces, tree.
    Quota(usize, usize, i64, i64, bool, u8, u8),
    NoQuota(usize),
    /// Pod, quota in its label, cores, whether non-preemptible.
    Pod(usize, usize, i64, bool),
    Bind(usize),
    NoPod(usize),
    Node(usize, i64),
    NoNode(usize),
    Schedule,
}

const QUOTAS: [&str; 5] = ["q0", "q1", "q2", "team", "other"];

fn steps() -> impl Strategy<Value = Vec<RebuildStep>> {
    let quota = 0..QUOTAS.len();
    let step = prop_oneof![
        4 => (quota.clone(), 0..9_usize, 0..40_i64, 0..30_i64, any::<bool>(), 0..4_u8, 0..6_u8)
            .prop_map(|(q, p, max, min, lends, claims, tree)| {
                RebuildStep::Quota(q, p, max, min, lends, claims, tree)
            }),
        1 => quota.clone().prop_map(RebuildStep::NoQuota),
        6 => (0..12_usize, 0..7_usize, 1..9_i64, any::<bool>())
            .prop_map(|(p, q, cpu, firm)| RebuildStep::Pod(p, q, cpu, firm)),
        2 => (0..12_usize).prop_map(RebuildStep::Bind),
        2 => (0..12_usize).prop_map(RebuildStep::NoPod),
        1 => (0..2_usize, 1..60_i64).prop_map(|(n, cpu)| RebuildStep::Node(n, cpu)),
        1 => (0..2_usize).prop_map(RebuildStep::NoNode),
        3 => Just(RebuildStep::Schedule),
    ];
    proptest::collection::vec(step, 1..50)
}

/// Simulated content of the API server.
#[derive(Debug, Default)]
struct QuotaWorld {
    quotas: BTreeMap<usize, Value>,
    pods: BTreeMap<usize, Value>,
    nodes: BTreeMap<usize, i64>,
}

type EngineChange<'a> = Box<dyn Fn(&mut Engine) + 'a>;

fn everything(engine: &mut Engine) -> Value {
    let pods = query(&[("includePods", "true")]);
    let mut all = engine
        .inspector()
        .inspect(NAME, &["quotas"], &pods, at(0))
        .unwrap();
    all[ROOT_QUOTA] = summary(engine, ROOT_QUOTA);
    for quota in all.as_object_mut().unwrap().values_mut() {
        quota["runtimeVersion"] = Value::Null;
        for amounts in quota.as_object_mut().unwrap().values_mut() {
            if let Value::Object(amounts) = amounts {
                amounts.retain(|_, amount| *amount != "0");
            }
        }
    }
    all
}

fn run(steps: Vec<RebuildStep>, order: usize, args: &Value, gates: &[&str]) {
    let mut world = QuotaWorld::default();
    let mut live = engine_with(args, gates);
    live.schedule_one(at(0));
    for step in steps {
        match step {
            RebuildStep::Quota(q, parent, max, min, lends, claims, tree) => {
                let parent = QUOTAS.get(parent).copied().unwrap_or(match parent {
                    8 => "nowhere",
                    _ => "",
                });
                let mut object = quota(QUOTAS[q], parent, (max, max), (min, min));
                if QUOTAS[q] == "team" {
                    object["metadata"]["namespace"] = json!("team");
                }
                if !lends {
                    object["metadata"]["labels"][labels::QUOTA_ALLOW_LENT_RESOURCE] =
                        json!("false");
                }
                if claims == 0 {
                    let notes = &mut object["metadata"]["annotations"];
                    notes[annotations::QUOTA_NAMESPACES] = json!("[\"team\", \"x\"]");
                }
                // Every second quota of a tree with an id sets the total of the tree.
                object["metadata"]["labels"][labels::QUOTA_TREE_ID] =
                    json!(["", "", "t", "u", "t", "u"][usize::from(tree)]);
                if tree > 3 {
                    let share = list(max, min).to_string();
                    object["metadata"]["labels"][labels::QUOTA_IS_ROOT] = json!("true");
                    object["metadata"]["annotations"][annotations::QUOTA_TOTAL_RESOURCE] =
                        json!(share);
                }
                apply(&mut live, &object, 0);
                world.quotas.insert(q, object);
            }
            RebuildStep::NoQuota(q) => {
                if let Some(object) = world.quotas.remove(&q) {
                    live.object_changed(&change(&object, Action::DELETE), at(0));
                }
            }
            RebuildStep::Pod(p, q, cpu, is_firm) => {
                let label = QUOTAS.get(q).copied().unwrap_or_default();
                let mut object = pod(&format!("p{p}"), label, cpu, 1);
                if is_firm {
                    object = firm(object);
                }
                if let Some(old) = world.pods.get(&p) {
                    object["spec"]["nodeName"] = old["spec"]["nodeName"].clone();
                }
                add(&mut live, &object, 0);
                world.pods.insert(p, object);
            }
            RebuildStep::Bind(p) => {
                if let Some(object) = world.pods.get_mut(&p)
                    && object["spec"]["nodeName"].is_null()
                {
                    *object = bound(object.clone());
                    add(&mut live, object, 0);
                }
            }
            RebuildStep::NoPod(p) => {
                if let Some(object) = world.pods.remove(&p) {
                    delete(&mut live, &object, 0);
                }
            }
            RebuildStep::Node(n, cpu) => {
                live.node_applied(node(&format!("n{n}"), cpu, cpu), at(0));
                world.nodes.insert(n, cpu);
            }
            RebuildStep::NoNode(n) => {
                live.node_deleted(&format!("n{n}"), at(0));
                world.nodes.remove(&n);
            }
            RebuildStep::Schedule => {
                for (name, answer) in schedule(&mut live, 0) {
                    // Bindings succeed and fail alternately.
                    if !answer.starts_with('n') || answer.len() > 2 {
                        continue;
                    }
                    let p: usize = name[1..].parse().unwrap();
                    let object = world.pods.get_mut(&p).unwrap();
                    if p.is_multiple_of(2) {
                        object["spec"]["nodeName"] = json!(answer);
                        live.bind_finished(&name, Ok(()), at(0));
                        add(&mut live, object, 0);
                    } else {
                        let message = "no".to_owned();
                        let error = koord_scheduler::engine::BindError {
                            message,
                            gone: false,
                        };
                        live.bind_finished(&name, Err(error), at(0));
                    }
                }
                everything(&mut live);
            }
        }
    }
    let mut fresh = engine_with(args, gates);
    fresh.schedule_one(at(0));
    let mut events: Vec<EngineChange<'_>> = Vec::new();
    for object in world.quotas.values() {
        events.push(Box::new(|engine| apply(engine, object, 0)));
    }
    for object in world.pods.values() {
        events.push(Box::new(|engine| add(engine, object, 0)));
    }
    for (n, cpu) in &world.nodes {
        events.push(Box::new(move |engine| {
            engine.node_applied(node(&format!("n{n}"), *cpu, *cpu), at(0));
        }));
    }
    // The stride is coprime to any possible number of events.
    let count = events.len();
    for at in 0..count {
        events[(at * 101 + order) % count](&mut fresh);
    }
    assert_eq!(everything(&mut live), everything(&mut fresh));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn restart_restores_equal_state(steps in steps(), order in 0..50_usize, mode in 0..5_u8) {
        let args = json!({"enableMinQuotaScale": mode != 1});
        let gates: &[&str] = match mode {
            2 => &["ElasticQuotaGuaranteeUsage"],
            3 => &["DisableDefaultQuota"],
            4 => &["MultiQuotaTree"],
            _ => &[],
        };
        run(steps, order, &args, gates);
    }
}
