//! Cases found missing by Kubernetes' own e2e specs, with the test as the kubelet.

use crate::support::{Cluster, MERGE, STRATEGIC, pod};
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";
const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
const SETS: &str = "/apis/apps/v1/namespaces/default/statefulsets";

fn template(image: &str) -> Value {
    json!({"metadata": {"labels": {"app": "web"}},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": image}]}})
}

fn items(body: &Value) -> &[Value] {
    body["items"].as_array().map_or(&[], Vec::as_slice)
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap()
}

fn names(body: &Value) -> Vec<&str> {
    items(body).iter().map(name).collect()
}

/// Reports as the kubelet how the container of a pod ended.
async fn end(cluster: &Cluster, pod: &str, code: i64) {
    let phase = if code == 0 { "Succeeded" } else { "Failed" };
    let body = json!({"status": {"phase": phase, "containerStatuses": [{"name": "c",
        "image": "", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"terminated": {"exitCode": code, "finishedAt": "2026-03-01T12:00:00Z"}}}]}});
    let path = format!("{PODS}/{pod}/status");
    cluster.patch(&path, STRATEGIC, body).await.expect(200);
}

/// Waits for the active pod of an index.
async fn pod_of_index(cluster: &Cluster, index: i64) -> Value {
    let expected = index.to_string();
    let is = |p: &&Value| {
        p["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] == expected.as_str()
            && !matches!(p["status"]["phase"].as_str(), Some("Failed" | "Succeeded"))
    };
    let answer = cluster
        .until(PODS, |a| items(&a.body).iter().any(|p| is(&p)))
        .await;
    items(&answer.body).iter().find(is).unwrap().clone()
}

/// Waits for a condition of the job and returns its reason.
async fn reason(cluster: &Cluster, job: &str, kind: &str) -> Value {
    let find = |body: &Value| {
        let all = body["status"]["conditions"].as_array().cloned();
        let mut all = all.unwrap_or_default().into_iter();
        all.find(|c| c["type"] == kind).map(|c| c["reason"].clone())
    };
    let answer = cluster
        .until(&format!("{JOBS}/{job}"), |a| find(&a.body).is_some())
        .await;
    find(&answer.body).unwrap()
}

fn job(name: &str, more: &Value) -> Value {
    let mut spec = json!({"completions": 3, "parallelism": 3, "completionMode": "Indexed",
        "template": template("busybox:1")});
    let provided = more.as_object().unwrap().clone();
    spec.as_object_mut().unwrap().extend(provided);
    json!({"metadata": {"name": name}, "spec": spec})
}

#[tokio::test(start_paused = true)]
async fn failed_index_does_not_stop_others() {
    let cluster = Cluster::start().await;
    let object = job("j", &json!({"backoffLimitPerIndex": 1}));
    let created = cluster.post(JOBS, object).await.expect(201);
    assert_eq!(created["spec"]["backoffLimit"], i32::MAX);
    let failures = |pod: &Value| {
        pod["metadata"]["annotations"]["batch.kubernetes.io/job-index-failure-count"].clone()
    };
    let first = pod_of_index(&cluster, 1).await;
    assert_eq!(failures(&first), "0");
    end(&cluster, name(&first), 1).await;
    let requeue = pod_of_index(&cluster, 1).await;
    assert_eq!(failures(&requeue), "1");
    end(&cluster, name(&requeue), 1).await;
    for index in [0, 2] {
        let pod = pod_of_index(&cluster, index).await;
        end(&cluster, name(&pod), 0).await;
    }
    assert_eq!(reason(&cluster, "j", "Failed").await, "FailedIndexes");
    let status = cluster.get(&format!("{JOBS}/j")).await.expect(200)["status"].clone();
    assert_eq!(status["completedIndexes"], "0,2");
    assert_eq!(status["failedIndexes"], "1");
    assert_eq!(status["failed"], 2);
}

#[tokio::test(start_paused = true)]
async fn a_job_ends_by_its_policies() {
    let cluster = Cluster::start().await;
    let object = job(
        "max",
        &json!({"backoffLimitPerIndex": 0, "maxFailedIndexes": 0}),
    );
    cluster.post(JOBS, object).await.expect(201);
    let pod = pod_of_index(&cluster, 2).await;
    end(&cluster, name(&pod), 1).await;
    assert_eq!(
        reason(&cluster, "max", "Failed").await,
        "MaxFailedIndexesExceeded"
    );
    let path = format!("{JOBS}/max");
    let removed = json!({"propagationPolicy": "Background"});
    cluster.delete(&path, removed.clone()).await.expect(200);
    cluster.until(PODS, |a| items(&a.body).is_empty()).await;

    let rules = json!([{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}]);
    let object = job("policy", &json!({"podFailurePolicy": {"rules": rules}}));
    cluster.post(JOBS, object).await.expect(201);
    let pod = pod_of_index(&cluster, 0).await;
    end(&cluster, name(&pod), 42).await;
    assert_eq!(
        reason(&cluster, "policy", "Failed").await,
        "PodFailurePolicy"
    );
    let path = format!("{JOBS}/policy");
    cluster.delete(&path, removed).await.expect(200);
    cluster.until(PODS, |a| items(&a.body).is_empty()).await;

    let rules = json!([{"succeededIndexes": "0-1", "succeededCount": 1}]);
    let object = job("enough", &json!({"successPolicy": {"rules": rules}}));
    cluster.post(JOBS, object).await.expect(201);
    let pod = pod_of_index(&cluster, 1).await;
    end(&cluster, name(&pod), 0).await;
    assert_eq!(
        reason(&cluster, "enough", "Complete").await,
        "SuccessPolicy"
    );
}

#[tokio::test(start_paused = true)]
async fn job_with_other_manager_is_ignored() {
    let cluster = Cluster::start().await;
    let object = job("theirs", &json!({"managedBy": "example.com/other"}));
    cluster.post(JOBS, object).await.expect(201);
    cluster
        .post(JOBS, job("ours", &json!({})))
        .await
        .expect(201);
    cluster.until(PODS, |a| items(&a.body).len() == 3).await;
    let expected = cluster.get(&format!("{JOBS}/theirs")).await.expect(200);
    assert_eq!(expected["status"], json!({}));
}

#[tokio::test(start_paused = true)]
async fn job_adopts_matching_pods_and_releases_others() {
    let cluster = Cluster::start().await;
    let object = job("j", &json!({"completions": 1, "parallelism": 1}));
    cluster.post(JOBS, object).await.expect(201);
    let pod = pod_of_index(&cluster, 0).await;
    let path = format!("{PODS}/{}", name(&pod));
    let body = json!({"metadata": {"ownerReferences": null}});
    cluster.patch(&path, MERGE, body).await.expect(200);
    cluster
        .until(&path, |a| {
            a.body["metadata"]["ownerReferences"][0]["name"] == "j"
        })
        .await;
    let body = json!({"metadata": {"labels": null}});
    cluster.patch(&path, MERGE, body).await.expect(200);
    cluster
        .until(&path, |a| a.body["metadata"]["ownerReferences"].is_null())
        .await;
}

fn set(name: &str, more: &Value) -> Value {
    let mut template = template("busybox:1");
    template["spec"]["restartPolicy"] = "Always".into();
    let mut spec = json!({"replicas": 2, "serviceName": "s", "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": {"app": "web"}}, "template": template});
    let provided = more.as_object().unwrap().clone();
    spec.as_object_mut().unwrap().extend(provided);
    json!({"metadata": {"name": name}, "spec": spec})
}

async fn ready(cluster: &Cluster, pods: &[&str]) {
    for pod in pods {
        let path = format!("{PODS}/{pod}");
        cluster.until(&path, |a| a.code == 200).await;
        let body = json!({"status": {"phase": "Running",
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-03-01T12:00:00Z"}]}});
        let path = format!("{path}/status");
        cluster.patch(&path, STRATEGIC, body).await.expect(200);
    }
}

#[tokio::test(start_paused = true)]
async fn stateful_set_pods_start_at_ordinal() {
    let cluster = Cluster::start().await;
    let object = set("s", &json!({"ordinals": {"start": 3}}));
    cluster.post(SETS, object).await.expect(201);
    ready(&cluster, &["s-3", "s-4"]).await;
    let body = json!({"spec": {"ordinals": {"start": 4}}});
    let path = format!("{SETS}/s");
    cluster.patch(&path, MERGE, body).await.expect(200);
    ready(&cluster, &["s-5"]).await;
    cluster
        .until(PODS, |a| names(&a.body) == ["s-4", "s-5"])
        .await;
}

#[tokio::test(start_paused = true)]
async fn pods_below_the_partition_keep_their_template() {
    let cluster = Cluster::start().await;
    let rolling = json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 1}});
    let object = set("s", &json!({"updateStrategy": rolling}));
    cluster.post(SETS, object).await.expect(201);
    ready(&cluster, &["s-0", "s-1"]).await;
    let path = format!("{SETS}/s");
    cluster
        .until(&path, |a| a.body["status"]["readyReplicas"] == 2)
        .await;
    let newer = json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "busybox:2"}]}}}});
    cluster.patch(&path, STRATEGIC, newer).await.expect(200);
    let image = |body: &Value| body["spec"]["containers"][0]["image"].clone();
    cluster
        .until(&format!("{PODS}/s-1"), |a| image(&a.body) == "busybox:2")
        .await;
    ready(&cluster, &["s-1"]).await;
    // A recreated object is unchanged.
    let old = format!("{PODS}/s-0");
    let uid = cluster.get(&old).await.expect(200)["metadata"]["uid"].clone();
    let now = json!({"gracePeriodSeconds": 0});
    cluster.delete(&old, now).await.expect(200);
    let requeue = cluster
        .until(&old, |a| a.code == 200 && a.body["metadata"]["uid"] != uid)
        .await;
    assert_eq!(image(&requeue.body), "busybox:1");
    let status = cluster.get(&path).await.expect(200)["status"].clone();
    assert_ne!(status["currentRevision"], status["updateRevision"]);
    let body = json!({"spec": {"updateStrategy": {"rollingUpdate": {"partition": 0}}}});
    cluster.patch(&path, STRATEGIC, body).await.expect(200);
    ready(&cluster, &["s-0"]).await;
    cluster.until(&old, |a| image(&a.body) == "busybox:2").await;
}

