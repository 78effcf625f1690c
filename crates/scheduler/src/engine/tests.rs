mod bindings;
mod counted;
mod extender_calls;
mod measure;
mod objects;
mod panics;
mod parts;
mod tentative;
mod waits;

use super::*;
use crate::framework::{
    Bind, BindPlan, BoxedPlugin, BuildContext, BuildError, ClusterEvent, Explain, Factory, Filter,
    Grouping, Interest, LazyMessage, MetricSamples, MetricSource, ObjectChange, ObjectEvents,
    Permit, PermitResult, Plugin, PodEvents, Points, PreEnqueue, QueueHints, QueueingHint,
    RefusalEvent, Registry, Rejection, Reserve, Roles, Sign, Signable, Signature, State, Subject,
    Tick, Verdict, View,
};
use crate::state::NodeIndex;
use k8s_openapi::api::core::v1::{Node, Pod};
use koord_model::resources::{CPU, ResourceTable};
use serde_json::{Value, json};
use std::time::Duration;

const THINGS: &str = "things.v1.test";

thread_local! {
    /// The number of pods whose hint was called for an object.
    static QUESTIONS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    /// The method in which the plugin panics.
    static STUMBLES: std::cell::Cell<&'static str> = const { std::cell::Cell::new("") };
}

fn stumble(place: &str) {
    assert!(STUMBLES.get() != place, "asked to stumble");
}

/// A plugin that checks CPU and has a switch for every test.
struct Knobs;

impl Plugin for Knobs {
    const ROLES: Roles<Self> = Roles::none()
        .queue_hints()
        .sign()
        .pre_enqueue()
        .filter()
        .bind()
        .explain()
        .object_events()
        .pod_events()
        .tick()
        .reserve()
        .grouping()
        .permit()
        .metric_source();

    fn name(&self) -> &'static str {
        "Knobs"
    }
    fn points(&self) -> Points {
        let judge = Points::PRE_ENQUEUE.or(Points::FILTER).or(Points::RESERVE);
        judge.or(Points::PERMIT).or(Points::BIND)
    }
}

impl Sign for Knobs {
    fn sign(&self, pod: &PodInfo, _: &ResourceTable, signature: &mut Signature) -> Signable {
        assert!(pod.annotation("unreadable").is_none(), "asked not to read");
        signature.amounts(&pod.requests);
        signature.text(&pod.name[..1]);
        Signable::Yes
    }
}

impl PreEnqueue for Knobs {
    fn pre_enqueue(&self, pod: &PodInfo) -> Verdict {
        stumble("pre_enqueue");
        if pod.gates.is_empty() {
            Ok(())
        } else {
            Err(Rejection::unresolvable("gated"))
        }
    }
}

impl Filter for Knobs {
    fn filter(&self, cycle: &Cycle<'_>, _state: &State, node: NodeIndex) -> Verdict {
        assert!(!cycle.pod.name.starts_with("panic"), "asked to");
        if cycle.pod.name.ends_with("never") {
            return Err(Rejection::unschedulable("never"));
        }
        let free = cycle.view.nodes.allocatable(node, CPU) - cycle.view.nodes.requested(node, CPU);
        if cycle.pod.requests.get(CPU) > free {
            return Err(Rejection::unschedulable("Insufficient cpu"));
        }
        Ok(())
    }
}

impl QueueHints for Knobs {
    fn interests(&self) -> Vec<Interest> {
        vec![
            Interest {
                subject: Subject::Node,
                actions: Action::ADD,
            },
            Interest {
                subject: Subject::AssignedPod,
                actions: Action::DELETE,
            },
            Interest {
                subject: Subject::Object(THINGS),
                actions: Action::ADD,
            },
        ]
    }
    fn hint(&self, pod: &PodInfo, event: &ClusterEvent<'_>, _view: View<'_>) -> QueueingHint {
        let Some(about) = event.object.and_then(ObjectChange::new_as::<String>) else {
            return QueueingHint::Queue;
        };
        QUESTIONS.set(QUESTIONS.get() + 1);
        match self.referenced_objects(pod).contains(&&**about) {
            true => QueueingHint::Queue,
            false => QueueingHint::Skip,
        }
    }
    fn event_subject(&self, event: &ClusterEvent<'_>) -> Option<String> {
        event.object?.new_as::<String>().cloned()
    }
    fn referenced_objects<'a>(&self, pod: &'a PodInfo) -> Vec<&'a str> {
        stumble("names");
        pod.annotation("thing").into_iter().collect()
    }
}

impl Permit for Knobs {
    fn permit(&mut self, cycle: &Cycle<'_>, _node: NodeIndex, _: &mut Effects) -> PermitResult {
        match cycle.pod.name.starts_with("wait") {
            true => PermitResult::Wait(Duration::from_secs(30)),
            false => PermitResult::Allow,
        }
    }
}

