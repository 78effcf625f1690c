//! The built-in types, compiled once from the compact table `types.txt`: field names, types, protobuf
//! numbers, merge keys. `cargo xtask types` generates the table from the Go sources of a Kubernetes version.

use std::sync::LazyLock;

use rustc_hash::FxHashMap;

use super::{ListType, Members, MergeStrategy, Schema, SchemaAlternative, Type};

/// Index of a type in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TypeId(u32);

/// A built-in type.
#[derive(Debug)]
pub struct BuiltinType {
    /// Name such as `core/v1.Pod`.
    pub name: &'static str,
    /// Schema of its values.
    pub schema: Schema,
    /// Protobuf fields, in the order of `types.txt`.
    pub wire: Vec<ProtoField>,
    /// Fields by JSON name, including those of inline members.
    pub fields: FxHashMap<&'static str, Schema>,
}

/// A protobuf field.
#[derive(Debug, Clone, Copy)]
pub struct ProtoField {
    /// Field number; 0 if it does not exist in protobuf.
    pub number: u32,
    /// JSON name.
    pub json: &'static str,
    /// The type whose members are inlined in JSON.
    pub inline: Option<TypeId>,
}

impl BuiltinType {
    /// Returns the field with this JSON name, including those of inline members.
    pub fn field(&self, name: &str) -> Option<&Schema> {
        self.fields.get(name)
    }

    /// Returns the name without its group.
    pub(super) fn short_name(&self) -> &'static str {
        self.name.rsplit_once('/').map_or(self.name, |(_, n)| n)
    }
}

struct Table {
    types: Vec<BuiltinType>,
    by_name: FxHashMap<&'static str, TypeId>,
    object_meta: Schema,
}

static TABLE: LazyLock<Table> = LazyLock::new(|| parse(include_str!("types.txt")));

/// Returns the type called `name`, e.g. `core/v1.Pod`.
pub fn find(name: &str) -> Option<&'static BuiltinType> {
    TABLE.by_name.get(name).map(|id| get(*id))
}

/// Returns the type with this index.
pub fn get(id: TypeId) -> &'static BuiltinType {
    // Ids come from the table only.
    &TABLE.types[id.0 as usize]
}

/// Returns the schema of every object's `metadata`.
pub fn object_meta() -> &'static Schema {
    &TABLE.object_meta
}

/// Parses the table of Kubernetes' built-in types: one type per line, fields separated by blanks.
fn parse(text: &'static str) -> Table {
    let lines: Vec<&'static str> = text
        .lines()
        .filter(|l| !l.is_empty() && !l.starts_with('#'))
        .collect();
    let mut by_name = FxHashMap::default();
    for (i, line) in lines.iter().enumerate() {
        let name = line.split(' ').next().unwrap_or_default();
        by_name.insert(name, TypeId(i as u32));
    }
    let mut types: Vec<BuiltinType> = lines
        .iter()
        .enumerate()
        .map(|(i, line)| parse_type(TypeId(i as u32), line, &by_name))
        .collect();
    for i in 0..types.len() {
        let mut all = FxHashMap::default();
        let inline: Vec<TypeId> = types[i].wire.iter().filter_map(|w| w.inline).collect();
        for id in inline {
            inherit_fields(&types, id, &mut all, 0);
        }
        all.extend(std::mem::take(&mut types[i].fields));
        types[i].fields = all;
    }
    let object_meta = by_name
        .get("meta/v1.ObjectMeta")
        .and_then(|id| types.get(id.0 as usize))
        .map(|t| t.schema.clone())
        .unwrap_or_default();
    Table {
        types,
        by_name,
        object_meta,
    }
}

/// Adds the fields of an inline member.
fn inherit_fields(
    types: &[BuiltinType],
    id: TypeId,
    out: &mut FxHashMap<&'static str, Schema>,
    depth: usize,
) {
    let Some(this) = types.get(id.0 as usize).filter(|_| depth < 8) else {
        return;
    };
    for id in this.wire.iter().filter_map(|w| w.inline) {
        inherit_fields(types, id, out, depth + 1);
    }
    out.extend(this.fields.iter().map(|(k, f)| (*k, f.clone())));
}

/// Parses a line of the table: the name of a type, its flag and its fields.
fn parse_type(
    id: TypeId,
    line: &'static str,
    names: &FxHashMap<&'static str, TypeId>,
) -> BuiltinType {
    let mut tokens = line.split(' ');
    let name = tokens.next().unwrap_or_default();
    let mut tokens = tokens.peekable();
    let mut schema = typed_schema(Type::Object);
    schema.members = Members::Named(id);
    schema.atomic = tokens.next_if_eq(&"%-").is_some();
    let (mut wire, mut fields) = (Vec::new(), FxHashMap::default());
    for token in tokens {
        if let Some((field, schema)) = parse_field(token, names) {
            wire.push(field);
            if field.inline.is_none() {
                fields.insert(field.json, schema);
            }
        }
    }
    BuiltinType {
        name,
        schema,
        wire,
        fields,
    }
}

