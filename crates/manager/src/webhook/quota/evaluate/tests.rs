//! Upstream's tables of `pkg/webhook/quotaevaluate` and `pkg/webhook/pod/validating/evaluate_quota`,
//! and many writers on two replicas against an API server.

mod writers;

use super::batch::Charge;
use super::*;
use crate::webhook::quota::testing::quota;
use futures::FutureExt;
use futures::future::BoxFuture;
use koord_api::annotations;
use koord_api::scheduling::ElasticQuota;
use serde_json::{Value, json};
use std::collections::VecDeque;

fn list(value: &Value) -> ResourceList {
    serde_json::from_value(value.clone()).unwrap()
}

/// Evaluates one pod against one quota: returns the charge, or the refusal; `None` if nothing needs to be
/// written.
fn alone(quota: &ElasticQuota, request: &Value) -> Result<Option<ResourceList>, String> {
    let mut requests = [BatchRequest::new(list(request))];
    let charge = ChargeBatch::default().decide(quota, &mut requests);
    let [entry] = requests;
    match (charge, entry.verdict) {
        (Some(charge), None) => Ok(Some(charge.used)),
        (None, Some(verdict)) => verdict.map(|()| None).map_err(|refusal| refusal.0),
        odd => panic!("{odd:?}"),
    }
}

#[test]
fn refusal_names_exceeded_resources() {
    let two = json!({"cpu": "2", "memory": "4Gi"});
    let four = json!({"cpu": "4", "memory": "8Gi"});
    let batch = json!({"kubernetes.io/batch-cpu": "4", "kubernetes.io/batch-memory": "8Gi"});
    let gpus = json!({"nvidia.com/gpu": "2"});
    let gpu_pod = json!({"cpu": "2", "memory": "4Gi", "nvidia.com/gpu": "2"});
    let wrote = |value: Value| Ok(Some(list(&value)));
    let exceeded = |rest: &str| Err(format!("exceeded quota: ns/quota1, {rest}"));
    let rows = [
        (json!({"max": four}), &two, wrote(two.clone())),
        (
            json!({"max": four, "childRequest": {"cpu": "2", "memory": "2Gi"}}),
            &two,
            wrote(json!({"cpu": "4", "memory": "6Gi"})),
        ),
        (
            json!({"max": four, "childRequest": {"cpu": "4", "memory": "2Gi"}}),
            &two,
            exceeded("requested: cpu=2, used: cpu=4, limited: cpu=4"),
        ),
        (
            json!({"max": four, "childRequest": four}),
            &two,
            exceeded(
                "requested: cpu=2,memory=4Gi, used: cpu=4,memory=8Gi, limited: cpu=4,memory=8Gi",
            ),
        ),
        (
            json!({"max": four, "childRequest": {"cpu": "4", "memory": "2Gi"}, "admission": {"cpu": "8", "memory": "16Gi"}}),
            &two,
            wrote(json!({"cpu": "6", "memory": "6Gi"})),
        ),
        (
            json!({"max": four, "childRequest": four, "admission": {"cpu": "8", "memory": "16Gi"}}),
            &two,
            wrote(json!({"cpu": "6", "memory": "12Gi"})),
        ),
        (json!({"max": batch, "childRequest": batch}), &two, Ok(None)),
        (
            json!({"max": batch, "childRequest": batch}),
            &json!({"kubernetes.io/batch-cpu": "1", "kubernetes.io/batch-memory": "2Gi"}),
            exceeded(
                "requested: kubernetes.io/batch-cpu=1,kubernetes.io/batch-memory=2Gi, used: kubernetes.io/batch-cpu=4,kubernetes.io/batch-memory=8Gi, limited: kubernetes.io/batch-cpu=4,kubernetes.io/batch-memory=8Gi",
            ),
        ),
        (
            json!({"max": {"cpu": "1", "memory": "2Gi"}}),
            &two,
            exceeded("requested: cpu=2,memory=4Gi, used: , limited: cpu=1,memory=2Gi"),
        ),
        (
            json!({"max": {"cpu": "1", "memory": "2Gi"}, "admission": {}}),
            &two,
            exceeded("requested: cpu=2,memory=4Gi, used: , limited: cpu=1,memory=2Gi"),
        ),
        (
            json!({"max": four, "admission": {"cpu": "0", "memory": "0Gi"}}),
            &two,
            exceeded("requested: cpu=2,memory=4Gi, used: , limited: cpu=0,memory=0"),
        ),
        (
            json!({"max": four, "admission": {"kubernetes.io/batch-cpu": "0"}}),
            &two,
            wrote(two.clone()),
        ),
        (
            json!({"max": {"memory": "0Gi", "example.io/cpu": "4k", "example.io/gpu": "3"}}),
            &json!({"example.io/cpu": "2k", "example.io/gpu": "1"}),
            wrote(json!({"example.io/cpu": "2k", "example.io/gpu": "1"})),
        ),
        (json!({"max": gpus}), &gpu_pod, wrote(gpus.clone())),
        (
            json!({"max": gpus, "childRequest": gpus}),
            &gpu_pod,
            exceeded(
                "requested: nvidia.com/gpu=2, used: nvidia.com/gpu=2, limited: nvidia.com/gpu=2",
            ),
        ),
        (
            json!({"max": {"cpu": "4"}, "childRequest": {"cpu": "3"}}),
            &json!({"cpu": "2"}),
            exceeded("requested: cpu=2, used: cpu=3, limited: cpu=4"),
        ),
        // Resources that no pod of the list has are not limited.
        (
            json!({"max": {"example.io/gpu": "1"}}),
            &json!({"example.io/gpu": "2"}),
            Ok(None),
        ),
        (json!({"max": {"cpu": "1"}}), &json!({"cpu": "0"}), Ok(None)),
        // The usage of resources that the pod does not request is not checked, even above the limit.
        (
            json!({"max": four, "childRequest": {"cpu": "9", "example.io/x": "1"}}),
            &json!({"memory": "1Gi"}),
            wrote(json!({"cpu": "9", "memory": "1Gi", "example.io/x": "1"})),
        ),
    ];
    for (words, request, want) in rows {
        assert_eq!(
            alone(&quota("quota1", words.clone()), request),
            want,
            "{words} {request}"
        );
    }
    for key in [
        annotations::QUOTA_CHILD_REQUEST,
        annotations::QUOTA_ADMISSION,
    ] {
        let bad = quota(
            "quota1",
            json!({"max": four, "annotations": {key: "{\"cpu\":\"lots\"}"}}),
        );
        let refusal = alone(&bad, &two).unwrap_err();
        assert!(
            refusal.starts_with("elastic quota ns/quota1: annotation ")
                && refusal.contains(key)
                && refusal.contains("lots"),
            "{refusal}"
        );
    }
}

