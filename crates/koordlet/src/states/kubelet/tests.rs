//! A kubelet in this process, over TLS, and the agent's reaction to its responses and timeouts.

use super::client::{KubeletClient, KubeletError, url_of};
use super::options::{Kubelet as Options, kubelet_trust};
use super::poll::KubeletPoller;
use crate::metrics::Metrics;
use crate::states::{Driver, Layout, NodeInfo, PodInfo, States};
use koord_host::CgroupPath;
use koord_host::fake::Tree;
use koord_kube::Client;
use koord_kube::endpoint::{Trust, connect};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// The kubelet's response to a path.
#[derive(Clone)]
enum KubeletResponse {
    Body(String),
    Status(u16),
    /// Accepts the request and never responds.
    Silence,
}

#[derive(Default)]
struct FakeState {
    pods: Option<KubeletResponse>,
    config: Option<KubeletResponse>,
    /// Token that `Authorization` must contain, if any.
    token: Option<String>,
    /// Requests so far: path and whether they were authorized.
    seen: Vec<(String, bool)>,
}

/// A kubelet with a self-signed certificate.
struct FakeKubelet {
    inner: Arc<Mutex<FakeState>>,
    url: String,
    /// Certificate, as PEM.
    certificate: String,
    shutdown: CancellationToken,
}

impl FakeKubelet {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let generated = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let certificate = generated.cert.pem();
        let key = rustls::pki_types::PrivateKeyDer::try_from(generated.signing_key.serialize_der());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![generated.cert.der().clone()], key.unwrap())
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let inner = Arc::<Mutex<FakeState>>::default();
        let shutdown = CancellationToken::new();
        let (to, stop) = (inner.clone(), shutdown.clone());
        let serve = async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, to) = (acceptor.clone(), to.clone());
                tokio::spawn(async move {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        serve_connection(stream, &to).await;
                    }
                });
            }
        };
        tokio::spawn(async move {
            tokio::select! {
                () = serve => {}
                () = stop.cancelled() => {}
            }
        });
        Self {
            inner,
            url,
            certificate,
            shutdown,
        }
    }

    fn pods(&self, pods: &[Value]) {
        let list = json!({"kind": "PodList", "apiVersion": "v1", "items": pods});
        self.inner.lock().pods = Some(KubeletResponse::Body(list.to_string()));
    }

    fn answer(&self, answer: KubeletResponse) {
        self.inner.lock().pods = Some(answer);
    }

    fn requests(&self) -> Vec<(String, bool)> {
        self.inner.lock().seen.clone()
    }

    fn options(&self) -> Options {
        Options {
            url: Some(self.url.clone()),
            timeout: Duration::from_secs(60),
            trust: Trust::Any,
            ..Options::default()
        }
    }
}

impl Drop for FakeKubelet {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// Answers requests without bodies, one after another.
async fn serve_connection(
    mut stream: tokio_rustls::server::TlsStream<tokio::net::TcpStream>,
    to: &Mutex<FakeState>,
) {
    let mut text = String::new();
    let mut buffer = [0_u8; 4096];
    loop {
        while !text.contains("\r\n\r\n") {
            match stream.read(&mut buffer).await {
                Ok(n) if n > 0 => text.push_str(&String::from_utf8_lossy(&buffer[..n])),
                _ => return,
            }
        }
        let head = std::mem::take(&mut text);
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let answer = {
            let mut inner = to.lock();
            let authorized = inner.token.as_ref().is_none_or(|token| {
                let line = format!("authorization: bearer {token}");
                head.to_ascii_lowercase()
                    .contains(&line.to_ascii_lowercase())
            });
            inner.seen.push((path.clone(), authorized));
            let answer = match path.as_str() {
                "/pods" => inner.pods.clone(),
                "/configz" => inner.config.clone(),
                _ => None,
            };
            if authorized {
                answer.unwrap_or(KubeletResponse::Status(404))
            } else {
                KubeletResponse::Status(401)
            }
        };
        let (status, body) = match answer {
            KubeletResponse::Body(body) => (200, body),
            KubeletResponse::Status(status) => (status, "Unauthorized".to_owned()),
            KubeletResponse::Silence => std::future::pending().await,
        };
        let length = body.len();
        let reply = format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\n\r\n{body}");
        if stream.write_all(reply.as_bytes()).await.is_err() {
            return;
        }
    }
}

fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "ns", "uid": format!("u-{name}")},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]},
        "status": {"phase": "Running"}})
}

/// Returns an API client that must not be used.
fn unused_client() -> Client {
    connect(
        "http://127.0.0.1:1",
        &Trust::Any,
        None,
        Duration::from_secs(1),
    )
    .unwrap()
}

