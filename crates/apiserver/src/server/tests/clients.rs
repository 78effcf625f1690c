//! Limits per client, over real connections.

use crate::authz::MASTERS;
use crate::server::Limits;
use crate::{ApiServer, Authorization, Config};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use koord_app::Clock;
use koord_app::flags::Selection;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const WATCH: &str = "/api/v1/namespaces/default/configmaps?watch=1";
const ADMIN: (&str, &[&str]) = ("admin", &[MASTERS]);
const JANE: (&str, &[&str]) = ("jane", &[]);

type ClientTls = TlsStream<TcpStream>;

/// A server in which every client with a certificate may do everything.
struct TestServer {
    server: Arc<ApiServer>,
    address: SocketAddr,
    stop: CancellationToken,
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl TestServer {
    async fn start(limits: Limits) -> Self {
        let mut config = Config::memory(Clock::system());
        config.bind = "127.0.0.1:0".parse().unwrap();
        config.controllers = Selection::none();
        config.authorization = Authorization::AlwaysAllow;
        config.limits = limits;
        let server = ApiServer::open(config).await.unwrap();
        let listener = server.listen().await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        tokio::spawn({
            let (server, stop) = (server.clone(), stop.clone());
            async move { server.serve(listener, stop).await }
        });
        Self {
            server,
            address,
            stop,
        }
    }

    async fn tls(&self, (user, groups): (&str, &[&str])) -> std::io::Result<ClientTls> {
        let config = self.server.client_tls(user, groups).unwrap();
        let stream = TcpStream::connect(self.address).await?;
        let name = ServerName::from(self.address.ip());
        let connector = tokio_rustls::TlsConnector::from(config);
        connector.connect(name, stream).await
    }

    /// Opens a connection without a client certificate.
    async fn stranger(&self) -> ClientTls {
        let mut roots = RootCertStore::empty();
        let authority = self.server.authority_pem().unwrap();
        roots
            .add(CertificateDer::from_pem_slice(authority.as_bytes()).unwrap())
            .unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = TcpStream::connect(self.address).await.unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let name = ServerName::from(self.address.ip());
        connector.connect(name, stream).await.unwrap()
    }

    /// Opens an HTTP/2 client whose window for unread data is 64 KiB.
    async fn client(&self, user: (&str, &[&str])) -> TestClient {
        let stream = self.tls(user).await.unwrap();
        let (sender, connection) = Builder::new(TokioExecutor::new())
            .initial_stream_window_size(65_535)
            .initial_connection_window_size(65_535)
            .handshake(TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(connection);
        TestClient(sender)
    }

    async fn create(&self, name: &str, bytes: usize) {
        let map = json!({
            "metadata": { "name": name },
            "data": { "long": "x".repeat(bytes) },
        });
        let (code, answer) = self.server.call(http::Method::POST, MAPS, Some(&map)).await;
        assert_eq!(code, 201, "{answer}");
    }
}

struct TestClient(SendRequest<Empty<Bytes>>);

impl TestClient {
    async fn try_get(&mut self, path: &str) -> hyper::Result<Response<Incoming>> {
        let request = Request::get(format!("https://127.0.0.1{path}"));
        self.0
            .send_request(request.body(Empty::new()).unwrap())
            .await
    }

    async fn get(&mut self, path: &str) -> Response<Incoming> {
        self.try_get(path).await.unwrap()
    }

    /// Returns the message of a 429.
    async fn refused(&mut self, path: &str) -> String {
        let answer = self.get(path).await;
        assert_eq!(answer.status(), 429);
        assert_eq!(answer.headers()["retry-after"], "1");
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let status: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(status["reason"], "TooManyRequests", "{status}");
        status["message"].as_str().unwrap().to_owned()
    }

    /// Repeats a request until the response is 200: the server processes a dropped response a little later.
    async fn until_admitted(&mut self, path: &str) {
        let asking = async { while self.get(path).await.status() != 200 {} };
        tokio::time::timeout(Duration::from_secs(60), asking)
            .await
            .unwrap();
    }
}

/// Waits until the server has closed a connection.
async fn closed(stream: &mut (impl tokio::io::AsyncRead + Unpin)) {
    let mut tail = Vec::new();
    // With or without a TLS close notification.
    let ended = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut tail));
    let _ = ended.await.expect("the server closes the connection");
}

#[tokio::test]
async fn watches_beyond_a_users_limit_get_429() {
    let served = TestServer::start(Limits {
        max_watches_per_user: 2,
        ..Limits::default()
    })
    .await;
    let (mut one, mut other) = (served.client(JANE).await, served.client(JANE).await);
    let first = one.get(WATCH).await;
    let second = other.get(WATCH).await;
    assert!(first.status() == 200 && second.status() == 200);
    let message = one.refused(WATCH).await;
    assert!(message.contains("user \"jane\" has 2 watches"), "{message}");
    // With escapes in the path it is a watch all the same.
    one.refused(&format!("{MAPS}?wat%63h=T")).await;
    one.refused("/api/v1/watch/configmaps").await;
    assert_eq!(one.get(MAPS).await.status(), 200);
    assert_eq!(
        served.client(("joe", &[])).await.get(WATCH).await.status(),
        200
    );
    let mut admin = served.client(ADMIN).await;
    let mut watches = Vec::new();
    for _ in 0..3 {
        watches.push(admin.get(WATCH).await);
        assert_eq!(watches.last().unwrap().status(), 200);
    }
    drop(second);
    one.until_admitted(WATCH).await;
}

