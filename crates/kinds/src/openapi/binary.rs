//! Protobuf encoding of the v2 document as gnostic's `openapi.v2.Document`, which kubectl before 1.27 and
//! Go's discovery client request. Members are written in the order of their numbers and, as in proto3,
//! omitted when empty.

use serde_json::{Map, Value};

use crate::proto::{delimited, integer, tag};

/// A gnostic message that is written from a JSON object.
struct Message<'a> {
    from: Option<&'a Map<String, Value>>,
    out: Vec<u8>,
}

/// Encoder of a member.
type Write = fn(&Value) -> Vec<u8>;

impl<'a> Message<'a> {
    fn new(value: &'a Value) -> Self {
        Self {
            from: value.as_object(),
            out: Vec::new(),
        }
    }

    fn member(&self, name: &str) -> Option<&'a Value> {
        self.from?.get(name)
    }

    fn text(mut self, number: u32, name: &str) -> Self {
        if let Some(text) = self.member(name).and_then(Value::as_str)
            && !text.is_empty()
        {
            delimited(&mut self.out, number, text.as_bytes());
        }
        self
    }

    fn flag(mut self, number: u32, name: &str) -> Self {
        if self.member(name).and_then(Value::as_bool) == Some(true) {
            integer(&mut self.out, number, 1);
        }
        self
    }

    fn integer_field(mut self, number: u32, name: &str) -> Self {
        if let Some(n) = self.member(name).and_then(Value::as_i64)
            && n != 0
        {
            integer(&mut self.out, number, n);
        }
        self
    }

    fn real(mut self, number: u32, name: &str) -> Self {
        if let Some(n) = self.member(name).and_then(Value::as_f64)
            && n != 0.0
        {
            tag(&mut self.out, number, 1);
            self.out.extend(n.to_bits().to_le_bytes());
        }
        self
    }

    fn one(mut self, number: u32, name: &str, write: Write) -> Self {
        if let Some(value) = self.member(name) {
            delimited(&mut self.out, number, &write(value));
        }
        self
    }

    fn each(mut self, number: u32, name: &str, write: Write) -> Self {
        let items = self.member(name).and_then(Value::as_array);
        for item in items.into_iter().flatten() {
            delimited(&mut self.out, number, &write(item));
        }
        self
    }

    fn texts(self, number: u32, name: &str) -> Self {
        self.each(number, name, |v| {
            v.as_str().unwrap_or_default().as_bytes().to_vec()
        })
    }

    /// Writes the specification extensions (`x-…`) and returns the message.
    fn extensions(mut self, number: u32) -> Vec<u8> {
        for (name, value) in self.from.into_iter().flatten() {
            if name.starts_with("x-") {
                delimited(&mut self.out, number, &named(name, &any(value)));
            }
        }
        self.out
    }
}

fn named(name: &str, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    delimited(&mut out, 1, name.as_bytes());
    delimited(&mut out, 2, value);
    out
}

/// Encodes all members of an object as the repeated field `number`, each with its name.
fn all(object: &Value, number: u32, write: Write) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in object.as_object().into_iter().flatten() {
        delimited(&mut out, number, &named(name, &write(value)));
    }
    out
}

/// Encodes a message with a single member, which is a message.
fn only(number: u32, inner: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    delimited(&mut out, number, inner);
    out
}

/// Encodes any value as YAML, of which JSON is a subset.
fn any(value: &Value) -> Vec<u8> {
    only(2, value.to_string().as_bytes())
}

/// Encodes the document that [`super::v2::document`] builds.
pub(super) fn document(value: &Value) -> Vec<u8> {
    Message::new(value)
        .text(1, "swagger")
        .one(2, "info", |info| {
            Message::new(info).text(1, "title").text(2, "version").out
        })
        .one(8, "paths", |paths| all(paths, 2, path_item))
        .one(9, "definitions", |schemas| all(schemas, 1, schema))
        .extensions(16)
}

fn path_item(value: &Value) -> Vec<u8> {
    Message::new(value)
        .one(2, "get", operation)
        .one(3, "put", operation)
        .one(4, "post", operation)
        .one(5, "delete", operation)
        .one(6, "options", operation)
        .one(7, "head", operation)
        .one(8, "patch", operation)
        .each(9, "parameters", parameter)
        .extensions(10)
}

fn operation(value: &Value) -> Vec<u8> {
    Message::new(value)
        .texts(1, "tags")
        .text(2, "summary")
        .text(3, "description")
        .text(5, "operationId")
        .texts(6, "produces")
        .texts(7, "consumes")
        .each(8, "parameters", parameter)
        .one(9, "responses", |responses| {
            all(responses, 1, |r| only(1, &response(r)))
        })
        .texts(10, "schemes")
        .flag(11, "deprecated")
        .extensions(13)
}

fn response(value: &Value) -> Vec<u8> {
    Message::new(value)
        .text(1, "description")
        .one(2, "schema", |s| only(1, &schema(s)))
        .extensions(5)
}

/// Encodes a parameter as gnostic nests it: the message of its kind (body, header, path or query) inside a
/// `Parameter` inside a `ParametersItem`.
fn parameter(value: &Value) -> Vec<u8> {
    let at = value.get("in").and_then(Value::as_str);
    let parameter = match at {
        Some("body") => {
            let body = Message::new(value)
                .text(1, "description")
                .text(2, "name")
                .text(3, "in")
                .flag(4, "required")
                .one(5, "schema", schema)
                .extensions(6);
            only(1, &body)
        }
        Some("header") => only(2, &only(1, &simple(value, 5).extensions(22))),
        Some("path") => only(2, &only(4, &simple(value, 5).extensions(22))),
        _ => only(2, &only(3, &simple(value, 6).extensions(23))),
    };
    only(1, &parameter)
}

