//! Facts of the built-in types, read once from the compact table `types.txt`: field names, types,
//! protobuf numbers, merge keys. Strict decoding, pruning, canonical quantities, strategic merge,
//! server-side apply and protobuf decoding all walk the same structure. `cargo xtask types` writes
//! the table from the Go sources of a Kubernetes version.

mod walk;

use std::sync::LazyLock;

use rustc_hash::FxHashMap;

use super::structural::ListType;

pub(super) use walk::{canonicalize, check_types, prune, unknown_fields};

/// Index of a type in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct StructId(u32);

/// The JSON shape of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Shape {
    Str,
    Bool,
    Int32,
    Int64,
    Double,
    Bytes,
    Quantity,
    IntOrString,
    Time,
    MicroTime,
    Duration,
    /// Arbitrary JSON object held as bytes.
    Raw,
    FieldsV1,
    Any,
    /// A list of strings that protobuf wraps in a message.
    WrappedStrings,
    /// A schema of a definition, which is this struct, or something else in its place.
    SchemaOr(Other, StructId),
    List(Box<Shape>),
    Map(Box<Shape>),
    Struct(StructId),
}

/// What may stand in the place of a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Other {
    /// Several schemas.
    Schemas,
    /// Whether anything is allowed.
    Bool,
    /// Names of properties.
    Strings,
}

/// How a patch treats a list (or struct) field.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum Merge {
    /// The patch's value replaces the old one (lists), or objects merge.
    #[default]
    Default,
    /// List elements with the same value of this key merge.
    Key(&'static str),
    /// List of scalars used as a set.
    Set,
}

#[derive(Debug, Clone)]
pub(super) struct Field {
    pub(super) json: &'static str,
    pub(super) number: u32,
    pub(super) shape: Shape,
    pub(super) pointer: bool,
    pub(super) omit_empty: bool,
    pub(super) merge: Merge,
    pub(super) replace: bool,
    pub(super) retain_keys: bool,
    /// How server-side apply tells the elements of a list apart.
    pub(super) list: ListType,
    /// The struct or map is owned as a whole.
    pub(super) atomic: bool,
    /// What an absent key of a list element stands for.
    pub(super) default: Option<&'static str>,
    /// Members of the (struct) field appear in the parent's JSON object.
    pub(super) inline: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Struct {
    pub(super) name: &'static str,
    /// The shape of a field of this type.
    pub(super) shape: Shape,
    /// Values are owned as a whole.
    pub(super) atomic: bool,
    /// Fields as in protobuf; inline ones not expanded.
    pub(super) fields: Vec<Field>,
    /// JSON name -> field, inline ones expanded.
    by_json: FxHashMap<&'static str, Field>,
}

impl Struct {
    /// The field with this JSON name, also if it comes from an inline member.
    pub(super) fn json_field(&self, name: &str) -> Option<&Field> {
        self.by_json.get(name)
    }
}

struct Table {
    structs: Vec<Struct>,
    by_name: FxHashMap<&'static str, StructId>,
}

static TABLE: LazyLock<Table> = LazyLock::new(|| parse(include_str!("types.txt")));

/// The type called `name`, e.g. `core/v1.Pod`.
pub(super) fn find(name: &str) -> Option<StructId> {
    TABLE.by_name.get(name).copied()
}

/// The facts of a type.
pub(super) fn get(id: StructId) -> &'static Struct {
    // Ids only come from the table itself.
    &TABLE.structs[id.0 as usize]
}

fn parse(text: &'static str) -> Table {
    let lines: Vec<&'static str> = text
        .lines()
        .filter(|l| !l.is_empty() && !l.starts_with('#'))
        .collect();
    let mut by_name = FxHashMap::default();
    for (i, line) in lines.iter().enumerate() {
        let name = line.split(' ').next().unwrap_or_default();
        by_name.insert(name, StructId(i as u32));
    }
    let mut structs: Vec<Struct> = lines
        .iter()
        .enumerate()
        .map(|(i, line)| {
            let mut words = line.split(' ');
            let name = words.next().unwrap_or_default();
            let mut words = words.peekable();
            let atomic = words.next_if_eq(&"%-").is_some();
            let fields = words.filter_map(|w| parse_field(w, &by_name)).collect();
            Struct {
                name,
                shape: Shape::Struct(StructId(i as u32)),
                atomic,
                fields,
                by_json: FxHashMap::default(),
            }
        })
        .collect();
    for i in 0..structs.len() {
        let mut flat = FxHashMap::default();
        flatten(&structs, i, &mut flat, 0);
        structs[i].by_json = flat;
    }
    Table { structs, by_name }
}

