//! Tests of the parts of the server.

mod clients;

use super::auth::{Peer, bearer};
use super::health::Health;
use super::impersonate::ImpersonationHeaders;
use super::pki::Authority;
use super::{kubeconfig, secret_file};
use crate::store::{Store, StoreOptions};
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue, StatusCode};
use http_body_util::BodyExt as _;
use jiff::Timestamp;
use koord_app::Clock;
use std::os::unix::fs::PermissionsExt;

fn now() -> Timestamp {
    "2026-01-31T12:00:00Z".parse().unwrap()
}

#[test]
fn client_certificate_yields_user_and_groups() {
    let authority = Authority::open(None, now()).unwrap();
    let identity = authority.client("jane", &["system:masters"]).unwrap();
    let Peer(user) = Peer::from_certificate(&identity.certificate).unwrap();
    assert_eq!(user.name, "jane");
    assert_eq!(user.groups, ["system:masters", "system:authenticated"]);
}

#[test]
fn authority_survives_restart() {
    let dir = tempfile::tempdir().unwrap();
    let pki = dir.path().join("pki");
    let first = Authority::open(Some(&pki), now()).unwrap();
    let second = Authority::open(Some(&pki), now()).unwrap();
    assert_eq!(first.pem(), second.pem());
    let key = std::fs::read_to_string(pki.join("ca.key")).unwrap();

    std::fs::write(
        pki.join("ca.crt"),
        Authority::open(None, now()).unwrap().pem(),
    )
    .unwrap();
    let error = Authority::open(Some(&pki), now()).unwrap_err().to_string();
    assert!(error.contains("does not belong to ca.key"), "{error}");
    assert!(
        !error.contains(key.lines().nth(1).unwrap()),
        "a key in an error"
    );
    std::fs::remove_file(pki.join("ca.crt")).unwrap();
    let error = Authority::open(Some(&pki), now()).unwrap_err().to_string();
    assert!(error.contains("ca.crt"), "{error}");
}

#[test]
fn kubeconfig_contains_reachable_address() {
    let authority = Authority::open(None, now()).unwrap();
    let identity = authority.client("jane", &[]).unwrap();
    let server = |address: &str| {
        let text = kubeconfig::render(address.parse().unwrap(), authority.pem(), &identity);
        let line = text
            .lines()
            .find_map(|line| line.trim().strip_prefix("server: "))
            .unwrap();
        line.to_owned()
    };
    assert_eq!(server("127.0.0.1:6443"), "https://127.0.0.1:6443");
    assert_eq!(server("0.0.0.0:6443"), "https://127.0.0.1:6443");
    assert_eq!(server("[::]:6443"), "https://[::1]:6443");
    assert_eq!(server("10.1.2.3:1"), "https://10.1.2.3:1");
}

#[test]
fn a_secret_file_is_replaced_whole_and_private() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("secret");
    std::fs::write(&path, "old and readable").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    secret_file::write(&path, b"new").unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"new");
    assert_eq!(
        std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    let error = secret_file::write(&path.join("below/a/file"), b"")
        .unwrap_err()
        .to_string();
    assert!(error.contains("below/a/file"), "{error}");
}

#[test]
fn reads_bearer_tokens() {
    let read = |value: &'static str| {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_static(value));
        bearer(&headers).map(str::to_owned)
    };
    assert_eq!(read("Bearer abc").as_deref(), Some("abc"));
    assert_eq!(read("bearer  abc ").as_deref(), Some("abc"));
    for none in ["Basic abc", "Bearer", "Bearer ", ""] {
        assert_eq!(read(none), None, "{none:?}");
    }
    assert_eq!(bearer(&HeaderMap::new()), None);
}