#[test]
fn batch_is_decided_pod_by_pod_and_retried_at_once() {
    let with_used = |used: &str| {
        quota(
            "q",
            json!({"max": {"cpu": "20"}, "childRequest": {"cpu": used}}),
        )
    };
    let requests_of = |all: &[&str]| -> Vec<BatchRequest> {
        all.iter()
            .map(|cpu| BatchRequest::new(list(&json!({"cpu": cpu}))))
            .collect()
    };
    let charge = |cpu: &str, pods| {
        Some(Charge {
            used: list(&json!({"cpu": cpu})),
            pods,
        })
    };
    let mut batch = ChargeBatch::default();
    let mut requests = requests_of(&["2", "9", "3", "0"]);
    assert_eq!(
        batch.decide(&with_used("10"), &mut requests),
        charge("15", Some(2))
    );
    assert_eq!(
        requests
            .iter()
            .map(|entry| entry.verdict.as_ref().map(Result::is_ok))
            .collect::<Vec<_>>(),
        [None, Some(false), None, Some(true)]
    );
    assert_eq!(
        batch.decide(&with_used("12"), &mut requests),
        charge("17", None),
        "both still fit"
    );
    assert_eq!(
        batch.decide(&with_used("17"), &mut requests),
        charge("19", Some(1)),
        "one of them does"
    );
    assert!(requests[2].verdict.as_ref().is_some_and(Result::is_err));
    assert_eq!(batch.decide(&with_used("19"), &mut requests), None);
    assert!(requests.iter().all(|entry| entry.verdict.is_some()));
    // Another maximum: what was summed up may not be what counts.
    let mut requests = requests_of(&["2"]);
    let mut batch = ChargeBatch::default();
    assert_eq!(
        batch.decide(&with_used("10"), &mut requests),
        charge("12", Some(1))
    );
    let other = quota("q", json!({"max": {"memory": "1Gi"}}));
    assert_eq!(batch.decide(&other, &mut requests), None);
    assert_eq!(requests[0].verdict, Some(Ok(())));
}

#[test]
fn retries_grow_with_the_batch() {
    let with = |max, pods| {
        Retries {
            max,
            ..Retries::default()
        }
        .for_batch(pods)
    };
    for (max, pods, want) in [
        (10, 0, 3),
        (10, 1, 3),
        (10, 2, 4),
        (10, 3, 4),
        (10, 4, 5),
        (10, 8, 6),
        (10, 1024, 10),
        (10, 1 << 20, 10),
        (5, 1 << 10, 5),
        (5, 1, 3),
        (1, 1 << 10, 3),
    ] {
        assert_eq!(with(max, pods), want, "max {max}, {pods} pods");
    }
}

