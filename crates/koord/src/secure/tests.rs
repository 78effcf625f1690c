use super::*;
use axum::routing::get;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use koord_apiserver::{ApiServer, Config};
use koord_app::Clock;
use koord_kube::Api;
use koord_kube::api::PostParams;
use koord_scheduler::Args;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use serde_json::{Value, json};
use std::ffi::OsString;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Trusts every server, as these tests look at clients.
#[derive(Debug)]
struct Gullible(Arc<rustls::crypto::CryptoProvider>);

impl ServerCertVerifier for Gullible {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, algorithms)
    }
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, algorithms)
    }
    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Somebody who signs client certificates.
struct Signer {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Signer {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "signer");
        let pem = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(params, key);
        Self { pem, issuer }
    }

    fn client(&self, name: &str, group: &str) -> Identity {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params
            .distinguished_name
            .push(DnType::OrganizationName, group);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        (vec![certificate.der().clone()], key)
    }
}

/// A client that offers `protocol`, if it says one.
async fn connect(
    address: SocketAddr,
    identity: Option<&Identity>,
    protocol: &str,
) -> tokio_rustls::client::TlsStream<TcpStream> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Gullible(provider)));
    let mut config = match identity {
        None => config.with_no_client_auth(),
        Some((chain, key)) => config
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .unwrap(),
    };
    if !protocol.is_empty() {
        config.alpn_protocols = vec![protocol.into()];
    }
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    connector.connect(name, stream).await.unwrap()
}

/// Code and body; no code when TLS fails.
async fn ask(
    address: SocketAddr,
    request: &str,
    token: &str,
    identity: Option<&Identity>,
) -> (String, String) {
    let mut stream = connect(address, identity, "").await;
    let bearer = if token.is_empty() {
        String::new()
    } else {
        format!("Authorization: Bearer {token}\r\n")
    };
    let text = format!("{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{bearer}\r\n");
    let _ = stream.write_all(text.as_bytes()).await;
    let mut answer = Vec::new();
    // A peer that closes without saying so is no failure here.
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8(answer).unwrap();
    let Some((head, body)) = answer.split_once("\r\n\r\n") else {
        return (String::new(), answer);
    };
    let code = head.split(' ').nth(1).unwrap().to_owned();
    (code, body.to_owned())
}

fn args(flags: &[String]) -> Args {
    let argv = std::iter::once("koord-scheduler").chain(flags.iter().map(String::as_str));
    koord_app::flags::parse::<Args>(argv.map(OsString::from))
        .unwrap()
        .args
}

fn routes() -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route("/metrics", get(|| async { "numbers" }))
}

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// An API server over HTTPS, a kubeconfig for it, and the token of a service account.
struct Cluster {
    server: Arc<ApiServer>,
    dir: tempfile::TempDir,
    token: String,
    stop: CancellationToken,
}

impl Cluster {
    async fn start() -> Self {
        crate::cluster::install_crypto_provider();
        let mut config = Config::memory(Clock::system());
        config.bind = ANY;
        config.controllers = koord_app::flags::Selection::none();
        let server = ApiServer::open(config).await.unwrap();
        let listener = server.listen().await.unwrap();
        let stop = CancellationToken::new();
        let (serving, until) = (server.clone(), stop.clone());
        tokio::spawn(async move { serving.serve(listener, until).await });
        let dir = tempfile::tempdir().unwrap();
        server
            .write_kubeconfig(&dir.path().join("kubeconfig"))
            .unwrap();
        let mut cluster = Self {
            server,
            dir,
            token: String::new(),
            stop,
        };
        cluster.token = cluster.issue().await;
        cluster.admit().await;
        cluster
    }

