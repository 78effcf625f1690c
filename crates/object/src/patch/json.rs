//! JSON patch (RFC 6902) with limits: each `copy` operation can double an object, and `move` can nest one
//! arbitrarily deep.

use json_patch::PatchOperation;
use serde_json::Value;

use super::{MAX_OPERATIONS, PatchError};

/// Maximum number of bytes copied by all `copy` operations of a patch.
const MAX_COPIED: usize = 3 * 1024 * 1024;
/// Maximum number of bytes moved by all `move` operations of a patch; limits the work, not the result.
const MAX_MOVED: usize = 64 * 1024 * 1024;
/// Maximum number of list elements shifted by all operations of a patch, by inserting or removing elements
/// before them.
const MAX_SHIFTED: usize = 32 * 1024 * 1024;
/// Maximum nesting depth of a result. Stored objects must stay below the depth that the JSON parser accepts
/// (128).
const MAX_DEPTH: usize = 120;

/// Applies an RFC 6902 patch document.
///
/// # Errors
/// Invalid documents, failing operations, and results that exceed the limits.
pub fn json_patch(original: &Value, body: &[u8]) -> Result<Value, PatchError> {
    let document: Value =
        serde_json::from_slice(body).map_err(|e| PatchError::Malformed(e.to_string()))?;
    json_patch_value(original, document)
}

/// Applies a parsed document, like [`json_patch()`].
///
/// # Errors
/// Those of [`json_patch()`].
pub fn json_patch_value(original: &Value, document: Value) -> Result<Value, PatchError> {
    let count = document.as_array().map_or(0, Vec::len);
    if count > MAX_OPERATIONS {
        return Err(PatchError::TooManyOperations(count));
    }
    let patch: json_patch::Patch =
        serde_json::from_value(document).map_err(|e| PatchError::Malformed(e.to_string()))?;
    let mut out = original.clone();
    let mut budget = Budget::default();
    for (i, operation) in patch.0.iter().enumerate() {
        budget.check(&out, operation).map_err(|reason| {
            PatchError::Failed(format!(
                "operation '/{i}' failed at path '{}': {reason}",
                operation.path()
            ))
        })?;
        json_patch::patch(&mut out, std::slice::from_ref(operation)).map_err(|e| {
            PatchError::Failed(format!(
                "operation '/{i}' failed at path '{}': {}",
                e.path, e.kind
            ))
        })?;
    }
    Ok(out)
}

#[derive(Debug, Default)]
struct Budget {
    copied: usize,
    moved: usize,
    shifted: usize,
}

/// Returns the number of list elements from the one that `path` refers to; 0 if it is not in a list.
fn elements_behind(object: &Value, path: &json_patch::jsonptr::Pointer) -> usize {
    let Some((list, index)) = path.as_str().rsplit_once('/') else {
        return 0;
    };
    let length = object.pointer(list).and_then(Value::as_array).map(Vec::len);
    match (length, index.parse::<usize>()) {
        (Some(length), Ok(index)) => length.saturating_sub(index),
        _ => 0,
    }
}

