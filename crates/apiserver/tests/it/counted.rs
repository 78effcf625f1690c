//! Webhook metrics at `/metrics`.

use crate::hooks::{Handler, Reply, Transport, allow, configure, hook, patch, reachable, rule};
use crate::support::{Cluster, config_map};
use serde_json::{Value, json};
use std::sync::Arc;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Returns the samples of a metric without the values' decimals, sorted: `{labels} value`.
async fn samples(cluster: &Cluster, metric: &str) -> Vec<String> {
    let Value::String(text) = cluster.get("/metrics").await.body else {
        panic!("/metrics is no text");
    };
    let lines = text.lines().filter_map(|line| line.strip_prefix(metric));
    let mut lines: Vec<String> = lines
        .filter(|tail| tail.starts_with('{'))
        .map(str::to_owned)
        .collect();
    lines.sort_unstable();
    lines
}

/// Name, kind, failure policy and handler of a webhook, and the code of the response to a create.
type Row = (&'static str, &'static str, &'static str, fn() -> Reply, u16);

/// Names, labels and values are those of Kubernetes' admission metrics.
#[tokio::test]
async fn webhook_calls_are_counted() {
    let cluster = Cluster::bare().await;
    let refuse = || {
        let status = json!({"code": 422, "message": "no"});
        Reply::Response(json!({"allowed": false, "status": status}))
    };
    let broken = || Reply::Raw(503, Vec::new());
    // Makes a change that the object does not allow.
    let unusable = || patch(&json!([{"op": "remove", "path": "/data/none"}]));
    let table: [Row; 6] = [
        ("allows", "Mutating", "Fail", allow, 201),
        ("refuses", "Validating", "Fail", refuse, 422),
        ("breaks", "Validating", "Fail", broken, 500),
        ("ignored", "Mutating", "Ignore", broken, 201),
        ("ignored", "Validating", "Ignore", broken, 201),
        ("unusable", "Mutating", "Fail", unusable, 500),
    ];
    for (name, kind, policy, reply, code) in table {
        let handler: Handler = Arc::new(move |_| reply());
        let client = reachable(&cluster, Transport::Https, handler).await;
        let change = json!({
            "name": format!("{name}.example.com"),
            "rules": [rule(&["CREATE"], &["configmaps"])],
            "failurePolicy": policy,
        });
        configure(&cluster, kind, name, json!([hook(&client, &change)])).await;
        let map = config_map(
            &format!("{name}-{}", kind.to_lowercase()),
            json!({}),
            json!({}),
        );
        let answer = cluster.post(MAPS, map).await;
        assert_eq!(answer.code, code, "{name}: {}", answer.body);
        let configuration = format!("{}/{name}", crate::hooks::configurations(kind));
        cluster
            .delete(&configuration, Value::Null)
            .await
            .expect(200);
    }
    let prefix = "apiserver_admission_webhook";
    let create = r#"operation="CREATE""#;
    assert_eq!(
        samples(&cluster, &format!("{prefix}_request_total")).await,
        [
            format!(
                r#"{{code="0",name="unusable.example.com",{create},rejected="true",type="admit"}} 1"#
            ),
            format!(
                r#"{{code="200",name="allows.example.com",{create},rejected="false",type="admit"}} 1"#
            ),
            format!(
                r#"{{code="422",name="refuses.example.com",{create},rejected="true",type="validating"}} 1"#
            ),
            format!(
                r#"{{code="500",name="breaks.example.com",{create},rejected="true",type="validating"}} 1"#
            ),
            format!(
                r#"{{code="500",name="ignored.example.com",{create},rejected="false",type="admit"}} 1"#
            ),
            format!(
                r#"{{code="500",name="ignored.example.com",{create},rejected="false",type="validating"}} 1"#
            ),
        ]
    );
    assert_eq!(
        samples(&cluster, &format!("{prefix}_rejection_count")).await,
        [
            format!(
                r#"{{error_type="apiserver_internal_error",name="unusable.example.com",{create},rejection_code="0",type="admit"}} 1"#
            ),
            format!(
                r#"{{error_type="calling_webhook_error",name="breaks.example.com",{create},rejection_code="500",type="validating"}} 1"#
            ),
            format!(
                r#"{{error_type="no_error",name="refuses.example.com",{create},rejection_code="422",type="validating"}} 1"#
            ),
        ]
    );
    assert_eq!(
        samples(&cluster, &format!("{prefix}_fail_open_count")).await,
        [
            r#"{name="ignored.example.com",type="admit"} 1"#,
            r#"{name="ignored.example.com",type="validating"} 1"#,
        ]
    );
    let seconds = format!("{prefix}_admission_duration_seconds_count");
    assert_eq!(
        samples(&cluster, &seconds).await[0],
        format!(r#"{{name="allows.example.com",{create},rejected="false",type="admit"}} 1"#)
    );
}
