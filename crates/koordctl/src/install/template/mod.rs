//! Renders Go templates with the functions of Helm that the chart uses.
//!
//! There is no maintained crate for Go templates with Helm's functions. An unknown function or action is an error, so
//! that a template never renders to something else than with Helm.

mod functions;
mod parse;
mod value;

pub(super) use functions::is_at_least;
pub(super) use value::Datum;

use anyhow::{Context as _, Result, anyhow, bail};
use parse::{Node, Operand, Pipeline};
use serde_json::Value;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// An object that a template looks up in the cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LookupKey {
    pub(super) api_version: String,
    pub(super) kind: String,
    /// Empty for objects without a namespace.
    pub(super) namespace: String,
    pub(super) name: String,
}

/// Parsed templates and the files and objects that they may use.
#[derive(Debug)]
pub(super) struct Engine<'a> {
    templates: HashMap<String, Vec<Node>>,
    files: &'a BTreeMap<String, String>,
    objects: &'a BTreeMap<LookupKey, Value>,
    missing: RefCell<BTreeSet<LookupKey>>,
}

impl<'a> Engine<'a> {
    /// Creates an engine without templates. `objects` are the results of lookups; all others have none.
    pub(super) fn new(
        files: &'a BTreeMap<String, String>,
        objects: &'a BTreeMap<LookupKey, Value>,
    ) -> Self {
        Self {
            templates: HashMap::new(),
            files,
            objects,
            missing: RefCell::new(BTreeSet::new()),
        }
    }

    /// Adds a template and those that it defines.
    ///
    /// # Errors
    /// The text is not a template that this engine supports.
    pub(super) fn add(&mut self, name: &str, text: &str) -> Result<()> {
        parse::parse(name, text, &mut self.templates)
    }

    /// Renders a template.
    ///
    /// # Errors
    /// The template fails, on purpose or because of a value.
    pub(super) fn render(&self, name: &str, data: &Datum) -> Result<String> {
        let nodes = self
            .templates
            .get(name)
            .ok_or_else(|| anyhow!("no template {name:?}"))?;
        let mut run = Run {
            engine: self,
            variables: vec![(String::new(), data.clone())],
        };
        let mut text = String::new();
        run.nodes(nodes, data, &mut text)
            .with_context(|| format!("template {name}"))?;
        Ok(text)
    }

    /// Returns the keys of lookups that were not among the objects.
    pub(super) fn missing_lookups(&self) -> BTreeSet<LookupKey> {
        self.missing.borrow().clone()
    }

    /// Returns an object of the cluster; an empty map if there is none.
    fn look_up(&self, key: LookupKey) -> Datum {
        match self.objects.get(&key) {
            Some(object) if !object.is_null() => Datum::from_json(object),
            Some(_) => Datum::map([]),
            None => {
                self.missing.borrow_mut().insert(key);
                Datum::map([])
            }
        }
    }
}

/// The rendering of one template.
struct Run<'a> {
    engine: &'a Engine<'a>,
    /// Variables in scope, the innermost last.
    variables: Vec<(String, Datum)>,
}

