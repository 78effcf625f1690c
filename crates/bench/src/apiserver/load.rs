//! Load generators for a server.

use super::client::Connection;
use super::{BenchError, BenchOptions, USER, WatchFigures, millis, objects};
use crate::meter::{cpu_time, rss_mib};
use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use koord_apiserver::ApiServer;
use koord_workload::statistics::percentile;
use rustls::ClientConfig;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

const PODS: &str = "/api/v1/namespaces/default/pods";
const DRY: &str = "/api/v1/namespaces/default/pods?dryRun=All";
const NODES: &str = "/api/v1/nodes";
/// Placeholder of a number in a template; as long as any number, so that sizes are equal.
const NUMBER: &str = "%%%%%%%%";
/// Placeholder of a time in a template.
const STAMP: &str = "@@@@@@@@@@@@@@@@";
/// Number of events in the latency measurement, one at a time.
const EVENTS: usize = 1000;
/// Number of objects that reads cycle through.
const READ: usize = 1000;

/// A client over TLS, and how many requests it has in progress at a time.
#[derive(Clone)]
pub(super) struct LoadClient {
    pub(super) tls: Arc<ClientConfig>,
    pub(super) address: SocketAddr,
    pub(super) connections: usize,
    /// Requests in progress per connection.
    pub(super) streams: usize,
    pub(super) owner: Owner,
}

impl LoadClient {
    /// Returns a client of `server` at `address`, as [`USER`] and with the connections of `options`.
    pub(super) fn new(
        server: &ApiServer,
        address: SocketAddr,
        options: &BenchOptions,
        owner: Owner,
    ) -> Result<Self, BenchError> {
        Ok(Self {
            tls: server.client_tls(USER, &[])?,
            address,
            connections: options.connections,
            streams: options.streams,
            owner,
        })
    }
}

/// A measured rate.
#[derive(Debug, Clone, Copy)]
pub(super) struct Throughput {
    /// Operations per second.
    pub(super) per_s: f64,
    /// CPU microseconds of the whole process per operation.
    pub(super) cpu_us: f64,
}

/// The body of a request with placeholders for the parts that differ.
#[derive(Clone)]
struct Template(Arc<str>);

/// UID of the owner of all pods. Without an owner they would be garbage-collected.
#[derive(Debug, Clone)]
pub(super) struct Owner(Arc<str>);

impl Owner {
    /// Makes the owner.
    pub(super) async fn create(service: Router) -> Result<Self, BenchError> {
        let path = "/api/v1/namespaces/default/configmaps";
        let body = objects::owner().to_string().into();
        let response = call(&service, Method::POST, path, body, StatusCode::CREATED).await?;
        let response: serde_json::Value = serde_json::from_slice(&response).unwrap_or_default();
        let uid = response["metadata"]["uid"].as_str();
        let uid = uid.ok_or_else(|| BenchError::request(path, "the answer has no uid"))?;
        Ok(Self(uid.into()))
    }
}

impl Template {
    fn pod(prefix: &str, node: &str, owner: &Owner) -> Self {
        let pod = objects::pod(&format!("{prefix}-{NUMBER}"), node, STAMP, &owner.0);
        Self(pod.to_string().into())
    }

    fn render(&self, number: usize, stamp: u128) -> Bytes {
        let body = self.0.replace(NUMBER, &format!("{number:08}"));
        body.replace(STAMP, &format!("{stamp:016}")).into()
    }
}

/// A collection in which objects are created, in process.
pub(super) struct Target {
    service: Router,
    path: &'static str,
    bodies: Vec<Template>,
}

impl Target {
    pub(super) fn nodes(service: Router) -> Self {
        let template = objects::node(&format!("node-{NUMBER}")).to_string();
        Self {
            service,
            path: NODES,
            bodies: vec![Template(template.into())],
        }
    }

    /// Returns the collection of pods, which are spread over `nodes` nodes.
    pub(super) fn pods(service: Router, nodes: usize, owner: &Owner) -> Self {
        let on = |node| Template::pod("loaded", &format!("node-{node:08}"), owner);
        Self {
            service,
            path: PODS,
            bodies: (0..nodes.max(1)).map(on).collect(),
        }
    }