impl Budget {
    /// Charges an operation to the budget; fails if the patch costs too much.
    fn check(&mut self, object: &Value, operation: &PatchOperation) -> Result<(), String> {
        let shifted = match operation {
            PatchOperation::Replace(_) | PatchOperation::Test(_) => 0,
            PatchOperation::Move(o) => {
                elements_behind(object, &o.from) + elements_behind(object, &o.path)
            }
            other => elements_behind(object, other.path()),
        };
        self.shifted = self.shifted.saturating_add(shifted);
        if self.shifted > MAX_SHIFTED {
            return Err(format!(
                "more than {MAX_SHIFTED} elements of lists shifted by one patch"
            ));
        }
        let (value, spent, limit) = match operation {
            PatchOperation::Add(o) => (Some(&o.value), None, 0),
            PatchOperation::Replace(o) => (Some(&o.value), None, 0),
            PatchOperation::Copy(o) => (
                object.pointer(o.from.as_str()),
                Some(&mut self.copied),
                MAX_COPIED,
            ),
            PatchOperation::Move(o) => (
                object.pointer(o.from.as_str()),
                Some(&mut self.moved),
                MAX_MOVED,
            ),
            PatchOperation::Remove(_) | PatchOperation::Test(_) => return Ok(()),
        };
        let Some(value) = value else { return Ok(()) };
        let (size, depth) = measure(value);
        if operation.path().as_str().matches('/').count() + depth > MAX_DEPTH {
            return Err(format!("nesting deeper than {MAX_DEPTH} levels"));
        }
        if let Some(spent) = spent {
            *spent = spent.saturating_add(size);
            if *spent > limit {
                return Err(format!("more than {limit} bytes copied by one patch"));
            }
        }
        Ok(())
    }
}

/// Returns the approximate size in bytes and the depth of a value, without recursion.
pub fn measure(value: &Value) -> (usize, usize) {
    let (mut size, mut deepest) = (0_usize, 0);
    let mut stack = vec![(value, 1)];
    while let Some((v, depth)) = stack.pop() {
        deepest = deepest.max(depth);
        size += 8;
        match v {
            Value::String(s) => size += s.len(),
            Value::Array(items) => stack.extend(items.iter().map(|i| (i, depth + 1))),
            Value::Object(map) => {
                for (k, v) in map {
                    size += k.len();
                    stack.push((v, depth + 1));
                }
            }
            _ => {}
        }
    }
    (size, deepest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn json_patch_errors_are_distinguished() {
        let doc = json!({"a": 1});
        let ok = json_patch(&doc, br#"[{"op":"replace","path":"/a","value":2}]"#).unwrap();
        assert_eq!(ok, json!({"a": 2}));
        assert!(matches!(
            json_patch(&doc, b"{"),
            Err(PatchError::Malformed(_))
        ));
        assert!(matches!(
            json_patch(&doc, b"{}"),
            Err(PatchError::Malformed(_))
        ));
        let failed = json_patch(&doc, br#"[{"op":"test","path":"/a","value":3}]"#);
        assert!(matches!(failed, Err(PatchError::Failed(_))));
        let missing = json_patch(&doc, br#"[{"op":"remove","path":"/b"}]"#);
        assert!(matches!(missing, Err(PatchError::Failed(_))));
        let operations =
            serde_json::to_vec(&vec![json!({"op":"test","path":"/a","value":1}); 10_001]);
        assert!(matches!(
            json_patch(&doc, &operations.unwrap()),
            Err(PatchError::TooManyOperations(10_001))
        ));
    }

    #[test]
    fn patch_size_is_limited() {
        let doc = json!({"a": {"x": "y".repeat(1000)}});
        let copies: Vec<Value> = (0..40)
            .map(|i| json!({"op": "copy", "from": "/a", "path": format!("/a/c{i}")}))
            .collect();
        let e = json_patch(&doc, json!(copies).to_string().as_bytes()).unwrap_err();
        assert!(e.to_string().contains("bytes copied by one patch"), "{e}");

        // Each pair of moves nests the object one level deeper.
        let mut moves = vec![json!({"op": "add", "path": "/b", "value": {"n": {"n": {"n": {}}}}})];
        for _ in 0..2000 {
            moves.push(json!({"op": "move", "from": "/a", "path": "/b/n/n/n/a"}));
            moves.push(json!({"op": "move", "from": "/b", "path": "/a"}));
            moves.push(json!({"op": "add", "path": "/b", "value": {"n": {"n": {"n": {}}}}}));
        }
        let e = json_patch(&doc, json!(moves).to_string().as_bytes()).unwrap_err();
        assert!(
            e.to_string().contains("nesting deeper than 120 levels"),
            "{e}"
        );
    }
}