impl Run<'_> {
    fn nodes(&mut self, nodes: &[Node], dot: &Datum, out: &mut String) -> Result<()> {
        for node in nodes {
            match node {
                Node::Text(text) => out.push_str(text),
                Node::Action(pipeline) => {
                    let value = self.pipeline(pipeline, dot)?;
                    if pipeline.variables.is_empty() {
                        out.push_str(&value.display());
                    }
                }
                Node::Branch {
                    sets_dot,
                    condition,
                    body,
                    otherwise,
                } => {
                    let scope = self.variables.len();
                    let value = self.pipeline(condition, dot)?;
                    if !value.is_true() {
                        self.nodes(otherwise, dot, out)?;
                    } else if *sets_dot {
                        self.nodes(body, &value, out)?;
                    } else {
                        self.nodes(body, dot, out)?;
                    }
                    self.variables.truncate(scope);
                }
                Node::Range {
                    items,
                    body,
                    otherwise,
                } => self.range(items, body, otherwise, dot, out)?,
            }
        }
        Ok(())
    }

    fn range(
        &mut self,
        items: &Pipeline,
        body: &[Node],
        otherwise: &[Node],
        dot: &Datum,
        out: &mut String,
    ) -> Result<()> {
        let entries: Vec<(Datum, Datum)> = match self.commands(items, dot)? {
            Datum::Null => Vec::new(),
            Datum::List(items) => {
                let numbered = (0_i64..).zip(items.iter());
                numbered
                    .map(|(index, item)| (Datum::Int(index), item.clone()))
                    .collect()
            }
            Datum::Map(map) => {
                let map = map.borrow();
                let entries = map.iter();
                entries
                    .map(|(key, value)| (Datum::text(key.as_str()), value.clone()))
                    .collect()
            }
            other => bail!("range cannot iterate over a value of kind {}", other.kind()),
        };
        if entries.is_empty() {
            return self.nodes(otherwise, dot, out);
        }
        for (key, value) in entries {
            let scope = self.variables.len();
            match items.variables.as_slice() {
                [] => {}
                [name] => self.variables.push((name.clone(), value.clone())),
                [first, second, ..] => {
                    self.variables.push((first.clone(), key));
                    self.variables.push((second.clone(), value.clone()));
                }
            }
            self.nodes(body, &value, out)?;
            self.variables.truncate(scope);
        }
        Ok(())
    }

    /// Evaluates a pipeline and sets its variable.
    fn pipeline(&mut self, pipeline: &Pipeline, dot: &Datum) -> Result<Datum> {
        let value = self.commands(pipeline, dot)?;
        for name in &pipeline.variables {
            if pipeline.declares {
                self.variables.push((name.clone(), value.clone()));
            } else {
                *self.variable(name)? = value.clone();
            }
        }
        Ok(value)
    }

    fn commands(&mut self, pipeline: &Pipeline, dot: &Datum) -> Result<Datum> {
        let mut last = None;
        for command in &pipeline.commands {
            last = Some(self.command(command, last, dot)?);
        }
        Ok(last.unwrap_or(Datum::Null))
    }

    fn variable(&mut self, name: &str) -> Result<&mut Datum> {
        let mut variables = self.variables.iter_mut().rev();
        variables
            .find(|(known, _)| known == name)
            .map(|(_, value)| value)
            .ok_or_else(|| anyhow!("undefined variable ${name}"))
    }

    /// Evaluates a command; `last` is the value of the one before.
    fn command(&mut self, command: &[Operand], last: Option<Datum>, dot: &Datum) -> Result<Datum> {
        let [first, rest @ ..] = command else {
            bail!("an empty command");
        };
        if let Operand::Function(name) = first {
            // These two do not evaluate the rest once the result is known.
            if name == "and" || name == "or" {
                return self.logic(name == "or", rest, last, dot);
            }
            let mut arguments = Vec::with_capacity(rest.len() + 1);
            for operand in rest {
                arguments.push(self.operand(operand, dot)?);
            }
            arguments.extend(last);
            return self
                .call(name, &arguments)
                .with_context(|| format!("function {name}"));
        }
        if let (Some((base, method)), [argument]) = (self.method(first, dot)?, rest) {
            let argument = self.operand(argument, dot)?;
            return functions::file(self.engine.files, &base, &method, &argument);
        }
        if !rest.is_empty() || last.is_some() {
            bail!("a value cannot be called with arguments");
        }
        self.operand(first, dot)
    }

    /// Splits a call such as `.Files.Get` into the chart's files and the name of the method; `None` for any
    /// other operand.
    fn method(&mut self, operand: &Operand, dot: &Datum) -> Result<Option<(Datum, String)>> {
        let (base, path) = match operand {
            Operand::Field(path) => (dot.clone(), path),
            Operand::Variable(name, path) => (self.variable(name)?.clone(), path),
            _ => return Ok(None),
        };
        let Some((method, path)) = path.split_last() else {
            return Ok(None);
        };
        if method != "Get" && method != "Glob" {
            return Ok(None);
        }
        let base = field(base, path)?;
        Ok(matches!(base, Datum::Files).then(|| (base, method.clone())))
    }

    fn logic(
        &mut self,
        stops_at: bool,
        operands: &[Operand],
        last: Option<Datum>,
        dot: &Datum,
    ) -> Result<Datum> {
        let mut value = Datum::Null;
        for operand in operands {
            value = self.operand(operand, dot)?;
            if value.is_true() == stops_at {
                return Ok(value);
            }
        }
        Ok(last.unwrap_or(value))
    }

    fn operand(&mut self, operand: &Operand, dot: &Datum) -> Result<Datum> {
        match operand {
            Operand::Field(path) => field(dot.clone(), path),
            Operand::Variable(name, path) => {
                let value = self.variable(name)?.clone();
                field(value, path)
            }
            Operand::Parenthesized(pipeline, path) => {
                let value = self.pipeline(pipeline, dot)?;
                field(value, path)
            }
            Operand::Literal(value) => Ok(value.clone()),
            Operand::Function(name) => self
                .call(name, &[])
                .with_context(|| format!("function {name}")),
        }
    }

    /// Calls a function. Those that need the engine are here.
    fn call(&self, name: &str, arguments: &[Datum]) -> Result<Datum> {
        match (name, arguments) {
            ("include", [template, data]) => {
                let text = self.engine.render(&template.display(), data)?;
                Ok(Datum::text(text))
            }
            ("lookup", [api_version, kind, namespace, name]) => {
                Ok(self.engine.look_up(LookupKey {
                    api_version: api_version.display(),
                    kind: kind.display(),
                    namespace: namespace.display(),
                    name: name.display(),
                }))
            }
            _ => functions::call(name, arguments),
        }
    }
}