    pub(super) async fn create(&self, number: usize) -> Result<(), BenchError> {
        let body = self.bodies[number % self.bodies.len()].render(number, 0);
        post(&self.service, self.path, body).await
    }

    /// Reads a list of up to `limit` objects.
    pub(super) async fn list(&self, limit: usize) -> Result<(), BenchError> {
        let path = format!("{}?limit={limit}", self.path);
        call(
            &self.service,
            Method::GET,
            &path,
            Bytes::new(),
            StatusCode::OK,
        )
        .await
        .map(drop)
    }
}

pub(super) async fn post(service: &Router, path: &str, body: Bytes) -> Result<(), BenchError> {
    let created = call(service, Method::POST, path, body, StatusCode::CREATED);
    created.await.map(drop)
}

/// Sends a request in process and returns the body of its response, which must have the status `expected`.
async fn call(
    service: &Router,
    method: Method,
    path: &str,
    body: Bytes,
    expected: StatusCode,
) -> Result<Bytes, BenchError> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(Body::from(body))
        .map_err(|error| BenchError::request(path, error))?;
    let response = match service.clone().oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    };
    let status = response.status();
    let body = response
        .into_body()
        .collect()
        .await
        .map_err(|error| BenchError::request(path, error))?
        .to_bytes();
    if status == expected {
        return Ok(body);
    }
    let text = String::from_utf8_lossy(&body).into_owned();
    Err(BenchError::request(path, format!("{status}: {text}")))
}

/// Watches all pods in process and drops the events, until `stop`.
pub(super) fn drain_watch(service: Router, stop: CancellationToken) -> JoinHandle<()> {
    tokio::spawn(async move {
        let request = Request::get("/api/v1/pods?watch=1&timeoutSeconds=3600").body(Body::empty());
        let Ok(request) = request else { return };
        let Ok(response) = service.oneshot(request).await;
        let mut body = response.into_body();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                frame = body.frame() => if !matches!(frame, Some(Ok(_))) { return },
            }
        }
    })
}

/// Cost of many watches of single nodes.
#[derive(Debug, Clone, Copy)]
pub(super) struct NodeWatches {
    /// Creates per second of one task in process while they are open.
    pub(super) creates: Throughput,
    /// Resident memory that they take, MiB.
    pub(super) mib: f64,
    /// Time from sending a create to its event on the watch of its node, 99th percentile, milliseconds.
    pub(super) event_p99_ms: f64,
}

async fn watch_node(service: &Router, node: &str) -> Result<Response<Body>, BenchError> {
    let path =
        format!("/api/v1/pods?watch=1&timeoutSeconds=3600&fieldSelector=spec.nodeName%3D{node}");
    let request = Request::get(&path).body(Body::empty());
    let request = request.map_err(|error| BenchError::request(&*path, error))?;
    let Ok(response) = service.clone().oneshot(request).await;
    if response.status() == StatusCode::OK {
        Ok(response)
    } else {
        Err(BenchError::request(path, response.status()))
    }
}

/// Creates pods of one node, one at a time, and waits for each on a watch of that node.
async fn node_event_p99_ms(service: &Router, owner: &Owner) -> Result<f64, BenchError> {
    let node = "node-waited-for";
    let mut events = watch_node(service, node).await?.into_body();
    let template = Template::pod("waited-for", node, owner);
    let mut took = Vec::with_capacity(EVENTS);
    for number in 0..EVENTS {
        let body = template.render(number, 0);
        let began = Instant::now();
        post(service, PODS, body).await?;
        if !matches!(events.frame().await, Some(Ok(_))) {
            return Err(BenchError::request("watch", "it ended"));
        }
        took.push(millis(began.elapsed()));
    }
    took.sort_unstable_by(f64::total_cmp);
    Ok(percentile(&took, 99).unwrap_or(0.0))
}

