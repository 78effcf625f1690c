use super::*;
use crate::status::FieldError;
use serde_json::json;

fn schema() -> Schema {
    let text = json!({
        "type": "object",
        "required": ["spec"],
        "properties": {
            "spec": {
                "type": "object",
                "required": ["name"],
                "properties": {
                    "name": {"type": "string", "minLength": 1, "maxLength": 5, "pattern": "^[a-z]*$"},
                    "mode": {"type": "string", "enum": ["a", "b"], "default": "a"},
                    "count": {"type": "integer", "format": "int32", "minimum": 1, "maximum": 10},
                    "ratio": {"type": "number", "exclusiveMinimum": true, "minimum": 0},
                    "port": {"x-kubernetes-int-or-string": true,
                        "anyOf": [{"type": "integer"}, {"type": "string"}]},
                    "when": {"type": "string", "format": "date-time"},
                    "maybe": {"type": "string", "nullable": true},
                    "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 3,
                        "minItems": 1, "x-kubernetes-list-type": "set"},
                    "rules": {"type": "array", "x-kubernetes-list-type": "map",
                        "x-kubernetes-list-map-keys": ["key"],
                        "items": {"type": "object", "properties": {"key": {"type": "string"}}}},
                    "limits": {"type": "object", "additionalProperties": {"type": "integer"}},
                    "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                    "template": {"type": "object", "x-kubernetes-embedded-resource": true,
                        "x-kubernetes-preserve-unknown-fields": true},
                    "nested": {"type": "object", "default": {},
                        "properties": {"deep": {"type": "integer", "default": 7}}},
                },
            },
        },
    });
    parse(&text, "schema").unwrap()
}

fn errors(spec: Value) -> Vec<String> {
    let mut out: Vec<FieldError> = Vec::new();
    schema().validate(&json!({"spec": spec}), "", &mut out);
    out.iter().map(ToString::to_string).collect()
}

#[test]
fn wording_of_validation() {
    for (spec, expect) in [
        (json!({"name": "ok"}), ""),
        (json!({}), "spec.name: Required value"),
        (
            json!({"name": 5}),
            "spec.name: Invalid value: \"integer\": spec.name in body must be of type string: \"integer\"",
        ),
        (
            json!({"name": ""}),
            "spec.name: Invalid value: \"\": spec.name in body should be at least 1 chars long",
        ),
        (
            json!({"name": "abcdef"}),
            "spec.name: Too long: may not be more than 5 bytes",
        ),
        (
            json!({"name": "A"}),
            "spec.name: Invalid value: \"A\": spec.name in body should match '^[a-z]*$'",
        ),
        (
            json!({"name": "a", "mode": "c"}),
            "spec.mode: Unsupported value: \"c\": supported values: \"a\", \"b\"",
        ),
        (
            json!({"name": "a", "count": 0}),
            "spec.count: Invalid value: 0: spec.count in body should be greater than or equal to 1",
        ),
        (
            json!({"name": "a", "ratio": 0}),
            "spec.ratio: Invalid value: 0: spec.ratio in body should be greater than 0",
        ),
        (
            json!({"name": "a", "when": "x"}),
            "spec.when: Invalid value: \"x\": spec.when in body must be of type date-time: \"x\"",
        ),
        (
            json!({"name": "a", "tags": ["x", "x"]}),
            "spec.tags[1]: Duplicate value: \"x\"",
        ),
        (
            json!({"name": "a", "tags": ["1", "2", "3", "4"]}),
            "spec.tags: Too many: 4: must have at most 3 items",
        ),
        (
            json!({"name": "a", "rules": [{"key": "k"}, {"key": "k"}]}),
            "spec.rules[1]: Duplicate value: {\"key\":\"k\"}",
        ),
        (
            json!({"name": "a", "limits": {"x": "y"}}),
            "spec.limits.x: Invalid value: \"string\": spec.limits.x in body must be of type integer: \"string\"",
        ),
        (json!({"name": "a", "maybe": null, "port": "http"}), ""),
        (json!({"name": "a", "port": 80, "count": 3.0}), ""),
        (
            json!({"name": "a", "port": true}),
            "spec.port: Invalid value: \"boolean\": spec.port in body must be of type integer,string: \"boolean\"",
        ),
        (
            json!({"name": "a", "template": {"kind": "X"}}),
            "spec.template.apiVersion: Required value: must not be empty",
        ),
    ] {
        let shown = spec.to_string();
        assert_eq!(errors(spec).join("; "), expect, "{shown}");
    }
}

#[test]
fn prunes_and_defaults() {
    let mut value = json!({
        "apiVersion": "x/v1", "kind": "X", "metadata": {"name": "a", "bogus": 1}, "extra": 1,
        "spec": {"name": "a", "bogus": 1, "mode": null, "limits": {"any": 1}, "free": {"z": {"y": 1}},
            "rules": [{"key": "k", "bogus": 2}]},
    });
    let mut unknown = Vec::new();
    schema().unknown_fields(&value, &mut unknown);
    unknown.sort();
    assert_eq!(
        unknown,
        [
            "extra",
            "metadata.bogus",
            "spec.bogus",
            "spec.rules[0].bogus"
        ]
    );
    schema().prune(&mut value);
    schema().apply_defaults(&mut value);
    assert_eq!(
        value,
        json!({
            "apiVersion": "x/v1", "kind": "X", "metadata": {"name": "a"},
            "spec": {"name": "a", "mode": "a", "limits": {"any": 1}, "free": {"z": {"y": 1}},
                "rules": [{"key": "k"}], "nested": {"deep": 7}},
        })
    );
}

#[test]
fn refuses_schemas_that_are_not_structural() {
    for (text, expect) in [
        (
            json!({"properties": {}}),
            "s.type: Required value: must not be empty at the root",
        ),
        (
            json!({"type": "object", "properties": {"a": {}}}),
            "s.properties[a].type: Required value: must not be empty for specified object fields",
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "array"}}}),
            "s.properties[a].items: Required value: must be specified",
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "str"}}}),
            "s.properties[a].type: Unsupported value: \"str\": supported values: \"array\", \"boolean\", \"integer\", \"number\", \"object\", \"string\"",
        ),
    ] {
        let errors = parse(&text, "s").unwrap_err();
        assert_eq!(errors[0].to_string(), expect);
    }
    assert!(
        parse(
            &json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}),
            "s"
        )
        .is_err()
    );
    let mut deep = json!({"type": "string"});
    for _ in 0..200 {
        deep = json!({"type": "object", "properties": {"a": deep}});
    }
    assert!(parse(&deep, "s").is_err());
}