/// Returns a field below a value; a missing one is null, and null has no fields.
fn field(value: Datum, path: &[String]) -> Result<Datum> {
    let mut value = value;
    for name in path {
        value = match value {
            Datum::Map(map) => map.borrow().get(name).cloned().unwrap_or(Datum::Null),
            other => bail!("a value of kind {} has no field {name}", other.kind()),
        };
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rendered(template: &str) -> Result<String> {
        let files = BTreeMap::from([
            ("f/a.txt".to_owned(), "A".to_owned()),
            ("f/b.txt".to_owned(), "B".to_owned()),
            ("f/c/d.txt".to_owned(), "D".to_owned()),
        ]);
        let key = LookupKey {
            api_version: "v1".to_owned(),
            kind: "Namespace".to_owned(),
            namespace: String::new(),
            name: "n".to_owned(),
        };
        let objects = BTreeMap::from([(key, json!({"metadata": {"name": "n"}}))]);
        let mut engine = Engine::new(&files, &objects);
        engine.add("it", template)?;
        let values = json!({
            "on": true, "off": false, "zero": 0, "port": 80.0, "text": "x", "empty": "",
            "list": [1, 2], "map": {"b": 2, "a": "1"}, "nil": null,
        });
        let data = Datum::map([
            ("Values".to_owned(), Datum::from_json(&values)),
            ("Files".to_owned(), Datum::Files),
        ]);
        engine.render("it", &data)
    }

    #[test]
    fn templates_render_as_with_helm() {
        for (template, expected) in [
            ("a {{ .Values.text }} b", "a x b"),
            ("a {{- .Values.text -}} b", "axb"),
            ("a\n  {{- /* it's \"a\" comment */ -}}\n b", "ab"),
            ("{{ .Values.missing }}|{{ .Values.port }}", "|80"),
            (
                "{{ if .Values.off }}a{{ else if .Values.on }}b{{ else }}c{{ end }}",
                "b",
            ),
            (
                "{{ with .Values.empty }}a{{ else }}{{ .Values.text }}{{ end }}",
                "x",
            ),
            (
                "{{ with .Values.map }}{{ .a }}{{ $.Values.text }}{{ end }}",
                "1x",
            ),
            (
                "{{ range $i, $x := .Values.list }}{{ $i }}={{ $x }} {{ end }}",
                "0=1 1=2 ",
            ),
            (
                "{{ range $k, $v := .Values.map }}{{ $k }}{{ $v }}{{ end }}",
                "a1b2",
            ),
            ("{{ range .Values.nil }}a{{ else }}none{{ end }}", "none"),
            (
                "{{ $x := 1 }}{{ if true }}{{ $x = 2 }}{{ end }}{{ $x }}",
                "2",
            ),
            (
                "{{ $x := 1 }}{{ if true }}{{ $x := 2 }}{{ end }}{{ $x }}",
                "1",
            ),
            (
                "{{ define \"t\" }}[{{ .a }}]{{ end }}{{ include \"t\" (dict \"a\" 3) }}",
                "[3]",
            ),
            (
                "{{ $d := dict }}{{ $_ := set $d \"k\" \"v\" }}{{ $d.k }}",
                "v",
            ),
            (
                "{{ and .Values.nil .Values.nil.x }}{{ or .Values.text .Values.nil.x }}",
                "x",
            ),
            ("{{ \"a}}\\\"b\" | quote }}", "\"a}}\\\"b\""),
            ("{{ (dict \"items\" (list 1 2)).items | toJson }}", "[1,2]"),
            (
                "{{ .Files.Get \"f/a.txt\" }}{{ range $p, $t := .Files.Glob \"f/*.txt\" }}{{ base $p }}{{ $t }}{{ end }}",
                "Aa.txtAb.txtB",
            ),
            (
                "{{ (lookup \"v1\" \"Namespace\" \"\" \"n\").metadata.name }}",
                "n",
            ),
            (
                "{{ if lookup \"v1\" \"Namespace\" \"\" \"m\" }}a{{ else }}b{{ end }}",
                "b",
            ),
            ("{{ without (list 0 80 0.0) 0 0.0 | toJson }}", "[80]"),
            (
                "{{ printf \"%s=%q %v%%\" \"a\" \"b\" true }}",
                "a=\"b\" true%",
            ),
            ("{{ \"a\\nb\" | nindent 2 }}", "\n  a\n  b"),
            ("{{ (splitn \"=\" 2 \"a=b=c\")._1 }}", "b=c"),
            (
                "{{ .Values.empty | default \"d\" }}{{ ternary 1 2 false }}",
                "d2",
            ),
            (
                "{{ semverCompare \">= 1.32.0-0\" \"v1.32.0-rc.1\" }}",
                "true",
            ),
            (
                "{{ semverCompare \">= 1.32.0-0\" \"v1.31.9+k3s1\" }}",
                "false",
            ),
            (
                "{{ has 1 (list 1) }}{{ eq \"a\" \"b\" }}{{ ne (int .Values.port) 0 }}",
                "truefalsetrue",
            ),
            ("{{ sha256sum \"abc\" | trunc 8 }}", ""),
        ] {
            if expected.is_empty() {
                let error = format!("{:#}", rendered(template).unwrap_err());
                assert!(error.contains("trunc"), "{template}: {error}");
            } else {
                assert_eq!(rendered(template).unwrap(), expected, "{template}");
            }
        }
    }

    #[test]
    fn invalid_templates_are_refused() {
        for (template, text) in [
            ("{{ .Values.nil.x }}", "no field x"),
            ("{{ $x }}", "undefined variable $x"),
            ("{{ if .a }}", "if has no end"),
            ("{{ end }}", "unexpected end"),
            ("{{ (list 1 }}", "not closed"),
            ("{{ fail \"because\" }}", "because"),
            ("{{ \"a", "no end"),
            ("{{ include \"none\" . }}", "no template \"none\""),
            ("{{ break }}", "break is not supported"),
        ] {
            let error = format!("{:#}", rendered(template).unwrap_err());
            assert!(error.contains(text), "{template}: {error}");
        }
    }
}
