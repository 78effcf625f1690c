mod consult;
mod counted;
mod measure;
mod promise;

use super::*;
use crate::framework::Signature;
use crate::framework::{
    BindPlan, Binding, Bookkeeping, BuildContext, BuildError, ClusterEvent, Consent, Cycle,
    Factory, Grouping, Helps, Insight, Metered, ObjectChange, Permit, Registry, Rejection,
    Signable, State, Verdict,
};
use k8s_openapi::api::core::v1::{Node, Pod};
use koord_model::resources::{CPU, ResourceTable};
use serde_json::{Value, json};
use std::time::Duration;

const THINGS: &str = "things.v1.test";

thread_local! {
    /// How many pods were asked about an object.
    static QUESTIONS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    /// Where the plugin panics.
    static STUMBLES: std::cell::Cell<&'static str> = const { std::cell::Cell::new("") };
}

fn stumble(place: &str) {
    assert!(STUMBLES.get() != place, "asked to stumble");
}

/// Room by CPU, and a knob for every test.
struct Knobs;

impl Plugin for Knobs {
    fn name(&self) -> &'static str {
        "Knobs"
    }
    fn points(&self) -> Points {
        let judge = Points::PRE_ENQUEUE.or(Points::FILTER).or(Points::RESERVE);
        judge.or(Points::PERMIT).or(Points::BIND)
    }
    fn books(&mut self) -> Option<&mut dyn Bookkeeping> {
        Some(self)
    }
    fn binding(&self) -> Option<&dyn Binding> {
        Some(self)
    }
    fn consent(&mut self) -> Option<&mut dyn Consent> {
        Some(self)
    }
    fn grouping(&mut self) -> Option<&mut dyn Grouping> {
        Some(self)
    }
    fn insight(&self) -> Option<&dyn Insight> {
        Some(self)
    }
    fn metered(&mut self) -> Option<&mut dyn Metered> {
        Some(self)
    }
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
    fn hint(&self, pod: &PodInfo, event: &ClusterEvent<'_>, _view: View<'_>) -> Helps {
        let Some(about) = event.object.and_then(ObjectChange::new_as::<String>) else {
            return Helps::Queue;
        };
        QUESTIONS.set(QUESTIONS.get() + 1);
        match self.names(pod).contains(&&**about) {
            true => Helps::Queue,
            false => Helps::Skip,
        }
    }
    fn about(&self, event: &ClusterEvent<'_>) -> Option<String> {
        event.object?.new_as::<String>().cloned()
    }
    fn names<'a>(&self, pod: &'a PodInfo) -> Vec<&'a str> {
        stumble("names");
        pod.annotation("thing").into_iter().collect()
    }
    fn sign(&self, pod: &PodInfo, _: &ResourceTable, signature: &mut Signature) -> Signable {
        assert!(pod.annotation("unreadable").is_none(), "asked not to read");
        signature.amounts(&pod.requests);
        signature.text(&pod.name[..1]);
        Signable::Yes
    }
    fn pre_enqueue(&self, pod: &PodInfo) -> Verdict {
        stumble("pre_enqueue");
        if pod.gates.is_empty() {
            Ok(())
        } else {
            Err(Rejection::unresolvable("gated"))
        }
    }
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

impl Consent for Knobs {
    fn permit(&mut self, cycle: &Cycle<'_>, _node: NodeIndex, _: &mut Effects) -> Permit {
        match cycle.pod.name.starts_with("wait") {
            true => Permit::Wait(Duration::from_secs(30)),
            false => Permit::Allow,
        }
    }
}