#[test]
fn impersonation_headers_are_parsed() {
    let ask = |pairs: &[(&'static str, &'static str)]| {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        ImpersonationHeaders::read(&headers)
            .map(|wanted| wanted.map(ImpersonationHeaders::into_user))
    };
    assert_eq!(ask(&[]), Ok(None));
    let user = ask(&[
        ("impersonate-user", "bob"),
        ("impersonate-group", "a"),
        ("impersonate-group", "b"),
        ("impersonate-uid", "7"),
        ("impersonate-extra-a%2fb", "c"),
    ]);
    let user = user.unwrap().unwrap();
    assert_eq!((user.name.as_str(), user.uid.as_str()), ("bob", "7"));
    assert_eq!(user.groups, ["a", "b", "system:authenticated"]);
    assert_eq!(user.extra, [("a/b".to_owned(), vec!["c".to_owned()])]);
    let user = ask(&[("impersonate-user", "system:anonymous")]).unwrap();
    assert_eq!(user.unwrap().groups, ["system:unauthenticated"]);
    let user = ask(&[("impersonate-user", "system:serviceaccount:apps:web")]);
    assert!(
        user.unwrap()
            .unwrap()
            .groups
            .contains(&"system:serviceaccounts:apps".to_owned())
    );
    for header in ["impersonate-group", "impersonate-extra-scopes"] {
        let error = ask(&[(header, "x")]).unwrap_err();
        assert!(error.message.contains(header), "{error}");
    }
    let mut headers = HeaderMap::new();
    headers.insert(
        "impersonate-user",
        HeaderValue::from_bytes(&[0xe9]).unwrap(),
    );
    assert!(ImpersonationHeaders::read(&headers).is_err());
}

#[tokio::test]
async fn health_lists_failed_checks() {
    let store = Store::open(StoreOptions::memory(Clock::system()))
        .await
        .unwrap();
    let health = Health::new(store);
    let ask = async |path: &str, query: Option<&str>| {
        let response = health.response(path, query)?;
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        Some((status, String::from_utf8(body.to_vec()).unwrap()))
    };
    let ok = Some((StatusCode::OK, "ok".to_owned()));
    assert_eq!(ask("/livez", None).await, ok);
    assert_eq!(ask("/healthz", None).await, ok);
    let (status, report) = ask("/readyz", None).await.unwrap();
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(
        report.contains("[-]bootstrap failed") && report.contains("[+]ping ok"),
        "{report}"
    );
    assert_eq!(ask("/readyz/ping", None).await, ok);
    health.set_ready();
    assert_eq!(ask("/readyz", None).await, ok);
    assert_eq!(ask("/readyz/", None).await, ok);
    let (_, report) = ask("/readyz", Some("verbose")).await.unwrap();
    assert!(report.ends_with("readyz check passed\n"), "{report}");
    health.set_stopping();
    let (status, report) = ask("/readyz", None).await.unwrap();
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(report.contains("[-]shutdown failed"), "{report}");
    assert_eq!(ask("/livez", None).await, ok);
    assert_eq!(
        ask("/readyz/nothing", None).await.unwrap().0,
        StatusCode::NOT_FOUND
    );
    assert!(ask("/version", None).await.unwrap().1.contains("v1.35"));
    let code = ask("/version", Some("timeout=3m")).await.unwrap().0;
    assert_eq!(code, 200);
    let (code, said) = ask("/version", Some("timeout=soon")).await.unwrap();
    assert_eq!(code, 400);
    assert!(said.contains("invalid timeout specified"), "{said}");
    assert!(ask("/api", None).await.is_none());
    assert!(ask("/", None).await.is_none());
}

mod connections {
    use super::*;
    use crate::server::limits::Limits;
    use crate::server::{listen, tls};
    use axum::Router;
    use axum::body::Body;
    use bytes::Bytes;
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::Notify;
    use tokio_rustls::client::TlsStream;
    use tokio_util::sync::CancellationToken;

    /// Notifies when it is dropped.
    struct DropNotifier(Arc<Notify>);

    impl Drop for DropNotifier {
        fn drop(&mut self) {
            self.0.notify_one();
        }
    }

