//! Tests of the token that `explain` sends to a secure port.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use axum::{Router, routing::get};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use koord_apiserver::{ApiServer, Config};
use koord_app::{Clock, flags::Selection};
use koord_kube::{Api, api::PostParams, secure};
use koordctl::explain::{Args, query};
use serde_json::json;
use std::net::{Ipv4Addr, SocketAddr};
use tokio_util::sync::CancellationToken;

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

#[derive(Debug, clap::Parser)]
struct Flags {
    #[command(flatten)]
    secure: secure::SecureServingArgs,
}

/// Issues a token of a service account that may get every path.
async fn issue(client: koord_kube::Client) -> String {
    let params = PostParams::default();
    let accounts: koord_kube::api::Api<ServiceAccount> =
        koord_kube::api::Api::default_namespaced(client.clone());
    let account = serde_json::from_value(json!({"metadata": {"name": "prober"}})).unwrap();
    accounts.create(&params, &account).await.unwrap();
    let role = json!({
        "metadata": {"name": "look"},
        "rules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    });
    let role = serde_json::from_value(role).unwrap();
    let roles: Api<ClusterRole> = Api::all(client.clone());
    roles.create(&params, &role).await.unwrap();
    let binding = json!({
        "metadata": {"name": "look"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "look"},
        "subjects": [{"kind": "ServiceAccount", "name": "prober", "namespace": "default"}],
    });
    let binding = serde_json::from_value(binding).unwrap();
    let bindings: Api<ClusterRoleBinding> = Api::all(client);
    bindings.create(&params, &binding).await.unwrap();
    let request = TokenRequest::default();
    let issued = accounts.create_token_request("prober", &params, &request);
    issued.await.unwrap().status.unwrap().token
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_shows_a_token_there() {
    let mut config = Config::memory(Clock::system());
    config.bind = ANY;
    config.controllers = Selection::none();
    let server = ApiServer::open(config).await.unwrap();
    let listener = server.listen().await.unwrap();
    let stop = CancellationToken::new();
    let (serving, until) = (server.clone(), stop.clone());
    tokio::spawn(async move { serving.serve(listener, until).await });
    let dir = tempfile::tempdir().unwrap();
    let (kubeconfig, token) = (dir.path().join("kubeconfig"), dir.path().join("token"));
    server.write_kubeconfig(&kubeconfig).unwrap();
    let issued = issue(koord_kube::client::in_process(server.service())).await;
    std::fs::write(&token, issued).unwrap();
    let argv = ["authentication", "authorization"]
        .map(|flag| format!("--{flag}-kubeconfig={}", kubeconfig.display()));
    let argv = std::iter::once("it".to_owned()).chain(argv);
    let flags = koord_app::flags::parse::<Flags>(argv.map(Into::into)).unwrap();
    let routes = Router::new().route("/metrics", get(|| async { "numbers" }));
    let address = secure::serve("it", &flags.args.secure, routes, ANY, stop.clone()).await;
    let server = format!("https://{}", address.unwrap());
    let with_token = Args {
        token_file: Some(token),
        insecure_skip_tls_verify: true,
        ..Default::default()
    };
    let answer = query(&with_token, "it", &server, "/metrics").await.unwrap();
    assert_eq!(answer, (200, "numbers".to_owned()));
    let without_token = Args {
        token_file: None,
        ..with_token.clone()
    };
    let (code, body) = query(&without_token, "it", &server, "/metrics")
        .await
        .unwrap();
    assert_eq!(code, 403);
    assert!(body.contains("cannot get path"), "{body}");
    let verifying = Args {
        insecure_skip_tls_verify: false,
        ..with_token
    };
    assert!(query(&verifying, "it", &server, "/metrics").await.is_err());
    stop.cancel();
}
