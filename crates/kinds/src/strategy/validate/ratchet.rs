//! Validation ratcheting: errors in unchanged fields are ignored, so that objects of a definition that became
//! stricter can still be labeled, finalized and deleted.

use std::collections::HashMap;
use std::ptr;

use serde_json::Value;

use super::Errors;
use crate::schema::{ListType, Schema};
use crate::status::{FieldError, FieldErrorKind};

/// Removes errors about values that are the same in `old`.
pub(super) fn forgive(schema: &Schema, new: &Value, old: &Value, errors: &mut Errors) {
    let mut comparison = Comparison::default();
    errors.retain(|error| !comparison.is_unchanged(schema, error, new, old));
}

/// Elements of a list by the values of their keys.
type ByKeys<'a> = HashMap<Vec<Option<&'a Value>>, &'a Value>;

/// Results of comparisons of values and lists, each computed once for all errors.
#[derive(Default)]
struct Comparison<'a> {
    equal: HashMap<(*const Value, *const Value), bool>,
    lists: HashMap<*const Value, ByKeys<'a>>,
}

/// A step of a path: a member, or an element of a list.
enum FieldStep<'a> {
    Key(&'a str),
    Index(usize),
}

/// Parses the steps of `a.b[0].c`; `None` if `path` has another form.
fn steps(path: &str) -> Option<Vec<FieldStep<'_>>> {
    let mut out = Vec::new();
    for part in path.split('.') {
        let mut tail = part.split('[');
        out.push(FieldStep::Key(tail.next().filter(|key| !key.is_empty())?));
        for index in tail {
            out.push(FieldStep::Index(index.strip_suffix(']')?.parse().ok()?));
        }
    }
    Some(out)
}

impl<'a> Comparison<'a> {
    fn is_equal(&mut self, new: &'a Value, old: &'a Value) -> bool {
        let pair = (ptr::from_ref(new), ptr::from_ref(old));
        *self.equal.entry(pair).or_insert_with(|| new == old)
    }

    /// Returns the element of `old` with the same keys; `None` for lists that are not maps, whose elements
    /// cannot be matched.
    fn counterpart(&mut self, list: &Schema, item: &'a Value, old: &'a Value) -> Option<&'a Value> {
        let ListType::Map(keys) = &list.list_type else {
            return None;
        };
        let id = |item: &'a Value| -> Vec<_> { keys.iter().map(|key| item.get(key)).collect() };
        let items = old.as_array()?;
        let by_keys = self.lists.entry(ptr::from_ref(old)).or_insert_with(|| {
            let mut by_keys = ByKeys::with_capacity(items.len());
            for item in items {
                by_keys.entry(id(item)).or_insert(item);
            }
            by_keys
        });
        by_keys.get(&id(item)).copied()
    }

    /// Returns true if the value that an error is about equals the one in the old object.
    fn is_unchanged(
        &mut self,
        schema: &Schema,
        error: &FieldError,
        new: &'a Value,
        old: &'a Value,
    ) -> bool {
        let Some(mut steps) = steps(&error.field) else {
            return false;
        };
        // These errors have the path of a child of the invalid value.
        if matches!(
            error.kind,
            FieldErrorKind::Required | FieldErrorKind::Duplicate
        ) {
            steps.pop();
        }
        let (mut schema, mut new, mut old) = (schema, new, old);
        for step in steps {
            if self.is_equal(new, old) {
                return true;
            }
            let pair = match step {
                FieldStep::Key(key) => {
                    let pair = new.get(key).zip(old.get(key));
                    schema = schema.member(key);
                    pair
                }
                FieldStep::Index(at) => {
                    let before = new
                        .get(at)
                        .and_then(|item| self.counterpart(schema, item, old));
                    schema = schema.element();
                    new.get(at).zip(before)
                }
            };
            match pair {
                Some(pair) => (new, old) = pair,
                None => return false,
            }
        }
        self.is_equal(new, old)
    }
}