    /// Connects to a server with these limits whose responses never end. The notification fires when the
    /// server has dropped a response.
    async fn connect(limits: Limits) -> (TlsStream<TcpStream>, Arc<Notify>, CancellationToken) {
        let authority = Authority::open(None, Timestamp::now()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let identity = authority.server(&[address.ip()]).unwrap();
        let server = tls::config(&authority, identity).unwrap();
        let given_up = Arc::new(Notify::new());
        let notifier = Arc::clone(&given_up);
        let endless = Router::new().fallback(move || {
            let notifier_guard = DropNotifier(Arc::clone(&notifier));
            let chunk = Bytes::from(vec![b'x'; 64 * 1024]);
            let chunks = futures::stream::repeat_with(move || {
                let _held = &notifier_guard;
                Ok::<_, Infallible>(chunk.clone())
            });
            std::future::ready(Body::from_stream(chunks))
        });
        let stop = CancellationToken::new();
        tokio::spawn(listen::serve(
            listener,
            server,
            endless,
            limits,
            stop.clone(),
        ));
        let identity = authority.client("jane", &[]).unwrap();
        let client = tls::client_config(&authority, identity).unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::clone(&client));
        let stream = TcpStream::connect(address).await.unwrap();
        let name = rustls::pki_types::ServerName::from(address.ip());
        let stream = connector.connect(name, stream).await.unwrap();
        (stream, given_up, stop)
    }

    #[tokio::test]
    async fn idle_connection_is_closed() {
        let limits = Limits {
            idle: Duration::from_millis(100),
            ..Limits::default()
        };
        let (mut stream, _, stop) = connect(limits).await;
        let mut tail = Vec::new();
        // With or without a TLS close notification.
        let _ = stream.read_to_end(&mut tail).await;
        stop.cancel();
    }

    #[tokio::test]
    async fn connection_that_does_not_read_is_closed() {
        let limits = Limits {
            unread: Duration::from_millis(300),
            ..Limits::default()
        };
        let (mut stream, given_up, stop) = connect(limits).await;
        let request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
        stream.write_all(request).await.unwrap();
        given_up.notified().await;
        stop.cancel();
    }
}

#[test]
fn kubeconfig_that_will_do_is_kept() {
    let authority = Authority::open(None, now()).unwrap();
    let other = Authority::open(None, now()).unwrap();
    let identity = authority.client("jane", &["g"]).unwrap();
    let address = "127.0.0.1:6443".parse().unwrap();
    let text = kubeconfig::render(address, authority.pem(), &identity);
    let matches = |text: &str, address: &str, authority: &Authority| {
        kubeconfig::certificate_in(text, address.parse().unwrap(), authority.pem())
    };
    let certificate = matches(&text, "127.0.0.1:6443", &authority).unwrap();
    assert_eq!(certificate, identity.certificate);
    assert!(matches(&text, "127.0.0.1:6444", &authority).is_none());
    assert!(matches(&text, "127.0.0.1:6443", &other).is_none());
    assert!(
        matches(
            &text.replace("koord-admin", "x"),
            "127.0.0.1:6443",
            &authority
        )
        .is_none()
    );
    assert!(matches("", "127.0.0.1:6443", &authority).is_none());
    let foreign = authority.client("jane", &["g"]).unwrap();
    let mixed = super::pki::Identity {
        key_pem: foreign.key_pem,
        ..identity
    };
    let text = kubeconfig::render(address, authority.pem(), &mixed);
    assert!(matches(&text, "127.0.0.1:6443", &authority).is_none());
    let at = |text: &str| text.parse::<Timestamp>().unwrap();
    let accepts = |authority: &Authority, then: &str| {
        super::tls::will_accept(authority, &certificate, at(then)).unwrap()
    };
    assert!(accepts(&authority, "2030-12-01T00:00:00Z"));
    assert!(!accepts(&authority, "2031-12-01T00:00:00Z"));
    assert!(!accepts(&other, "2030-12-01T00:00:00Z"));
}
