//! The manual's API reference, rendered from the definitions and the ConfigMap's schemas.

use crate::generated::assert_written;
use serde_json::{Map, Value};
use std::fmt::Write as _;
use std::path::Path;

const HEAD: &str = "\
<!-- manual: text -->
<!-- Written by the tests of koord-api: `UPDATE_EXPECT=1 cargo test -p koord-api --test it`. Do not edit. -->

# API reference

Fields of the custom resources and of the ConfigMap `slo-controller-config`. `[]` stands for an element of a list,
`*` for a value of a map. A field that must be set is *required*. `apiVersion`, `kind` and `metadata` are those of
every Kubernetes object. `koord crds` prints the same as CustomResourceDefinitions.
";

#[test]
fn api_reference_equals_the_types() {
    let definitions = koord_api::derived::definitions();
    let sections = koord_api::derived::described_section_schemas();
    let mut page = HEAD.to_owned();
    for definition in &definitions {
        page.push_str(&resource(definition));
    }
    page.push_str(
        "\n## slo-controller-config\n\nKeys of the ConfigMap. The value of a key is JSON.\n",
    );
    for (key, schema) in sections.as_object().unwrap() {
        let fields = Fields {
            definitions: &schema["definitions"],
        };
        let _ = write!(page, "\n### {key}\n\n{}", fields.table(&schema["root"]));
    }
    for field in [
        "`spec.resourceUsedThresholdWithBE.cpuSuppressThresholdPercent`",
        "`metricReportIntervalSeconds`",
    ] {
        assert!(page.contains(field), "{field} is not in the reference");
    }
    assert!(!page.contains("[`"), "a link of rustdoc means nothing here");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    assert_written(vec![(root.join("docs/manual/src/api-reference.md"), page)]);
}

/// Renders the section of a custom resource.
fn resource(definition: &Value) -> String {
    let spec = &definition["spec"];
    let (kind, group) = (text(&spec["names"]["kind"]), text(&spec["group"]));
    let mut out = format!("\n## {kind}\n");
    for version in spec["versions"].as_array().unwrap() {
        let scope = match text(&spec["scope"]) {
            "Namespaced" => "in a namespace",
            _ => "of the cluster",
        };
        let served = match version["served"] == true {
            true => "",
            false => ", not served",
        };
        let fields = Fields {
            definitions: &Value::Null,
        };
        let table = fields.table(&version["schema"]["openAPIV3Schema"]);
        let name = text(&version["name"]);
        let _ = write!(out, "\n`{group}/{name}`, {scope}{served}.\n\n{table}");
    }
    out
}

/// The fields of schemas that share definitions.
struct Fields<'a> {
    definitions: &'a Value,
}

impl<'a> Fields<'a> {
    /// Renders the fields below `schema` as a table.
    fn table(&self, schema: &'a Value) -> String {
        let mut out = "| field | type | meaning |\n|---|---|---|\n".to_owned();
        self.add_members(schema, "", &mut out);
        out
    }

    fn add_members(&self, schema: &'a Value, path: &str, out: &mut String) {
        let Some(members) = schema["properties"].as_object() else {
            return;
        };
        let required = schema["required"].as_array();
        for (name, member) in members {
            let top = ["apiVersion", "kind", "metadata"];
            if path.is_empty() && top.contains(&&**name) {
                continue;
            }
            let path = match path {
                "" => name.clone(),
                path => format!("{path}.{name}"),
            };
            let is_required = required.is_some_and(|it| it.iter().any(|it| it == name));
            self.add_field(member, &path, is_required, out);
        }
    }

    fn add_field(&self, field: &'a Value, path: &str, is_required: bool, out: &mut String) {
        let resolved = self.resolve(field);
        let description = [field, resolved]
            .iter()
            .find_map(|it| it["description"].as_str())
            .unwrap_or_default();
        let mut meaning = description.split_whitespace().collect::<Vec<_>>().join(" ");
        for rule in rules(resolved) {
            let space = if meaning.is_empty() { "" } else { " " };
            let _ = write!(meaning, "{space}{rule}.");
        }
        let required = if is_required { ", *required*" } else { "" };
        let _ = writeln!(
            out,
            "| `{path}` | {}{required} | {} |",
            self.type_name(resolved),
            meaning.replace('|', "\\|")
        );
        self.add_below(resolved, path, out);
    }

    /// Adds the fields of the objects that `schema` holds, which may be in lists or maps.
    fn add_below(&self, schema: &'a Value, path: &str, out: &mut String) {
        self.add_members(schema, path, out);
        for (key, suffix) in [("items", "[]"), ("additionalProperties", ".*")] {
            if schema[key].is_object() {
                self.add_below(self.resolve(&schema[key]), &format!("{path}{suffix}"), out);
            }
        }
    }

    /// Follows references, and takes the only alternative that is not null.
    fn resolve(&self, schema: &'a Value) -> &'a Value {
        let target = schema["$ref"].as_str().and_then(|it| it.rsplit('/').next());
        if let Some(name) = target {
            return self.resolve(&self.definitions[name]);
        }
        let alternatives = schema["anyOf"].as_array().into_iter().flatten();
        let mut rest = alternatives.filter(|it| it["type"] != "null");
        match (rest.next(), rest.next()) {
            (Some(only), None) => self.resolve(only),
            _ => schema,
        }
    }

    fn type_name(&self, schema: &'a Value) -> String {
        if schema["x-kubernetes-int-or-string"] == true {
            return "integer or string".to_owned();
        }
        let names = match &schema["type"] {
            Value::String(name) => name.as_str(),
            Value::Array(names) => names
                .iter()
                .map(text)
                .find(|it| *it != "null")
                .unwrap_or_default(),
            _ => "any",
        };
        match names {
            "array" => format!("list of {}", self.type_name(self.resolve(&schema["items"]))),
            "object" if schema["additionalProperties"].is_object() => {
                let value = self.resolve(&schema["additionalProperties"]);
                format!("map of {}", self.type_name(value))
            }
            name => name.to_owned(),
        }
    }
}

/// Returns the rules that a value of `schema` must follow, and its default.
fn rules(schema: &Value) -> Vec<String> {
    let members: Map<String, Value> = schema.as_object().cloned().unwrap_or_default();
    let bound = |name: &str| members.get(name).map(ToString::to_string);
    let mut out = Vec::new();
    match (bound("minimum"), bound("maximum")) {
        (Some(min), Some(max)) => out.push(format!("From {min} to {max}")),
        (Some(min), None) => out.push(format!("At least {min}")),
        (None, Some(max)) => out.push(format!("At most {max}")),
        (None, None) => {}
    }
    if let Some(values) = members.get("enum").and_then(Value::as_array) {
        let values: Vec<_> = values.iter().map(|it| format!("`{}`", plain(it))).collect();
        out.push(format!("One of {}", values.join(", ")));
    }
    if let Some(default) = members.get("default") {
        out.push(format!("Default: `{}`", plain(default)));
    }
    out
}

fn plain(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), ToOwned::to_owned)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