/// Parses a field: JSON name, protobuf number, type and flags.
fn parse_field(
    word: &'static str,
    names: &FxHashMap<&'static str, TypeId>,
) -> Option<(ProtoField, Schema)> {
    if let Some(inline) = word.strip_prefix('^') {
        let (name, number) = inline.rsplit_once('=')?;
        let wire = ProtoField {
            number: number.parse().ok()?,
            json: "",
            inline: Some(*names.get(name)?),
        };
        return Some((wire, Schema::default()));
    }
    let (json, rest) = word.split_once('=')?;
    let (number, rest) = rest.split_once(':')?;
    let end = rest.find(FLAGS).unwrap_or(rest.len());
    let (shape, flags) = rest.split_at(end);
    let mut schema = parse_shape(shape.trim_start_matches('*'), names)?;
    schema.pointer = shape.starts_with('*');
    schema.written = !flags.contains('?');
    schema.merge = match flag(flags, '@') {
        None => MergeStrategy::Default,
        Some("") => MergeStrategy::Set,
        Some(key) => MergeStrategy::Key(key),
    };
    // Apply identifies elements as patches do, unless a flag overrides it.
    schema.list_type = match (flag(flags, '%'), schema.merge) {
        (Some("-"), _) | (None, MergeStrategy::Default) => ListType::Atomic,
        (Some(""), _) | (None, MergeStrategy::Set) => ListType::Set,
        (Some(keys), _) => ListType::Map(keys.split(',').map(str::to_owned).collect()),
        (None, MergeStrategy::Key(key)) => ListType::Map(vec![key.to_owned()]),
    };
    schema.atomic = flag(flags, '%') == Some("-") && schema.items.is_none();
    schema.replace = flags.contains('!');
    schema.retain_keys = flags.contains('~');
    schema.default = flag(flags, '$').map(|text| Box::new(text.into()));
    let wire = ProtoField {
        number: number.parse().ok()?,
        json,
        inline: None,
    };
    Some((wire, schema))
}

/// First characters of a field's flags.
const FLAGS: [char; 6] = ['?', '!', '~', '@', '%', '$'];

/// Returns the argument of a flag; `None` if the flag is not set.
fn flag(flags: &'static str, sign: char) -> Option<&'static str> {
    let (_, rest) = flags.split_once(sign)?;
    rest.split(FLAGS).next()
}

/// Type of the schemas of custom resources.
const SCHEMA: &str = "apiextensions/v1.JSONSchemaProps";

fn typed_schema(kind: Type) -> Schema {
    let free = matches!(kind, Type::Any | Type::Raw | Type::FieldsV1);
    let mut schema = Schema::new(kind, free);
    schema.typed = true;
    schema
}

/// Parses the type of a field.
fn parse_shape(text: &'static str, names: &FxHashMap<&'static str, TypeId>) -> Option<Schema> {
    if let Some(inner) = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')) {
        let mut list = typed_schema(Type::Array);
        list.items = Some(Box::new(parse_shape(inner, names)?));
        return Some(list);
    }
    if let Some(inner) = text.strip_prefix('{').and_then(|t| t.strip_suffix('}')) {
        let mut map = typed_schema(Type::Object);
        map.additional = Some(Box::new(parse_shape(inner, names)?));
        return Some(map);
    }
    let (kind, name) = match text {
        "s" => (Type::String, None),
        "b" => (Type::Boolean, None),
        "i" => (Type::Int32, None),
        "l" => (Type::Integer, None),
        "d" => (Type::Number, None),
        "y" => (Type::Bytes, None),
        "Q" => (Type::Quantity, None),
        "I" => (Type::IntOrString, None),
        "t" => (Type::Time, None),
        "u" => (Type::MicroTime, None),
        "D" => (Type::Duration, None),
        "R" => (Type::Raw, None),
        "F" => (Type::FieldsV1, None),
        "J" => (Type::Any, None),
        "W" => (Type::WrappedStrings, None),
        "|a" => (Type::SchemaOr(SchemaAlternative::Schemas), Some(SCHEMA)),
        "|b" => (Type::SchemaOr(SchemaAlternative::Bool), Some(SCHEMA)),
        "|s" => (Type::SchemaOr(SchemaAlternative::Strings), Some(SCHEMA)),
        name => (Type::Object, Some(name)),
    };
    let mut schema = typed_schema(kind);
    if let Some(name) = name {
        schema.members = Members::Named(*names.get(name)?);
    }
    Some(schema)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_the_table_is_parsed() {
        let mut fields = 0;
        for (line, s) in include_str!("types.txt")
            .lines()
            .filter(|l| !l.is_empty() && !l.starts_with('#'))
            .zip(&TABLE.types)
        {
            let count = line.split(' ').skip(1).filter(|w| *w != "%-").count();
            assert_eq!(count, s.wire.len(), "{line}");
            fields += s.wire.len();
        }
        assert!(fields > 2000, "{fields}");
        let container = find("core/v1.Container").unwrap();
        assert_eq!(
            container.field("env").unwrap().merge,
            MergeStrategy::Key("name")
        );
        let volume = find("core/v1.Volume").unwrap();
        assert!(
            volume.field("hostPath").is_some(),
            "inline members are visible"
        );
        let spec = find("core/v1.PodSpec").unwrap();
        assert_eq!(
            spec.field("tolerations").unwrap().merge,
            MergeStrategy::Default
        );
        assert!(spec.field("volumes").unwrap().retain_keys);
        assert!(spec.field("nodeSelector").unwrap().atomic);
        let ports = container.field("ports").unwrap();
        assert_eq!(ports.merge, MergeStrategy::Key("containerPort"));
        let keys = ["containerPort", "protocol"].map(str::to_owned).to_vec();
        assert_eq!(ports.list_type, ListType::Map(keys));
        let port = find("core/v1.ContainerPort").unwrap();
        assert_eq!(
            port.field("protocol").unwrap().default,
            Some(Box::new("TCP".into()))
        );
        assert!(find("meta/v1.LabelSelector").unwrap().schema.atomic);
    }
}
