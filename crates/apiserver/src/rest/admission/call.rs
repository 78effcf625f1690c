//! Calls to webhooks over HTTPS.

use super::trust::Bundle;
use crate::rest::body::MAX_BODY;
use crate::rest::meta;
use crate::store::{Entry, Key, Store, TableId};
use bytes::Bytes;
use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use koord_kinds::webhook::Endpoint;
use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Most idle connections that are kept for reuse.
const MAX_IDLE: usize = 8;

type WebhookConnection = SendRequest<Full<Bytes>>;

/// HTTPS client of one webhook.
pub(super) struct Transport {
    endpoint: Endpoint,
    url: Uri,
    host: String,
    port: u16,
    tls: TlsConnector,
    name: ServerName<'static>,
    /// Idle connections, closed when the webhook's configuration changes.
    idle: Mutex<Vec<WebhookConnection>>,
}

impl Transport {
    /// Returns a client of `endpoint`, whose server certificate must be signed by, or contained in,
    /// `ca_bundle` (PEM).
    ///
    /// # Errors
    /// If the address or the bundle is invalid.
    pub(super) fn new(endpoint: &Endpoint, ca_bundle: &[u8]) -> Result<Self, String> {
        let url = endpoint.url();
        let uri: Uri = url.parse().map_err(|e| format!("{url:?}: {e}"))?;
        if uri.scheme_str() != Some("https") {
            return Err(format!("{url:?}: only https is supported"));
        }
        let host = uri.host().unwrap_or_default();
        let host = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        let name = ServerName::try_from(host.clone()).map_err(|e| format!("{url:?}: {e}"))?;
        Ok(Self {
            endpoint: endpoint.clone(),
            host,
            port: uri.port_u16().unwrap_or(443),
            url: uri,
            tls: TlsConnector::from(Arc::new(client(ca_bundle)?)),
            name,
            idle: Mutex::default(),
        })
    }

    /// Sends a review and returns the body of the response.
    ///
    /// # Errors
    /// The reason why there is no valid response.
    pub(super) async fn post(
        &self,
        store: &Store,
        body: Vec<u8>,
        timeout: Duration,
    ) -> Result<Bytes, String> {
        let body = Bytes::from(body);
        // The server may just have closed an idle connection; then another one is used.
        while let Some(connection) = self.take_idle() {
            match self.exchange(connection, body.clone(), timeout).await {
                Err(CallError::Connection(_)) => {}
                Err(CallError::Answer(reason)) => return Err(reason),
                Ok(answer) => return Ok(answer),
            }
        }
        let connection = self.connect(store).await?;
        match self.exchange(connection, body, timeout).await {
            Err(CallError::Connection(reason) | CallError::Answer(reason)) => Err(reason),
            Ok(answer) => Ok(answer),
        }
    }

    /// Returns an idle connection that is still open.
    fn take_idle(&self) -> Option<WebhookConnection> {
        let mut idle = self.idle.lock();
        idle.retain(|connection| !connection.is_closed());
        idle.pop()
    }

    /// Opens a TLS connection to the webhook.
    async fn connect(&self, store: &Store) -> Result<WebhookConnection, String> {
        let (host, port) = match &self.endpoint {
            Endpoint::Url(_) => (self.host.clone(), self.port),
            Endpoint::Service {
                namespace,
                name,
                port,
                ..
            } => resolve(store, namespace, name, *port)?,
        };
        let stream = TcpStream::connect((host.as_str(), port))
            .await
            .map_err(|e| format!("dial tcp {host}:{port}: {e}"))?;
        // There is one small request: waiting for more data would only add latency.
        let _ = stream.set_nodelay(true);
        let stream = self
            .tls
            .connect(self.name.clone(), stream)
            .await
            .map_err(|e| format!("tls: {e}"))?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|e| e.to_string())?;
        // The task ends when the sender is dropped, a call is canceled or the server disconnects.
        tokio::spawn(connection);
        Ok(sender)
    }

    /// Sends a review over a connection and returns the body of the response.
    async fn exchange(
        &self,
        mut connection: WebhookConnection,
        body: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, CallError> {
        let authority = self.url.authority().map_or("", |a| a.as_str());
        let path = clean_path(self.url.path());
        let request = Request::post(format!("{path}?timeout={}s", timeout.as_secs()))
            .header(header::HOST, authority)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json")
            .header(header::USER_AGENT, "koord-apiserver-admission")
            .body(Full::new(body))
            .map_err(|e| CallError::Answer(e.to_string()))?;
        let broken = |e: hyper::Error| CallError::Connection(e.to_string());
        connection.ready().await.map_err(broken)?;
        let response = connection.send_request(request).await.map_err(broken)?;
        let status = response.status();
        let answer = Limited::new(response.into_body(), MAX_BODY).collect().await;
        let answer = answer.map_err(|e| {
            CallError::Answer(if e.is::<LengthLimitError>() {
                format!("the response is larger than {MAX_BODY} bytes")
            } else {
                e.to_string()
            })
        })?;
        let mut idle = self.idle.lock();
        if idle.len() < MAX_IDLE {
            idle.push(connection);
        }
        drop(idle);
        check_response(status, answer.to_bytes()).map_err(CallError::Answer)
    }
}

