//! Checks of the webhook configurations and their certificates.

use super::read;
use crate::check::outcome::{Findings, Outcome, join_names};
use crate::check::snapshot::{Objects, Snapshot};
use crate::fetch::{elements, integer, label, name, text};
use k8s_openapi::ByteString;
use koord_app::certificate;
use koord_manager::webhook::{MUTATING, VALIDATING};
use serde_json::Value;

/// Service in front of the webhooks.
const SERVICE: &str = "koordinator-webhook-service";
/// Days before its end at which a certificate is worth a warning.
const SOON_DAYS: i64 = 30;
/// Longest timeout of a webhook, in seconds, that delays no pod for long.
const MAX_TIMEOUT: i64 = 10;
const NOT_INSTALLED: &str = "koord's webhooks are not installed";

/// Returns the entries of both configurations; an error with the reason if there is nothing to check.
fn entries(snapshot: &Snapshot) -> Result<Vec<&Value>, String> {
    if snapshot.is_koord_up() {
        // Its API server calls them without a connection, whatever the configurations say.
        return Err("the webhooks run in the process of `koord up`".to_owned());
    }
    let mut all = Vec::new();
    for (configurations, wanted) in configurations(snapshot) {
        let found = configurations
            .read()?
            .iter()
            .filter(|it| name(it) == wanted);
        all.extend(found.flat_map(|it| elements(it, "/webhooks")));
    }
    Ok(all)
}

const fn configurations(snapshot: &Snapshot) -> [(&Objects, &'static str); 2] {
    [
        (&snapshot.mutating, MUTATING),
        (&snapshot.validating, VALIDATING),
    ]
}

pub(super) fn present(snapshot: &Snapshot) -> Outcome {
    let mut findings = Findings::default();
    let mut counts = Vec::new();
    for (configurations, wanted) in configurations(snapshot) {
        let all = read!(configurations);
        match all.iter().find(|it| name(it) == wanted) {
            None => findings.warn(format!("there is no {wanted}")),
            Some(found) if elements(found, "/webhooks").is_empty() => {
                findings.fail(format!("{wanted} has no webhooks"));
            }
            Some(found) => counts.push(format!(
                "{} in {wanted}",
                elements(found, "/webhooks").len()
            )),
        }
    }
    findings.finish(counts.join(", "))
}

/// Decodes base64, as in fields of type `[]byte`.
fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let text = Value::String(text.to_owned());
    serde_json::from_value(text)
        .ok()
        .map(|ByteString(bytes)| bytes)
}

/// Returns the certificates of a PEM file (DER).
fn certificates(pem: &[u8]) -> Vec<Vec<u8>> {
    let pem = String::from_utf8_lossy(pem);
    let blocks = pem.split("-----BEGIN CERTIFICATE-----").skip(1);
    blocks
        .filter_map(|block| block.split("-----END").next())
        .filter_map(|block| decode_base64(&block.split_whitespace().collect::<String>()))
        .collect()
}

/// Returns a file of the webhooks' Secret.
fn secret_file(secret: &Value, file: &str) -> Option<Vec<u8>> {
    let data = secret.pointer("/data")?.get(file)?.as_str()?;
    decode_base64(data)
}

/// Returns the CA bundles of the entries with the names of the entries, without those that a URL addresses.
fn bundles<'a>(entries: &[&'a Value]) -> Vec<(&'a str, Option<Vec<u8>>)> {
    let bundle = |entry: &&'a Value| {
        let bundle = text(entry, "/clientConfig/caBundle");
        (
            text(entry, "/name"),
            decode_base64(bundle).filter(|bytes| !certificates(bytes).is_empty()),
        )
    };
    entries.iter().map(bundle).collect()
}

pub(super) fn authority(snapshot: &Snapshot) -> Outcome {
    let entries = match entries(snapshot) {
        Ok(entries) if entries.is_empty() => return Outcome::skipped(NOT_INSTALLED),
        Ok(entries) => entries,
        Err(reason) => return Outcome::skipped(reason),
    };
    let bundles = bundles(&entries);
    let without: Vec<&str> = bundles
        .iter()
        .filter(|(_, bundle)| bundle.is_none())
        .map(|(name, _)| *name)
        .collect();
    let mut findings = Findings::default();
    if !without.is_empty() {
        findings.fail(format!(
            "no certificate in the caBundle of {}",
            join_names(&without)
        ));
    }
    let note = match snapshot.webhook_secret.read() {
        Ok(Some(secret)) => {
            let authority = secret_file(secret, "ca-cert.pem").unwrap_or_default();
            let authority = certificates(&authority);
            let other: Vec<&str> = bundles
                .iter()
                .filter(|(_, bundle)| {
                    let bundle = bundle.as_deref().map(certificates);
                    bundle.is_some_and(|bundle| !authority.iter().any(|it| bundle.contains(it)))
                })
                .map(|(name, _)| *name)
                .collect();
            if !other.is_empty() {
                findings.fail(format!(
                    "the caBundle is not the authority in the Secret: {}",
                    join_names(&other)
                ));
            }
            "they have the authority of the Secret".to_owned()
        }
        Ok(None) => "there is no Secret to compare with".to_owned(),
        Err(reason) => format!("not compared with the Secret: {reason}"),
    };
    findings.finish(format!("{} webhooks, {note}", bundles.len()))
}