impl Bind for Knobs {
    fn bind(&self, _cycle: &Cycle<'_>, _node: NodeIndex) -> BindPlan {
        stumble("bind");
        BindPlan::Binding
    }
}

impl Grouping for Knobs {
    fn next_pod(&mut self, _view: View<'_>, _: &mut Effects) -> Option<Arc<str>> {
        stumble("next_pod");
        None
    }
    fn is_grouped(&self, _pod: &PodInfo) -> bool {
        false
    }
}

impl Explain for Knobs {
    fn refusal_event(&self, _pod: &PodInfo, _message: &LazyMessage) -> Option<RefusalEvent> {
        stumble("remark");
        None
    }
}

impl MetricSource for Knobs {
    fn read(&mut self, _view: View<'_>, _out: &mut MetricSamples) {
        stumble("read");
    }
}

impl Tick for Knobs {
    fn tick(&mut self, _view: View<'_>, _: &mut Effects) {
        stumble("tick");
    }
    fn next_tick(&self) -> Option<Timestamp> {
        stumble("next_tick");
        None
    }
}

impl Reserve for Knobs {
    fn unreserve(&mut self, _cycle: &Cycle<'_>, _node: NodeIndex, _: &mut Effects) {
        stumble("unreserve");
    }
    fn reserve(&mut self, cycle: &Cycle<'_>, _node: NodeIndex, _: &mut Effects) -> Verdict {
        if cycle.pod.name.starts_with("unreservable") {
            return Err(Rejection::unschedulable("nothing left"));
        }
        Ok(())
    }
}

impl PodEvents for Knobs {
    fn on_unassigned(&mut self, _: &Arc<PodInfo>, _: NodeIndex, _: View<'_>, _: &mut Effects) {
        stumble("on_unassigned");
    }
}

impl ObjectEvents for Knobs {
    fn on_object(
        &mut self,
        change: &ObjectChange,
        _view: crate::framework::View<'_>,
        fx: &mut Effects,
    ) {
        if let Some(uid) = change.new_as::<&'static str>() {
            fx.allow.push(((*uid).into(), "Knobs"));
        }
    }
}

fn build(_: Option<&Value>, _: &BuildContext) -> Result<BoxedPlugin, BuildError> {
    Ok(Box::new(Knobs))
}

fn engine() -> Engine {
    engine_of(&Configuration::koord(&["koord-scheduler".to_owned()]))
}

fn engine_of(config: &Configuration) -> Engine {
    let factory = Factory {
        name: "Knobs",
        default_weight: Some(1),
        koord_weight: Some(1),
        build,
    };
    let registry = Registry {
        factories: vec![factory],
        ..Registry::default()
    };
    let profiles = Profiles::build(config, &registry, &BuildContext::default(), true).unwrap();
    Engine::new(config, profiles, EngineOptions::default())
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).unwrap()
}

fn node(name: &str, cpu: &str) -> Arc<Node> {
    let value = json!({"metadata": {"name": name, "uid": name},
        "status": {"allocatable": {"cpu": cpu, "pods": "10"}}});
    Arc::new(serde_json::from_value(value).unwrap())
}

fn pod_with(name: &str, cpu: &str, change: impl FnOnce(&mut Value)) -> Arc<Pod> {
    let mut value = json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name},
        "spec": {"schedulerName": "koord-scheduler", "containers": [
            {"name": "c", "resources": {"requests": {"cpu": cpu}}}
        ]}
    });
    change(&mut value);
    Arc::new(serde_json::from_value(value).unwrap())
}

fn pod(name: &str, cpu: &str) -> Arc<Pod> {
    pod_with(name, cpu, |_| {})
}

fn bound(name: &str, cpu: &str, node: &str) -> Arc<Pod> {
    pod_with(name, cpu, |value| value["spec"]["nodeName"] = json!(node))
}

fn schedule(engine: &mut Engine, seconds: i64) -> Vec<(String, Option<String>)> {
    let mut out = Vec::new();
    while let Some(outcome) = engine.schedule_one(at(seconds)) {
        let node = outcome.node.as_deref().map(str::to_owned);
        out.push((outcome.pod.name.to_string(), node));
        if out.len() > 100 {
            break;
        }
    }
    out
}

fn messages(engine: &mut Engine) -> Vec<String> {
    let text = |output| match output {
        Output::Bind(bind) => format!("bind {} {}", bind.pod.name, bind.node),
        Output::Failed(failure) => format!("{}: {}", failure.reason, failure.message),
        Output::Expect { pod, node } => format!("expect {} {node}", pod.name),
        Output::Problem(problem) => format!("problem {}: {}", problem.name, problem.message),
        other => format!("{other:?}"),
    };
    engine.take_outputs().into_iter().map(text).collect()
}