impl Binding for Knobs {
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

impl Insight for Knobs {
    fn remark(&self, _pod: &PodInfo, _said: &Words) -> Option<Remark> {
        stumble("remark");
        None
    }
}

impl Metered for Knobs {
    fn read(&mut self, _view: View<'_>, _out: &mut Readings) {
        stumble("read");
    }
}

impl Bookkeeping for Knobs {
    fn tick(&mut self, _view: View<'_>, _: &mut Effects) {
        stumble("tick");
    }
    fn next_tick(&self) -> Option<Timestamp> {
        stumble("next_tick");
        None
    }
    fn unreserve(&mut self, _cycle: &Cycle<'_>, _node: NodeIndex, _: &mut Effects) {
        stumble("unreserve");
    }
    fn on_unassigned(&mut self, _: &Arc<PodInfo>, _: NodeIndex, _: View<'_>, _: &mut Effects) {
        stumble("on_unassigned");
    }
    fn reserve(&mut self, cycle: &Cycle<'_>, _node: NodeIndex, _: &mut Effects) -> Verdict {
        if cycle.pod.name.starts_with("unreservable") {
            return Err(Rejection::unschedulable("nothing left"));
        }
        Ok(())
    }
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

fn build(_: Option<&Value>, _: &BuildContext) -> Result<Box<dyn Plugin>, BuildError> {
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
fn a_pod_is_booked_bound_and_confirmed() {
    let mut engine = engine();
    engine.node_applied(node("n", "2"), at(0));
    engine.pod_applied(pod("a", "1"), at(0));
    assert_eq!(
        schedule(&mut engine, 0),
        [("a".to_owned(), Some("n".to_owned()))]
    );
    assert_eq!(messages(&mut engine), ["bind a n"]);
    assert_eq!(engine.booked(), (1, 1));
    engine.bind_finished("a", Ok(()), at(1));
    // An update that was on its way before the binding changes nothing.
    engine.pod_applied(pod("a", "1"), at(1));
    assert_eq!(engine.booked(), (1, 1));
    engine.pod_applied(bound("a", "1", "n"), at(2));
    assert_eq!(engine.booked(), (1, 0));
    engine.pod_deleted(&bound("a", "1", "n"), at(3));
    assert_eq!(engine.booked(), (0, 0));
    assert!(engine.nodes().books_balance());
}

#[test]
fn a_refused_pod_says_why_and_comes_back_when_a_node_appears() {
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
fn a_refusal_is_put_into_words_by_who_reads_it() {
    let mut engine = engine();
    engine.node_applied(node("n", "2"), at(0));
    engine.pod_applied(pod("a", "4"), at(0));
    assert_eq!(schedule(&mut engine, 1), [("a".to_owned(), None)]);
    let Some(Output::Failed(failure)) = engine.take_outputs().pop() else {
        panic!("not refused");
    };
    assert!(!failure.message.is_put());
    assert_eq!(
        *failure.message,
        *"0/1 nodes are available: 1 Insufficient cpu."
    );
    assert!(failure.message.is_put());
}

#[test]
fn a_failed_binding_gives_the_room_back_and_is_retried_after_backoff() {
    let mut engine = engine();
    engine.node_applied(node("n", "1"), at(0));
    engine.pod_applied(pod("a", "1"), at(0));
    engine.pod_applied(pod("b", "1"), at(1));
    assert_eq!(
        schedule(&mut engine, 1).len(),
        2,
        "a is placed, b is refused"
    );
    let conflict = BindError {
        message: "conflict".to_owned(),
        gone: false,
    };
    engine.bind_finished("a", Err(conflict), at(2));
    assert_eq!(engine.booked(), (0, 0));
    assert_eq!(
        schedule(&mut engine, 2),
        [("b".to_owned(), Some("n".to_owned()))]
    );
    assert_eq!(schedule(&mut engine, 3), [("a".to_owned(), None)]);
    assert!(
        messages(&mut engine)
            .iter()
            .any(|m| m == "SchedulerError: binding rejected: conflict")
    );

    let gone = BindError {
        message: "not found".to_owned(),
        gone: true,
    };
    engine.bind_finished("b", Err(gone), at(4));
    assert_eq!(engine.booked(), (0, 0));
    assert!(engine.queued("b").is_none() && engine.queued("a").is_some());
}

/// The condition says already why the second binding failed: nothing is written, and no echo follows.
#[test]
fn a_pod_is_tried_anew_as_it_was_seen_while_it_was_bound() {
    let annotated = |said: &str, condition: Value| {
        pod_with("a", "1", |value| {
            value["metadata"]["annotations"] = json!({"said": said});
            value["status"] = json!({"conditions": [condition]});
        })
    };
    let said = json!({"type": "PodScheduled", "status": "False", "reason": "SchedulerError",
        "message": "binding rejected: no"});
    let mut engine = engine();
    engine.node_applied(node("n", "1"), at(0));
    engine.pod_applied(pod("a", "1"), at(0));
    let refused = || BindError {
        message: "no".to_owned(),
        gone: false,
    };
    // What the pod says when it is bound for the first, the second and the third time.
    let mut told = Vec::new();
    for (round, echo) in ["one", "two", "three"].into_iter().enumerate() {
        let time = 100 * i64::try_from(round).unwrap();
        assert_eq!(schedule(&mut engine, time).len(), 1);
        let outputs = engine.take_outputs().into_iter();
        told.extend(outputs.filter_map(|output| match output {
            Output::Bind(bind) => Some(bind.pod.annotation("said").unwrap_or("-").to_owned()),
            _ => None,
        }));
        // What the binding wrote first comes back before it fails.
        engine.pod_applied(annotated(echo, said.clone()), at(time + 1));
        engine.bind_finished("a", Err(refused()), at(time + 2));
    }
    assert_eq!(told, ["-", "one", "two"]);
}

#[test]
fn an_edit_of_a_pod_that_waits_counts_when_it_has_waited_in_vain() {
    let mut engine = engine();
    engine.node_applied(node("n", "2"), at(0));
    engine.pod_applied(pod("wait", "2"), at(0));
    assert_eq!(schedule(&mut engine, 0).len(), 1);
    engine.pod_applied(pod("wait", "1"), at(1));
    assert_eq!(schedule(&mut engine, 30).len(), 1, "it is tried at once");
    assert_eq!(
        engine
            .nodes()
            .requested(engine.nodes().find("n").unwrap(), CPU),
        1000
    );
    // Behind a gate that came meanwhile, it is not.
    let gated = pod_with("wait", "1", |value| {
        value["spec"]["schedulingGates"] = json!([{"name": "later"}]);
    });
    engine.pod_applied(gated, at(31));
    assert_eq!(schedule(&mut engine, 600), []);
    assert_eq!((engine.pending().gated, engine.booked()), (1, (0, 0)));
}

#[test]
fn a_pod_that_begins_to_go_while_it_is_bound_is_not_tried_again() {
    let mut engine = engine();
    engine.node_applied(node("n", "1"), at(0));
    engine.pod_applied(pod("a", "1"), at(0));
    assert_eq!(schedule(&mut engine, 1).len(), 1);
    let mut going = pod("a", "1").as_ref().clone();
    going.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(2)));
    engine.pod_applied(Arc::new(going), at(2));
    let failed = BindError {
        message: "being deleted".to_owned(),
        gone: false,
    };
    engine.bind_finished("a", Err(failed), at(3));
    assert_eq!(engine.booked(), (0, 0));
    assert_eq!(schedule(&mut engine, 600), []);
}

#[test]
fn a_panicking_plugin_costs_one_cycle_not_the_scheduler() {
    let mut engine = engine();
    engine.node_applied(node("n", "4"), at(0));
    engine.pod_applied(pod("panic", "1"), at(0));
    engine.pod_applied(pod("fine", "1"), at(1));
    let placed = schedule(&mut engine, 1);
    assert_eq!(placed[1], ("fine".to_owned(), Some("n".to_owned())));
    assert!(messages(&mut engine)[0].starts_with("SchedulerError: a plugin panicked: asked to"));
    assert!(engine.nodes().books_balance());
}

#[test]
fn a_plugin_that_panics_over_a_pod_as_it_comes_leaves_it_to_the_attempt() {
    const SAID: &str = "SchedulerError: a plugin panicked: asked not to read";
    let unreadable = |name: &str, cpu: &str| {
        let odd = json!({"unreadable": "yes"});
        pod_with(name, cpu, |value| value["metadata"]["annotations"] = odd)
    };
    let mut engine = engine();
    engine.node_applied(node("n", "4"), at(0));
    engine.pod_applied(unreadable("odd", "1"), at(0));
    engine.pod_applied(pod("fine", "1"), at(1));
    let placed = schedule(&mut engine, 1);
    let fine = ("fine".to_owned(), Some("n".to_owned()));
    assert_eq!(placed, [("odd".to_owned(), None), fine]);
    assert_eq!(messages(&mut engine)[0], SAID);
    // And so does one that is changed while it waits.
    let mut engine = self::engine();
    engine.node_applied(node("n", "4"), at(0));
    engine.pod_applied(pod("later", "8"), at(0));
    assert_eq!(schedule(&mut engine, 0).len(), 1);
    messages(&mut engine);
    engine.pod_applied(unreadable("later", "1"), at(1));
    assert_eq!(schedule(&mut engine, 60), [("later".to_owned(), None)]);
    assert_eq!(messages(&mut engine), [SAID]);
    engine.pod_applied(pod("later", "1"), at(61));
    let placed = ("later".to_owned(), Some("n".to_owned()));
    assert_eq!(schedule(&mut engine, 120), [placed]);
    assert!(engine.nodes().books_balance());
}

#[test]
fn a_plugin_that_panics_beside_a_cycle_costs_its_own_answer() {
    for place in ["tick", "next_tick", "next_pod", "remark", "names", "read"] {
        let mut engine = engine();
        engine.node_applied(node("n", "4"), at(0));
        engine.pod_applied(pod("fine", "1"), at(0));
        engine.pod_applied(pod("large", "8"), at(1));
        STUMBLES.set(place);
        let placed = schedule(&mut engine, 1);
        let _ = engine.next_deadline();
        engine.read(at(1));
        STUMBLES.set("");
        let fine = ("fine".to_owned(), Some("n".to_owned()));
        assert_eq!(placed, [fine, ("large".to_owned(), None)], "{place}");
        let refused = "Unschedulable: 0/1 nodes are available: 1 Insufficient cpu.";
        assert_eq!(messages(&mut engine), ["bind fine n", refused], "{place}");
        assert_eq!(engine.pending().unschedulable, 1, "{place}");
    }
}

#[test]
fn a_pod_over_which_a_plugin_panics_when_its_wait_ends_is_tried_again() {
    let allow = ObjectChange {
        kind: "tests",
        action: Action::UPDATE,
        old: None,
        new: Arc::new("wait"),
    };
    for (place, allowed, said) in [
        ("unreserve", false, "rejected due to timeout"),
        ("on_unassigned", false, "rejected due to timeout"),
        ("pre_enqueue", false, "rejected due to timeout"),
        ("bind", true, "a plugin panicked: asked to stumble"),
    ] {
        let mut engine = engine();
        engine.node_applied(node("n", "2"), at(0));
        engine.pod_applied(pod("wait", "2"), at(0));
        assert_eq!(schedule(&mut engine, 0).len(), 1);
        // Somebody edits it meanwhile.
        engine.pod_applied(pod("wait", "1"), at(1));
        engine.take_outputs();
        STUMBLES.set(place);
        if allowed {
            engine.object_changed(&allow, at(2));
        } else {
            assert!(engine.schedule_one(at(30)).is_none() || place != "pre_enqueue");
        }
        STUMBLES.set("");
        let messages = messages(&mut engine).join("; ");
        assert!(messages.contains(said), "{place}: {messages}");
        assert!(engine.nodes().books_balance(), "{place}");
        engine.node_applied(node("m", "1"), at(31));
        schedule(&mut engine, 31);
        assert_eq!(engine.booked(), (1, 1), "{place}: it waits once more");
        assert_eq!(engine.pending().in_flight, 1, "{place}");
    }
}

#[tokio::test]
async fn a_question_over_which_a_plugin_panics_has_no_answer_and_the_next_has() {
    let mut engine = engine();
    let debug = crate::debug::DebugHandle::default();
    let mut questions = debug.attach();
    let asked = tokio::spawn(async move {
        let first: Option<usize> = debug.ask_for(|_, _| panic!("asked to")).await;
        let second = debug.ask_for(|engine, _| engine.nodes().len()).await;
        (first, second)
    });
    for _ in 0..2 {
        questions.recv().await.unwrap().answer(&mut engine, at(0));
    }
    assert_eq!(asked.await.unwrap(), (None, Some(0)));
}

#[test]
fn pods_are_signed_as_they_come_but_a_daemons_which_share_nothing() {
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
    let told = ["ReplicaSet", "DaemonSet"].map(signed);
    assert_eq!(told, [true, false]);
    engine.node_applied(node("n", "4"), at(0));
    assert!(schedule(&mut engine, 1).iter().all(|(_, on)| on.is_some()));
}

#[test]
fn a_pod_that_waits_for_permission_holds_its_room_until_allowed_or_late() {
    let mut engine = engine();
    engine.node_applied(node("n", "2"), at(0));
    engine.pod_applied(pod("wait-a", "1"), at(0));
    engine.pod_applied(pod("wait-b", "1"), at(0));
    engine.node_applied(node("m", "0"), at(0));
    assert_eq!(schedule(&mut engine, 0).len(), 2);
    assert_eq!(
        messages(&mut engine),
        ["expect wait-a n", "expect wait-b n"]
    );
    assert_eq!(engine.booked(), (2, 2));
    let allow = ObjectChange {
        kind: "tests",
        action: Action::UPDATE,
        old: None,
        new: Arc::new("wait-a"),
    };
    engine.object_changed(&allow, at(1));
    assert_eq!(messages(&mut engine), ["bind wait-a n"]);
    assert_eq!(engine.next_deadline(), Some(at(30)));
    engine.schedule_one(at(30));
    assert_eq!(engine.booked().0, 1, "the other one gave its room back");
    assert!(messages(&mut engine)[0].contains(
        "0/1 nodes are available: 1 rejected due to timeout after waiting 30s at plugin Knobs."
    ));
}

#[test]
fn what_happens_while_a_pod_waits_counts_when_its_time_is_over() {
    for (happens, tried) in [(true, 1), (false, 0)] {
        let mut engine = engine();
        engine.node_applied(node("n", "2"), at(0));
        engine.pod_applied(pod("wait", "2"), at(0));
        assert_eq!(schedule(&mut engine, 0).len(), 1);
        if happens {
            engine.node_applied(node("n2", "1"), at(10));
        }
        engine.take_outputs();
        // Its time is over, and nothing else happens.
        assert_eq!(schedule(&mut engine, 29), []);
        assert_eq!(schedule(&mut engine, 30).len(), tried, "{happens}");
        let said = messages(&mut engine).join("; ");
        assert!(said.contains("rejected due to timeout"), "{said}");
    }
}

#[test]
fn a_node_with_a_malformed_amount_stays_and_keeps_what_it_had() {
    let mut engine = engine();
    engine.node_applied(node("n", "2"), at(0));
    engine.pod_applied(bound("a", "1", "n"), at(0));
    engine.take_outputs();
    engine.node_applied(node("n", "2x"), at(1));
    let said = |engine: &mut Engine| {
        let outputs = engine.take_outputs().into_iter();
        let problems = outputs.filter_map(|output| match output {
            Output::Problem(problem) => Some(problem.message),
            _ => None,
        });
        problems.collect::<Vec<_>>()
    };
    let problems = said(&mut engine);
    assert!(
        problems.len() == 1 && problems[0].contains("status.allocatable[cpu]"),
        "{problems:?}"
    );
    assert!(
        problems[0].contains("\"2x\"") && problems[0].contains("keeps"),
        "{problems:?}"
    );
    // Said once.
    engine.node_applied(node("n", "2x"), at(2));
    assert_eq!(said(&mut engine), [""; 0]);
    engine.pod_applied(pod("b", "1"), at(2));
    assert_eq!(
        schedule(&mut engine, 2),
        [("b".to_owned(), Some("n".to_owned()))]
    );
    engine.pod_applied(pod("c", "1"), at(3));
    assert_eq!(schedule(&mut engine, 3), [("c".to_owned(), None)]);
    // One that was never read has none of it, and is there.
    engine.node_applied(node("new", "x"), at(4));
    assert!(engine.nodes().find("new").is_some());
    assert!(
        said(&mut engine)
            .iter()
            .any(|text| text.contains("has none"))
    );
    engine.node_applied(node("new", "1"), at(5));
    assert_eq!(
        schedule(&mut engine, 60),
        [("c".to_owned(), Some("new".to_owned()))]
    );
}

#[test]
fn a_late_echo_of_a_place_that_was_given_back_keeps_nobody_out() {
    let mut engine = engine();
    engine.node_applied(node("n", "1"), at(0));
    engine.pod_applied(pod("wait-a", "1"), at(0));
    assert_eq!(schedule(&mut engine, 0).len(), 1);
    assert_eq!(messages(&mut engine), ["expect wait-a n"]);
    engine.schedule_one(at(30));
    assert_eq!(engine.booked().0, 0, "it waited in vain");
    let echo = pod_with("wait-a", "1", |value| {
        value["status"] = json!({"nominatedNodeName": "n"});
    });
    engine.pod_applied(echo, at(30));
    assert_eq!(engine.nominated_node("wait-a"), None);
    engine.pod_applied(pod("b", "1"), at(30));
    let placed = schedule(&mut engine, 30);
    assert_eq!(placed[0], ("b".to_owned(), Some("n".to_owned())));
}

/// Nothing happens between a place that is given back and its echoes: who was refused is not tried
/// again because of them, or a gang that nearly fits is tried for ever, and all who wait with it.
#[test]
fn echoes_of_a_place_that_was_given_back_wake_nobody() {
    let mut engine = engine();
    engine.node_applied(node("n", "1"), at(0));
    engine.pod_applied(pod("wait-a", "1"), at(0));
    engine.pod_applied(pod("b", "1"), at(0));
    assert_eq!(
        schedule(&mut engine, 0).len(),
        2,
        "one waits, one is refused"
    );
    engine.pod_applied(pod("c", "2"), at(0));
    assert_eq!(schedule(&mut engine, 0).len(), 1, "refused");
    engine.pod_deleted(&pod("b", "1"), at(1));
    let tried = schedule(&mut engine, 30);
    assert_eq!(engine.booked().0, 0, "it waited in vain: {tried:?}");
    let echo = pod_with("wait-a", "1", |value| {
        value["status"] = json!({"nominatedNodeName": "n"});
    });
    engine.pod_applied(echo, at(30));
    assert_eq!(schedule(&mut engine, 30), []);
    engine.pod_applied(pod("wait-a", "1"), at(30));
    assert_eq!(schedule(&mut engine, 30), []);
}

#[test]
fn a_refused_reservation_is_undone() {
    let mut engine = engine();
    engine.node_applied(node("n", "2"), at(0));
    engine.pod_applied(pod("unreservable", "1"), at(0));
    assert_eq!(schedule(&mut engine, 0)[0].1, None);
    assert_eq!(engine.booked(), (0, 0));
    assert!(engine.nodes().books_balance());
    assert_eq!(
        messages(&mut engine),
        ["Unschedulable: 0/1 nodes are available: 1 nothing left."]
    );
}

#[test]
fn gated_pods_and_pods_of_other_schedulers_are_left_alone() {
    let mut engine = engine();
    engine.node_applied(node("n", "2"), at(0));
    let gated = |gates: Value| pod_with("g", "1", |v| v["spec"]["schedulingGates"] = gates);
    engine.pod_applied(gated(json!([{"name": "later"}])), at(0));
    engine.pod_applied(
        pod_with("x", "1", |v| v["spec"]["schedulerName"] = json!("other")),
        at(0),
    );
    assert_eq!(schedule(&mut engine, 0), []);
    assert_eq!(engine.pending().gated, 1);
    engine.pod_applied(gated(json!([])), at(1));
    assert_eq!(
        schedule(&mut engine, 1),
        [("g".to_owned(), Some("n".to_owned()))]
    );
    // Whoever bound it: it takes room.
    engine.pod_applied(
        pod_with("x", "1", |v| {
            v["spec"]["schedulerName"] = json!("other");
            v["spec"]["nodeName"] = json!("n");
        }),
        at(2),
    );
    engine.pod_applied(pod("late", "1"), at(2));
    assert_eq!(schedule(&mut engine, 2), [("late".to_owned(), None)]);
}

#[test]
fn pods_seen_before_their_node_count_when_it_appears() {
    let mut engine = engine();
    engine.pod_applied(bound("old", "2", "n"), at(0));
    engine.node_applied(node("n", "2"), at(0));
    engine.pod_applied(pod("new", "1"), at(0));
    assert_eq!(schedule(&mut engine, 0), [("new".to_owned(), None)]);
    // The node goes, its pod stays for a while: the books stay right.
    engine.node_deleted("n", at(1));
    assert_eq!(engine.nodes().len(), 0);
    assert!(engine.nodes().books_balance());
    engine.pod_deleted(&bound("old", "2", "n"), at(2));
    engine.node_applied(node("m", "1"), at(3));
    assert_eq!(
        schedule(&mut engine, 3),
        [("new".to_owned(), Some("m".to_owned()))]
    );
}

#[test]
fn a_pod_bound_elsewhere_moves_and_a_finished_one_frees_its_room() {
    let mut engine = engine();
    engine.node_applied(node("n", "1"), at(0));
    engine.node_applied(node("m", "1"), at(0));
    engine.pod_applied(pod("a", "1"), at(0));
    let (_, placed) = schedule(&mut engine, 0).remove(0);
    let other = if placed.as_deref() == Some("n") {
        "m"
    } else {
        "n"
    };
    engine.pod_applied(bound("a", "1", other), at(1));
    assert_eq!(engine.placement("a").map(|(node, _)| &**node), Some(other));
    let conflict = BindError {
        message: "already bound".to_owned(),
        gone: false,
    };
    engine.bind_finished("a", Err(conflict), at(2));
    assert_eq!(engine.booked(), (1, 0), "the informer knew better");
    let done = pod_with("a", "1", |value| {
        value["spec"]["nodeName"] = json!(other);
        value["status"] = json!({"phase": "Succeeded"});
    });
    engine.pod_applied(done, at(3));
    assert_eq!(engine.booked(), (0, 0));
    assert!(engine.nodes().books_balance());
}

#[test]
fn objects_that_cannot_be_read_are_reported_and_harm_nobody() {
    let mut engine = engine();
    engine.node_applied(node("good", "1"), at(0));
    engine.node_applied(node("bad", "lots"), at(0));
    engine.pod_applied(pod("broken", "1x"), at(0));
    engine.pod_applied(pod("fine", "1"), at(0));
    assert_eq!(
        schedule(&mut engine, 0),
        [("fine".to_owned(), Some("good".to_owned()))]
    );
    let messages = messages(&mut engine);
    assert!(messages[0].contains("problem bad") && messages[0].contains("\"lots\""));
    assert!(messages[1].contains("problem broken") && messages[1].contains("\"1x\""));
}

#[test]
fn a_shared_evaluation_that_is_wrong_costs_time_not_correctness() {
    // The signature of Knobs leaves the name's tail out: all of these share a class. The node that
    // the first pod did not take is still remembered as fitting when the second one comes.
    let mut engine = engine();
    engine.node_applied(node("n", "4"), at(0));
    engine.node_applied(node("m", "4"), at(0));
    engine.pod_applied(pod("p", "1"), at(0));
    assert!(schedule(&mut engine, 0)[0].1.is_some());
    engine.pod_applied(pod("p-never", "1"), at(1));
    assert_eq!(schedule(&mut engine, 1), [("p-never".to_owned(), None)]);
    assert_eq!(engine.mismatches(), 1);
    engine.pod_applied(pod("p-again", "1"), at(2));
    assert!(schedule(&mut engine, 2)[0].1.is_some());
    assert_eq!(engine.booked(), (2, 2));
}

/// With thousands that wait for a claim each, their claims come one after another.
#[test]
fn only_those_who_wait_for_a_thing_are_asked_about_it() {
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
        "refused anew"
    );
    assert_eq!(come(&mut engine, "nothing", 121), (0, String::new()));
    engine.pod_deleted(&waiting(14), at(122));
    assert_eq!(come(&mut engine, "thing-7", 180), (1, "p15".to_owned()));
}
