//! Facts of the built-in types, read once from the compact table `types.txt`: field names, types,
//! protobuf numbers, merge keys. Strict decoding, pruning, canonical quantities, strategic merge
//! and protobuf decoding all walk the same structure.

mod walk;

use std::sync::LazyLock;

use rustc_hash::FxHashMap;

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
    List(Box<Shape>),
    Map(Box<Shape>),
    Struct(StructId),
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
    /// Members of the (struct) field appear in the parent's JSON object.
    pub(super) inline: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Struct {
    pub(super) name: &'static str,
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
        .map(|line| {
            let mut words = line.split(' ');
            let name = words.next().unwrap_or_default();
            let fields = words.filter_map(|w| parse_field(w, &by_name)).collect();
            Struct {
                name,
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
            inline: true,
        });
    }
    let (json, rest) = word.split_once('=')?;
    let (number, rest) = rest.split_once(':')?;
    let end = rest.find(['?', '@', '!', '~']).unwrap_or(rest.len());
    let (shape, flags) = rest.split_at(end);
    let merge = match flags.split_once('@') {
        None => Merge::Default,
        Some((_, key)) => match key.trim_end_matches(['~', '!']) {
            "" => Merge::Set,
            key => Merge::Key(key),
        },
    };
    let pointer = shape.starts_with('*');
    let shape = parse_shape(shape.trim_start_matches('*'), names)?;
    let merge = if matches!(shape, Shape::List(_)) {
        merge
    } else {
        Merge::Default
    };
    Some(Field {
        json,
        number: number.parse().ok()?,
        shape,
        pointer,
        omit_empty: flags.contains('?'),
        merge,
        replace: flags.contains('!'),
        retain_keys: flags.contains('~'),
        inline: false,
    })
}

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
            assert_eq!(line.split(' ').count() - 1, s.fields.len(), "{line}");
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
    }
}
