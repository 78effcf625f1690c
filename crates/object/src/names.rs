//! Syntax checks of names and labels, with Kubernetes' messages.

/// Returns the problem with a label value; `None` if it is valid.
pub fn label_value(value: &str) -> Option<String> {
    if value.len() > 63 {
        return Some("must be no more than 63 bytes".to_owned());
    }
    if value.is_empty() || is_label_like(value) {
        return None;
    }
    Some(
        "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', \
         and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', \
         regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
            .to_owned(),
    )
}

fn is_label_like(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let bytes = text.as_bytes();
    let ends = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    ends(bytes.first()) && ends(bytes.last()) && bytes.iter().all(|b| inner(*b))
}

/// Returns the problems with a qualified name (label key, annotation key, resource name, finalizer).
pub fn qualified_name(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    let name = match text.split_once('/') {
        None => text,
        Some((prefix, name)) if !name.contains('/') => {
            if prefix.is_empty() {
                errors.push("prefix part must be non-empty".to_owned());
            } else {
                errors.extend(dns1123_subdomain(prefix).map(|e| format!("prefix part {e}")));
            }
            name
        }
        Some(_) => {
            errors.push(
                "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must start and end \
                 with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for \
                 validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix \
                 and '/' (e.g. 'example.com/MyName')"
                    .to_owned(),
            );
            return errors;
        }
    };
    if name.is_empty() {
        errors.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        errors.push("name part must be no more than 63 bytes".to_owned());
    }
    if !is_label_like(name) {
        errors.push(
            "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
             alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
             '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
                .to_owned(),
        );
    }
    errors
}

fn is_dns_label(text: &str) -> bool {
    let bytes = text.as_bytes();
    let ends = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    ends(bytes.first())
        && ends(bytes.last())
        && bytes
            .iter()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
}

/// Returns the problem with a DNS-1123 label; `None` if it is valid.
pub fn dns1123_label(text: &str) -> Option<String> {
    if text.len() > 63 {
        return Some("must be no more than 63 bytes".to_owned());
    }
    if is_dns_label(text) {
        return None;
    }
    Some(
        "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start \
         and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
         '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
            .to_owned(),
    )
}

/// Returns the problem with a DNS-1123 subdomain; `None` if it is valid.
pub fn dns1123_subdomain(text: &str) -> Option<String> {
    if text.len() > 253 {
        return Some("must be no more than 253 bytes".to_owned());
    }
    if !text.is_empty() && text.split('.').all(is_dns_label) {
        return None;
    }
    Some(
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must \
         start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
         '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
            .to_owned(),
    )
}

/// Returns the problem with a DNS-1035 label (service names); `None` if it is valid.
pub fn dns1035_label(text: &str) -> Option<String> {
    if text.len() > 63 {
        return Some("must be no more than 63 bytes".to_owned());
    }
    if is_dns_label(text) && text.starts_with(|c: char| c.is_ascii_lowercase()) {
        return None;
    }
    Some(
        "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic \
         character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for \
         validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
            .to_owned(),
    )
}

/// Returns the problem with a name that is one path segment (RBAC objects); `None` if it is valid.
pub fn path_segment(text: &str) -> Option<String> {
    if text == "." || text == ".." {
        return Some(format!("may not be '{text}'"));
    }
    ['/', '%']
        .iter()
        .find(|c| text.contains(**c))
        .map(|c| format!("may not contain '{c}'"))
}