fn flatten(
    structs: &[Struct],
    index: usize,
    out: &mut FxHashMap<&'static str, Field>,
    depth: usize,
) {
    let Some(this) = structs.get(index).filter(|_| depth < 8) else {
        return;
    };
    for field in &this.fields {
        match (&field.shape, field.inline) {
            (Shape::Struct(inner), true) => flatten(structs, inner.0 as usize, out, depth + 1),
            _ => {
                out.insert(field.json, field.clone());
            }
        }
    }
}

fn parse_field(word: &'static str, names: &FxHashMap<&'static str, StructId>) -> Option<Field> {
    if let Some(inline) = word.strip_prefix('^') {
        let (shape, number) = inline.rsplit_once('=')?;
        return Some(Field {
            json: "",
            number: number.parse().ok()?,
            shape: parse_shape(shape, names)?,
            pointer: false,
            omit_empty: true,
            merge: Merge::Default,
            replace: false,
            retain_keys: false,
            list: ListType::Atomic,
            atomic: false,
            default: None,
            inline: true,
        });
    }
    let (json, rest) = word.split_once('=')?;
    let (number, rest) = rest.split_once(':')?;
    let end = rest.find(FLAGS).unwrap_or(rest.len());
    let (shape, flags) = rest.split_at(end);
    let pointer = shape.starts_with('*');
    let shape = parse_shape(shape.trim_start_matches('*'), names)?;
    let merge = match flag(flags, '@') {
        None => Merge::Default,
        Some("") => Merge::Set,
        Some(key) => Merge::Key(key),
    };
    // Apply tells elements apart as patches do, unless it is said otherwise.
    let list = match (flag(flags, '%'), &merge) {
        (Some("-"), _) | (None, Merge::Default) => ListType::Atomic,
        (Some(""), _) | (None, Merge::Set) => ListType::Set,
        (Some(keys), _) => ListType::Map(keys.split(',').map(str::to_owned).collect()),
        (None, Merge::Key(key)) => ListType::Map(vec![(*key).to_owned()]),
    };
    Some(Field {
        json,
        number: number.parse().ok()?,
        atomic: flag(flags, '%') == Some("-") && !matches!(shape, Shape::List(_)),
        shape,
        pointer,
        omit_empty: flags.contains('?'),
        merge,
        replace: flags.contains('!'),
        retain_keys: flags.contains('~'),
        list,
        default: flag(flags, '$'),
        inline: false,
    })
}

/// What each flag of a field begins with.
const FLAGS: [char; 6] = ['?', '!', '~', '@', '%', '$'];