#[test]
fn refused_pod_is_reported_and_retried_when_node_appears() {
    let mut engine = engine();
    engine.pod_applied(pod("a", "4"), at(0));
    assert_eq!(schedule(&mut engine, 0), [("a".to_owned(), None)]);
    assert_eq!(
        messages(&mut engine),
        ["Unschedulable: no nodes available to schedule pods"]
    );
    engine.node_applied(node("small-1", "2"), at(1));
    engine.node_applied(node("small-2", "2"), at(1));
    assert_eq!(schedule(&mut engine, 1), [("a".to_owned(), None)]);
    assert_eq!(
        messages(&mut engine),
        ["Unschedulable: 0/2 nodes are available: 2 Insufficient cpu."]
    );
    assert_eq!(schedule(&mut engine, 2), [], "nothing happened");
    engine.node_applied(node("large", "8"), at(3));
    assert_eq!(
        schedule(&mut engine, 3),
        [("a".to_owned(), Some("large".to_owned()))]
    );
}

#[test]
fn refusal_text_is_formatted_when_read() {
    let mut engine = engine();
    engine.node_applied(node("n", "2"), at(0));
    engine.pod_applied(pod("a", "4"), at(0));
    assert_eq!(schedule(&mut engine, 1), [("a".to_owned(), None)]);
    let Some(Output::Failed(failure)) = engine.take_outputs().pop() else {
        panic!("not refused");
    };
    assert!(!failure.message.is_formatted());
    assert_eq!(
        *failure.message,
        *"0/1 nodes are available: 1 Insufficient cpu."
    );
    assert!(failure.message.is_formatted());
}

#[test]
fn pods_are_signed_when_queued_except_daemon_pods() {
    let mut engine = engine();
    for kind in ["ReplicaSet", "DaemonSet"] {
        let owner = json!([{"apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": "o"}]);
        let owned = |value: &mut Value| value["metadata"]["ownerReferences"] = owner;
        engine.pod_applied(pod_with(kind, "1", owned), at(0));
    }
    let signed = |uid: &str| {
        let now = std::cell::Cell::new(false);
        let sign = || {
            now.set(true);
            None
        };
        let _ = engine.queue.get(uid).unwrap().info.shape(0, sign);
        !now.get()
    };
    let signs = ["ReplicaSet", "DaemonSet"].map(signed);
    assert_eq!(signs, [true, false]);
    engine.node_applied(node("n", "4"), at(0));
    assert!(schedule(&mut engine, 1).iter().all(|(_, on)| on.is_some()));
}

#[test]
fn wrong_shared_evaluation_is_detected() {
    // The signature of Knobs omits the tail of the name: all of these share a class. The node that the first
    // pod did not get is still cached as fitting when the second one comes.
    let mut engine = engine();
    engine.node_applied(node("n", "4"), at(0));
    engine.node_applied(node("m", "4"), at(0));
    engine.pod_applied(pod("p", "1"), at(0));
    assert!(schedule(&mut engine, 0)[0].1.is_some());
    engine.pod_applied(pod("p-never", "1"), at(1));
    assert_eq!(schedule(&mut engine, 1), [("p-never".to_owned(), None)]);
    assert_eq!(engine.classes().mismatches(), 1);
    engine.pod_applied(pod("p-again", "1"), at(2));
    assert!(schedule(&mut engine, 2)[0].1.is_some());
    assert_eq!(engine.cluster().booked(), (2, 2));
}

/// Only pods that reference the changed object are checked: with thousands of pods that wait for a claim
/// each, their claims come one after another.
#[test]
fn hint_is_called_only_for_pods_that_name_the_object() {
    let mut engine = engine();
    engine.node_applied(node("n", "1"), at(0));
    let waiting = |at: usize| {
        pod_with(&format!("p{at}"), "2", |value| {
            value["metadata"]["annotations"] = json!({"thing": format!("thing-{}", at / 2)});
        })
    };
    for at_ in 0..200 {
        engine.pod_applied(waiting(at_), at(0));
    }
    while engine.schedule_one(at(1)).is_some() {}
    let come = |engine: &mut Engine, thing: &str, seconds: i64| {
        QUESTIONS.set(0);
        let change = ObjectChange {
            kind: THINGS,
            action: Action::ADD,
            old: None,
            new: Arc::new(thing.to_owned()),
        };
        engine.object_changed(&change, at(seconds));
        let mut tried = Vec::new();
        while let Some(outcome) = engine.schedule_one(at(seconds)) {
            tried.push(outcome.pod.name.to_string());
        }
        tried.sort();
        (QUESTIONS.get(), tried.join(" "))
    };
    let two = |names: &str| (2, names.to_owned());
    assert_eq!(come(&mut engine, "thing-7", 60), two("p14 p15"));
    assert_eq!(come(&mut engine, "thing-0", 61), two("p0 p1"));
    assert_eq!(
        come(&mut engine, "thing-7", 120),
        two("p14 p15"),
        "refused again"
    );
    assert_eq!(come(&mut engine, "nothing", 121), (0, String::new()));
    engine.pod_deleted(&waiting(14), at(122));
    assert_eq!(come(&mut engine, "thing-7", 180), (1, "p15".to_owned()));
}