/// Opens `watches` watches, each on the pods of one of `nodes` nodes, and creates pods on these nodes
/// by one task in process. Each create reaches the watches of its node; they are not read meanwhile.
pub(super) async fn node_watches(
    service: Router,
    watches: usize,
    nodes: usize,
    owner: &Owner,
    measure: Duration,
) -> Result<NodeWatches, BenchError> {
    let before = rss_mib();
    let mut open = Vec::with_capacity(watches);
    for number in 0..watches {
        let node = format!("node-{:08}", number % nodes.max(1));
        open.push(watch_node(&service, &node).await?);
    }
    let mib = rss_mib() - before;
    let event_p99_ms = node_event_p99_ms(&service, owner).await?;
    let on = |node| Template::pod("on-node", &format!("node-{node:08}"), owner);
    let templates: Arc<[Template]> = (0..nodes.max(1)).map(on).collect();
    let creates = measure_throughput(1, measure, move |_, number| {
        let (service, templates) = (service.clone(), Arc::clone(&templates));
        async move {
            let body = templates[number % templates.len()].render(number, 0);
            post(&service, PODS, body).await
        }
    })
    .await?;
    drop(open);
    Ok(NodeWatches {
        creates,
        mib,
        event_p99_ms,
    })
}

/// Measures creates per second of `writers` tasks in process.
pub(super) async fn creates_in_process(
    service: Router,
    writers: usize,
    owner: &Owner,
    measure: Duration,
) -> Result<Throughput, BenchError> {
    let template = Template::pod(&format!("in-process-{writers}"), "", owner);
    measure_throughput(writers, measure, move |_, number| {
        let (service, body) = (service.clone(), template.render(number, 0));
        async move { post(&service, PODS, body).await }
    })
    .await
}

/// Measures dry-run creates per second of one task in process.
pub(super) async fn dry_creates(
    service: Router,
    owner: &Owner,
    measure: Duration,
) -> Result<Throughput, BenchError> {
    let template = Template::pod("dry", "", owner);
    measure_throughput(1, measure, move |_, number| {
        let (service, body) = (service.clone(), template.render(number, 0));
        async move { post(&service, DRY, body).await }
    })
    .await
}

/// Measures creates per second over TLS.
pub(super) async fn http_creates(
    client: &LoadClient,
    measure: Duration,
) -> Result<Throughput, BenchError> {
    let connections = connect(client).await?;
    let template = Template::pod("http", "", &client.owner);
    measure_throughput(
        client.connections * client.streams,
        measure,
        move |task, number| {
            let mut connection = connections[task % connections.len()].clone();
            let body = template.render(number, 0);
            async move {
                connection
                    .call(Method::POST, PODS, body, StatusCode::CREATED)
                    .await
                    .map(drop)
            }
        },
    )
    .await
}

/// Makes the objects that [`http_gets`] reads.
pub(super) async fn prepare_gets(service: &Router, owner: &Owner) -> Result<(), BenchError> {
    let template = Template::pod("read", "", owner);
    for number in 0..READ {
        post(service, PODS, template.render(number, 0)).await?;
    }
    Ok(())
}

/// Measures reads of single objects per second over TLS.
pub(super) async fn http_gets(
    client: &LoadClient,
    measure: Duration,
) -> Result<Throughput, BenchError> {
    let connections = connect(client).await?;
    measure_throughput(
        client.connections * client.streams,
        measure,
        move |task, number| {
            let mut connection = connections[task % connections.len()].clone();
            let path = format!("{PODS}/read-{:08}", number % READ);
            async move {
                connection
                    .call(Method::GET, &path, Bytes::new(), StatusCode::OK)
                    .await
                    .map(drop)
            }
        },
    )
    .await
}

async fn connect(client: &LoadClient) -> Result<Vec<Connection>, BenchError> {
    let mut connections = Vec::with_capacity(client.connections);
    for _ in 0..client.connections {
        connections.push(Connection::open(&client.tls, client.address).await?);
    }
    Ok(connections)
}

