use super::*;
use crate::migration::Migrations;
use crate::migration::limits::{Group, ObjectLimits, max_affected_pods, scaled};
use crate::testing::TestCluster;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

fn after(from: Timestamp, millis: i64) -> Timestamp {
    from.checked_add(SignedDuration::from_millis(millis))
        .unwrap()
}

fn workload(replicas: i64) -> Workload {
    Workload::Known {
        replicas,
        controllers: Vec::new(),
        deleting: false,
    }
}

#[test]
fn unavailable_share_is_at_least_one_replica() {
    let percent = |text: &str| Some(IntOrString::String(text.to_owned()));
    for (replicas, share, expected) in [
        (6, percent("80%"), 4),
        (6, percent("150%"), 6),
        (6, Some(IntOrString::Int(5)), 5),
        (6, Some(IntOrString::Int(7)), 6),
        (6, None, 2),
        (50, percent("0%"), 1),
        (6, Some(IntOrString::Int(0)), 1),
        // Intermediate steps that are not in upstream.
        (3, None, 1),
        (4, None, 2),
        (10, None, 2),
        (11, None, 1),
        (100, None, 10),
        (0, None, 0),
    ] {
        let most = max_affected_pods(replicas, share.as_ref());
        assert_eq!(most, Ok(expected), "{replicas} {share:?}");
    }
    assert!(max_affected_pods(6, percent("x%").as_ref()).is_err());
    assert_eq!(scaled(&percent("15%").unwrap(), 10), Some(1));
}

#[test]
fn evictions_refill_evenly_up_to_their_burst() {
    let start = TestCluster::default().now;
    let after = |millis| after(start, millis);
    let args = args(json!({"evictQPS": 10, "evictBurst": 2}));
    let bucket = Migrations::new("profile", "process", args);
    assert!(bucket.take(start) && bucket.take(start) && !bucket.take(start));
    assert!(!bucket.take(after(99)));
    assert!(bucket.take(after(101)) && !bucket.take(after(110)));
    // A clock that is set back neither adds nor removes tokens.
    assert!(!bucket.take(start));
    let later = after(10_000);
    assert!(bucket.take(later) && bucket.take(later) && !bucket.take(later));
}

/// Upstream's eleven cases of the workload's and the namespace's limiter, in virtual time.
#[test]
fn pods_of_a_workload_or_namespace_go_at_its_pace() {
    let of_workload = json!({"duration": "1s", "maxMigrating": 10});
    let per_workload = json!({"workload": of_workload});
    let burst = json!({"workload": {"duration": "1s", "maxMigrating": 10, "burst": 2}});
    let limiter_args = json!({
        "workload": of_workload, "namespace": {"duration": "1s", "maxMigrating": 5},
    });
    let off = json!({"workload": of_workload, "namespace": {"duration": "0s"}});
    let none = json!({"workload": {"duration": "0s"}});
    let by_default = json!({"workload": {"duration": "5m"}});
    let empty = json!({});
    let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "o", "uid": "o",
        "controller": true}]);
    let elsewhere = json!({"metadata": {"ownerReferences": owner}});
    let namespace = json!({"metadata": {"namespace": "other"}});
    for (limiters, evicted, wait, limited) in [
        (&per_workload, &empty, 100, false),
        (&per_workload, &empty, 10, true),
        (&per_workload, &elsewhere, 10, false),
        (&none, &empty, 10, false),
        (&by_default, &empty, 10, true),
        (&burst, &empty, 10, false),
        (&limiter_args, &empty, 100, true),
        (&limiter_args, &empty, 200, false),
        (&off, &empty, 100, false),
        (&off, &empty, 10, true),
        (&limiter_args, &namespace, 100, false),
    ] {
        let args = args(json!({"objectLimiters": limiters}));
        let mut world = TestCluster::default();
        let pod = world.pod("p", "n", json!({}));
        let first = world.pod("q", "n", evicted.clone());
        let mut limits = ObjectLimits::default();
        limits.count(
            &args,
            &Group::from_pod(&first),
            Some(&workload(100)),
            world.now,
        );
        let allowed = limits.allows(&args, &pod, after(world.now, wait));
        let label = format!("{limiters} {evicted} {wait}: {allowed:?}");
        assert_eq!(allowed.is_err(), limited, "{label}");
    }
}

#[test]
fn one_limiter_that_is_off_does_not_switch_the_other_off() {
    let limiters = json!({
        "namespace": {"duration": "1m", "maxMigrating": "50%"}, "workload": {"duration": "1m"},
    });
    let args = args(json!({"objectLimiters": limiters}));
    let mut world = TestCluster::default();
    let pod = world.pod("p", "n", json!({}));
    let mut limits = ObjectLimits::default();
    limits.count(&args, &Group::from_pod(&pod), Some(&workload(6)), world.now);
    let reason = limits.allows(&args, &pod, world.now).unwrap_err();
    assert_eq!(reason.rule, "WorkloadLimiter");
    // Two of six in a minute: one per half minute.
    let after = |millis| after(world.now, millis);
    assert!(limits.allows(&args, &pod, after(29_900)).is_err());
    assert!(limits.allows(&args, &pod, after(30_100)).is_ok());
    // Idle limits are removed.
    limits.tidy(after(89_000));
    assert_eq!(limits.len(), 1);
    limits.tidy(after(90_000));
    assert!(limits.is_empty());
}

/// A replica that leads again counts evictions by another leader before its own.
#[test]
fn late_count_of_an_earlier_eviction_refills_nothing() {
    let limiters = json!({"workload": {"duration": "1m", "maxMigrating": 2, "burst": 2}});
    let args = args(json!({"objectLimiters": limiters}));
    let mut world = TestCluster::default();
    let pod = world.pod("p", "n", json!({}));
    let after = |millis| after(world.now, millis);
    let mut limits = ObjectLimits::default();
    for then in [60_000, 0] {
        limits.count(
            &args,
            &Group::from_pod(&pod),
            Some(&workload(6)),
            after(then),
        );
    }
    // Both tokens are used up at the minute, and a clock that is set back adds none.
    for (now, is_allowed) in [(59_000, false), (89_000, false), (90_000, true), (0, false)] {
        let allowed = limits.allows(&args, &pod, after(now));
        assert_eq!(allowed.is_ok(), is_allowed, "{now}");
    }
    limits.return_tokens(&args, &Group::from_pod(&pod));
    assert!(limits.allows(&args, &pod, after(60_000)).is_ok());
}

#[test]
fn changed_replicas_change_the_rate_of_a_workload() {
    let limiters = json!({"workload": {"duration": "1m", "maxMigrating": "50%"}});
    let args = args(json!({"objectLimiters": limiters}));
    let mut world = TestCluster::default();
    let pod = world.pod("p", "n", json!({}));
    let after = |millis| after(world.now, millis);
    let mut limits = ObjectLimits::default();
    limits.count(&args, &Group::from_pod(&pod), Some(&workload(2)), world.now);
    // Half of the minute's one token is available; from now on there are four per minute.
    limits.count(
        &args,
        &Group::from_pod(&pod),
        Some(&workload(8)),
        after(30_000),
    );
    assert!(limits.allows(&args, &pod, after(37_400)).is_err());
    assert!(limits.allows(&args, &pod, after(37_600)).is_ok());
}