#[tokio::test(start_paused = true)]
async fn pod_gets_fields_of_its_runtime_class() {
    let cluster = Cluster::bare().await;
    let namespaced = |class: &str| {
        let mut pod = pod("p");
        pod["spec"]["runtimeClassName"] = class.into();
        pod["spec"]["nodeSelector"] = json!({"disk": "fast"});
        pod
    };
    let refused = cluster.post(PODS, namespaced("gone")).await;
    let message = refused.fails(403, "Forbidden");
    assert!(
        message.ends_with("pod rejected: RuntimeClass \"gone\" not found"),
        "{message}"
    );
    let class = |name: &str, disk: &str| {
        json!({"metadata": {"name": name}, "handler": "h",
            "overhead": {"podFixed": {"cpu": "250m"}},
            "scheduling": {"nodeSelector": {"disk": disk, "kvm": "yes"},
                "tolerations": [{"key": "kvm", "operator": "Exists"}]}})
    };
    let classes = "/apis/node.k8s.io/v1/runtimeclasses";
    for (name, disk) in [("kata", "fast"), ("slow", "slow")] {
        cluster.post(classes, class(name, disk)).await.expect(201);
    }
    let message = cluster
        .post(PODS, namespaced("slow"))
        .await
        .fails(403, "Forbidden");
    let conflict = "conflict: runtimeClass.scheduling.nodeSelector[disk] = slow; \
                    pod.spec.nodeSelector[disk] = fast";
    assert!(message.ends_with(conflict), "{message}");
    let mut other = namespaced("kata");
    other["spec"]["overhead"] = json!({"cpu": "1"});
    cluster.post(PODS, other).await.fails(403, "Forbidden");
    let mut bare = pod("p");
    bare["spec"]["overhead"] = json!({"cpu": "1"});
    cluster.post(PODS, bare).await.fails(403, "Forbidden");

    let created = cluster.post(PODS, namespaced("kata")).await.expect(201);
    assert_eq!(created["spec"]["overhead"], json!({"cpu": "250m"}));
    assert_eq!(
        created["spec"]["nodeSelector"],
        json!({"disk": "fast", "kvm": "yes"})
    );
    let tolerations = created["spec"]["tolerations"].as_array().unwrap();
    assert!(tolerations.iter().any(|t| t["key"] == "kvm"));
}