/// Measures how often per second `tasks` tasks, each with one request at a time, complete `request`.
async fn measure_throughput<F, R>(
    tasks: usize,
    measure: Duration,
    request: F,
) -> Result<Throughput, BenchError>
where
    F: Fn(usize, usize) -> R + Clone + Send + 'static,
    R: Future<Output = Result<(), BenchError>> + Send,
{
    let next = Arc::new(AtomicUsize::new(0));
    let began = Instant::now();
    let cpu = cpu_time();
    let mut running: JoinSet<Result<(), BenchError>> = JoinSet::new();
    for task in 0..tasks {
        let (next, request) = (Arc::clone(&next), request.clone());
        running.spawn(async move {
            while began.elapsed() < measure {
                request(task, next.fetch_add(1, Ordering::Relaxed)).await?;
            }
            Ok(())
        });
    }
    while let Some(ended) = running.join_next().await {
        ended.map_err(|error| BenchError::request("load", error))??;
    }
    let done = next.load(Ordering::Relaxed) as f64;
    let cpu = cpu_time().saturating_sub(cpu);
    Ok(Throughput {
        per_s: done / began.elapsed().as_secs_f64(),
        cpu_us: cpu.as_secs_f64() * 1e6 / done.max(1.0),
    })
}

/// Writes `rate` objects per second over one connection, and measures over another one how long
/// after sending each write its event arrives.
pub(super) async fn watch_delivery(
    client: &LoadClient,
    rate: u32,
    measure: Duration,
) -> Result<WatchFigures, BenchError> {
    let origin = Instant::now();
    let path = "/api/v1/pods?watch=1&timeoutSeconds=3600&resourceVersion=";
    let mut watching = Connection::open(&client.tls, client.address).await?;
    let listed = watching
        .call(
            Method::GET,
            &format!("{PODS}?limit=1"),
            Bytes::new(),
            StatusCode::OK,
        )
        .await?;
    let list: serde_json::Value = serde_json::from_slice(&listed).unwrap_or_default();
    let from = list["metadata"]["resourceVersion"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let watch = watching
        .send(
            Method::GET,
            &format!("{path}{from}"),
            Bytes::new(),
            StatusCode::OK,
        )
        .await?;
    let writes = (f64::from(rate) * measure.as_secs_f64()) as usize;
    let reader = tokio::spawn(async move {
        let mut body = watch.into_body();
        let mut latencies = Vec::with_capacity(writes);
        let mut text = Vec::new();
        while latencies.len() < writes {
            let Some(Ok(frame)) = body.frame().await else {
                break;
            };
            let now = origin.elapsed().as_nanos();
            let Ok(data) = frame.into_data() else {
                continue;
            };
            text.extend_from_slice(&data);
            let mut rest = text.as_slice();
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                if let Some(sent) = parse_stamp(&rest[..end]) {
                    latencies.push(now.saturating_sub(sent));
                }
                rest = &rest[end + 1..];
            }
            text = rest.to_vec();
        }
        latencies
    });

    let writing = Connection::open(&client.tls, client.address).await?;
    let template = Template::pod("watched", "", &client.owner);
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / rate.max(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut writers = JoinSet::new();
    let began = Instant::now();
    for number in 0..writes {
        ticks.tick().await;
        let body = template.render(number, origin.elapsed().as_nanos());
        let mut connection = writing.clone();
        writers.spawn(async move {
            connection
                .call(Method::POST, PODS, body, StatusCode::CREATED)
                .await
                .map(drop)
        });
    }
    while let Some(ended) = writers.join_next().await {
        ended.map_err(|error| BenchError::request("load", error))??;
    }
    let achieved_per_s = writes as f64 / began.elapsed().as_secs_f64();
    let mut latencies = tokio::time::timeout(Duration::from_secs(10), reader)
        .await
        .map_err(|_| BenchError::request("watch", "not all events arrived within 10 s"))?
        .map_err(|error| BenchError::request("watch", error))?;
    latencies.sort_unstable();
    let at = |percent| {
        let nanos = percentile(&latencies, percent);
        nanos.map_or(0.0, |nanos| millis(Duration::from_nanos(nanos as u64)))
    };
    Ok(WatchFigures {
        rate_per_s: rate,
        achieved_per_s,
        events: latencies.len(),
        p50_ms: at(50),
        p99_ms: at(99),
        max_ms: at(100),
    })
}

/// Parses the time in an event of a pod that [`watch_delivery`] wrote.
fn parse_stamp(line: &[u8]) -> Option<u128> {
    let marker = br#""bench/stamp":""#;
    let at = line
        .windows(marker.len())
        .position(|window| window == marker)?
        + marker.len();
    std::str::from_utf8(line.get(at..at + STAMP.len())?)
        .ok()?
        .parse()
        .ok()
}