fn kubelet(options: Options, states: &Arc<States>) -> KubeletClient {
    let metrics = Metrics::new(&prometheus::Registry::new()).unwrap();
    let metrics = metrics.kubelet().clone();
    KubeletClient::new(
        options,
        states.clone(),
        unused_client(),
        "n".to_owned(),
        metrics,
    )
}

/// Returns how many pods it lists.
async fn count(kubelet: &mut KubeletClient) -> Result<usize, KubeletError> {
    let mut count = 0;
    let read = |_: &[u8]| {
        count += 1;
        Ok(())
    };
    kubelet.pods(read).await?;
    Ok(count)
}

struct Bench {
    fake: FakeKubelet,
    tree: Tree,
    states: Arc<States>,
    poll: KubeletPoller,
}

impl Bench {
    async fn new(options: impl FnOnce(&mut Options)) -> Self {
        let fake = FakeKubelet::start().await;
        let states = Arc::new(States::default());
        let tree = Tree::v2("0-1").unwrap();
        let mut client_options = fake.options();
        options(&mut client_options);
        let poll = KubeletPoller::with_client(
            kubelet(client_options, &states),
            Duration::from_secs(10),
            true,
            Layout::default(),
            tree.root().clone(),
            states.clone(),
        );
        Self {
            fake,
            tree,
            states,
            poll,
        }
    }

    /// Polls until it succeeds: a busy machine may be too slow once.
    async fn poll_until(&mut self, names: &[&str]) {
        for _ in 0..30 {
            if self.poll().await == names {
                return;
            }
        }
        panic!("{:?} instead of {names:?}", self.names());
    }

    /// Returns the names that are published now.
    fn names(&self) -> Vec<String> {
        let pods = self.states.pods.load_full();
        let pods = pods.as_deref().map_or(&[][..], Vec::as_slice);
        pods.iter().map(|pod| pod.name.clone()).collect()
    }

    async fn poll(&mut self) -> Vec<String> {
        self.poll_at(0).await
    }

    /// Polls after `seconds` have passed.
    async fn poll_at(&mut self, seconds: u64) -> Vec<String> {
        self.poll.once(seconds * 1000).await;
        self.names()
    }
}

#[tokio::test]
async fn pods_and_configuration_come_over_tls() {
    let mut bench = Bench::new(|_| ()).await;
    bench.fake.pods(&[pod("b"), pod("a")]);
    let config = r#"{"kubeletconfig":{"cgroupDriver":"systemd","cpuManagerPolicy":"static"}}"#;
    bench.fake.inner.lock().config = Some(KubeletResponse::Body(config.to_owned()));
    assert_eq!(bench.poll().await, ["a", "b"]);
    let config = bench.states.kubelet.load_full().unwrap();
    assert!(config.is_cpu_manager_static());
    // The configuration is read occasionally, not with every list.
    bench.poll().await;
    let paths: Vec<_> = bench
        .fake
        .requests()
        .into_iter()
        .map(|(path, _)| path)
        .collect();
    assert_eq!(paths, ["/pods", "/configz", "/pods"]);
}

