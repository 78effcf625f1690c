//! Eviction of pods through the `eviction` subresource.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::Eviction;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta};
use kube::client::Body;
use kube::core::Status;
use std::time::Duration;

/// API version of an eviction. The two have the same schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EvictVersion {
    /// `policy/v1`, from Kubernetes 1.22 on.
    #[default]
    V1,
    /// `policy/v1beta1`.
    V1Beta1,
}

impl EvictVersion {
    fn api_version(self) -> &'static str {
        match self {
            Self::V1 => "policy/v1",
            Self::V1Beta1 => "policy/v1beta1",
        }
    }
}

/// Discovers which eviction API the server supports; `None` if it supports none of [`EvictVersion`].
///
/// # Errors
///
/// The error of the discovery request.
pub async fn eviction_version(client: &kube::Client) -> Result<Option<EvictVersion>, kube::Error> {
    let list = client.list_core_api_resources("v1").await?;
    let entry = list.resources.iter().find(|r| r.name == "pods/eviction");
    let entry = entry.filter(|entry| entry.group.as_deref() == Some("policy"));
    Ok(match entry.and_then(|entry| entry.version.as_deref()) {
        Some("v1") => Some(EvictVersion::V1),
        Some("v1beta1") => Some(EvictVersion::V1Beta1),
        _ => None,
    })
}

/// Options of an eviction.
#[derive(Debug, Clone, Default)]
pub struct EvictOptions {
    /// API version of the request.
    pub version: EvictVersion,
    /// The uid that the pod must have to be evicted; `None` for any.
    pub uid: Option<String>,
    /// Overrides the pod's own grace period, in seconds.
    pub grace_period_seconds: Option<i64>,
    /// Further options of the deletion; the fields of this struct override them.
    pub delete_options: Option<DeleteOptions>,
    /// Validates the eviction without evicting the pod.
    pub dry_run: bool,
}

/// Result of an eviction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EvictOutcome {
    /// The pod is being deleted.
    Evicted,
    /// The pod does not exist (any more), or has another uid. A webhook that denies the eviction, and a
    /// resourceVersion in `delete_options` that differs from the pod's, may have the same result: get the pod
    /// to tell them apart.
    Gone {
        /// Message of the API server.
        message: String,
    },
    /// A disruption budget or the server's load forbids the eviction for now (429).
    Blocked {
        /// Message of the API server.
        message: String,
        /// Time to wait before the next attempt, if the server returned one.
        retry_after: Option<Duration>,
    },
}

fn delete_options(options: &EvictOptions) -> DeleteOptions {
    let mut all = options.delete_options.clone().unwrap_or_default();
    if let Some(seconds) = options.grace_period_seconds {
        all.grace_period_seconds = Some(seconds);
    }
    if options.dry_run {
        all.dry_run = Some(vec!["All".to_owned()]);
    }
    if let Some(uid) = &options.uid {
        all.preconditions.get_or_insert_default().uid = Some(uid.clone());
    }
    // The eviction has its own version and kind.
    (all.api_version, all.kind) = (None, None);
    all
}

