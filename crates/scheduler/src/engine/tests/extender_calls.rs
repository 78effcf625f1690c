//! Extender calls, and when cycles start.

use super::*;
use crate::config::Extender;
use crate::engine::{ExtenderCall, ExtenderNodeResult, ExtenderRequest, ExtenderResult};

/// Creates an engine with one extender.
fn engine_with_extender() -> Engine {
    let mut config = Configuration::koord(&["koord-scheduler".to_owned()]);
    config.extenders = vec![Extender {
        url_prefix: "http://extender".to_owned(),
        filter_verb: "filter".to_owned(),
        ..Extender::default()
    }];
    engine_of(&config)
}

fn calls(engine: &mut Engine) -> Vec<ExtenderCall> {
    let outputs = engine.take_outputs().into_iter();
    let calls = outputs.filter_map(|output| match output {
        Output::Consult(call) => Some(call),
        _ => None,
    });
    calls.collect()
}

#[test]
fn extender_receives_current_nodes() {
    let mut engine = engine_with_extender();
    engine.node_applied(node("n", "2"), at(0));
    let mut broken = Arc::unwrap_or_clone(node("n", "2"));
    let status = json!({"allocatable": {"cpu": "2", "pods": "10"},
        "conditions": [{"type": "GPUUnhealthy", "status": "True"}]});
    broken.status = serde_json::from_value(status).unwrap();
    engine.node_applied(Arc::new(broken.clone()), at(1));
    engine.pod_applied(pod("p", "1"), at(2));
    assert!(engine.schedule_one(at(2)).is_none());
    let calls = calls(&mut engine);
    let ExtenderRequest::Nodes(nodes) = &calls[0].request else {
        panic!("{calls:?}");
    };
    assert_eq!(*nodes[0].object, broken);
}

#[test]
fn parked_pod_has_not_started_its_cycle() {
    let cycles = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let mut engine = engine_with_extender();
    let hears = cycles.clone();
    engine.telemetry.observe(Box::new(move |started| {
        hears.lock().push(started.pod.name.to_string());
    }));
    engine.node_applied(node("n", "2"), at(0));
    for name in ["p", "q"] {
        engine.pod_applied(pod(name, "1"), at(0));
    }
    for (name, seconds) in [("p", 1), ("q", 60)] {
        assert!(engine.schedule_one(at(seconds)).is_none());
        assert_eq!(std::mem::take(&mut *cycles.lock()), [name]);
        let calls = calls(&mut engine);
        assert_eq!(calls.len(), 1, "{calls:?}");
        assert_eq!(&*calls[0].pod.name, name);
        let advice = ExtenderResult::Nodes(Ok(ExtenderNodeResult::default()));
        engine.apply_extender_result(&calls[0].pod.uid, calls[0].ticket, advice);
        let outcome = engine.schedule_one(at(seconds)).unwrap();
        assert_eq!(outcome.node.as_deref(), Some("n"));
    }
}

#[test]
fn extender_scores_are_explained_and_ranked() {
    let mut engine = engine_with_extender();
    let extender_scores = [("a", 3), ("b", 50), ("c", 1), ("d", 40), ("e", 7)];
    for (name, _) in extender_scores {
        engine.node_applied(node(name, "2"), at(0));
    }
    engine.pod_applied(pod("p", "1"), at(0));
    assert!(engine.schedule_one(at(0)).is_none());
    let calls = calls(&mut engine);
    let scores = extender_scores
        .iter()
        .map(|(name, score)| ((*name).into(), *score));
    let refused = ("not this one".to_owned(), false);
    let advised = ExtenderNodeResult {
        refused: [("d".into(), refused)].into(),
        scores: scores.collect(),
    };
    engine.apply_extender_result("p", calls[0].ticket, ExtenderResult::Nodes(Ok(advised)));
    let outcome = engine.schedule_one(at(0)).unwrap();
    assert_eq!(outcome.node.as_deref(), Some("b"));
    let table = engine
        .telemetry
        .decision("p")
        .unwrap()
        .table
        .clone()
        .unwrap();
    assert_eq!((table.nodes, table.feasible), (5, 4));
    let ranking = table.ranking.iter().map(|it| (&*it.node, it.total));
    assert_eq!(ranking.collect::<Vec<_>>(), [("b", 50), ("e", 7), ("a", 3)]);
    let extender = table.ranking[1].scores.last().unwrap();
    assert_eq!(
        (extender.plugin, extender.raw, extender.score),
        ("Extender", 7, Some(7))
    );
}