#[tokio::test]
async fn names_of_sysctls_are_checked_and_those_of_schedulers_are_not() {
    let cluster = Cluster::bare().await;
    let mut bad = pod("p");
    let named = |name: &str| json!({"name": name, "value": "1"});
    bad["spec"]["securityContext"] = json!({"sysctls": [
        named("foo-"), named("kernel.shmmax"), named("net/ipv4/tcp_rmem"), named("bar.."),
        named("kernel.shmmax"), named("")]});
    let message = cluster.post(PODS, bad).await.fails(422, "Invalid");
    for messages in [
        "sysctls[0].name: Invalid value: \"foo-\"",
        "sysctls[3].name: Invalid value: \"bar..\"",
        "sysctls[4].name: Duplicate value: \"kernel.shmmax\"",
        "sysctls[5].name: Required value",
    ] {
        assert!(message.contains(messages), "{message}");
    }
    assert!(!message.contains("tcp_rmem"), "{message}");
    for (key, value) in [
        ("hostNetwork", json!(true)),
        ("setHostnameAsFQDN", json!(true)),
        ("hostnameOverride", json!("Not.Valid")),
    ] {
        let mut bad = pod("p");
        bad["spec"]["hostnameOverride"] = "web.example.com".into();
        bad["spec"][key] = value;
        let message = cluster.post(PODS, bad).await.fails(422, "Invalid");
        assert!(message.contains("spec.hostnameOverride"), "{message}");
    }
    let mut free = pod("p");
    free["spec"]["schedulerName"] = "no scheduler, please!".into();
    cluster.post(PODS, free).await.expect(201);
}