#[tokio::test]
async fn a_kubelet_that_is_gone_slow_or_confused_keeps_the_last_pods() {
    let mut bench = Bench::new(|options| options.timeout = Duration::from_secs(1)).await;
    bench.fake.pods(&[pod("a")]);
    bench.poll_until(&["a"]).await;
    for answer in [
        KubeletResponse::Status(500),
        KubeletResponse::Silence,
        KubeletResponse::Body("<html>".to_owned()),
        KubeletResponse::Body(r#"{"kind":"PodList"}"#.to_owned()),
        KubeletResponse::Body(r#"{"items":7}"#.to_owned()),
        KubeletResponse::Status(403),
    ] {
        bench.fake.answer(answer);
        assert_eq!(bench.poll().await, ["a"]);
        assert!(!bench.states.pods_settled());
    }
    bench.fake.pods(&[pod("a"), pod("b")]);
    bench.poll_until(&["a", "b"]).await;
    let url = bench.fake.url.clone();
    bench.fake.shutdown.cancel();
    let mut unreachable = kubelet(
        Options {
            url: Some(url.replace("https", "http")),
            timeout: Duration::from_secs(5),
            ..Options::default()
        },
        &bench.states,
    );
    let error = count(&mut unreachable).await.unwrap_err().to_string();
    assert!(error.contains("/pods"), "{error}");
    assert!(!unreachable.is_connected());
}

#[tokio::test]
async fn a_replaced_token_is_read_again() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("token");
    std::fs::write(&file, "old").unwrap();
    let fake = FakeKubelet::start().await;
    fake.pods(&[pod("a")]);
    fake.inner.lock().token = Some("old".to_owned());
    let states = Arc::new(States::default());
    let mut kubelet = kubelet(fake.options(), &states).with_token(&file);
    assert_eq!(count(&mut kubelet).await.unwrap(), 1);
    // Both change: the kubelet no longer accepts the token that the client has cached.
    fake.inner.lock().token = Some("new".to_owned());
    std::fs::write(&file, "new").unwrap();
    assert_eq!(count(&mut kubelet).await.unwrap(), 1);
    let authorized: Vec<_> = fake.requests().into_iter().map(|(_, ok)| ok).collect();
    assert_eq!(authorized, [true, false, true]);
    // Refused again: one retry only, and the error has the reason.
    fake.inner.lock().token = Some("other".to_owned());
    let error = count(&mut kubelet).await.unwrap_err();
    assert!(matches!(&error, KubeletError::Request { .. }), "{error}");
    assert!(error.to_string().contains("Unauthorized"), "{error}");
    assert_eq!(fake.requests().len(), 5);
}

#[tokio::test]
async fn one_unreadable_pod_does_not_hide_the_others() {
    let mut bench = Bench::new(|_| ()).await;
    let mut odd = pod("odd");
    odd["spec"]["containers"] = json!("none");
    bench.fake.pods(&[pod("a"), odd, pod("b")]);
    assert_eq!(bench.poll().await, ["a", "b"]);
    let standing = bench.states.malformed_inputs.current();
    let [complaint] = &standing["kubelet /pods"][..] else {
        panic!("{standing:?}");
    };
    assert_eq!(
        (complaint.field.as_str(), complaint.value.as_str()),
        ("items[1]", "ns/odd")
    );
    bench.fake.pods(&[pod("a"), pod("odd"), pod("b")]);
    assert_eq!(bench.poll().await, ["a", "b", "odd"]);
    assert!(bench.states.malformed_inputs.current().is_empty());
    // The text of one item is malformed, not just its content: the whole list is rejected.
    let broken = json!({"items": [pod("a"), pod("c")]}).to_string();
    let broken = broken.replace(r#""name":"c""#, r#""name":c"#);
    bench.fake.answer(KubeletResponse::Body(broken));
    assert_eq!(bench.poll().await, ["a", "b", "odd"]);
    assert!(!bench.states.pods_settled());
}

/// A pod is parsed only if its text or another input of the result changes.
#[tokio::test]
async fn pod_with_unchanged_text_is_not_parsed_again() {
    let mut bench = Bench::new(|_| ()).await;
    let pods = || bench_pods(&bench.states);
    let bad = || {
        let mut bad = pod("bad");
        bad["metadata"]["annotations"] = json!({"koordinator.sh/eviction-priority": "high"});
        bad
    };
    bench.fake.pods(&[pod("a"), pod("b"), bad()]);
    bench.poll.once(0).await;
    let first = pods();
    assert_eq!(bench.states.malformed_inputs.current().len(), 1);
    bench.poll.once(1000).await;
    assert!(Arc::ptr_eq(&first, &pods()), "nothing has changed");
    assert_eq!(
        bench.states.malformed_inputs.current().len(),
        1,
        "it stands"
    );
    // One changes, in another order: the others are what they were.
    let mut changed = pod("b");
    changed["metadata"]["annotations"] = json!({"koordinator.sh/eviction-priority": "7"});
    bench.fake.pods(&[changed, pod("bad"), pod("a")]);
    bench.poll.once(2000).await;
    let second = pods();
    let pod_named = |name: &str| second.iter().find(|pod| pod.name == name);
    assert_eq!(pod_named("b").map(|pod| pod.eviction_priority), Some(7));
    assert_eq!(pod_named("a"), first.iter().find(|pod| pod.name == "a"));
    assert_eq!(second.len(), 3);
    assert!(bench.states.malformed_inputs.current().is_empty());
    // And back: the text of two lists ago gives the same result.
    bench.fake.pods(&[pod("b"), pod("bad"), pod("a")]);
    bench.poll.once(3000).await;
    let third = pods();
    assert_eq!(third.len(), 3);
    assert!(third.iter().all(|pod| pod.eviction_priority == 0));
    // Cgroups have other names now.
    let layout = Layout::new(Driver::Systemd, CgroupPath::root());
    bench.states.layout.store(Some(Arc::new(layout.clone())));
    bench.poll.once(4000).await;
    for pod in pods().iter() {
        assert_eq!(pod.cgroup, layout.pod(pod.kube_qos, &pod.uid).unwrap());
    }
}

fn bench_pods(states: &States) -> Arc<Vec<PodInfo>> {
    states.pods.load_full().unwrap()
}

/// The first lists of a restarted kubelet are partial; the other known pods stay.
#[tokio::test]
async fn pods_missing_in_first_lists_of_restarted_kubelet_stay() {
    let mut bench = Bench::new(|_| ()).await;
    bench.fake.pods(&[pod("a"), pod("b")]);
    bench.poll().await;
    let first = bench.states.pods.load_full().unwrap();
    bench.fake.answer(KubeletResponse::Status(503));
    bench.poll().await;
    bench.fake.pods(&[pod("b")]);
    assert_eq!(bench.poll().await, ["a", "b"]);
    bench.fake.pods(&[]);
    assert_eq!(bench.poll().await, ["a", "b"]);
    assert!(!bench.states.pods_settled());
    // Users of the pod list see no change.
    assert!(Arc::ptr_eq(&first, &bench.states.pods.load_full().unwrap()));
    // A running pod stays after the lists have settled, too, as long as its group is there.
    bench.tree.group("kubepods/burstable/podu-a").unwrap();
    bench.fake.pods(&[pod("b")]);
    assert_eq!(bench.poll_at(30).await, ["a", "b"]);
    assert!(bench.states.pods_settled());
    let group = koord_host::CgroupPath::new("kubepods/burstable/podu-a").unwrap();
    bench.tree.vanish(&group).unwrap();
    assert_eq!(bench.poll_at(40).await, ["b"]);
}

#[tokio::test]
async fn poll_on_request_is_immediate_and_bounded() {
    let mut bench = Bench::new(|_| ()).await;
    bench.fake.pods(&[pod("a")]);
    bench.poll.interval = Duration::from_secs(3600);
    let Bench {
        fake, states, poll, ..
    } = bench;
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(poll.run(shutdown.clone()));
    let wait_for_pods = async |count: usize| {
        let wait = async {
            while states.pods.load().as_ref().map_or(0, |pods| pods.len()) < count {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), wait)
            .await
            .unwrap();
    };
    wait_for_pods(1).await;
    // The timer's next tick is an hour away.
    fake.pods(&[pod("a"), pod("b")]);
    for _ in 0..100 {
        states.resync_pods();
    }
    wait_for_pods(2).await;
    // A hundred simultaneous requests are one.
    let lists = fake
        .requests()
        .iter()
        .filter(|(path, _)| path == "/pods")
        .count();
    assert!(lists <= 3, "{lists}");
    shutdown.cancel();
    running.await.unwrap();
}

#[test]
fn urls_follow_the_node_object() {
    let node = |addresses: &[(&str, &str)], port| NodeInfo {
        name: "n".to_owned(),
        addresses: addresses
            .iter()
            .map(|(kind, address)| ((*kind).to_owned(), (*address).to_owned()))
            .collect(),
        kubelet_port: port,
        ..NodeInfo::default()
    };
    let two_addresses = node(
        &[("Hostname", "host"), ("InternalIP", "10.0.0.1")],
        Some(10251),
    );
    let six = node(&[("InternalIP", "fd00::1")], None);
    let options = |kind: &str, insecure| Options {
        address_type: kind.to_owned(),
        insecure,
        ..Options::default()
    };
    for (node, options, want) in [
        (
            &two_addresses,
            options("InternalIP", false),
            "https://10.0.0.1:10251",
        ),
        (
            &two_addresses,
            options("Hostname", false),
            "https://host:10251",
        ),
        (
            &two_addresses,
            options("Elsewhere", false),
            "https://10.0.0.1:10251",
        ),
        (
            &two_addresses,
            options("InternalIP", true),
            "http://10.0.0.1:10255",
        ),
        (
            &six,
            options("InternalIP", false),
            "https://[fd00::1]:10250",
        ),
    ] {
        assert_eq!(url_of(&options, node).unwrap(), want);
    }
    let error = url_of(&options("ExternalIP", false), &two_addresses).unwrap_err();
    assert_eq!(
        error.to_string(),
        "node n has no address of type ExternalIP"
    );
}

#[tokio::test]
async fn kubelet_certificate_is_verified_by_its_file() {
    let fake = FakeKubelet::start().await;
    fake.pods(&[pod("a")]);
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        trust: kubelet_trust(Some(dir.path())),
        ..fake.options()
    };
    let states = Arc::new(States::default());
    let refused = count(&mut kubelet(options.clone(), &states)).await;
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("pki/kubelet.crt"), "{error}");
    assert_eq!(fake.requests(), [], "no token is shown before");
    std::fs::create_dir(dir.path().join("pki")).unwrap();
    std::fs::write(dir.path().join("pki/kubelet.crt"), &fake.certificate).unwrap();
    let accepted = count(&mut kubelet(options, &states)).await;
    assert_eq!(accepted.unwrap(), 1);
}

#[tokio::test]
async fn refusal_of_the_kubelet_names_the_missing_rule() {
    let fake = FakeKubelet::start().await;
    fake.answer(KubeletResponse::Status(403));
    let states = Arc::new(States::default());
    let refused = count(&mut kubelet(fake.options(), &states)).await;
    let error = refused.unwrap_err().to_string();
    let rule = "{apiGroups: [\"\"], resources: [nodes/pods], verbs: [get]}";
    assert!(error.contains(rule), "{error}");
}
