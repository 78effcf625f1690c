//! Removes what may be a secret from objects and texts.

use regex::Regex;
use serde_json::{Map, Value, json};
use std::borrow::Cow;

/// Replaces a removed value.
pub(super) const REDACTED: &str = "REDACTED";
/// Domains of annotations that are kept, each with its subdomains.
const DOMAINS: [&str; 3] = ["koordinator.sh", "kubernetes.io", "k8s.io"];
/// Describes what is removed, for the manifest.
pub(super) const RULES: [&str; 6] = [
    "Secrets are not read",
    "values of environment variables and HTTP headers of containers",
    "arguments of containers whose name has password, secret, token, credential or key, unless it names a file",
    "annotations other than those of koordinator.sh, kubernetes.io and k8s.io, and last-applied-configuration",
    "fields with such a name, bearer tokens, JSON web tokens, private keys and passwords of URLs in any text",
    "image lists of nodes, and managed fields",
];

/// Finds secrets in objects and texts.
#[derive(Debug)]
pub(super) struct Redactor {
    /// Patterns in texts, each with its replacement.
    texts: Vec<(Regex, &'static str)>,
    /// Names of fields and arguments with a secret.
    names: Regex,
}

impl Redactor {
    /// Compiles the patterns.
    ///
    /// # Errors
    /// A pattern is invalid; never happens for the built-in ones.
    pub(super) fn new() -> Result<Self, regex::Error> {
        const SECRET: &str = r"password|passwd|passphrase|secret|token|credentials?|api[-_]?key|private[-_]?key|key-data|tls\.key";
        // A value in quotes, in escaped quotes, or up to a separator.
        const VALUE: &str = r#""[^"]*"|'[^']*'|\\"[^"\\]*\\?"|[^\s,;}\]"'\\]+"#;
        let named = format!(r#"(?i)((?:{SECRET})\\?["']?\s*[:=]\s*)(?:{VALUE})"#);
        let private_key =
            r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)";
        let patterns = [
            (private_key, REDACTED),
            (
                r"\beyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)?",
                REDACTED,
            ),
            (
                r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}",
                "$1 REDACTED",
            ),
            (r"://[^/\s:@]+:[^/\s@]+@", "://REDACTED@"),
            (named.as_str(), "${1}REDACTED"),
        ];
        let compile = |(pattern, replacement): (&str, _)| Ok((Regex::new(pattern)?, replacement));
        Ok(Self {
            texts: patterns
                .into_iter()
                .map(compile)
                .collect::<Result<_, regex::Error>>()?,
            names: Regex::new(&format!(
                r"(?i)(?:^|[-_./])(?:{SECRET})$|(?-i:[a-z](?:Password|Token|Secret|ApiKey|PrivateKey)$)"
            ))?,
        })
    }

