//! The `paths` section: one entry per URL with the operations of a resource.

use serde_json::{Map, Value, json};

use crate::resource::Resource;

fn parameter(name: &str, kind: &str, description: &str) -> Value {
    json!({
        "name": name, "in": "query", "description": description,
        "schema": {"type": kind, "uniqueItems": true},
    })
}

fn write_parameters(apply: bool) -> Value {
    let mut out = vec![
        parameter("dryRun", "string", "All: do everything but store."),
        parameter("fieldManager", "string", "Name of who makes the change."),
        parameter(
            "fieldValidation",
            "string",
            "What happens to unknown or duplicate fields: Ignore, Warn or Strict.",
        ),
    ];
    if apply {
        out.push(parameter(
            "force",
            "boolean",
            "Take over fields of other managers (apply only).",
        ));
    }
    Value::from(out)
}

/// Returns the query parameters of list operations.
fn list_parameters() -> Value {
    json!([
        parameter(
            "allowWatchBookmarks",
            "boolean",
            "Send bookmarks in a watch."
        ),
        parameter("continue", "string", "Token of the next page."),
        parameter(
            "fieldSelector",
            "string",
            "Restrict to objects with these field values."
        ),
        parameter(
            "labelSelector",
            "string",
            "Restrict to objects with these labels."
        ),
        parameter("limit", "integer", "Size of a page."),
        parameter("resourceVersion", "string", "How recent the data must be."),
        parameter(
            "resourceVersionMatch",
            "string",
            "How resourceVersion is meant."
        ),
        parameter(
            "sendInitialEvents",
            "boolean",
            "Begin a watch with the current state."
        ),
        parameter(
            "timeoutSeconds",
            "integer",
            "End the request after this time."
        ),
        parameter("watch", "boolean", "Stream changes."),
    ])
}

fn delete_parameters() -> Value {
    json!([
        parameter("dryRun", "string", "All: do everything but store."),
        parameter(
            "gracePeriodSeconds",
            "integer",
            "How long the object may take to end."
        ),
        parameter(
            "orphanDependents",
            "boolean",
            "Deprecated: leave dependents."
        ),
        parameter(
            "propagationPolicy",
            "string",
            "Orphan, Background or Foreground."
        ),
    ])
}

/// Returns the parameters that all operations of a path share: the variables of the path, and `pretty`.
fn common(path: &str) -> Value {
    let mut out: Vec<Value> = ["name", "namespace"]
        .into_iter()
        .filter(|v| path.contains(&format!("{{{v}}}")))
        .map(|v| {
            json!({
                "name": v, "in": "path", "required": true,
                "description": format!("The {v} of the object."),
                "schema": {"type": "string", "uniqueItems": true},
            })
        })
        .collect();
    out.push(parameter("pretty", "string", "true: indented output."));
    out.into()
}

/// Adds a path with the parameters that its operations share.
fn put(paths: &mut Map<String, Value>, path: String, mut operations: Map<String, Value>) {
    operations.insert("parameters".to_owned(), common(&path));
    paths.insert(path, Value::Object(operations));
}

fn content(schema: Option<&str>, types: &[&str]) -> Value {
    let schema = match schema {
        Some(name) => json!({"$ref": format!("#/components/schemas/{name}")}),
        None => json!({"type": "object"}),
    };
    let map: Map<String, Value> = types
        .iter()
        .map(|t| ((*t).to_owned(), json!({"schema": schema})))
        .collect();
    Value::Object(map)
}

struct Operation<'a> {
    action: &'a str,
    parameters: Value,
    body: Option<&'a [&'a str]>,
}

const BODY: &[&str] = &["*/*"];
/// Patch types of built-in kinds. kubectl looks here whether it may send a strategic merge patch.
const BUILTIN_PATCHES: &[&str] = &[
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
];
const CUSTOM_PATCHES: &[&str] = &[
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
];

