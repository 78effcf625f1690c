//! What was wrong before and is not touched may stay: a definition that was made stricter must not
//! keep its objects from being labelled, finalized and deleted.

use serde_json::Value;

use super::Errors;
use crate::schema::{ListType, Schema};
use crate::status::{FieldError, FieldErrorKind};

/// Drops errors about values that are the same in `old`.
pub(super) fn forgive(schema: &Schema, new: &Value, old: &Value, errors: &mut Errors) {
    errors.retain(|error| !unchanged(schema, error, new, old));
}

/// A step of a path: a member, or an element of a list.
enum Step<'a> {
    Key(&'a str),
    Index(usize),
}

/// The steps of `a.b[0].c`; `None` if it is no such path.
fn steps(path: &str) -> Option<Vec<Step<'_>>> {
    let mut out = Vec::new();
    for part in path.split('.') {
        let mut rest = part.split('[');
        out.push(Step::Key(rest.next().filter(|key| !key.is_empty())?));
        for index in rest {
            out.push(Step::Index(index.strip_suffix(']')?.parse().ok()?));
        }
    }
    Some(out)
}

fn unchanged(schema: &Schema, error: &FieldError, new: &Value, old: &Value) -> bool {
    let Some(mut steps) = steps(&error.field) else {
        return false;
    };
    // These name a child of what is wrong.
    if matches!(
        error.kind,
        FieldErrorKind::Required | FieldErrorKind::Duplicate
    ) {
        steps.pop();
    }
    let (mut schema, mut new, mut old) = (schema, new, old);
    for step in steps {
        if new == old {
            return true;
        }
        let pair = match step {
            Step::Key(key) => {
                let pair = new.get(key).zip(old.get(key));
                schema = schema.member(key);
                pair
            }
            Step::Index(at) => {
                let before = new.get(at).and_then(|item| counterpart(schema, item, old));
                schema = schema.element();
                new.get(at).zip(before)
            }
        };
        match pair {
            Some(pair) => (new, old) = pair,
            None => return false,
        }
    }
    new == old
}

/// The element of `old` with the keys of this one; only such lists tell which was which.
fn counterpart<'a>(list: &Schema, item: &Value, old: &'a Value) -> Option<&'a Value> {
    let ListType::Map(keys) = &list.list_type else {
        return None;
    };
    let same = |other: &&Value| keys.iter().all(|key| item.get(key) == other.get(key));
    old.as_array()?.iter().find(same)
}