/// Checks that no webhook certificate has expired or expires soon: the served one, and those in `caBundle`.
pub(super) fn validity(snapshot: &Snapshot) -> Outcome {
    let entries = match entries(snapshot) {
        Ok(entries) if entries.is_empty() => return Outcome::skipped(NOT_INSTALLED),
        Ok(entries) => entries,
        Err(reason) => return Outcome::skipped(reason),
    };
    let mut dated = Vec::new();
    if let Ok(Some(secret)) = snapshot.webhook_secret.read() {
        let pem = secret_file(secret, "cert.pem").or_else(|| secret_file(secret, "tls.crt"));
        let served = certificates(&pem.unwrap_or_default());
        dated.extend(
            served
                .into_iter()
                .map(|it| ("served certificate".to_owned(), it)),
        );
    }
    for (name, bundle) in bundles(&entries) {
        let all = certificates(&bundle.unwrap_or_default());
        dated.extend(
            all.into_iter()
                .map(|it| (format!("caBundle of {name}"), it)),
        );
    }
    let mut findings = Findings::default();
    let mut least = None;
    for (what, certificate) in &dated {
        let Some(end) = certificate::expires_at(certificate) else {
            findings.warn(format!("{what}: not an X.509 certificate"));
            continue;
        };
        let days = (end - snapshot.now.as_second()).div_euclid(86_400);
        least = Some(least.map_or(days, |least: i64| least.min(days)));
        if days < 0 {
            findings.fail(format!("{what} expired {} days ago", -days));
        } else if days < SOON_DAYS {
            findings.warn(format!("{what} expires in {days} days"));
        }
    }
    match least {
        None => Outcome::skipped("no certificate can be read"),
        Some(days) => findings.finish(format!("at least {days} days left")),
    }
}

pub(super) fn endpoints(snapshot: &Snapshot) -> Outcome {
    match entries(snapshot) {
        Ok(entries) if entries.is_empty() => return Outcome::skipped(NOT_INSTALLED),
        Ok(entries)
            if entries
                .iter()
                .all(|it| !text(it, "/clientConfig/url").is_empty()) =>
        {
            return Outcome::ok("the webhooks have URLs, not a Service");
        }
        Ok(_) => {}
        Err(reason) => return Outcome::skipped(reason),
    }
    let slices = read!(snapshot.endpoint_slices);
    let of_service = slices
        .iter()
        .filter(|it| label(it, "kubernetes.io/service-name") == SERVICE);
    let endpoints = of_service.flat_map(|it| elements(it, "/endpoints"));
    // A missing value counts as ready.
    let ready = endpoints.filter(|it| it.pointer("/conditions/ready") != Some(&Value::Bool(false)));
    let ready = ready.count();
    let mut findings = Findings::default();
    if ready == 0 {
        findings.fail(format!("Service {SERVICE} has no ready endpoint"));
    }
    findings.finish(format!("{ready} ready endpoints"))
}

/// Returns whether an entry refuses writes while it does not answer.
fn is_fail(entry: &Value) -> bool {
    matches!(text(entry, "/failurePolicy"), "" | "Fail")
}

pub(super) fn exemption(snapshot: &Snapshot) -> Outcome {
    let entries = match entries(snapshot) {
        Ok(entries) => entries,
        Err(reason) => return Outcome::skipped(reason),
    };
    let of_pods = |entry: &Value| {
        text(entry, "/name").starts_with("mpod") || text(entry, "/name").starts_with("vpod")
    };
    if !entries.iter().any(|it| of_pods(it) && is_fail(it)) {
        return Outcome::ok("pods are admitted while the webhooks do not answer");
    }
    let Some(namespace) = read!(snapshot.namespace_object) else {
        return Outcome::skipped(format!("there is no namespace {}", snapshot.namespace));
    };
    let mut findings = Findings::default();
    if label(namespace, "control-plane").is_empty() {
        findings.warn(format!(
            "namespace {} has no label control-plane, and webhooks of pods have failurePolicy Fail: \
             no pod of koord-manager can start while none runs",
            snapshot.namespace
        ));
    }
    findings.finish("the namespace is exempt")
}

pub(super) fn policy(snapshot: &Snapshot) -> Outcome {
    let entries = match entries(snapshot) {
        Ok(entries) if entries.is_empty() => return Outcome::skipped(NOT_INSTALLED),
        Ok(entries) => entries,
        Err(reason) => return Outcome::skipped(reason),
    };
    let mut findings = Findings::default();
    let names = |select: &dyn Fn(&Value) -> bool| {
        let selected = entries.iter().filter(|it| select(it));
        selected.map(|it| text(it, "/name")).collect::<Vec<_>>()
    };
    let slow = names(&|it| integer(it, "/timeoutSeconds").unwrap_or(MAX_TIMEOUT) > MAX_TIMEOUT);
    if !slow.is_empty() {
        findings.warn(format!(
            "timeout above {MAX_TIMEOUT} s: {}",
            join_names(&slow)
        ));
    }
    let failing = names(&is_fail);
    let manager = snapshot.deployments.value().into_iter().flatten();
    let mut manager = manager.filter(|it| super::components::is_component(it, "koord-manager"));
    let single = manager.any(|it| integer(it, "/spec/replicas").unwrap_or(1) < 2);
    if single && !failing.is_empty() {
        findings.warn(format!(
            "failurePolicy Fail with one replica of koord-manager: {}",
            join_names(&failing)
        ));
    }
    findings.finish(format!("{} webhooks", entries.len()))
}