/// Normalizes a path (`//`, `.`, `..`, a trailing slash), as Go's clients do; Go's servers would redirect
/// otherwise.
fn clean_path(path: &str) -> String {
    let mut segments = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    format!("/{}", segments.join("/"))
}

/// Reason why a call failed.
enum CallError {
    /// The connection ended before a response began. On an idle connection the call is repeated: webhooks
    /// have no side effects of their own.
    Connection(String),
    /// The response is invalid or not successful.
    Answer(String),
}

fn check_response(status: StatusCode, body: Bytes) -> Result<Bytes, String> {
    if status.is_success() {
        return Ok(body);
    }
    let excerpt: String = String::from_utf8_lossy(&body).chars().take(200).collect();
    Err(format!("the webhook answered {status}: {}", excerpt.trim()))
}

/// Returns a TLS configuration that trusts only the certificates of `ca_bundle`.
fn client(ca_bundle: &[u8]) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    let mut certificates = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(ca_bundle) {
        let certificate = certificate.map_err(|e| format!("caBundle: {e}"))?;
        certificates.push(certificate.clone());
        roots
            .add(certificate)
            .map_err(|e| format!("caBundle: {e}"))?;
    }
    if roots.is_empty() {
        return Err("caBundle: contains no certificate, so no server can be trusted".to_owned());
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let bundle = Bundle::new(roots, certificates, &provider)?;
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(bundle))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// Returns the address of a ready endpoint behind a port of a Service; the Service's own address is not
/// routed here.
///
/// # Errors
/// If there is no such Service or port, or no ready endpoint behind it.
pub(super) fn resolve(
    store: &Store,
    namespace: &str,
    name: &str,
    port: u16,
) -> Result<(String, u16), String> {
    let key = Key::new(namespace, name);
    let service = store
        .get(&TableId::new("", "services"), &key)
        .ok_or_else(|| format!("service {name:?} not found in namespace {namespace:?}"))?
        .value();
    if meta::text(&service, &["spec", "type"]) == "ExternalName" {
        let host = meta::text(&service, &["spec", "externalName"]);
        return Ok((host.to_owned(), port));
    }
    let port_name = list_items(&service, &["spec", "ports"])
        .find(|p| port_number(p) == Some(port))
        .map(|p| meta::text(p, &["name"]).to_owned())
        .ok_or_else(|| format!("no service port {port} found for service {name:?}"))?;
    let table = TableId::new("discovery.k8s.io", "endpointslices");
    let of_service = |e: &Entry| e.index.label("kubernetes.io/service-name") == Some(name);
    let slices = store.all(&table, Some(namespace), &of_service);
    let matches = slices.iter().find_map(|entry| {
        let slice = entry.value();
        let port = port_of(&slice, &port_name)?;
        let ready = list_items(&slice, &["endpoints"]).find(|e| {
            meta::at(e, &["conditions", "ready"]).and_then(Value::as_bool) != Some(false)
        })?;
        let host = ready.get("addresses")?.as_array()?.first()?.as_str()?;
        Some((host.to_owned(), port))
    });
    let matches = matches.or_else(|| {
        let endpoints = store.get(&TableId::new("", "endpoints"), &key)?.value();
        list_items(&endpoints, &["subsets"]).find_map(|subset| {
            let address = list_items(subset, &["addresses"]).next()?;
            let host = meta::text(address, &["ip"]).to_owned();
            Some((host, port_of(subset, &port_name)?))
        })
    });
    matches.ok_or_else(|| {
        format!(
            "no endpoints available for service {name:?}: an EndpointSlice or Endpoints object has \
             to name them"
        )
    })
}

fn list_items<'a>(object: &'a Value, path: &[&str]) -> impl Iterator<Item = &'a Value> {
    let list = meta::at(object, path).and_then(Value::as_array);
    list.into_iter().flatten()
}

fn port_number(port: &Value) -> Option<u16> {
    u16::try_from(port.get("port")?.as_u64()?).ok()
}

/// Returns the number of the named port in a slice or subset.
fn port_of(object: &Value, name: &str) -> Option<u16> {
    list_items(object, &["ports"])
        .find(|p| meta::text(p, &["name"]) == name)
        .and_then(port_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_cleaned_as_go_does() {
        for (path, sent) in [
            ("/hook", "/hook"),
            ("//failing", "/failing"),
            ("/a/./b/../c/", "/a/c"),
            ("/", "/"),
            ("", "/"),
            ("/../x", "/x"),
        ] {
            assert_eq!(clean_path(path), sent, "{path}");
        }
    }
}