#[tokio::test]
async fn unread_watches_hold_a_users_bytes_at_most() {
    let served = TestServer::start(Limits {
        unread_bytes_per_user: 1 << 20,
        unread_bytes_per_connection: 0,
        ..Limits::default()
    })
    .await;
    served.create("long", 300_000).await;
    let mut clients = Vec::new();
    let mut watches = Vec::new();
    let message = loop {
        let mut client = served.client(JANE).await;
        let answer = client.get(WATCH).await;
        if answer.status() == 429 {
            break client.refused(WATCH).await;
        }
        assert_eq!(answer.status(), 200);
        watches.push(answer);
        clients.push(client);
        assert!(watches.len() <= 4, "four times 300 kB exceed a MiB");
    };
    assert_eq!(watches.len(), 4);
    let limit = "user \"jane\" has 1048576 bytes of unread responses";
    assert!(message.contains(limit), "{message}");
    let mut admin = served.client(ADMIN).await;
    assert_eq!(admin.get(WATCH).await.status(), 200);
    // Reading frees space again.
    let mut watch = watches.remove(0).into_body();
    let mut read = 0;
    while read < 300_000 {
        read += watch
            .frame()
            .await
            .unwrap()
            .unwrap()
            .into_data()
            .unwrap()
            .len();
    }
    let mut client = served.client(JANE).await;
    client.until_admitted(WATCH).await;
}

#[tokio::test]
async fn unread_bytes_of_a_connection_are_bounded() {
    let served = TestServer::start(Limits {
        unread_bytes_per_connection: 1 << 20,
        ..Limits::default()
    })
    .await;
    served.create("long", 300_000).await;
    let mut client = served.client(JANE).await;
    let mut watches = Vec::new();
    loop {
        let answer = client.get(WATCH).await;
        if answer.status() != 200 {
            assert_eq!(answer.status(), 429);
            break;
        }
        watches.push(answer);
        assert!(watches.len() <= 4, "four times 300 kB exceed a MiB");
    }
    assert_eq!(watches.len(), 4);
    assert_eq!(served.client(JANE).await.get(WATCH).await.status(), 200);
}

/// Returns SETTINGS_MAX_CONCURRENT_STREAMS as the server announces it.
async fn announced_streams(served: &TestServer, user: (&str, &[&str])) -> u32 {
    let mut stream = served.tls(user).await.unwrap();
    // The preface and empty settings.
    let hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    stream.write_all(hello).await.unwrap();
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.unwrap();
    assert_eq!(head[3], 4, "the first frame is SETTINGS");
    let mut settings = vec![0; usize::from(head[2])];
    stream.read_exact(&mut settings).await.unwrap();
    let (pairs, _) = settings.as_chunks::<6>();
    let streams = pairs.iter().find(|pair| pair[..2] == [0, 3]).unwrap();
    u32::from_be_bytes([streams[2], streams[3], streams[4], streams[5]])
}

#[tokio::test]
async fn streams_of_a_connection_are_bounded() {
    let served = TestServer::start(Limits::default()).await;
    assert_eq!(announced_streams(&served, JANE).await, 100);
    assert_eq!(announced_streams(&served, ADMIN).await, 2000);
}

#[tokio::test]
async fn idle_connections_at_the_limit_keep_out_no_client() {
    let served = TestServer::start(Limits {
        max_connections: 3,
        ..Limits::default()
    })
    .await;
    let mut strangers = [served.stranger().await, served.stranger().await];
    let mut idle = served.tls(JANE).await.unwrap();
    let mut in_use = Vec::new();
    for stranger in &mut strangers {
        let mut admin = served.client(ADMIN).await;
        assert_eq!(admin.get(MAPS).await.status(), 200);
        let watch = admin.get(WATCH).await;
        closed(stranger).await;
        in_use.push((admin, watch));
    }
    // Then the oldest connection of a user.
    let mut jane = served.client(JANE).await;
    let _watch = jane.get(WATCH).await;
    closed(&mut idle).await;
}

#[tokio::test]
async fn connections_in_use_keep_out_no_administrator() {
    let served = TestServer::start(Limits {
        max_connections: 2,
        reserved_connections: 1,
        ..Limits::default()
    })
    .await;
    let (mut one, mut other) = (served.client(JANE).await, served.client(JANE).await);
    let watches = (one.get(WATCH).await, other.get(WATCH).await);
    let third = served.tls(JANE).await;
    if let Ok(mut third) = third {
        closed(&mut third).await;
    }
    let mut admin = served.client(ADMIN).await;
    assert_eq!(admin.get(MAPS).await.status(), 200);
    drop(watches);
}

#[tokio::test]
async fn handshakes_at_the_limit_keep_out_no_administrator() {
    let served = TestServer::start(Limits {
        max_connections: 2,
        max_handshakes: 3,
        ..Limits::default()
    })
    .await;
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(TcpStream::connect(served.address).await.unwrap());
    }
    let mut admin = served.client(ADMIN).await;
    assert_eq!(admin.get(MAPS).await.status(), 200);
    for stream in &mut silent[..17] {
        closed(stream).await;
    }
}
