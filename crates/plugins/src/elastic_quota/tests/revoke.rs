//! Eviction of pods whose quota exceeds its runtime for too long.

use super::*;

/// Builds a cluster of 100 cores, of which quota `b` is guaranteed 60 and lends them to `a`: `a` has `a0` to
/// `a7` with 10 cores each and rising priority.
fn cluster(args: &Value) -> Engine {
    fill(engine_with(args, &[]))
}

fn fill(mut engine: Engine) -> Engine {
    engine.node_applied(node("n", 100, 1000), at(0));
    apply(&mut engine, &quota("a", "", (100, 1000), (40, 400)), 0);
    apply(&mut engine, &quota("b", "", (100, 1000), (60, 600)), 0);
    for number in 0..8 {
        let mut pod = bound(pod(&format!("a{number}"), "a", 10, 1));
        pod["spec"]["priority"] = json!(number);
        add(&mut engine, &pod, 0);
    }
    engine
}

fn on() -> Value {
    json!({"monitorAllQuotas": true})
}

/// Returns the pods evicted since the last call.
fn evicted(engine: &mut Engine, seconds: i64) -> Vec<String> {
    let writes = writes(engine, seconds).into_iter();
    let evicted = writes.filter_map(|write| match write.verb {
        Verb::Evict(uid) => {
            assert_eq!(
                (write.group, write.version, write.plural, &*write.namespace),
                ("", "v1", "pods", "team")
            );
            assert_eq!(uid, write.name, "the uid of this very pod");
            Some(write.name)
        }
        _ => None,
    });
    evicted.collect()
}

/// Makes the lender request its whole guarantee: 40 cores remain for `a`, which uses 80.
fn reclaim(engine: &mut Engine, seconds: i64) {
    add(engine, &pod("b0", "b", 60, 1), seconds);
}

#[test]
fn overuse_is_evicted_after_the_delay() {
    let mut engine = cluster(&on());
    assert_eq!(evicted(&mut engine, 1), [""; 0]);
    reclaim(&mut engine, 200);
    assert_eq!(evicted(&mut engine, 200), [""; 0], "it begins now");
    assert_eq!(
        engine.next_deadline().map(|next| next <= at(320)),
        Some(true)
    );
    assert_eq!(evicted(&mut engine, 319), [""; 0], "not yet two minutes");
    assert_eq!(evicted(&mut engine, 320), ["a0", "a1", "a2", "a3"]);
    // While they terminate, no other pod is evicted, and none twice.
    assert_eq!(evicted(&mut engine, 321), [""; 0]);
    for number in 0..3 {
        let mut pod = bound(pod(&format!("a{number}"), "a", 10, 1));
        pod["metadata"]["deletionTimestamp"] = json!(at(350).to_string());
        add(&mut engine, &pod, 321);
    }
    // One pod remains, as when a budget forbids its eviction: it is evicted again after the delay.
    assert_eq!(evicted(&mut engine, 439), [""; 0]);
    assert_eq!(evicted(&mut engine, 440), ["a3"]);
    for number in 0..4 {
        delete(&mut engine, &pod(&format!("a{number}"), "a", 10, 1), 441);
    }
    assert_eq!(evicted(&mut engine, 900), [""; 0], "it uses its share");
}

#[test]
fn use_below_runtime_restarts_the_delay() {
    let mut engine = cluster(&on());
    let asks = pod("b0", "b", 60, 1);
    add(&mut engine, &asks, 0);
    assert_eq!(evicted(&mut engine, 0), [""; 0]);
    delete(&mut engine, &asks, 100);
    assert_eq!(evicted(&mut engine, 100), [""; 0]);
    add(&mut engine, &asks, 110);
    assert_eq!(evicted(&mut engine, 110), [""; 0]);
    assert_eq!(evicted(&mut engine, 229), [""; 0]);
    assert_eq!(evicted(&mut engine, 230).len(), 4);
}

