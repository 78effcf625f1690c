//! The difference between two JSON documents as an RFC 6902 patch.

use serde_json::{Value, json};

/// Returns the operations that change `old` into `new`. Each is at the deepest place where both differ; equal
/// parts have none. Lists are compared from both ends, so that one inserted or removed element is one
/// operation.
#[must_use]
pub fn diff(old: &Value, new: &Value) -> Vec<Value> {
    let mut operations = Vec::new();
    compare(&mut String::new(), old, new, &mut operations);
    operations
}

fn compare(pointer: &mut String, old: &Value, new: &Value, out: &mut Vec<Value>) {
    match (old, new) {
        (old, new) if old == new => {}
        (Value::Object(old), Value::Object(new)) => {
            for (key, before) in old {
                below(pointer, key, |pointer| match new.get(key) {
                    Some(after) => compare(pointer, before, after, out),
                    None => out.push(json!({"op": "remove", "path": pointer})),
                });
            }
            for (key, after) in new.iter().filter(|(key, _)| !old.contains_key(*key)) {
                below(pointer, key, |pointer| {
                    out.push(json!({"op": "add", "path": pointer, "value": after}));
                });
            }
        }
        (Value::Array(old), Value::Array(new)) => lists(pointer, old, new, out),
        (_, new) => out.push(json!({"op": "replace", "path": pointer, "value": new})),
    }
}

/// Appends the operations that turn list `old` into `new`; an equal head and tail are left out.
fn lists(pointer: &mut String, old: &[Value], new: &[Value], out: &mut Vec<Value>) {
    let equal = |(a, b): &(&Value, &Value)| a == b;
    let head = old.iter().zip(new).take_while(equal).count();
    let (old, new) = (
        old.get(head..).unwrap_or_default(),
        new.get(head..).unwrap_or_default(),
    );
    let tail = old
        .iter()
        .rev()
        .zip(new.iter().rev())
        .take_while(equal)
        .count();
    let old = old
        .get(..old.len().saturating_sub(tail))
        .unwrap_or_default();
    let new = new
        .get(..new.len().saturating_sub(tail))
        .unwrap_or_default();
    let common = old.len().min(new.len());
    for (i, (before, after)) in old.iter().zip(new).enumerate() {
        below(pointer, &(head + i).to_string(), |pointer| {
            compare(pointer, before, after, out)
        });
    }
    // Remove from the end, so that the indexes of the other elements stay valid.
    for i in (common..old.len()).rev() {
        below(pointer, &(head + i).to_string(), |pointer| {
            out.push(json!({"op": "remove", "path": pointer}));
        });
    }
    for (i, after) in new.iter().enumerate().skip(common) {
        below(pointer, &(head + i).to_string(), |pointer| {
            out.push(json!({"op": "add", "path": pointer, "value": after}));
        });
    }
}

/// Calls `f` with `pointer` extended by `key`.
fn below(pointer: &mut String, key: &str, f: impl FnOnce(&mut String)) {
    let length = pointer.len();
    pointer.push('/');
    for c in key.chars() {
        match c {
            '~' => pointer.push_str("~0"),
            '/' => pointer.push_str("~1"),
            c => pointer.push(c),
        }
    }
    f(pointer);
    pointer.truncate(length);
}
