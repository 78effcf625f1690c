//! Starts a TLS server in this process, and checks which of its certificates are accepted.

use super::*;
use crate::certs::Artifacts;
use crate::client::{Peer, from_kubeconfig, to_peer};
use crate::failure_log::causes;
use crate::tls::{LIMITS, serve};
use crate::webhook_client::{Address, Poster};
use axum::routing::get;
use koord_app::Clock;
use std::path::PathBuf;
use std::process::Command;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const TIMEOUT: Duration = Duration::from_secs(60);

struct Server {
    port: u16,
    dir: PathBuf,
    stop: CancellationToken,
}

impl Server {
    /// Starts a server with a certificate for `localhost`; its directory holds `ca.pem` and `server.pem`.
    async fn start() -> Self {
        let artifacts = generate();
        let dir = std::env::temp_dir().join(format!("koord-endpoint-{}", fastrand::u64(..)));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("ca.pem"), &artifacts.ca_cert).unwrap();
        // Like the file of a kubelet: certificate and key.
        let combined = [artifacts.cert.clone(), artifacts.key.clone()].concat();
        std::fs::write(dir.join("server.pem"), combined).unwrap();
        std::fs::write(dir.join("other.pem"), generate().ca_cert).unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let routes = axum::Router::new().route("/pods", get(|| async { "yes" }));
        let (sender, configs) = watch::channel(artifacts.server_config().unwrap());
        let stop = CancellationToken::new();
        let end = stop.clone();
        tokio::spawn(async move {
            serve(listener, routes, configs, end, LIMITS).await;
            drop(sender);
        });
        Self { port, dir, stop }
    }

    async fn get(&self, host: &str, trust: &Trust) -> Result<String, String> {
        let url = format!("https://{host}:{}", self.port);
        let client = connect(&url, trust, None, TIMEOUT).map_err(|error| causes(&error))?;
        let request = http::Request::get("/pods").body(Vec::new()).unwrap();
        let answer = client.request_text(request).await;
        answer.map_err(|error| causes(&error))
    }

    fn files(&self, names: &[&str]) -> Trust {
        Trust::Files(names.iter().map(|name| self.dir.join(name)).collect())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn generate() -> Artifacts {
    Artifacts::generate(&Artifacts::default(), "localhost", Clock::system().now()).unwrap()
}

#[tokio::test]
async fn endpoint_certificate_is_verified_by_files() {
    let server = Server::start().await;
    for (host, files, problem) in [
        ("localhost", &["ca.pem"][..], None),
        ("localhost", &["missing.pem", "ca.pem"], None),
        // The certificate of a kubelet does not contain the address under which it is reached.
        ("127.0.0.1", &["server.pem"], None),
        ("127.0.0.1", &["ca.pem"], Some("not valid for name")),
        ("localhost", &["other.pem"], Some("other.pem")),
        (
            "localhost",
            &["missing.pem"],
            Some("there is no certificate"),
        ),
        ("localhost", &[], Some("there is no certificate")),
    ] {
        let got = server.get(host, &server.files(files)).await;
        match problem {
            None => assert_eq!(got.as_deref(), Ok("yes"), "{host} {files:?}"),
            Some(problem) => {
                let error = got.unwrap_err();
                assert!(error.contains(problem), "{host} {files:?}: {error}");
            }
        }
    }
    assert_eq!(
        server.get("127.0.0.1", &Trust::Any).await.as_deref(),
        Ok("yes")
    );
    // A renewed file is used at the next handshake.
    let trust = server.files(&["late.pem"]);
    assert!(server.get("localhost", &trust).await.is_err());
    std::fs::copy(server.dir.join("ca.pem"), server.dir.join("late.pem")).unwrap();
    assert_eq!(server.get("localhost", &trust).await.as_deref(), Ok("yes"));
}

/// Runs this test again in a process that finds no CA certificates, as in an image that holds only a program
/// and its libraries.
#[tokio::test]
async fn clients_without_system_roots_work() {
    const MARK: &str = "KOORD_TEST_WITHOUT_ROOTS";
    if std::env::var_os(MARK).is_none() {
        let name = "endpoint::tests::clients_without_system_roots_work";
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", name, "--nocapture"])
            .env(MARK, "1");
        for variable in ["SSL_CERT_FILE", "SSL_CERT_DIR"] {
            command.env(variable, "/nonexistent/koord");
        }
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{text}");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains("1 passed"), "{text}");
        return;
    }
    let server = Server::start().await;
    let url = format!("https://localhost:{}", server.port);
    let verified = Peer {
        url: url.clone(),
        ..Peer::default()
    };
    let error = to_peer(&verified).await.err().unwrap();
    assert!(
        error.to_string().contains("CA cert"),
        "no roots at all: {error}"
    );

    assert_eq!(
        server.get("localhost", &Trust::Any).await.as_deref(),
        Ok("yes")
    );
    let trust = server.files(&["ca.pem"]);
    assert_eq!(server.get("localhost", &trust).await.as_deref(), Ok("yes"));
    let insecure = Peer {
        insecure: true,
        ..verified
    };
    to_peer(&insecure).await.unwrap();
    let address = Address {
        url,
        insecure: true,
        ..Address::default()
    };
    Poster::new(&address).await.unwrap();
    // Plain HTTP needs none either.
    connect("http://localhost:1", &Trust::Any, None, TIMEOUT).unwrap();
    let plain = crate::client::ClientOptions {
        server: Some("http://localhost:1".to_owned()),
        ..Default::default()
    };
    from_kubeconfig(None, &plain).await.unwrap();
}
