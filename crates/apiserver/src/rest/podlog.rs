//! The `pods/log` subresource.

use super::call::Call;
use super::logs::LogOptions;
use super::query::Query;
use super::{Api, meta, respond};
use axum::body::Body;
use axum::response::Response;
use koord_kinds::status::{ApiError, FieldError};
use serde_json::Value;

/// Parses the options of a log request.
fn options(query: &Query) -> Result<LogOptions, ApiError> {
    let positive = |name: &str| -> Result<Option<i64>, ApiError> {
        match query.number(name)? {
            Some(n) if n < 0 => Err(ApiError::invalid(
                "",
                "PodLogOptions",
                "",
                &[FieldError::invalid(
                    name,
                    n,
                    "must be greater than or equal to 0",
                )],
            )),
            other => Ok(other),
        }
    };
    let since_time = query
        .get("sinceTime")
        .map(|t| {
            t.parse().map_err(|_| {
                ApiError::bad_request(format!("parsing sinceTime {t:?}: not an RFC 3339 time"))
            })
        })
        .transpose()?;
    Ok(LogOptions {
        follow: query.flag("follow").unwrap_or(false),
        tail_lines: positive("tailLines")?.map(i64::unsigned_abs),
        since_seconds: positive("sinceSeconds")?,
        since_time,
        limit_bytes: positive("limitBytes")?.map(i64::unsigned_abs),
        timestamps: query.flag("timestamps").unwrap_or(false),
        previous: query.flag("previous").unwrap_or(false),
    })
}

/// Returns the name of the container whose log is requested.
fn container(pod: &Value, requested: Option<&str>) -> Result<String, ApiError> {
    let name = meta::name(pod);
    let names: Vec<&str> = ["initContainers", "containers", "ephemeralContainers"]
        .iter()
        .filter_map(|list| meta::at(pod, &["spec", list])?.as_array())
        .flatten()
        .map(|c| meta::text(c, &["name"]))
        .collect();
    if let Some(requested) = requested {
        if names.contains(&requested) {
            return Ok(requested.to_owned());
        }
        return Err(ApiError::bad_request(format!(
            "container {requested} is not valid for pod {name}"
        )));
    }
    let main: Vec<&str> = meta::list_at(pod, &["spec", "containers"])
        .iter()
        .map(|c| meta::text(c, &["name"]))
        .collect();
    match main.as_slice() {
        [one] if names.len() == 1 => Ok((*one).to_owned()),
        [] => Err(ApiError::bad_request(format!(
            "pod {name} has no containers"
        ))),
        _ => Err(ApiError::bad_request(format!(
            "a container name must be specified for pod {name}, choose one of: [{}]",
            names.join(" ")
        ))),
    }
}

/// Serves the GET of a container's log.
pub(super) async fn serve(api: &Api, call: &Call) -> Result<Response, ApiError> {
    let pods = api.builtin("", "v1", "pods")?;
    let key = Api::key(&pods, call.namespace(), call.name());
    let pod = api.entry(&pods, &key)?.value();
    let options = options(&call.query)?;
    let container = container(&pod, call.query.get("container"))?;
    if meta::text(&pod, &["spec", "nodeName"]).is_empty() {
        return Err(ApiError::bad_request(format!(
            "pod {} does not have a host assigned",
            call.name()
        )));
    }
    let Some(source) = &api.inner.pod_logs else {
        return Err(ApiError::bad_request(format!(
            "container {container:?} in pod {:?} has no log: no node of this cluster keeps logs",
            call.name()
        )));
    };
    let log = source
        .logs(call.namespace(), call.name(), &container, options)
        .await
        .map_err(ApiError::bad_request)?;
    Ok(respond::text(200, Body::from_stream(log)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ambiguous_container_is_refused() {
        let single = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a"}]}});
        assert_eq!(container(&single, None).unwrap(), "a");
        let two = json!({"metadata": {"name": "p"},
            "spec": {"containers": [{"name": "a"}, {"name": "b"}]}});
        assert_eq!(
            container(&two, None).unwrap_err().message,
            "a container name must be specified for pod p, choose one of: [a b]"
        );
        assert_eq!(
            container(&two, Some("c")).unwrap_err().message,
            "container c is not valid for pod p"
        );
        assert_eq!(container(&two, Some("b")).unwrap(), "b");
    }

    #[test]
    fn bad_options_are_refused() {
        assert_eq!(
            options(&Query::parse("tailLines=-1").unwrap())
                .unwrap_err()
                .code,
            422
        );
        assert_eq!(
            options(&Query::parse("sinceTime=yesterday").unwrap())
                .unwrap_err()
                .code,
            400
        );
        assert_eq!(
            options(&Query::parse("tailLines=5&follow=true").unwrap())
                .unwrap()
                .tail_lines,
            Some(5)
        );
    }
}
