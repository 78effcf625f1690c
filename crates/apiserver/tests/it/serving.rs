//! The server over the network: TLS, authentication, health, shutdown.

use futures::AsyncBufReadExt as _;
use http::{Request, StatusCode};
use koord_apiserver::{ApiServer, Config};
use koord_app::Clock;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

struct RunningServer {
    server: Arc<ApiServer>,
    address: SocketAddr,
    stop: CancellationToken,
    serving: JoinHandle<()>,
}

impl RunningServer {
    async fn start(mut config: Config) -> Self {
        config.bind = "127.0.0.1:0".parse().unwrap();
        let server = ApiServer::open(config).await.unwrap();
        let listener = server.listen().await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let serving = tokio::spawn({
            let (server, stop) = (Arc::clone(&server), stop.clone());
            async move { server.serve(listener, stop).await.unwrap() }
        });
        Self {
            server,
            address,
            stop,
            serving,
        }
    }

    async fn end(self) {
        self.stop.cancel();
        self.serving.await.unwrap();
        self.server.close().await;
    }

    async fn config(&self, kubeconfig: &Path) -> kube::Config {
        let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
        let options = KubeConfigOptions::default();
        let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .unwrap();
        config.cluster_url = format!("https://{}", self.address).parse().unwrap();
        config
    }
}

async fn get(config: &kube::Config, path: &str) -> Result<String, kube::Error> {
    let client = kube::Client::try_from(config.clone()).unwrap();
    client
        .request_text(Request::get(path).body(Vec::new()).unwrap())
        .await
}