/// What stands behind a flag, `None` without it.
fn flag(flags: &'static str, sign: char) -> Option<&'static str> {
    let (_, rest) = flags.split_once(sign)?;
    rest.split(FLAGS).next()
}

/// The type of a definition's schemas.
const SCHEMA: &str = "apiextensions/v1.JSONSchemaProps";

fn parse_shape(text: &'static str, names: &FxHashMap<&'static str, StructId>) -> Option<Shape> {
    if let Some(inner) = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')) {
        return Some(Shape::List(Box::new(parse_shape(inner, names)?)));
    }
    if let Some(inner) = text.strip_prefix('{').and_then(|t| t.strip_suffix('}')) {
        return Some(Shape::Map(Box::new(parse_shape(inner, names)?)));
    }
    Some(match text {
        "s" => Shape::Str,
        "b" => Shape::Bool,
        "i" => Shape::Int32,
        "l" => Shape::Int64,
        "d" => Shape::Double,
        "y" => Shape::Bytes,
        "Q" => Shape::Quantity,
        "I" => Shape::IntOrString,
        "t" => Shape::Time,
        "u" => Shape::MicroTime,
        "D" => Shape::Duration,
        "R" => Shape::Raw,
        "F" => Shape::FieldsV1,
        "J" => Shape::Any,
        "W" => Shape::WrappedStrings,
        "|a" => Shape::SchemaOr(Other::Schemas, *names.get(SCHEMA)?),
        "|b" => Shape::SchemaOr(Other::Bool, *names.get(SCHEMA)?),
        "|s" => Shape::SchemaOr(Other::Strings, *names.get(SCHEMA)?),
        name => Shape::Struct(*names.get(name)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_of_the_table_is_understood() {
        let mut fields = 0;
        for (line, s) in include_str!("types.txt")
            .lines()
            .filter(|l| !l.is_empty() && !l.starts_with('#'))
            .zip(&TABLE.structs)
        {
            let words = line.split(' ').skip(1).filter(|w| *w != "%-").count();
            assert_eq!(words, s.fields.len(), "{line}");
            fields += s.fields.len();
        }
        assert!(fields > 2000, "{fields}");
        let container = get(find("core/v1.Container").unwrap());
        assert_eq!(
            container.json_field("env").unwrap().merge,
            Merge::Key("name")
        );
        let volume = get(find("core/v1.Volume").unwrap());
        assert!(
            volume.json_field("hostPath").is_some(),
            "inline members are visible"
        );
        let spec = get(find("core/v1.PodSpec").unwrap());
        assert_eq!(
            spec.json_field("tolerations").unwrap().merge,
            Merge::Default
        );
        assert!(spec.json_field("volumes").unwrap().retain_keys);
        assert!(spec.json_field("nodeSelector").unwrap().atomic);
        let ports = container.json_field("ports").unwrap();
        assert_eq!(ports.merge, Merge::Key("containerPort"));
        let keys = ["containerPort", "protocol"].map(str::to_owned).to_vec();
        assert_eq!(ports.list, ListType::Map(keys));
        let port = get(find("core/v1.ContainerPort").unwrap());
        assert_eq!(port.json_field("protocol").unwrap().default, Some("TCP"));
        assert!(get(find("meta/v1.LabelSelector").unwrap()).atomic);
    }

    /// The table is of the same Kubernetes version as the `k8s-openapi` crate: each describes the
    /// fields that the other has.
    #[test]
    fn the_table_agrees_with_k8s_openapi() {
        let mut seen = 0;
        let mut faults = Vec::new();
        for (name, schema) in crate::kinds::openapi::builtin_components() {
            let Some(id) = find(&name) else {
                continue;
            };
            seen += 1;
            let this = get(id);
            let properties = schema["properties"].as_object();
            let theirs: Vec<&str> = properties
                .into_iter()
                .flat_map(|p| p.keys().map(String::as_str))
                .collect();
            for (key, field) in &this.by_json {
                let Some(theirs) = properties.and_then(|p| p.get(*key)) else {
                    faults.push(format!("{name}.{key} is not in k8s-openapi"));
                    continue;
                };
                let want = match field.shape {
                    Shape::Str | Shape::Bytes | Shape::Time | Shape::MicroTime => "string",
                    Shape::Bool => "boolean",
                    Shape::Int32 | Shape::Int64 => "integer",
                    Shape::Double => "number",
                    Shape::List(_) | Shape::WrappedStrings => "array",
                    Shape::Map(_) => "object",
                    _ => continue,
                };
                if theirs.get("type").is_some_and(|t| t != want) {
                    faults.push(format!("{name}.{key} is {want}, there {}", theirs["type"]));
                }
            }
            for key in theirs.iter().filter(|k| this.json_field(k).is_none()) {
                faults.push(format!("{name} lacks {key}"));
            }
        }
        assert!(faults.is_empty(), "{}", faults.join("\n"));
        assert!(seen > 400, "{seen}");
    }
}