fn operation(r: &Resource, schema: Option<&str>, op: Operation<'_>, gvk: &Value) -> Value {
    let group = if r.group.is_empty() {
        "core"
    } else {
        &*r.group
    };
    let mut out = json!({
        "tags": [format!("{group}_{}", r.version)],
        "operationId": format!("{}-{}-{}-{}", op.action, group, r.version, r.plural),
        "responses": {"200": {
            "description": "OK", "content": content(schema, &["application/json"])}},
        "x-kubernetes-action": op.action,
        "x-kubernetes-group-version-kind": gvk,
    });
    if op.parameters.as_array().is_some_and(|p| !p.is_empty()) {
        out["parameters"] = op.parameters;
    }
    if let Some(types) = op.body {
        out["requestBody"] = json!({"required": true, "content": content(schema, types)});
    }
    out
}

/// Returns the operations on a single object that `verbs` allow.
fn item(r: &Resource, schema: Option<&str>, gvk: &Value, verbs: &[&str]) -> Map<String, Value> {
    let mut ops = Map::new();
    let patches = if r.is_custom() {
        CUSTOM_PATCHES
    } else {
        BUILTIN_PATCHES
    };
    for (verb, method, op) in [
        (
            "get",
            "get",
            Operation {
                action: "get",
                parameters: json!([]),
                body: None,
            },
        ),
        (
            "update",
            "put",
            Operation {
                action: "put",
                parameters: write_parameters(false),
                body: Some(BODY),
            },
        ),
        (
            "patch",
            "patch",
            Operation {
                action: "patch",
                parameters: write_parameters(true),
                body: Some(patches),
            },
        ),
        (
            "delete",
            "delete",
            Operation {
                action: "delete",
                parameters: delete_parameters(),
                body: None,
            },
        ),
    ] {
        if verbs.contains(&verb) {
            ops.insert(method.to_owned(), operation(r, schema, op, gvk));
        }
    }
    ops
}

/// Adds the paths of one resource; `schema` is the name of its component.
pub(super) fn add(paths: &mut Map<String, Value>, r: &Resource, schema: Option<&str>) {
    let root = if r.group.is_empty() {
        format!("/api/{}", r.version)
    } else {
        format!("/apis/{}/{}", r.group, r.version)
    };
    let base = if r.namespaced {
        format!("{root}/namespaces/{{namespace}}/{}", r.plural)
    } else {
        format!("{root}/{}", r.plural)
    };
    let gvk = json!({"group": &*r.group, "version": &*r.version, "kind": &*r.kind});
    let mut collection = Map::new();
    if r.verbs.contains(&"list") {
        let op = Operation {
            action: "list",
            parameters: list_parameters(),
            body: None,
        };
        collection.insert("get".to_owned(), operation(r, None, op, &gvk));
    }
    if r.verbs.contains(&"create") {
        let op = Operation {
            action: "post",
            parameters: write_parameters(false),
            body: Some(BODY),
        };
        collection.insert("post".to_owned(), operation(r, schema, op, &gvk));
    }
    if r.verbs.contains(&"deletecollection") {
        let op = Operation {
            action: "deletecollection",
            parameters: list_parameters(),
            body: None,
        };
        collection.insert("delete".to_owned(), operation(r, None, op, &gvk));
    }
    put(paths, base.clone(), collection);
    let single = item(r, schema, &gvk, r.verbs);
    if !single.is_empty() {
        put(paths, format!("{base}/{{name}}"), single);
    }
    if r.namespaced && r.verbs.contains(&"list") {
        let op = Operation {
            action: "list",
            parameters: list_parameters(),
            body: None,
        };
        let mut all = Map::new();
        all.insert("get".to_owned(), operation(r, None, op, &gvk));
        put(paths, format!("{root}/{}", r.plural), all);
    }
    for sub in &r.subresources {
        let own = *sub.response.kind == *r.kind && sub.response.group == r.group;
        let gvk = json!({
            "group": &*sub.response.group, "version": &*sub.response.version,
            "kind": &*sub.response.kind,
        });
        let schema = schema.filter(|_| own);
        let mut ops = item(r, schema, &gvk, sub.verbs);
        if sub.verbs.contains(&"create") {
            let op = Operation {
                action: "post",
                parameters: write_parameters(false),
                body: Some(BODY),
            };
            ops.insert("post".to_owned(), operation(r, schema, op, &gvk));
        }
        put(paths, format!("{base}/{{name}}/{}", sub.name), ops);
    }
}