#[tokio::test]
async fn events_are_selected_by_the_names_of_both_groups() {
    let cluster = Cluster::bare().await;
    let core = "/api/v1/namespaces/default/events";
    let event = json!({"metadata": {"name": "e"}, "reportingComponent": "tester",
        "reportingInstance": "i", "reason": "r", "type": "Normal",
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"}});
    cluster.post(core, event).await.expect(201);
    let newer = "/apis/events.k8s.io/v1/namespaces/default/events";
    for (path, field, found) in [
        (newer, "reportingController=tester", 1),
        (newer, "reportingController=other", 0),
        (newer, "regarding.kind=Pod", 1),
        (newer, "regarding.kind=Node", 0),
        (core, "reportingComponent=tester", 1),
    ] {
        let path = format!("{path}?fieldSelector={field}");
        let list = cluster.get(&path).await.expect(200);
        assert_eq!(items(&list).len(), found, "{path}");
    }
    let path = format!("{core}?fieldSelector=reportingController=tester");
    cluster.get(&path).await.fails(400, "BadRequest");
}

#[tokio::test]
async fn kinds_that_clients_of_upstream_expect_are_there() {
    let cluster = Cluster::bare().await;
    let path = "/apis/storage.k8s.io/v1/volumeattributesclasses";
    let class =
        json!({"metadata": {"name": "gold"}, "driverName": "d", "parameters": {"iops": "1"}});
    cluster.post(path, class).await.expect(201);
    let scaler = json!({"metadata": {"name": "h"}, "spec": {"maxReplicas": 3,
        "targetCPUUtilizationPercentage": 80,
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}}});
    let of = |version: &str| {
        format!("/apis/autoscaling/{version}/namespaces/default/horizontalpodautoscalers")
    };
    cluster.post(&of("v1"), scaler).await.expect(201);
    let path = format!("{}/h", of("v2"));
    let newer = cluster.get(&path).await.expect(200);
    let cpu = &newer["spec"]["metrics"][0]["resource"];
    assert_eq!(cpu["target"]["averageUtilization"], 80);
    let behavior = json!({"spec": {"behavior": {"scaleDown": {"stabilizationWindowSeconds": 5}}}});
    cluster.patch(&path, MERGE, behavior).await.expect(200);
    let older = format!("{}/h", of("v1"));
    let body = json!({"spec": {"maxReplicas": 4}});
    let observed = cluster.patch(&older, MERGE, body).await.expect(200);
    assert_eq!(observed["spec"]["targetCPUUtilizationPercentage"], 80);
    let newer = cluster.get(&path).await.expect(200);
    assert_eq!(newer["spec"]["maxReplicas"], 4);
    assert_eq!(
        newer["spec"]["behavior"]["scaleDown"]["stabilizationWindowSeconds"],
        5
    );
    let path = "/apis/apiregistration.k8s.io/v1/apiservices";
    let service = json!({"metadata": {"name": "v1.example.com"}, "spec": {"group": "example.com",
        "version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1}});
    let answer = cluster.post(path, service).await;
    let warned = answer.headers.get("warning").unwrap().to_str().unwrap();
    assert!(warned.contains("not forwarded"), "{warned}");
    answer.expect(201);
}

#[tokio::test(start_paused = true)]
async fn stalled_rollout_reports_deadline_exceeded() {
    let cluster = Cluster::start().await;
    let all = "/apis/apps/v1/namespaces/default/deployments";
    let mut template = template("busybox:1");
    template["spec"]["restartPolicy"] = "Always".into();
    let object = json!({"metadata": {"name": "d"}, "spec": {"replicas": 1,
        "progressDeadlineSeconds": 30, "selector": {"matchLabels": {"app": "web"}},
        "template": template}});
    cluster.post(all, object).await.expect(201);
    let reason = |body: &Value| {
        let all = body["status"]["conditions"].as_array().cloned();
        let mut all = all.unwrap_or_default().into_iter();
        all.find(|c| c["type"] == "Progressing")
            .map(|c| (c["status"].clone(), c["reason"].clone()))
    };
    let is = |body: &Value, status: &str, why: &str| {
        reason(body).is_some_and(|(s, r)| s == status && r == why)
    };
    let path = format!("{all}/d");
    cluster
        .until(&path, |a| is(&a.body, "True", "ReplicaSetUpdated"))
        .await;
    cluster
        .until(&path, |a| is(&a.body, "False", "ProgressDeadlineExceeded"))
        .await;
    let list = cluster.get(PODS).await.expect(200);
    ready(&cluster, &names(&list)).await;
    cluster
        .until(&path, |a| is(&a.body, "True", "NewReplicaSetAvailable"))
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_cron_job_starts_jobs_on_time_as_its_policy_allows() {
    let cluster = Cluster::start().await;
    let all = "/apis/batch/v1/namespaces/default/cronjobs";
    let object = |name: &str, policy: &str| {
        json!({"metadata": {"name": name}, "spec": {"schedule": "*/1 * * * *",
            "concurrencyPolicy": policy, "jobTemplate": {"metadata": {"labels": {"cron": name}},
                "spec": {"template": template("busybox:1")}}}})
    };
    let of = |name: &str| format!("{JOBS}?labelSelector=cron={name}");
    for (name, policy) in [("many", "Allow"), ("one", "Forbid"), ("last", "Replace")] {
        let answer = cluster.post(all, object(name, policy)).await;
        assert_eq!(answer.headers.get("warning"), None);
        answer.expect(201);
    }
    let mut lost = object("lost", "Allow");
    lost["spec"]["timeZone"] = "Nowhere/Land".into();
    let message = cluster.post(all, lost).await.fails(422, "Invalid");
    assert!(message.contains("spec.timeZone"), "{message}");
    // The clock of the cluster starts on the minute.
    cluster
        .until(&of("many"), |a| names(&a.body).len() == 2)
        .await;
    let many_pods = cluster.get(&of("many")).await.expect(200);
    let first = &items(&many_pods)[0];
    assert_eq!(
        first["metadata"]["annotations"]["batch.kubernetes.io/cronjob-scheduled-timestamp"],
        "2026-03-01T12:01:00Z"
    );
    assert_eq!(first["metadata"]["ownerReferences"][0]["name"], "many");
    let one_pod = cluster.get(&of("one")).await.expect(200);
    assert_eq!(names(&one_pod).len(), 1);
    let last = cluster
        .until(&of("last"), |a| {
            items(&a.body).len() == 1 && names(&a.body) != names(&one_pod)
        })
        .await;
    assert_eq!(
        items(&last.body)[0]["metadata"]["annotations"]["batch.kubernetes.io/cronjob-scheduled-timestamp"],
        "2026-03-01T12:02:00Z"
    );
    let status = cluster
        .until(&format!("{all}/many"), |a| {
            a.body["status"]["active"]
                .as_array()
                .is_some_and(|l| l.len() == 2)
        })
        .await;
    assert_eq!(
        status.body["status"]["lastScheduleTime"],
        "2026-03-01T12:02:00Z"
    );
    let body = json!({"spec": {"suspend": true}});
    for name in ["many", "one", "last"] {
        let path = format!("{all}/{name}");
        cluster.patch(&path, MERGE, body.clone()).await.expect(200);
    }
    // A job that ends is no longer active, and its result is recorded.
    let pods = cluster.until(PODS, |a| items(&a.body).len() == 4).await;
    for pod in names(&pods.body) {
        end(&cluster, pod, 0).await;
    }
    cluster
        .until(&format!("{all}/many"), |a| {
            a.body["status"]["active"].is_null()
                && a.body["status"]["lastSuccessfulTime"].is_string()
        })
        .await;
}

#[tokio::test]
async fn an_applied_document_has_only_fields_that_are_declared() {
    let cluster = Cluster::bare().await;
    let apply = async |path: &str, body: &str| {
        let path = format!("{path}?fieldManager=m&fieldValidation=Strict");
        cluster
            .send("PATCH", &path, crate::support::APPLY, body)
            .await
    };
    let path = "/api/v1/namespaces/default/configmaps/c";
    let body = "\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: c\n  odd: 1\neven: 2\n";
    let answer = apply(path, body).await;
    assert_eq!(answer.code, 500);
    assert_eq!(
        answer.body["message"],
        "failed to create typed patch object (/c; v1, Kind=ConfigMap): errors:\n  \
         .even: field not declared in schema\n  .metadata.odd: field not declared in schema"
    );
    let body = "\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: c\ndata:\n  a: b\n  a: c\n";
    let message = apply(path, body).await.fails(400, "BadRequest");
    let expected = "line 8: key \"a\" already set in map";
    assert!(message.ends_with(expected), "{message}");
}

#[tokio::test(start_paused = true)]
async fn unchanged_invalid_fields_are_tolerated() {
    let cluster = Cluster::start().await;
    let definition = |spec: Value| {
        json!({"metadata": {"name": "shapes.example.com"}, "spec": {"group": "example.com",
            "scope": "Namespaced", "names": {"plural": "shapes", "kind": "Shape"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema":
                {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}}]}})
    };
    let loose = json!({"type": "object", "properties": {"color": {"type": "string"},
        "size": {"type": "integer"}, "sides": {"type": "array", "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"], "items": {"type": "object", "properties":
                {"name": {"type": "string"}, "length": {"type": "integer"}}, "required": ["name"]}}}});
    let mut strict = loose.clone();
    strict["required"] = json!(["size"]);
    strict["properties"]["color"]["enum"] = json!(["red"]);
    strict["properties"]["sides"]["items"]["properties"]["length"]["minimum"] = json!(1);
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    cluster
        .post(definitions, definition(loose))
        .await
        .expect(201);
    let all = "/apis/example.com/v1/namespaces/default/shapes";
    cluster.until(all, |a| a.code == 200).await;
    let object = json!({"apiVersion": "example.com/v1", "kind": "Shape", "metadata": {"name": "s"},
        "spec": {"color": "blue", "sides": [{"name": "a", "length": 0}, {"name": "b", "length": 5}]}});
    cluster.post(all, object).await.expect(201);
    let body = json!({"spec": {"versions": definition(strict)["spec"]["versions"]}});
    let path = format!("{definitions}/shapes.example.com");
    cluster.patch(&path, MERGE, body).await.expect(200);

    let path = format!("{all}/s");
    let change = async |body: Value| cluster.patch(&path, MERGE, body).await;
    change(json!({"metadata": {"labels": {"a": "b"}, "finalizers": ["example.com/x"]}}))
        .await
        .expect(200);
    let message = change(json!({"spec": {"color": "green"}}))
        .await
        .fails(422, "Invalid");
    // A missing required field is still an error in a changed part.
    assert!(
        message.contains("spec.color") && message.contains("spec.size"),
        "{message}"
    );
    change(json!({"spec": {"size": 1}})).await.expect(200);
    let sides = |length: i64| json!({"spec": {"sides": [{"name": "b", "length": length}, {"name": "a", "length": 0}]}});
    change(sides(6)).await.expect(200);
    let message = change(sides(0)).await.fails(422, "Invalid");
    assert!(message.contains("spec.sides[0].length"), "{message}");
    assert!(!message.contains("spec.sides[1]"), "{message}");
}

#[tokio::test]
async fn review_is_not_returned_as_table() {
    let cluster = Cluster::bare().await;
    let ask = async |accept: &str| {
        let body = r#"{"spec": {"nonResourceAttributes": {"path": "/", "verb": "get"}}}"#;
        let request = http::Request::builder()
            .method("POST")
            .uri("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")
            .header("content-type", "application/json")
            .header("accept", accept)
            .body(axum::body::Body::from(body))
            .unwrap();
        cluster.raw(request).await.status().as_u16()
    };
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    assert_eq!(ask(table).await, 406);
    assert_eq!(ask(&format!("{table},application/json")).await, 201);
}

#[tokio::test]
async fn body_problems_are_listed_in_order() {
    let cluster = Cluster::bare().await;
    let path = "/api/v1/namespaces/default/configmaps?fieldValidation=Strict";
    let body = r#"{"metadata": {"name": "c", "x": 1, "name": "d"}, "zebra": 1, "data": {}, "data": {}, "ant": 2}"#;
    let message = cluster
        .send("POST", path, "application/json", body)
        .await
        .fails(400, "BadRequest");
    let messages = r#"unknown field "metadata.x", duplicate field "metadata.name", unknown field "zebra", duplicate field "data", unknown field "ant""#;
    assert!(message.ends_with(messages), "{message}");
}

#[tokio::test(start_paused = true)]
async fn pods_of_jobs_are_orphaned_by_default() {
    let cluster = Cluster::start().await;
    let controllers = "/api/v1/namespaces/default/replicationcontrollers";
    let mut always = template("busybox:1");
    always["spec"]["restartPolicy"] = "Always".into();
    let controller =
        json!({"metadata": {"name": "o"}, "spec": {"replicas": 1, "template": always}});
    let single = json!({"completions": 1, "parallelism": 1});
    for (all, object) in [(controllers, controller), (JOBS, job("o", &single))] {
        for (options, left) in [
            (json!({}), 1),
            (json!({"propagationPolicy": "Background"}), 0),
        ] {
            cluster.post(all, object.clone()).await.expect(201);
            cluster.until(PODS, |a| items(&a.body).len() == 1).await;
            let path = format!("{all}/o");
            cluster.delete(&path, options).await.expect(200);
            cluster.until_gone(&path).await;
            let pods = cluster.until(PODS, |a| items(&a.body).len() == left).await;
            for pod in items(&pods.body) {
                assert!(pod["metadata"]["ownerReferences"].is_null(), "{pod}");
                let now = json!({"gracePeriodSeconds": 0});
                let path = format!("{PODS}/{}", name(pod));
                cluster.delete(&path, now).await.expect(200);
            }
        }
    }
}

#[tokio::test]
async fn quota_scopes_must_fit_their_resources() {
    let cluster = Cluster::bare().await;
    let path = "/api/v1/namespaces/default/resourcequotas";
    let quota = |spec: Value| json!({"metadata": {"name": "q"}, "spec": spec});
    let selector = |scope: &str, operator: &str, values: Value| {
        json!({"hard": {"pods": "1"}, "scopeSelector": {"matchExpressions":
            [{"scopeName": scope, "operator": operator, "values": values}]}})
    };
    for (spec, reason) in [
        (
            json!({"hard": {"pods": "1"}, "scopes": ["Sunny"]}),
            "unsupported scope",
        ),
        (
            json!({"hard": {"cpu": "1"}, "scopes": ["BestEffort"]}),
            "unsupported scope applied to resource",
        ),
        (
            json!({"hard": {"secrets": "1"}, "scopes": ["Terminating"]}),
            "unsupported scope applied to resource",
        ),
        (
            json!({"hard": {"pods": "1"}, "scopes": ["Terminating", "NotTerminating"]}),
            "conflicting scopes",
        ),
        (selector("Sunny", "Exists", json!([])), "unsupported scope"),
        (
            selector("BestEffort", "In", json!(["x"])),
            "must be 'Exists'",
        ),
        (
            selector("PriorityClass", "In", json!([])),
            "must be at least one value",
        ),
        (
            selector("PriorityClass", "Exists", json!(["x"])),
            "must be no value",
        ),
        (
            selector("PriorityClass", "Like", json!([])),
            "not a valid selector operator",
        ),
    ] {
        let message = cluster.post(path, quota(spec)).await.fails(422, "Invalid");
        assert!(message.contains(reason), "{message}");
    }
    // Amounts of other resources, such as batch resources, fit every scope.
    let spec = json!({"hard": {"pods": "1", "requests.kubernetes.io/batch-cpu": "1"},
        "scopes": ["NotBestEffort"]});
    cluster.post(path, quota(spec)).await.expect(201);
    let path = format!("{path}/q");
    let body = json!({"spec": {"scopes": ["Terminating"]}});
    let message = cluster
        .patch(&path, MERGE, body)
        .await
        .fails(422, "Invalid");
    assert!(message.contains("field is immutable"), "{message}");
}

#[tokio::test]
async fn replacing_tolerations_keeps_the_default_ones() {
    let cluster = Cluster::bare().await;
    let mut created = cluster.post(PODS, pod("p")).await.expect(201);
    let before = created["spec"]["tolerations"].as_array().unwrap().len();
    created["spec"]["tolerations"] = json!([{"key": "mine", "operator": "Exists"}]);
    let path = format!("{PODS}/p");
    let changed = cluster.put(&path, created).await.expect(200);
    let after = changed["spec"]["tolerations"].as_array().unwrap();
    assert_eq!(after.len(), before + 1);
    assert_eq!(changed["metadata"]["generation"], 2);
}

#[tokio::test(start_paused = true)]
async fn job_delete_without_propagation_warns() {
    let cluster = Cluster::bare().await;
    let warnings = |answer: crate::support::Answer| -> Vec<String> {
        let all = answer.headers.get_all("warning").iter();
        let all = all
            .map(|value| value.to_str().unwrap().to_owned())
            .collect();
        answer.expect(200);
        all
    };
    let messages = "299 - \"child pods are preserved by default when jobs are deleted; set \
        propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning\"";
    let path = format!("{JOBS}/j");
    let cases = [
        (&path, json!({}), vec![messages]),
        (&path, json!({"propagationPolicy": "Orphan"}), vec![]),
        (&path, json!({"orphanDependents": false}), vec![]),
        (&JOBS.to_owned(), json!({}), vec![messages]),
        (
            &JOBS.to_owned(),
            json!({"propagationPolicy": "Background"}),
            vec![],
        ),
    ];
    for (path, options, wanted) in cases {
        for name in ["j", "k"] {
            cluster.post(JOBS, job(name, &json!({}))).await;
        }
        let answer = cluster.delete(path, options.clone()).await;
        assert_eq!(warnings(answer), wanted, "{path} {options}");
    }
    cluster
        .post("/api/v1/namespaces/default/pods", pod("p"))
        .await;
    let answer = cluster.delete(&format!("{PODS}/p"), json!({})).await;
    assert_eq!(warnings(answer), [""; 0]);
}