fn code(result: Result<String, kube::Error>) -> u16 {
    match result {
        Ok(_) => 200,
        Err(kube::Error::Api(status)) => status.code,
        Err(error) => panic!("{error:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_those_with_credentials_get_in() {
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = dir.path().join("deep/er/kubeconfig");
    let running = RunningServer::start(Config::dir(dir.path().join("data"), Clock::system())).await;
    running.server.write_kubeconfig(&kubeconfig).unwrap();
    for secret in [&kubeconfig, &dir.path().join("data/pki/ca.key")] {
        let mode = std::fs::metadata(secret).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", secret.display());
    }

    let admin = running.config(&kubeconfig).await;
    assert!(
        get(&admin, "/api/v1/namespaces")
            .await
            .unwrap()
            .contains("NamespaceList")
    );
    assert!(
        get(&admin, "/metrics")
            .await
            .unwrap()
            .contains("apiserver_request_total")
    );

    let mut stranger = admin.clone();
    stranger.auth_info = AuthInfo::default();
    assert_eq!(get(&stranger, "/healthz").await.unwrap(), "ok");
    assert_eq!(get(&stranger, "/livez").await.unwrap(), "ok");
    assert!(
        get(&stranger, "/readyz?verbose")
            .await
            .unwrap()
            .contains("[+]bootstrap ok")
    );
    assert!(get(&stranger, "/version").await.unwrap().contains("v1.35"));
    for path in [
        "/api/v1/namespaces",
        "/metrics",
        "/api",
        "/openapi/v3",
        "/nowhere",
    ] {
        assert_eq!(code(get(&stranger, path).await), 403, "{path}");
    }

    let mut impostor = admin.clone();
    impostor.auth_info.token = Some("wrong".to_owned().into());
    assert_eq!(code(get(&impostor, "/api/v1/namespaces").await), 401);

    // A certificate of another authority ends the connection.
    let other = RunningServer::start(Config::memory(Clock::system())).await;
    let other_kubeconfig = dir.path().join("other");
    other.server.write_kubeconfig(&other_kubeconfig).unwrap();
    let mut forged = other.config(&other_kubeconfig).await;
    forged.cluster_url = admin.cluster_url.clone();
    forged.root_cert = admin.root_cert.clone();
    assert!(get(&forged, "/api/v1/namespaces").await.is_err());
    other.end().await;

    // A restart keeps the authority: the kubeconfig stays valid.
    running.end().await;
    let running = RunningServer::start(Config::dir(dir.path().join("data"), Clock::system())).await;
    let admin = running.config(&kubeconfig).await;
    assert!(
        get(&admin, "/api/v1/namespaces")
            .await
            .unwrap()
            .contains("NamespaceList")
    );
    running.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_ends_watches_cleanly() {
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = dir.path().join("kubeconfig");
    let running = RunningServer::start(Config::memory(Clock::system())).await;
    running.server.write_kubeconfig(&kubeconfig).unwrap();
    let client = kube::Client::try_from(running.config(&kubeconfig).await).unwrap();
    let watch = Request::get("/api/v1/configmaps?watch=1&timeoutSeconds=600");
    let stream = client
        .request_stream(watch.body(Vec::new()).unwrap())
        .await
        .unwrap();
    let reader = tokio::spawn(async move {
        let mut lines = Box::pin(stream).lines();
        let mut count = 0;
        while let Some(line) = futures::StreamExt::next(&mut lines).await {
            line.expect("the stream ends without an error");
            count += 1;
        }
        count
    });
    running.end().await;
    reader.await.unwrap();
}

#[tokio::test]
async fn occupied_port_and_reachable_address_are_refused() {
    let occupied = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = occupied.local_addr().unwrap();
    let mut config = Config::memory(Clock::system());
    config.bind = address;
    let error = ApiServer::open(config)
        .await
        .unwrap()
        .listen()
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains(&format!("cannot listen on {address}")),
        "{error}"
    );

    let reachable = |allow_remote| {
        let mut config = Config::memory(Clock::system());
        config.bind = "0.0.0.0:0".parse().unwrap();
        config.allow_remote = allow_remote;
        ApiServer::open(config)
    };
    let server = reachable(false).await.unwrap();
    let error = server.listen().await.unwrap_err().to_string();
    assert!(error.contains("refusing to listen on 0.0.0.0:0"), "{error}");
    let listener = tokio::net::TcpListener::bind("0.0.0.0:0").await.unwrap();
    let served = server.serve(listener, CancellationToken::new()).await;
    assert!(served.unwrap_err().to_string().contains("refusing"));
    assert!(reachable(true).await.unwrap().listen().await.is_ok());
}

#[tokio::test]
async fn one_process_per_data_directory() {
    let dir = tempfile::tempdir().unwrap();
    let first = ApiServer::open(Config::dir(dir.path(), Clock::system()))
        .await
        .unwrap();
    let error = ApiServer::open(Config::dir(dir.path(), Clock::system()))
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("is in use by process"),
        "{error}"
    );
    first.close().await;
    ApiServer::open(Config::dir(dir.path(), Clock::system()))
        .await
        .unwrap()
        .close()
        .await;
}

#[tokio::test]
async fn damaged_authority_is_reported_with_file() {
    let dir = tempfile::tempdir().unwrap();
    let pki = dir.path().join("pki");
    std::fs::create_dir_all(&pki).unwrap();
    std::fs::write(pki.join("ca.key"), "not a key").unwrap();
    std::fs::write(pki.join("ca.crt"), "not a certificate").unwrap();
    let open = || ApiServer::open(Config::dir(dir.path(), Clock::system()));
    let error = open().await.unwrap_err().to_string();
    assert!(error.contains("ca.key"), "{error}");
    std::fs::write(pki.join("sa.key"), "not a key").unwrap();
    let error = open().await.unwrap_err().to_string();
    assert!(error.contains("sa.key"), "{error}");
}

#[tokio::test]
async fn a_request_in_process_needs_no_credentials() {
    use tower::ServiceExt as _;
    let server = ApiServer::open(Config::memory(Clock::system()))
        .await
        .unwrap();
    let request = Request::get("/api/v1/namespaces")
        .body(axum::body::Body::empty())
        .unwrap();
    let response = server.service().oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
}