    /// Returns a text without secrets.
    pub(super) fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut redacted = Cow::Borrowed(text);
        for (pattern, replacement) in &self.texts {
            if let Cow::Owned(changed) = pattern.replace_all(&redacted, *replacement) {
                redacted = Cow::Owned(changed);
            }
        }
        redacted
    }

    /// Removes secrets from an object, its nested objects and its texts.
    pub(super) fn object(&self, value: &mut Value) {
        match value {
            Value::String(text) => {
                if let Cow::Owned(redacted) = self.text(text) {
                    *text = redacted;
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.object(item)),
            Value::Object(fields) => self.fields(fields),
            _ => {}
        }
    }

    fn fields(&self, fields: &mut Map<String, Value>) {
        // Lists of objects have no Secrets; a template in another object might.
        if fields.get("kind").is_some_and(|kind| kind == "Secret") {
            for field in ["data", "stringData"] {
                if fields.contains_key(field) {
                    fields.insert(field.to_owned(), json!(REDACTED));
                }
            }
        }
        for (name, value) in fields {
            match (name.as_str(), &mut *value) {
                ("annotations", Value::Object(annotations)) => self.annotations(annotations),
                ("env" | "httpHeaders", Value::Array(variables)) => {
                    for variable in variables {
                        if let Some(value) = variable.get_mut("value") {
                            *value = json!(REDACTED);
                        }
                    }
                }
                ("args" | "command", Value::Array(arguments)) => self.arguments(arguments),
                (name, Value::String(text)) if self.names.is_match(name) => {
                    REDACTED.clone_into(text);
                }
                (_, value) => self.object(value),
            }
        }
    }

    fn annotations(&self, annotations: &mut Map<String, Value>) {
        for (key, value) in annotations {
            let domain = key.split_once('/').map_or("", |(domain, _)| domain);
            let is_kept = DOMAINS.iter().any(|kept| {
                let subdomain = domain.strip_suffix(kept);
                subdomain.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            });
            if is_kept && !key.contains("last-applied") && !self.names.is_match(key) {
                self.object(value);
            } else {
                *value = json!(REDACTED);
            }
        }
    }

    /// Removes the values of arguments such as `--token=x` and `--token x`.
    fn arguments(&self, arguments: &mut [Value]) {
        let mut is_next_secret = false;
        for argument in arguments {
            let Value::String(text) = argument else {
                continue;
            };
            if std::mem::take(&mut is_next_secret) && !text.starts_with('-') {
                REDACTED.clone_into(text);
                continue;
            }
            let (name, value) = match text.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (text.as_str(), None),
            };
            if name.starts_with('-') && self.names.is_match(name) {
                match value {
                    Some(_) => *text = format!("{name}={REDACTED}"),
                    None => is_next_secret = true,
                }
            } else if let Cow::Owned(redacted) = self.text(text) {
                *text = redacted;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_in_texts_are_removed() {
        let redactor = Redactor::new().unwrap();
        let token = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ4In0.c2lnbmF0dXJl";
        for (text, expected) in [
            ("pod web is pending", "pod web is pending"),
            (
                "tokenFile: /var/run/token-file",
                "tokenFile: /var/run/token-file",
            ),
            ("keys: 5 tokens left", "keys: 5 tokens left"),
            (
                "Authorization: Bearer abcdefgh12",
                "Authorization: Bearer REDACTED",
            ),
            (token, "REDACTED"),
            ("password=hunter2, next", "password=REDACTED, next"),
            (
                "{\"apiKey\":\"a b\",\"x\":1}",
                "{\"apiKey\":REDACTED,\"x\":1}",
            ),
            ("{\\\"token\\\":\\\"abc\\\"}", "{\\\"token\\\":REDACTED}"),
            ("client-key-data: TFMwdA==", "client-key-data: REDACTED"),
            ("https://user:pass@host/x", "https://REDACTED@host/x"),
            (
                "a\n-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY-----\nb",
                "a\nREDACTED\nb",
            ),
            ("-----BEGIN PRIVATE KEY-----\nMII", "REDACTED"),
        ] {
            assert_eq!(redactor.text(text), expected);
        }
    }

    #[test]
    fn secrets_in_objects_are_removed() {
        let redactor = Redactor::new().unwrap();
        let mut object = json!({
            "metadata": {"annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": "{}",
                "node.koordinator.sh/reservation": "{\"resources\":{}}",
                "scheduling.sigs.k8s.io/x": "y", "plain": "p", "vault.example.com/x": "p",
                "notkubernetes.io/x": "p", "node.koordinator.sh/token": "p"}},
            "spec": {"template": {"spec": {"containers": [{
                "env": [{"name": "A", "value": "p"}, {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
                "args": ["--v=4", "--token=p", "--password", "p", "--tls-private-key-file=/f", "--secret", "--x"],
                "livenessProbe": {"httpGet": {"httpHeaders": [{"name": "Authorization", "value": "p"}]}}}],
                "volumes": [{"secret": {"secretName": "certs"}}]}}},
            "patch": {"kind": "Secret", "data": {"a": "p"}, "stringData": {"a": "p"}},
            "webhooks": [{"clientConfig": {"caBundle": "TFMwdA=="}}],
            "token": "p", "accessToken": "p", "limit": 5});
        redactor.object(&mut object);
        assert_eq!(
            object,
            json!({
                "metadata": {"annotations": {
                    "kubectl.kubernetes.io/last-applied-configuration": REDACTED,
                    "node.koordinator.sh/reservation": "{\"resources\":{}}",
                    "scheduling.sigs.k8s.io/x": "y", "plain": REDACTED, "vault.example.com/x": REDACTED,
                    "notkubernetes.io/x": REDACTED, "node.koordinator.sh/token": REDACTED}},
                "spec": {"template": {"spec": {"containers": [{
                    "env": [{"name": "A", "value": REDACTED}, {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
                    "args": ["--v=4", "--token=REDACTED", "--password", REDACTED, "--tls-private-key-file=/f", "--secret", "--x"],
                    "livenessProbe": {"httpGet": {"httpHeaders": [{"name": "Authorization", "value": REDACTED}]}}}],
                    "volumes": [{"secret": {"secretName": "certs"}}]}}},
                "patch": {"kind": "Secret", "data": REDACTED, "stringData": REDACTED},
                "webhooks": [{"clientConfig": {"caBundle": "TFMwdA=="}}],
                "token": REDACTED, "accessToken": REDACTED, "limit": 5})
        );
    }
}
