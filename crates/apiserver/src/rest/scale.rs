//! The `scale` subresource: a uniform view of the replicas of all workloads.

use super::accept::Endpoint;
use super::call::{Call, method_not_allowed};
use super::patch::{self, Patch};
use super::respond::{self, ResponseFormat};
use super::update::{Projection, UpdateTarget};
use super::write::WriteInput;
use super::{Api, meta};
use axum::response::Response;
use http::Method;
use koord_kinds::patch::{Writer, apply};
use koord_kinds::selector::LabelSelector;
use koord_kinds::status::{ApiError, FieldError};
use koord_kinds::{Resource, ScalePaths};
use serde_json::{Value, json};
use std::sync::Arc;

/// Returns the number of replicas at a path; 0 if there is none.
fn replicas_at(object: &Value, path: &[String]) -> i64 {
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    meta::at(object, &path).and_then(Value::as_i64).unwrap_or(0)
}

fn set_replicas(object: &mut Value, path: &[String], replicas: i64) {
    let mut at = object;
    let Some((last, front)) = path.split_last() else {
        return;
    };
    for key in front {
        at = meta::as_object(at)
            .entry(key.as_str())
            .or_insert(Value::Null);
    }
    meta::as_object(at).insert(last.clone(), replicas.into());
}

impl Projection for ScalePaths {
    fn show(&self, object: &Value) -> Value {
        let mut metadata = json!({});
        for key in [
            "name",
            "namespace",
            "uid",
            "resourceVersion",
            "creationTimestamp",
        ] {
            if let Some(v) = meta::at(object, &["metadata", key]) {
                metadata[key] = v.clone();
            }
        }
        let mut status = json!({ "replicas": replicas_at(object, &self.status) });
        let selector = match &self.selector {
            Some(path) => {
                let path: Vec<&str> = path.iter().map(String::as_str).collect();
                meta::text(object, &path).to_owned()
            }
            None => selector_text(meta::at(object, &["spec", "selector"])),
        };
        if !selector.is_empty() {
            status["selector"] = selector.into();
        }
        // Upstream omits `replicas` when it is 0.
        let spec = match replicas_at(object, &self.spec) {
            0 => json!({}),
            replicas => json!({ "replicas": replicas }),
        };
        json!({
            "kind": "Scale",
            "apiVersion": "autoscaling/v1",
            "metadata": metadata,
            "spec": spec,
            "status": status,
        })
    }

    fn put(&self, object: &mut Value, scale: &Value) -> Result<(), ApiError> {
        let replicas = parse_replicas(meta::name(object), scale)?;
        let provided = meta::resource_version(scale);
        if !provided.is_empty() {
            meta::set(object, "resourceVersion", provided);
        }
        set_replicas(object, &self.spec, replicas);
        Ok(())
    }
}

/// A Scale by server-side apply: its manager owns the replicas of the object behind it.
struct AppliedScale<'a> {
    paths: &'a ScalePaths,
    resource: &'a Resource,
    /// The applied document, as a part of the object.
    document: Value,
    /// True if the document has replicas.
    has_replicas: bool,
    writer: Writer<'a>,
    force: bool,
}

impl Projection for AppliedScale<'_> {
    fn show(&self, object: &Value) -> Value {
        self.paths.show(object)
    }

    fn put(&self, object: &mut Value, scale: &Value) -> Result<(), ApiError> {
        let Self {
            resource, writer, ..
        } = *self;
        *object = apply(resource, Some(&*object), &self.document, writer, self.force)?;
        if self.has_replicas {
            return self.paths.put(object, scale);
        }
        // If a manager gives up replicas that only it owned, they become 0.
        let replicas = replicas_at(object, &self.paths.spec);
        set_replicas(object, &self.paths.spec, replicas);
        Ok(())
    }
}

/// Returns a selector in its query-string form.
fn selector_text(selector: Option<&Value>) -> String {
    let Some(selector) = selector else {
        return String::new();
    };
    let plain = selector.get("matchLabels").or_else(|| {
        // ReplicationControllers have a plain map.
        selector
            .get("matchExpressions")
            .is_none()
            .then_some(selector)
    });
    let mut parts: Vec<String> = plain
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or("")))
        .collect();
    let expressions = selector.get("matchExpressions").and_then(Value::as_array);
    for e in expressions.into_iter().flatten() {
        let key = meta::text(e, &["key"]);
        let values: Vec<&str> = e
            .get("values")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        parts.push(match meta::text(e, &["operator"]) {
            "In" => format!("{key} in ({})", values.join(",")),
            "NotIn" => format!("{key} notin ({})", values.join(",")),
            "Exists" => key.to_owned(),
            _ => format!("!{key}"),
        });
    }
    parts.sort();
    let text = parts.join(",");
    // Only a text that a client could send back.
    if LabelSelector::parse(&text).is_ok() {
        text
    } else {
        String::new()
    }
}

fn invalid(name: &str, error: FieldError) -> ApiError {
    ApiError::invalid("autoscaling", "Scale", name, &[error])
}