/// Requests the eviction of a pod. Neither waits nor retries: a refusal is a result for the caller.
///
/// # Errors
///
/// Fails for every other response of the API server, and for transport errors.
pub async fn evict_pod(
    client: &kube::Client,
    namespace: &str,
    name: &str,
    options: &EvictOptions,
) -> Result<EvictOutcome, kube::Error> {
    let eviction = Eviction {
        metadata: ObjectMeta {
            namespace: Some(namespace.to_owned()),
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        delete_options: Some(delete_options(options)),
    };
    let mut eviction = serde_json::to_value(&eviction).map_err(kube::Error::SerdeError)?;
    eviction["apiVersion"] = options.version.api_version().into();
    let bytes = serde_json::to_vec(&eviction).map_err(kube::Error::SerdeError)?;
    let collection = <Pod as kube::Resource>::url_path(&(), Some(namespace));
    let request = http::Request::post(format!("{collection}/{name}/eviction"))
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(Body::from(bytes))
        .map_err(kube::Error::HttpError)?;
    let response = client.send(request).await?;
    let code = response.status();
    let retry_after = crate::client::retry_after(&response);
    if code.is_success() {
        return Ok(EvictOutcome::Evicted);
    }
    let bytes = response.into_body().collect_bytes().await?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let mut status = serde_json::from_slice::<Status>(&bytes)
        .unwrap_or_else(|_| Status::failure(&text, "Unknown"));
    status.code = code.as_u16();
    Ok(match status.code {
        // If the uid precondition fails, the response is a conflict.
        409 if options.uid.is_some() => EvictOutcome::Gone {
            message: status.message,
        },
        404 => EvictOutcome::Gone {
            message: status.message,
        },
        429 => {
            let after = status
                .details
                .as_ref()
                .map(|details| details.retry_after_seconds);
            let after = after.filter(|seconds| *seconds > 0);
            EvictOutcome::Blocked {
                message: status.message,
                retry_after: after.map(|s| Duration::from_secs(s.into())).or(retry_after),
            }
        }
        _ => return Err(kube::Error::Api(status.boxed())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::in_process;
    use crate::testing;
    use http::StatusCode;
    use serde_json::json;

    async fn outcome(code: u16, body: serde_json::Value) -> Result<EvictOutcome, kube::Error> {
        let client = in_process(testing::answer(move |request| {
            assert_eq!(
                request.uri().path(),
                "/api/v1/namespaces/shop/pods/cart-0/eviction"
            );
            (StatusCode::from_u16(code).unwrap(), body.clone())
        }));
        let options = EvictOptions {
            uid: Some("u".to_owned()),
            ..EvictOptions::default()
        };
        evict_pod(&client, "shop", "cart-0", &options).await
    }

    #[tokio::test]
    async fn responses_become_outcomes() {
        let ok = json!({"kind": "Status", "status": "Success", "code": 201});
        assert_eq!(outcome(201, ok).await.unwrap(), EvictOutcome::Evicted);
        assert_eq!(
            outcome(404, json!({"message": "gone"})).await.unwrap(),
            EvictOutcome::Gone {
                message: "gone".to_owned()
            }
        );
        assert_eq!(
            outcome(409, json!({"message": "uid"})).await.unwrap(),
            EvictOutcome::Gone {
                message: "uid".to_owned()
            }
        );
        let budget = json!({"message": "disruption budget", "reason": "TooManyRequests",
            "details": {"retryAfterSeconds": 10}});
        assert_eq!(
            outcome(429, budget).await.unwrap(),
            EvictOutcome::Blocked {
                message: "disruption budget".to_owned(),
                retry_after: Some(Duration::from_secs(10)),
            }
        );
        let error = outcome(403, json!({"message": "not you"}))
            .await
            .unwrap_err();
        assert!(crate::patch::is_status(&error, 403), "{error}");
    }

    #[tokio::test]
    async fn eviction_version_is_discovered_and_sent() {
        for (offered, want, sent) in [
            (json!("v1"), Some(EvictVersion::V1), "policy/v1"),
            (
                json!("v1beta1"),
                Some(EvictVersion::V1Beta1),
                "policy/v1beta1",
            ),
            (json!("v9"), None, ""),
        ] {
            let client = in_process(testing::answer(move |request| {
                if request.uri().path() == "/api/v1" {
                    let eviction = json!({"name": "pods/eviction", "singularName": "",
                        "namespaced": true, "kind": "Eviction", "verbs": ["create"],
                        "group": "policy", "version": offered});
                    let list = json!({"kind": "APIResourceList", "groupVersion": "v1",
                        "resources": [eviction]});
                    return (StatusCode::OK, list);
                }
                let body: serde_json::Value = serde_json::from_slice(request.body()).unwrap();
                assert_eq!(body["apiVersion"], sent);
                assert_eq!(body["kind"], "Eviction");
                (StatusCode::CREATED, json!({}))
            }));
            let version = eviction_version(&client).await.unwrap();
            assert_eq!(version, want);
            let Some(version) = version else { continue };
            let options = EvictOptions {
                version,
                ..EvictOptions::default()
            };
            let outcome = evict_pod(&client, "shop", "cart", &options).await;
            assert_eq!(outcome.unwrap(), EvictOutcome::Evicted);
        }
    }
}
