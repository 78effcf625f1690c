//! `koord crds`: prints the objects that a cluster needs before the components run, as YAML.

use serde_json::Value;
use std::fmt::Write as _;

/// Returns the definitions of custom resources and the PriorityClasses as one YAML stream, each document starting
/// with `---`.
///
/// # Errors
/// An object cannot be written as YAML; never happens for the built-in ones.
pub(crate) fn yaml() -> Result<String, serde_saphyr::ser::Error> {
    let mut objects = koord_api::crd_values();
    objects.extend(koord_api::priority_class_values());
    stream(&objects)
}

fn stream(objects: &[Value]) -> Result<String, serde_saphyr::ser::Error> {
    let mut stream = String::new();
    for object in objects {
        let document = serde_saphyr::to_string(object)?;
        // Writing to a String cannot fail.
        let _ = writeln!(stream, "---\n{}", document.trim_end());
    }
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_reads_back() {
        let stream = yaml().unwrap();
        let documents: Vec<Value> = stream
            .split("---\n")
            .filter(|document| !document.is_empty())
            .map(|document| serde_saphyr::from_str(document).unwrap())
            .collect();
        let (definitions, classes) = documents.split_at(koord_api::crd_values().len());
        assert_eq!(definitions, koord_api::crd_values());
        assert_eq!(classes, koord_api::priority_class_values());
    }
}
