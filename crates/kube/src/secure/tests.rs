use super::*;
use axum::routing::get;
use tls_client::{ANY, Signer, args, connect, routes, send_request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[path = "../../tests/it/tls_client.rs"]
mod tls_client;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_read_from_files_and_reloaded() {
    tls::install_crypto_provider();
    let dir = tempfile::tempdir().unwrap();
    let (certificate, key) = (dir.path().join("tls.crt"), dir.path().join("tls.key"));
    let write = || {
        let generated = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        std::fs::write(&certificate, generated.cert.pem()).unwrap();
        std::fs::write(&key, generated.signing_key.serialize_pem()).unwrap();
    };
    write();
    let files = Some((certificate.clone(), key.clone()));
    let mut source = CertificateSource::new(files, Authorities::None).unwrap();
    source.initial_config().await.unwrap();
    assert!(source.reload().await.unwrap().is_none(), "nothing changed");
    write();
    assert!(
        source.reload().await.unwrap().is_some(),
        "a new certificate"
    );
    assert!(source.reload().await.unwrap().is_none());
    std::fs::write(&key, "half a key").unwrap();
    assert!(
        source.reload().await.is_err(),
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
        let args = args(&flags);
        let error = serve("koord-scheduler", &args, routes(), ANY, stop.clone())
            .await
            .unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains(named), "{flags:?}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_ca_file_does_not_disable_client_certificates() {
    tls::install_crypto_provider();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ca.crt");
    for text in ["", "\n", "# none\n"] {
        std::fs::write(&path, Signer::new().pem).unwrap();
        let authorities = || Authorities::File(path.clone());
        let mut source = CertificateSource::new(None, authorities()).unwrap();
        source.initial_config().await.unwrap();
        std::fs::write(&path, text).unwrap();
        assert!(source.reload().await.unwrap().is_none(), "{text:?}");
        let mut source = CertificateSource::new(None, authorities()).unwrap();
        let error = format!("{:#}", source.initial_config().await.unwrap_err());
        assert!(error.contains("--client-ca-file"), "{text:?}: {error}");
    }
}

/// Starts a server without a guard.
async fn serve_without_guard(limits: tls::Limits, stop: &CancellationToken) -> SocketAddr {
    serving(routes(), limits, stop).await
}

async fn serving(routes: Router, limits: tls::Limits, stop: &CancellationToken) -> SocketAddr {
    tls::install_crypto_provider();
    let mut source = CertificateSource::new(None, Authorities::None).unwrap();
    let (_, configs) = watch::channel(source.initial_config().await.unwrap());
    let listener = TcpListener::bind(ANY).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(tls::serve(listener, routes, configs, stop.clone(), limits));
    address
}

/// Reads what the server sends until it closes the connection.
async fn read_until_closed(mut stream: impl tokio::io::AsyncRead + Unpin) -> Vec<u8> {
    let mut received = Vec::new();
    let closed = stream.read_to_end(&mut received);
    // Closing without a TLS close_notify is accepted.
    let _ = tokio::time::timeout(Duration::from_secs(20), closed)
        .await
        .expect("the server closes the connection");
    received
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_clients_are_disconnected() {
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
    // The preface, empty settings, and `GET /healthz` on stream 1 with the static table.
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
        let address = serve_without_guard(limits, &stop).await;
        let mut stream = connect(address, None, protocol).await;
        stream.write_all(&says).await.unwrap();
        let received = read_until_closed(stream).await;
        let ok = received.windows(2).any(|bytes| bytes == b"ok");
        assert_eq!(ok, answered, "{name}: {received:?}");
    }
    let address = serve_without_guard(mute, &stop).await;
    read_until_closed(TcpStream::connect(address).await.unwrap()).await;
    stop.cancel();
}

/// A connection with a pending response is not closed for a new client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_with_a_pending_response_is_kept() {
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
    let (code, _) = send_request(address, "GET /healthz", "", None).await;
    assert_eq!(code, "200");
    read_until_closed(idle).await;
    answers.notify_one();
    assert!(read_until_closed(oldest).await.ends_with(b"late"));
    stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn oldest_client_is_disconnected_at_the_limit() {
    let stop = CancellationToken::new();
    let limits = tls::Limits {
        clients: 2,
        ..tls::LIMITS
    };
    let address = serve_without_guard(limits, &stop).await;
    let oldest = connect(address, None, "").await;
    let mut second = connect(address, None, "").await;
    let (code, body) = send_request(address, "GET /healthz", "", None).await;
    assert_eq!((code.as_str(), body.as_str()), ("200", "ok"));
    read_until_closed(oldest).await;
    let head = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    second.write_all(head).await.unwrap();
    assert!(read_until_closed(second).await.ends_with(b"ok"));
    stop.cancel();
}