    /// The service account and `ops` may ask for every path.
    async fn admit(&self) {
        use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
        let role: ClusterRole = serde_json::from_value(json!({
            "metadata": {"name": "look"},
            "rules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
        }))
        .unwrap();
        let binding: ClusterRoleBinding = serde_json::from_value(json!({
            "metadata": {"name": "look"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "look"},
            "subjects": [
                {"kind": "Group", "name": "ops"},
                {"kind": "ServiceAccount", "name": "prober", "namespace": "default"},
            ],
        }))
        .unwrap();
        let params = PostParams::default();
        let roles: Api<ClusterRole> = Api::all(self.client());
        roles.create(&params, &role).await.unwrap();
        let bindings: Api<ClusterRoleBinding> = Api::all(self.client());
        bindings.create(&params, &binding).await.unwrap();
    }

    fn client(&self) -> koord_kube::Client {
        koord_kube::client::in_process(self.server.service())
    }

    async fn issue(&self) -> String {
        use k8s_openapi::api::authentication::v1::TokenRequest;
        use k8s_openapi::api::core::v1::ServiceAccount;
        let accounts: koord_kube::api::Api<ServiceAccount> =
            koord_kube::api::Api::default_namespaced(self.client());
        let account: ServiceAccount =
            serde_json::from_value(json!({"metadata": {"name": "prober"}})).unwrap();
        let params = PostParams::default();
        accounts.create(&params, &account).await.unwrap();
        let request = TokenRequest::default();
        let issued = accounts
            .create_token_request("prober", &params, &request)
            .await
            .unwrap();
        issued.status.unwrap().token
    }

