//! The TLS server of a daemon, which authenticates clients with an API server.

use crate::tls_client::{ANY, Identity, Signer, args, routes, send_request};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use koord_apiserver::{ApiServer, Config};
use koord_app::Clock;
use koord_kube::Api;
use koord_kube::api::PostParams;
use koord_kube::secure::serve;
use rcgen::{CertificateParams, DnType, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

impl Signer {
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

/// An API server over HTTPS, a kubeconfig for it, and the token of a service account.
struct SecureCluster {
    server: Arc<ApiServer>,
    dir: tempfile::TempDir,
    token: String,
    stop: CancellationToken,
}

impl SecureCluster {
    async fn start() -> Self {
        koord_kube::tls::install_crypto_provider();
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

    /// Allows the service account and the group `ops` to request every path.
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

    async fn serve(&self, flags: &[String]) -> anyhow::Result<SocketAddr> {
        serve(
            "koord-scheduler",
            &args(flags),
            routes(),
            ANY,
            self.stop.clone(),
        )
        .await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_authenticated_and_authorized() {
    let cluster = SecureCluster::start().await;
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
            "an authorized user, unknown path",
            "GET /none",
            good,
            None,
            "404",
            "404 page not found",
        ),
        (
            "a certificate of another CA",
            "GET /healthz",
            "",
            Some(&stranger),
            "",
            "",
        ),
    ] {
        let answer = send_request(address, request, token, identity).await;
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
            "anonymous",
            "GET /metrics",
            "",
            forbidden("get path \"/metrics\""),
        ),
        (
            "anonymous, writing",
            "PUT /debug/flags/v",
            "",
            forbidden("put path \"/debug/flags/v\""),
        ),
        (
            "anonymous, unknown path",
            "GET /none",
            "",
            forbidden("get path \"/none\""),
        ),
        (
            "anonymous, encoded path",
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
        let (code, body) = send_request(address, request, token, None).await;
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
async fn without_an_api_server_only_open_paths_are_served() {
    let cluster = SecureCluster::start().await;
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
            "open, the token is ignored",
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
            "not open, authenticated",
            "GET /metrics",
            "",
            Some(&ann),
            "403",
        ),
        ("a master", "GET /metrics", "", Some(&master), "200"),
    ] {
        assert_eq!(
            send_request(address, request, token, identity).await.0,
            code,
            "{name}"
        );
    }
    cluster.stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_ca_is_read_from_the_cluster() {
    let cluster = SecureCluster::start().await;
    // The API server has published its own CA there.
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
    // Not found but tolerated, or not read: client certificates are not requested.
    for flags in [
        cluster.flags(&[]),
        cluster.flags(&[strict, "--authentication-skip-lookup"]),
    ] {
        let address = cluster.serve(&flags).await.unwrap();
        assert_eq!(
            send_request(address, "GET /metrics", "", Some(&ann))
                .await
                .0,
            "403"
        );
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
    assert_eq!(
        send_request(address, "GET /metrics", "", Some(&ann))
            .await
            .0,
        "200"
    );
    cluster.stop.cancel();
}