#[test]
fn pauses_are_bounded() {
    let ms = Duration::from_millis;
    for (jitter, total, spent, left, want) in [
        (ms(50), ms(1000), ms(0), 1, ms(50)),
        (ms(50), ms(1000), ms(0), 0, ms(0)),
        (ms(50), ms(1000), ms(951), 5, ms(0)),
        (ms(0), ms(1000), ms(0), 5, ms(0)),
        (ms(50), ms(0), ms(0), 5, ms(0)),
        (ms(50), ms(75), ms(0), 5, ms(50)),
        (ms(50), ms(75), ms(50), 5, ms(0)),
        (Duration::MAX, Duration::MAX, ms(50), 5, Duration::MAX),
    ] {
        let retries = Retries {
            jitter,
            max_total_jitter: total,
            ..Retries::default()
        };
        assert_eq!(
            retries.pause(spent, left),
            want,
            "{jitter:?} of {total:?} after {spent:?}, {left} left"
        );
    }
}

/// A quota that others write: each write here fails while `others` has a new `child-request` for it.
struct ContendedQuotas {
    quota: Mutex<ElasticQuota>,
    others: Mutex<VecDeque<Value>>,
    writes: Mutex<u32>,
    /// The pause of each failed write.
    pauses: Mutex<Vec<Duration>>,
    slow: Option<Duration>,
    /// True if the next read panics.
    panics: Mutex<bool>,
}

impl ContendedQuotas {
    fn new(quota: ElasticQuota, others: &[Value]) -> Arc<Self> {
        Arc::new(Self {
            quota: Mutex::new(quota),
            others: Mutex::new(others.iter().cloned().collect()),
            writes: Mutex::default(),
            pauses: Mutex::default(),
            slow: None,
            panics: Mutex::default(),
        })
    }

    fn set(&self, used: &str) {
        let mut quota = self.quota.lock();
        let all = quota.metadata.annotations.get_or_insert_default();
        all.insert(annotations::QUOTA_CHILD_REQUEST.to_owned(), used.to_owned());
    }

    fn used(&self) -> ResourceList {
        self.quota
            .lock()
            .amounts(annotations::QUOTA_CHILD_REQUEST)
            .unwrap()
    }
}

impl QuotaAccess for ContendedQuotas {
    fn get<'a>(&'a self, _: &'a ObjectKey) -> BoxFuture<'a, Result<Arc<ElasticQuota>, Refusal>> {
        async {
            if std::mem::take(&mut *self.panics.lock()) {
                panic!("requested by the test");
            }
            if let Some(slow) = self.slow {
                tokio::time::sleep(slow).await;
            }
            Ok(Arc::new(self.quota.lock().clone()))
        }
        .boxed()
    }

    fn charge<'a>(
        &'a self,
        _: &'a ElasticQuota,
        used: &'a ResourceList,
        pause: Duration,
    ) -> BoxFuture<'a, Result<(), Refusal>> {
        async move {
            *self.writes.lock() += 1;
            self.pauses.lock().push(pause);
            if let Some(other) = self.others.lock().pop_front() {
                self.set(&other.to_string());
                return Err(Refusal("conflict".to_owned()));
            }
            self.set(&serde_json::to_string(used).unwrap());
            Ok(())
        }
        .boxed()
    }
}

fn key() -> ObjectKey {
    ObjectKey::new("ns", "q")
}

async fn evaluate_cpu(evaluator: &Evaluator, cpu: &str) -> Result<(), String> {
    let result = evaluator.evaluate(key(), list(&json!({"cpu": cpu}))).await;
    result.map_err(|denial| denial.to_string())
}