    fn file(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    fn flags(&self, more: &[&str]) -> Vec<String> {
        let file = self.file("kubeconfig");
        let mut flags = vec![
            format!("--authentication-kubeconfig={file}"),
            format!("--authorization-kubeconfig={file}"),
        ];
        flags.extend(more.iter().map(|flag| (*flag).to_owned()));
        flags
    }

    async fn serve(&self, flags: &[String]) -> Result<SocketAddr> {
        serve(&args(flags), routes(), ANY, self.stop.clone()).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_are_told_and_judged_by_the_api_server() {
    let cluster = Cluster::start().await;
    let signer = Signer::new();
    std::fs::write(cluster.file("ca.crt"), &signer.pem).unwrap();
    let ca = format!("--client-ca-file={}", cluster.file("ca.crt"));
    let address = cluster.serve(&cluster.flags(&[&ca])).await.unwrap();
    let ann = signer.client("ann", "ops");
    let stranger = Signer::new().client("ann", "ops");
    let good = cluster.token.as_str();
    for (name, request, token, identity, code, body) in [
        ("health is open", "GET /healthz", "", None, "200", "ok"),
        ("a token", "GET /metrics", good, None, "200", "numbers"),
        (
            "a certificate",
            "GET /metrics",
            "",
            Some(&ann),
            "200",
            "numbers",
        ),
        (
            "a known caller learns what there is not",
            "GET /none",
            good,
            None,
            "404",
            "404 page not found",
        ),
        (
            "a stranger's certificate",
            "GET /healthz",
            "",
            Some(&stranger),
            "",
            "",
        ),
    ] {
        let answer = ask(address, request, token, identity).await;
        assert_eq!(
            (answer.0.as_str(), answer.1.as_str()),
            (code, body),
            "{name}"
        );
    }
    let forbidden = |what: &str| {
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": format!("forbidden: User \"system:anonymous\" cannot {what}"),
            "reason": "Forbidden", "details": {}, "code": 403})
    };
    let unauthorized = json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
        "status": "Failure", "message": "Unauthorized", "reason": "Unauthorized", "code": 401});
    for (name, request, token, expected) in [
        (
            "nobody",
            "GET /metrics",
            "",
            forbidden("get path \"/metrics\""),
        ),
        (
            "nobody, writing",
            "PUT /debug/flags/v",
            "",
            forbidden("put path \"/debug/flags/v\""),
        ),
        (
            "nobody, guessing",
            "GET /none",
            "",
            forbidden("get path \"/none\""),
        ),
        (
            "nobody, in disguise",
            "GET /m%65trics/a%2fb",
            "",
            forbidden("get path \"/metrics/a/b\""),
        ),
        (
            "a made-up token, even for health",
            "GET /healthz",
            "made-up",
            unauthorized,
        ),
    ] {
        let (code, body) = ask(address, request, token, None).await;
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(
            (json!(code.parse::<u16>().unwrap()), &body),
            (expected["code"].clone(), &expected),
            "{name}"
        );
    }
    cluster.stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_shows_a_token_there() {
    let cluster = Cluster::start().await;
    let address = cluster.serve(&cluster.flags(&[])).await.unwrap();
    std::fs::write(cluster.file("token"), &cluster.token).unwrap();
    let server = format!("https://{address}");
    let known = crate::explain::Args {
        token_file: Some(cluster.file("token").into()),
        insecure_skip_tls_verify: true,
        ..Default::default()
    };
    let answer = crate::explain::ask(&known, "it", &server, "/metrics")
        .await
        .unwrap();
    assert_eq!(answer, (200, "numbers".to_owned()));
    let nobody = crate::explain::Args {
        token_file: None,
        ..known.clone()
    };
    let (code, body) = crate::explain::ask(&nobody, "it", &server, "/metrics")
        .await
        .unwrap();
    assert_eq!(code, 403);
    assert!(body.contains("cannot get path"), "{body}");
    let doubtful = crate::explain::Args {
        insecure_skip_tls_verify: false,
        ..known
    };
    assert!(
        crate::explain::ask(&doubtful, "it", &server, "/metrics")
            .await
            .is_err()
    );
    cluster.stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_an_api_server_only_open_paths_are_shown() {
    let cluster = Cluster::start().await;
    let signer = Signer::new();
    std::fs::write(cluster.file("ca.crt"), &signer.pem).unwrap();
    let flags = [
        format!("--client-ca-file={}", cluster.file("ca.crt")),
        "--authorization-always-allow-paths=/healthz,metrics/*".to_owned(),
    ];
    let address = cluster.serve(&flags).await.unwrap();
    let master = signer.client("root", "system:masters");
    let ann = signer.client("ann", "ops");
    for (name, request, token, identity, code) in [
        ("open", "GET /healthz", "", None, "200"),
        (
            "open, a token counts for nothing",
            "GET /healthz",
            "any",
            None,
            "200",
        ),
        ("open by its beginning", "GET /metrics/x", "", None, "404"),
        ("half a byte", "GET /metrics/%4", "", None, "400"),
        ("no hexadecimal", "GET /metrics/%+4", "", None, "400"),
        ("no text", "GET /metrics/%ff", "", None, "400"),
        ("not open", "GET /metrics", "", None, "403"),
        (
            "not open, whoever asks",
            "GET /metrics",
            "",
            Some(&ann),
            "403",
        ),
        ("a master", "GET /metrics", "", Some(&master), "200"),
    ] {
        assert_eq!(
            ask(address, request, token, identity).await.0,
            code,
            "{name}"
        );
    }
    cluster.stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cluster_says_who_vouches_for_clients() {
    let cluster = Cluster::start().await;
    // The server has said that it does itself.
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client(), "kube-system");
    let params = koord_kube::api::DeleteParams::default();
    let named = "extension-apiserver-authentication";
    maps.delete(named, &params).await.unwrap();
    let signer = Signer::new();
    let ann = signer.client("ann", "ops");
    let strict = "--authentication-tolerate-lookup-failure=false";
    let error = cluster.serve(&cluster.flags(&[strict])).await.unwrap_err();
    let text = format!("{error:#}");
    assert!(
        text.contains("kube-system/extension-apiserver-authentication"),
        "{text}"
    );
    // Not found, tolerated or not looked for: certificates are not asked for.
    for flags in [
        cluster.flags(&[]),
        cluster.flags(&[strict, "--authentication-skip-lookup"]),
    ] {
        let address = cluster.serve(&flags).await.unwrap();
        assert_eq!(ask(address, "GET /metrics", "", Some(&ann)).await.0, "403");
    }
    let namespaces: Api<Namespace> = Api::all(cluster.client());
    let _ = namespaces
        .create(
            &PostParams::default(),
            &serde_json::from_value(json!({"metadata": {"name": "kube-system"}})).unwrap(),
        )
        .await;
    let map: ConfigMap = serde_json::from_value(json!({
        "metadata": {"name": "extension-apiserver-authentication"},
        "data": {"client-ca-file": signer.pem}
    }))
    .unwrap();
    maps.create(&PostParams::default(), &map).await.unwrap();
    let address = cluster.serve(&cluster.flags(&[strict])).await.unwrap();
    assert_eq!(ask(address, "GET /metrics", "", Some(&ann)).await.0, "200");
    cluster.stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_come_from_files_and_are_taken_up_anew() {
    crate::cluster::install_crypto_provider();
    let dir = tempfile::tempdir().unwrap();
    let (certificate, key) = (dir.path().join("tls.crt"), dir.path().join("tls.key"));
    let write = || {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        std::fs::write(&certificate, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    };
    write();
    let files = Some((certificate.clone(), key.clone()));
    let mut source = Source::new(files, Authorities::None).unwrap();
    source.first().await.unwrap();
    assert!(source.renewed().await.unwrap().is_none(), "nothing changed");
    write();
    assert!(
        source.renewed().await.unwrap().is_some(),
        "a new certificate"
    );
    assert!(source.renewed().await.unwrap().is_none());
    std::fs::write(&key, "half a key").unwrap();
    assert!(
        source.renewed().await.is_err(),
        "it stays with the last that worked"
    );

    let missing = dir.path().join("none").display().to_string();
    let stop = CancellationToken::new();
    for (flags, named) in [
        (
            vec![
                format!("--tls-cert-file={missing}"),
                format!("--tls-private-key-file={missing}"),
            ],
            "--tls-cert-file",
        ),
        (
            vec![format!("--tls-cert-file={missing}")],
            "need each other",
        ),
        (
            vec![format!("--client-ca-file={missing}")],
            "--client-ca-file",
        ),
        (
            vec![format!("--authorization-kubeconfig={missing}")],
            "--authorization-kubeconfig",
        ),
        (
            vec!["--authorization-always-allow-paths=/a*b".to_owned()],
            "/a*b",
        ),
    ] {
        let error = serve(&args(&flags), routes(), ANY, stop.clone())
            .await
            .unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains(named), "{flags:?}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_list_of_authorities_does_not_turn_them_off() {
    crate::cluster::install_crypto_provider();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ca.crt");
    for text in ["", "\n", "# nobody\n"] {
        std::fs::write(&path, Signer::new().pem).unwrap();
        let authorities = || Authorities::File(path.clone());
        let mut source = Source::new(None, authorities()).unwrap();
        source.first().await.unwrap();
        std::fs::write(&path, text).unwrap();
        assert!(source.renewed().await.unwrap().is_none(), "{text:?}");
        let mut source = Source::new(None, authorities()).unwrap();
        let error = format!("{:#}", source.first().await.unwrap_err());
        assert!(error.contains("--client-ca-file"), "{text:?}: {error}");
    }
}

/// A server without a guard.
async fn within(limits: tls::Limits, stop: &CancellationToken) -> SocketAddr {
    serving(routes(), limits, stop).await
}

async fn serving(routes: Router, limits: tls::Limits, stop: &CancellationToken) -> SocketAddr {
    crate::cluster::install_crypto_provider();
    let mut source = Source::new(None, Authorities::None).unwrap();
    let (_, configs) = watch::channel(source.first().await.unwrap());
    let listener = TcpListener::bind(ANY).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(tls::serve(listener, routes, configs, stop.clone(), limits));
    address
}

/// What the server says until it closes the connection.
async fn until_closed(mut stream: impl tokio::io::AsyncRead + Unpin) -> Vec<u8> {
    let mut said = Vec::new();
    let closed = stream.read_to_end(&mut said);
    // Closing without saying so is fine.
    let _ = tokio::time::timeout(Duration::from_secs(20), closed)
        .await
        .expect("the server closes the connection");
    said
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_clients_are_left() {
    let long = Duration::from_secs(600);
    let short = Duration::from_millis(100);
    let patient = tls::Limits {
        clients: 9,
        handshake: long,
        head: long,
        idle: long,
        grace: short,
    };
    let hurried = tls::Limits {
        head: short,
        ..patient
    };
    // The preface, empty settings, and `GET /healthz` of stream 1 by the static table.
    let mut request = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    let preface = request.clone();
    request.extend(b"\0\0\x0f\x01\x05\0\0\0\x01\x82\x87\x41\x01x\x04\x08/healthz");
    let head = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n".to_vec();
    let idle = tls::Limits {
        idle: short,
        ..patient
    };
    let mute = tls::Limits {
        handshake: short,
        ..patient
    };
    let stop = CancellationToken::new();
    for (name, limits, protocol, says, answered) in [
        ("no word", hurried, "", Vec::new(), false),
        ("no word, HTTP/1", hurried, "http/1.1", Vec::new(), false),
        ("half a head", hurried, "", b"GET /hea".to_vec(), false),
        ("no second request", hurried, "", head, true),
        ("no word, HTTP/2", hurried, "h2", Vec::new(), false),
        ("no request, HTTP/2", hurried, "h2", preface, false),
        ("no second request, HTTP/2", idle, "h2", request, true),
    ] {
        let address = within(limits, &stop).await;
        let mut stream = connect(address, None, protocol).await;
        stream.write_all(&says).await.unwrap();
        let said = until_closed(stream).await;
        let ok = said.windows(2).any(|bytes| bytes == b"ok");
        assert_eq!(ok, answered, "{name}: {said:?}");
    }
    let address = within(mute, &stop).await;
    until_closed(TcpStream::connect(address).await.unwrap()).await;
    stop.cancel();
}

/// A connection whose answer is still to come is not the one that makes room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_for_an_answer_keeps_its_connection() {
    let stop = CancellationToken::new();
    let limits = tls::Limits {
        clients: 2,
        ..tls::LIMITS
    };
    let (asked, answers) = (
        Arc::new(tokio::sync::Notify::new()),
        Arc::new(tokio::sync::Notify::new()),
    );
    let slow = {
        let (asked, answers) = (asked.clone(), answers.clone());
        get(async move || {
            asked.notify_one();
            answers.notified().await;
            "late"
        })
    };
    let address = serving(routes().route("/slow", slow), limits, &stop).await;
    let mut oldest = connect(address, None, "").await;
    let head = b"GET /slow HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    oldest.write_all(head).await.unwrap();
    asked.notified().await;
    let idle = connect(address, None, "").await;
    let (code, _) = ask(address, "GET /healthz", "", None).await;
    assert_eq!(code, "200");
    until_closed(idle).await;
    answers.notify_one();
    assert!(until_closed(oldest).await.ends_with(b"late"));
    stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_oldest_client_makes_room() {
    let stop = CancellationToken::new();
    let limits = tls::Limits {
        clients: 2,
        ..tls::LIMITS
    };
    let address = within(limits, &stop).await;
    let oldest = connect(address, None, "").await;
    let mut second = connect(address, None, "").await;
    let (code, body) = ask(address, "GET /healthz", "", None).await;
    assert_eq!((code.as_str(), body.as_str()), ("200", "ok"));
    until_closed(oldest).await;
    let head = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    second.write_all(head).await.unwrap();
    assert!(until_closed(second).await.ends_with(b"ok"));
    stop.cancel();
}