/// Encodes a parameter of a primitive type, whose type is field `kind`.
fn simple(value: &Value, kind: u32) -> Message<'_> {
    Message::new(value)
        .flag(1, "required")
        .text(2, "in")
        .text(3, "description")
        .text(4, "name")
        .text(kind, "type")
        .text(kind + 1, "format")
        .flag(kind + 14, "uniqueItems")
}

/// Encodes a schema as a message of gnostic's OpenAPI v2.
fn schema(value: &Value) -> Vec<u8> {
    Message::new(value)
        .text(1, "$ref")
        .text(2, "format")
        .text(3, "title")
        .text(4, "description")
        .one(5, "default", any)
        .real(6, "multipleOf")
        .real(7, "maximum")
        .flag(8, "exclusiveMaximum")
        .real(9, "minimum")
        .flag(10, "exclusiveMinimum")
        .integer_field(11, "maxLength")
        .integer_field(12, "minLength")
        .text(13, "pattern")
        .integer_field(14, "maxItems")
        .integer_field(15, "minItems")
        .flag(16, "uniqueItems")
        .integer_field(17, "maxProperties")
        .integer_field(18, "minProperties")
        .texts(19, "required")
        .each(20, "enum", any)
        .one(21, "additionalProperties", additional)
        .one(22, "type", |kind| {
            only(1, kind.as_str().unwrap_or_default().as_bytes())
        })
        .one(23, "items", |items| only(1, &schema(items)))
        .each(24, "allOf", schema)
        .one(25, "properties", |schemas| all(schemas, 1, schema))
        .flag(27, "readOnly")
        .one(30, "example", any)
        .extensions(31)
}

/// Encodes the schema of additional properties, or whether they are allowed; false is written, too.
fn additional(value: &Value) -> Vec<u8> {
    match value.as_bool() {
        None => only(1, &schema(value)),
        Some(allowed) => {
            let mut out = Vec::new();
            integer(&mut out, 2, i64::from(allowed));
            out
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A document, and its bytes as gnostic 0.7.0 writes them.
    const SMALL: &str = r##"{"definitions":{"a.B":{"description":"A b.","properties":{"items":{"items":{"$ref":"#/definitions/a.C"},"type":"array"},"map":{"additionalProperties":{"type":"string"},"type":"object"},"n":{"format":"int32","maxLength":9,"maximum":2.5,"minimum":1,"type":"integer"}},"required":["n","items"],"type":"object"},
"a.C":{"additionalProperties":false,"allOf":[{"$ref":"#/definitions/a.B"}],"pattern":"^x$","uniqueItems":true}},"info":{"title":"T","version":"v"},"paths":{"/b/{name}":{"get":{"consumes":["c/d"],"operationId":"o","parameters":[{"in":"query","name":"q","type":"boolean","uniqueItems":true},{"in":"header","name":"h","type":"string"}],"produces":["a/b"],"responses":{"200":{"description":"OK","schema":{"$ref":"#/definitions/a.B"}}}},"parameters":[{"in":"path","name":"name","required":true,"type":"string"}],"post":{"description":"D","parameters":[{"in":"body","name":"body","required":true,"schema":{"$ref":"#/definitions/a.B"}}],"responses":{"201":{"description":"Created"}},"tags":["t"]}}},"swagger":"2.0"}"##;
    const BYTES: &str = "0a03322e3012060a015412017642e60112e3010a092f622f7b6e616d657d12d501126e2a016f3203612f\
         623a03632f64421c0a1a12181a16120571756572792201713207626f6f6c65616ea0010142190a171215\
         0a1312066865616465722201682a06737472696e674a260a240a03323030121d0a1b0a024f4b12150a13\
         0a11232f646566696e6974696f6e732f612e4222450a01741a014442270a250a231204626f64791a0462\
         6f647920012a130a11232f646566696e6974696f6e732f612e424a140a120a03323031120b0a090a0743\
         7265617465644a1c0a1a12182216080112047061746822046e616d652a06737472696e674ad6010aa701\
         0a03612e42129f0122044120622e9a01016e9a01056974656d73b201080a066f626a656374ca017f0a2b\
         0a056974656d731222b201070a056172726179ba01150a130a11232f646566696e6974696f6e732f612e\
         430a220a036d6170121baa010d0a0bb201080a06737472696e67b201080a066f626a6563740a2c0a016e\
         12271205696e74333239000000000000044049000000000000f03f5809b201090a07696e74656765720a\
         2a0a03612e4312236a035e7824800101aa01021000c201130a11232f646566696e6974696f6e732f612e\
         42";

    #[test]
    fn the_bytes_are_those_of_gnostic() {
        let small: Value = serde_json::from_str(SMALL).unwrap();
        let bytes: String = document(&small)
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        assert_eq!(bytes, BYTES);
    }

    #[test]
    fn values_of_any_kind_are_yaml() {
        let schema =
            super::schema(&serde_json::json!({"default": {"a": 1}, "enum": ["x"], "x-y": true}));
        let expected = [
            &[0x2a, 9, 0x12, 7][..],
            b"{\"a\":1}",
            &[0xa2, 1, 5, 0x12, 3],
            b"\"x\"",
            &[0xfa, 1, 13, 0x0a, 3],
            b"x-y",
            &[0x12, 6, 0x12, 4],
            b"true",
        ];
        assert_eq!(schema, expected.concat());
    }
}