#[tokio::test(start_paused = true)]
async fn sequential_charges_add_up() {
    let access = ContendedQuotas::new(
        quota(
            "q",
            json!({"max": {"cpu": "10"}, "childRequest": {"cpu": "8"}}),
        ),
        &[],
    );
    let evaluator = Evaluator::new(access.clone(), Retries::default());
    assert_eq!(evaluate_cpu(&evaluator, "1").await, Ok(()));
    let denied = evaluate_cpu(&evaluator, "3").await.unwrap_err();
    assert_eq!(
        denied,
        "exceeded quota: ns/q, requested: cpu=3, used: cpu=9, limited: cpu=10"
    );
    assert_eq!(access.used(), list(&json!({"cpu": "9"})));
    let fits = async |cpu: &str| {
        evaluator
            .would_fit(&key(), list(&json!({"cpu": cpu})))
            .await
    };
    assert_eq!(fits("1").await, Ok(()));
    assert!(fits("2").await.is_err());
    assert_eq!(
        access.used(),
        list(&json!({"cpu": "9"})),
        "a question charges nothing"
    );
    assert!(evaluator.queues.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn requests_that_wait_together_are_one_write() {
    let access = ContendedQuotas::new(quota("q", json!({"max": {"cpu": "20"}})), &[]);
    let evaluator = Evaluator::new(access.clone(), Retries::default());
    let all = (0..30).map(|_| evaluate_cpu(&evaluator, "1"));
    let granted = futures::future::join_all(all).await;
    assert_eq!(granted.iter().filter(|granted| granted.is_ok()).count(), 20);
    assert_eq!(
        (access.used(), *access.writes.lock()),
        (list(&json!({"cpu": "20"})), 1)
    );
}

#[tokio::test(start_paused = true)]
async fn conflict_retries_depend_on_batch() {
    let run = async |others: &[Value]| {
        let access = ContendedQuotas::new(
            quota(
                "q",
                json!({"max": {"cpu": "20"}, "childRequest": {"cpu": "10"}}),
            ),
            others,
        );
        let evaluator = Evaluator::new(
            access.clone(),
            Retries {
                max: 10,
                ..Retries::default()
            },
        );
        (
            evaluate_cpu(&evaluator, "5").await,
            access.used(),
            *access.writes.lock(),
        )
    };
    let used = |cpu: &str| json!({"cpu": cpu});
    assert_eq!(run(&[used("12")]).await, (Ok(()), list(&used("17")), 2));
    let (denied, left, writes) = run(&[used("18")]).await;
    assert_eq!(
        denied.unwrap_err(),
        "exceeded quota: ns/q, requested: cpu=5, used: cpu=18, limited: cpu=20"
    );
    assert_eq!((left, writes), (list(&used("18")), 1));
    let busy: Vec<_> = (0..9).map(|_| used("11")).collect();
    assert_eq!(
        run(&busy).await,
        (Err("conflict".to_owned()), list(&used("11")), 4)
    );
}

#[tokio::test(start_paused = true)]
async fn evaluation_times_out_without_charging() {
    let mut access = ContendedQuotas::new(quota("q", json!({"max": {"cpu": "20"}})), &[]);
    Arc::get_mut(&mut access).unwrap().slow = Some(Duration::from_secs(11));
    let evaluator = Evaluator::new(access.clone(), Retries::default());
    let start = tokio::time::Instant::now();
    let first = evaluate_cpu(&evaluator, "1");
    let second = async {
        // In the queue behind the first, whose batch is being worked on.
        tokio::time::sleep(Duration::from_millis(1)).await;
        evaluate_cpu(&evaluator, "2").await
    };
    let timed_out = Err("Internal error occurred: elastic quota evaluation timed out".to_owned());
    assert_eq!(
        futures::join!(first, second),
        (timed_out.clone(), timed_out)
    );
    assert!(start.elapsed() < Duration::from_secs(11));
    while !evaluator.queues.lock().is_empty() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(
        access.used(),
        list(&json!({"cpu": "1"})),
        "the second had gone before it was judged"
    );
}

/// Pauses of one batch add up to what they may, and the last write has none: nothing follows it.
#[tokio::test(start_paused = true)]
async fn total_delay_of_batch_is_bounded() {
    let busy: Vec<_> = (0..9).map(|_| json!({"cpu": "11"})).collect();
    let ms = Duration::from_millis;
    for (total, want) in [(100, [50, 50, 0, 0]), (1000, [50, 50, 50, 0])] {
        let access = ContendedQuotas::new(quota("q", json!({"max": {"cpu": "20"}})), &busy);
        let retries = Retries {
            jitter: ms(50),
            max_total_jitter: ms(total),
            ..Retries::default()
        };
        let evaluator = Evaluator::new(access.clone(), retries);
        assert_eq!(
            evaluate_cpu(&evaluator, "5").await,
            Err("conflict".to_owned())
        );
        assert_eq!(*access.pauses.lock(), want.map(ms), "{total}");
    }
}

/// Verifies that a waiting request fails, and that the next one finds the quota unlocked.
#[tokio::test(start_paused = true)]
async fn aborted_batch_does_not_lock_its_quota() {
    let access = ContendedQuotas::new(quota("q", json!({"max": {"cpu": "20"}})), &[]);
    *access.panics.lock() = true;
    let evaluator = Evaluator::new(access.clone(), Retries::default());
    assert!(evaluate_cpu(&evaluator, "1").await.is_err());
    assert_eq!(evaluate_cpu(&evaluator, "2").await, Ok(()));
    assert_eq!(access.used(), list(&json!({"cpu": "2"})));
}