/// Returns the number of replicas in a Scale.
fn parse_replicas(name: &str, scale: &Value) -> Result<i64, ApiError> {
    let kind = meta::text(scale, &["kind"]);
    if !scale.is_object() || (!kind.is_empty() && kind != "Scale") {
        return Err(ApiError::bad_request(format!(
            "expected a Scale, got {kind:?}"
        )));
    }
    let provided = meta::name(scale);
    if !provided.is_empty() && provided != name {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({provided}) does not match the name on the URL ({name})"
        )));
    }
    let replicas = match meta::at(scale, &["spec", "replicas"]) {
        None | Some(Value::Null) => 0,
        Some(v) => v.as_i64().ok_or_else(|| {
            ApiError::bad_request(format!(
                "Scale in version \"v1\" cannot be handled as a Scale: json: cannot unmarshal {v} \
                 into Go struct field ScaleSpec.spec.replicas of type int32"
            ))
        })?,
    };
    if !(0..=i64::from(i32::MAX)).contains(&replicas) {
        let e = FieldError::invalid(
            "spec.replicas",
            replicas,
            "must be greater than or equal to 0",
        );
        return Err(invalid(name, e));
    }
    Ok(replicas)
}

/// Computes the new Scale from the current one.
type ScaleChange = Box<dyn Fn(&Value) -> Result<Value, ApiError> + Send + Sync>;

/// Serves GET, PUT and PATCH of a Scale.
pub(super) async fn serve(
    api: &Api,
    method: &Method,
    resource: &Arc<Resource>,
    call: &Call,
) -> Result<Response, ApiError> {
    let paths = resource.scale.as_ref().ok_or_else(ApiError::unknown_path)?;
    let name = call.name();
    let key = Api::key(resource, call.namespace(), name);
    let negotiated = call.negotiate(Endpoint::One)?;
    let style = ResponseFormat {
        encoding: negotiated.encoding,
        pretty: call.query.pretty(),
    };
    let mut input = None;
    let change: ScaleChange = match *method {
        Method::GET | Method::HEAD => {
            let entry = api.entry(resource, &key)?;
            let scale = paths.show(&resource.from_storage(entry.value()));
            return Ok(respond::value(200, &scale, style));
        }
        Method::PUT => {
            let body = call.decode()?.value;
            Box::new(move |_| Ok(body.clone()))
        }
        Method::PATCH => {
            let (patch, _) = Patch::parse(call)?;
            patch.check_options(call)?;
            // A Scale has no lists, so all kinds of object patches mean the same.
            let patch = match patch {
                Patch::Apply(p) => {
                    patch::check_document(&p)?;
                    let text = |key| meta::text(&p, &[key]);
                    let (version, kind) = (text("apiVersion"), text("kind"));
                    if (version, kind) != ("autoscaling/v1", "Scale") {
                        return Err(ApiError::bad_request(format!(
                            "invalid object type: {version}, Kind={kind}"
                        )));
                    }
                    let replicas = meta::at(&p, &["spec", "replicas"]).cloned();
                    input = Some(replicas.filter(|r| !r.is_null()));
                    Patch::Merge(p)
                }
                Patch::Strategic(p) => Patch::Merge(p),
                other => other,
            };
            let resource = resource.clone();
            let name = name.to_owned();
            Box::new(move |scale| patch.apply(&resource, &name, scale))
        }
        _ => return Err(method_not_allowed()),
    };
    let options = call.write_options(if *method == Method::PATCH {
        "PatchOptions"
    } else {
        "UpdateOptions"
    })?;
    let applying = input.is_some();
    let applied = input.map(|replicas| {
        let mut document = json!({
            "apiVersion": resource.gvk().api_version(),
            "kind": &*resource.kind,
            "metadata": {"name": name},
        });
        if let Some(replicas) = replicas.as_ref().and_then(Value::as_i64) {
            set_replicas(&mut document, &paths.spec, replicas);
        }
        let writer = Writer {
            manager: &options.field_manager,
            part: Some("scale"),
            now: api.clock().now(),
        };
        AppliedScale {
            paths,
            resource,
            document,
            has_replicas: replicas.is_some(),
            writer,
            force: options.force,
        }
    });
    let target = UpdateTarget {
        resource,
        subresource: Some("scale"),
        key: &key,
        projection: Some(match &applied {
            Some(applied) => applied,
            None => paths,
        }),
    };
    let result = api
        .modify_target(target, &options, |scale| {
            let scale = change(scale)?;
            parse_replicas(name, &scale)?;
            Ok(Some(WriteInput {
                applied: applying,
                ..WriteInput::from(scale)
            }))
        })
        .await?;
    let scale = paths.show(&result.object.value(resource));
    let mut response = respond::value(200, &scale, style);
    respond::warn(&mut response, &result.warnings);
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_as_text() {
        let s = json!({"matchLabels": {"b": "2", "a": "1"},
            "matchExpressions": [{"key": "c", "operator": "In", "values": ["x", "y"]}]});
        assert_eq!(selector_text(Some(&s)), "a=1,b=2,c in (x,y)");
        assert_eq!(selector_text(Some(&json!({"app": "web"}))), "app=web");
        assert_eq!(selector_text(None), "");
    }

    #[test]
    fn bad_scales_are_named() {
        let e = parse_replicas("web", &json!({"spec": {"replicas": -1}})).unwrap_err();
        assert_eq!(e.code, 422);
        assert_eq!(
            parse_replicas("web", &json!({"spec": {"replicas": "3"}}))
                .unwrap_err()
                .code,
            400
        );
        assert_eq!(
            parse_replicas("web", &json!({"kind": "Pod"}))
                .unwrap_err()
                .code,
            400
        );
        assert_eq!(
            parse_replicas("web", &json!({"spec": {"replicas": 3}})).unwrap(),
            3
        );
    }
}