#[test]
fn arguments_set_delay_and_interval() {
    let over = |args: &Value, seconds: i64| {
        let mut engine = cluster(args);
        reclaim(&mut engine, 0);
        evicted(&mut engine, 0);
        evicted(&mut engine, seconds).len()
    };
    assert_eq!(over(&json!({}), 10_000), 0, "off by default");
    let no_shares = json!({"monitorAllQuotas": true, "enableRuntimeQuota": false});
    assert_eq!(over(&no_shares, 10_000), 0, "there is no share to exceed");
    let quick = json!({"monitorAllQuotas": true, "delayEvictTime": "10s"});
    assert_eq!((over(&quick, 9), over(&quick, 10)), (0, 4));
    let rarely = json!({
        "monitorAllQuotas": true, "delayEvictTime": "10s", "revokePodInterval": "1m"
    });
    assert_eq!((over(&rarely, 59), over(&rarely, 60)), (0, 4));

    // Without delay and interval, checks still have a minimum interval.
    let restless = json!({
        "monitorAllQuotas": true, "delayEvictTime": "0s", "revokePodInterval": "0s"
    });
    let mut engine = cluster(&restless);
    reclaim(&mut engine, 5);
    assert_eq!(evicted(&mut engine, 5).len(), 4);
    assert!(engine.next_deadline().is_none_or(|next| next > at(5)));
}

#[test]
fn victims_belong_to_the_quota_and_are_preemptible() {
    let mut engine = engine(&on(), 200, 1000);
    for name in ["a", "b", SYSTEM_QUOTA] {
        apply(&mut engine, &quota(name, "", (20, 1000), (0, 0)), 0);
    }
    let place = |engine: &mut Engine, name: &str, quota: &str, cpu, priority: i64| {
        let mut pod = bound(pod(name, quota, cpu, 1));
        pod["spec"]["priority"] = json!(priority);
        add(engine, &pod, 0);
    };
    place(&mut engine, "other", "b", 20, 0);
    place(&mut engine, "system", SYSTEM_QUOTA, 30, 0);
    place(&mut engine, "default", "", 40, 0);
    for (name, started) in [("old", 1), ("young", 9)] {
        let mut pod = bound(pod(name, "a", 10, 1));
        pod["status"]["startTime"] = json!(at(started).to_string());
        add(&mut engine, &pod, 0);
    }
    add(&mut engine, &firm(bound(pod("firm", "a", 10, 1))), 0);
    add(&mut engine, &pod("waits", "a", 10, 1), 0);
    evicted(&mut engine, 0);
    // 30 of 20 cores are in use: of two equally important pods, the one that started later is evicted.
    assert_eq!(evicted(&mut engine, 200), ["young"]);
}

#[test]
fn disabled_controller_evicts_no_pod() {
    for (controllers, count) in [("*", 4), ("*,-ElasticQuota", 0)] {
        let context = BuildContext {
            controllers: koord_app::flags::selection(controllers).unwrap(),
            ..BuildContext::default()
        };
        let mut engine = fill(engine_in(&on(), &context));
        reclaim(&mut engine, 0);
        evicted(&mut engine, 0);
        assert_eq!(evicted(&mut engine, 200).len(), count, "{controllers}");
    }
}

#[test]
fn quota_without_parent_evicts_no_pod() {
    let mut engine = engine_with(&on(), &[]);
    engine.node_applied(node("n", 100, 1000), at(0));
    apply(&mut engine, &quota("top", "", (100, 1000), (0, 0)), 0);
    apply(&mut engine, &quota("leaf", "top", (100, 1000), (0, 0)), 0);
    add(&mut engine, &bound(pod("p", "leaf", 10, 1)), 0);
    assert_eq!(evicted(&mut engine, 200), [""; 0]);
    // Its guarantee is zero, and it takes part in no division: upstream evicts all of its pods.
    let deleted = change(&quota("top", "", (100, 1000), (0, 0)), Action::DELETE);
    engine.object_changed(&deleted, at(300));
    assert_eq!(evicted(&mut engine, 301), [""; 0]);
    assert_eq!(evicted(&mut engine, 900), [""; 0]);
}
