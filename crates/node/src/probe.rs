//! Probes of containers: their checks, and the meaning of the results.
//!
//! A container with a startup probe has not started until that succeeds, and until then no other probe runs.
//! A container with a readiness probe is not ready until that succeeds. Failing liveness, or startup, ends
//! the container; its restart policy decides what follows.

use crate::container_registry::RunningContainer;
use crate::exec;
use k8s_openapi::api::core::v1::{Container, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// Maximum bytes of an answer that are read and reported.
const SHOWN: usize = 10 << 10;

/// Kind of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "Kubernetes' own names")]
pub enum ProbeKind {
    Startup,
    Liveness,
    Readiness,
}

impl fmt::Display for ProbeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Startup => "startup",
            Self::Liveness => "liveness",
            Self::Readiness => "readiness",
        })
    }
}

/// Check that a probe runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// A command in the container; exit code 0 is success.
    Exec(Vec<String>),
    /// An HTTP GET; a status from 200 to 399 is success.
    Http {
        /// `HOST:PORT`.
        address: String,
        /// The `Host` header.
        host: String,
        /// Path and query.
        path: String,
        /// Further headers.
        headers: Vec<(String, String)>,
    },
    /// A TCP connection; an accepted one is success.
    Tcp(String),
}

/// A probe, with Kubernetes' defaults filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// Kind of the probe.
    pub kind: ProbeKind,
    /// Check that it runs.
    pub action: Action,
    /// Delay after the container's start.
    pub delay: Duration,
    /// Time between two checks.
    pub period: Duration,
    /// Timeout of one check.
    pub timeout: Duration,
    /// Number of consecutive successes that count as success.
    pub success: u32,
    /// Number of consecutive failures that count as failure.
    pub failure: u32,
    /// Time between SIGTERM and SIGKILL when the probe ends the container; the pod's when `None`.
    pub grace: Option<Duration>,
}

/// Returns the probes of a container, and a message for each that cannot be run. `ip` is the pod's address.
#[must_use]
pub fn specs(container: &Container, ip: &str) -> (Vec<Spec>, Vec<String>) {
    let probes = [
        (ProbeKind::Startup, &container.startup_probe),
        (ProbeKind::Liveness, &container.liveness_probe),
        (ProbeKind::Readiness, &container.readiness_probe),
    ];
    let (mut specs, mut refused) = (Vec::new(), Vec::new());
    for (kind, probe) in probes {
        let Some(probe) = probe else { continue };
        match spec(kind, probe, container, ip) {
            Ok(spec) => specs.push(spec),
            Err(error) => refused.push(format!("{kind} probe is not run: {error}")),
        }
    }
    (specs, refused)
}

/// Converts a probe of a container, with Kubernetes' defaults for values that are not set or not positive. `ip` is
/// the pod's address.
///
/// # Errors
/// Describes an action that this node cannot run.
fn spec(kind: ProbeKind, probe: &Probe, container: &Container, ip: &str) -> Result<Spec, String> {
    let seconds = |value: Option<i32>, default: u64| {
        let seconds = value.and_then(|value| u64::try_from(value).ok());
        Duration::from_secs(seconds.filter(|value| *value > 0).unwrap_or(default))
    };
    let times = |value: Option<i32>, default: u32| {
        let times = value.and_then(|value| u32::try_from(value).ok());
        times.filter(|value| *value > 0).unwrap_or(default)
    };
    let grace = probe.termination_grace_period_seconds;
    Ok(Spec {
        kind,
        action: action(probe, container, ip)?,
        delay: seconds(probe.initial_delay_seconds, 0),
        period: seconds(probe.period_seconds, 10),
        timeout: seconds(probe.timeout_seconds, 1),
        success: times(probe.success_threshold, 1),
        failure: times(probe.failure_threshold, 3),
        grace: grace
            .and_then(|s| u64::try_from(s).ok())
            .map(Duration::from_secs),
    })
}

/// Returns the check of a probe; the error is a sentence that names the field.
fn action(probe: &Probe, container: &Container, ip: &str) -> Result<Action, String> {
    if let Some(exec) = &probe.exec {
        let command = exec.command.clone().unwrap_or_default();
        return match command.is_empty() {
            true => Err("exec.command: is empty".to_owned()),
            false => Ok(Action::Exec(command)),
        };
    }
    if let Some(http) = &probe.http_get {
        if let Some(scheme @ "HTTPS") = http.scheme.as_deref() {
            return Err(format!("httpGet.scheme: {scheme:?} is not supported here"));
        }
        let host = http.host.as_deref().filter(|host| !host.is_empty());
        let address = address(host, ip, &http.port, container)
            .map_err(|error| format!("httpGet.port: {error}"))?;
        let path = http.path.as_deref().unwrap_or_default();
        let slash = if path.starts_with('/') { "" } else { "/" };
        let path = format!("{slash}{path}");
        let headers: Vec<(String, String)> = http
            .http_headers
            .iter()
            .flatten()
            .map(|header| (header.name.clone(), header.value.clone()))
            .collect();
        let texts = headers.iter().flat_map(|(name, value)| [name, value]);
        if texts.chain([&path]).any(|text| text.contains(['\r', '\n'])) {
            return Err("httpGet: a line break in path or headers".to_owned());
        }
        let (named, headers): (Vec<_>, Vec<_>) = headers
            .into_iter()
            .partition(|(name, _)| name.eq_ignore_ascii_case("host"));
        let named = named.into_iter().next().map(|(_, value)| value);
        return Ok(Action::Http {
            host: named.unwrap_or_else(|| address.clone()),
            address,
            path,
            headers,
        });
    }
    if let Some(tcp) = &probe.tcp_socket {
        let host = tcp.host.as_deref().filter(|host| !host.is_empty());
        let address = address(host, ip, &tcp.port, container);
        return Ok(Action::Tcp(
            address.map_err(|error| format!("tcpSocket.port: {error}"))?,
        ));
    }
    if probe.grpc.is_some() {
        return Err("grpc is not supported here".to_owned());
    }
    Err("it asks for nothing".to_owned())
}

/// Returns `HOST:PORT`, with a named port looked up in the container.
fn address(
    host: Option<&str>,
    ip: &str,
    port: &IntOrString,
    container: &Container,
) -> Result<String, String> {
    let number = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => match name.parse() {
            Ok(number) => number,
            Err(_) => container
                .ports
                .iter()
                .flatten()
                .find(|port| port.name.as_deref() == Some(name))
                .map(|port| port.container_port)
                .ok_or_else(|| format!("no port of the container is called {name:?}"))?,
        },
    };
    let port = u16::try_from(number).ok().filter(|port| *port > 0);
    let port = port.ok_or_else(|| format!("{number} is not a port"))?;
    let host = host.unwrap_or(ip);
    Ok(match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    })
}

/// Number of consecutive equal results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ResultStreak {
    good: bool,
    length: u32,
}

impl ResultStreak {
    /// Records a result. Returns it once the last results, as many as the threshold of `spec`, are equal; `None`
    /// before.
    pub fn record(&mut self, good: bool, spec: &Spec) -> Option<bool> {
        if self.good != good {
            self.length = 0;
        }
        self.good = good;
        self.length = self.length.saturating_add(1);
        let enough = if good { spec.success } else { spec.failure };
        (self.length >= enough).then_some(good)
    }
}

/// A result of a container's probes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ProbeResult {
    /// The startup probe has succeeded.
    Started,
    /// The container is ready, or no longer.
    Ready(bool),
    /// A single check failed.
    Unhealthy(ProbeKind, String),
    /// The container must be ended, with this grace period if it differs from the pod's.
    Dead(ProbeKind, Option<Duration>),
}

/// Runs the probes of one start of a container and sends the results with the container's id to `to`, until
/// that is closed.
pub(crate) async fn watch(
    live: Arc<dyn RunningContainer>,
    specs: Vec<Spec>,
    to: mpsc::UnboundedSender<(String, ProbeResult)>,
) {
    let begun = Instant::now();
    let prober = Prober { live, to };
    let (startup, others): (Vec<_>, Vec<_>) = specs
        .into_iter()
        .partition(|spec| spec.kind == ProbeKind::Startup);
    for spec in startup {
        if !prober.wait_for_startup(&spec, begun).await {
            return;
        }
    }
    let loops = others
        .iter()
        .map(|spec| prober.run_periodically(spec, begun));
    futures::future::join_all(loops).await;
}

struct Prober {
    live: Arc<dyn RunningContainer>,
    to: mpsc::UnboundedSender<(String, ProbeResult)>,
}

impl Prober {
    /// Sends a result. Returns false if the receiver is closed.
    fn send(&self, result: ProbeResult) -> bool {
        self.to.send((self.live.id().to_owned(), result)).is_ok()
    }

    async fn wait_for_startup(&self, spec: &Spec, begun: Instant) -> bool {
        let mut streak = ResultStreak::default();
        sleep_until(begun + spec.delay).await;
        loop {
            match self.check(spec, &mut streak).await {
                Some(true) => return self.send(ProbeResult::Started),
                Some(false) => {
                    self.send(ProbeResult::Dead(spec.kind, spec.grace));
                    return false;
                }
                None if self.to.is_closed() => return false,
                None => sleep(spec.period).await,
            }
        }
    }

    async fn run_periodically(&self, spec: &Spec, begun: Instant) {
        let mut streak = ResultStreak::default();
        let mut was = None;
        sleep_until(begun + spec.delay).await;
        while !self.to.is_closed() {
            let now = self.check(spec, &mut streak).await;
            if spec.kind == ProbeKind::Liveness && now == Some(false) {
                self.send(ProbeResult::Dead(spec.kind, spec.grace));
                return;
            }
            if spec.kind == ProbeKind::Readiness && now.is_some() && now != was {
                was = now;
                self.send(ProbeResult::Ready(now == Some(true)));
            }
            sleep(spec.period).await;
        }
    }

    /// Runs one check and counts its result in `streak`. Returns the result of the streak when it is long
    /// enough.
    async fn check(&self, spec: &Spec, streak: &mut ResultStreak) -> Option<bool> {
        let answer = match &spec.action {
            Action::Exec(command) => self.exec(command, spec.timeout).await,
            Action::Tcp(address) => {
                match timeout(spec.timeout, TcpStream::connect(address)).await {
                    Ok(Ok(_)) => Ok(()),
                    Ok(Err(error)) => Err(format!("dial tcp {address}: {error}")),
                    Err(_) => Err(format!("dial tcp {address}: timed out")),
                }
            }
            Action::Http {
                address,
                host,
                path,
                headers,
            } => match timeout(spec.timeout, get(address, host, path, headers)).await {
                Ok(answer) => answer,
                Err(_) => Err(format!("Get \"http://{address}{path}\": timed out")),
            },
        };
        let good = answer.is_ok();
        if let Err(error) = answer {
            self.send(ProbeResult::Unhealthy(spec.kind, error));
        }
        streak.record(good, spec)
    }

    async fn exec(&self, command: &[String], time: Duration) -> Result<(), String> {
        let result = exec::run(&*self.live, command.to_vec(), time, SHOWN).await?;
        match result {
            Some((0, _)) => Ok(()),
            Some((code, output)) if output.trim().is_empty() => Err(format!("exit code {code}")),
            Some((_, output)) => Err(output.trim().to_owned()),
            None => Err(format!("command {command:?} timed out after {time:?}")),
        }
    }
}

/// Sends one HTTP GET and checks only the status of the response.
async fn get(
    address: &str,
    host: &str,
    path: &str,
    headers: &[(String, String)],
) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("Get \"http://{address}{path}\": {error}");
    let mut stream = TcpStream::connect(address).await.map_err(failed)?;
    let mut request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n");
    let agent = ("User-Agent".to_owned(), "kube-probe/1.35".to_owned());
    let defaults = [agent, ("Accept".to_owned(), "*/*".to_owned())];
    let is_set = |name: &str| {
        headers
            .iter()
            .any(|(key, _)| key.eq_ignore_ascii_case(name))
    };
    let defaults = defaults.iter().filter(|(name, _)| !is_set(name));
    for (name, value) in defaults.chain(headers) {
        request += &format!("{name}: {value}\r\n");
    }
    request += "\r\n";
    stream.write_all(request.as_bytes()).await.map_err(failed)?;
    let mut answer = Vec::new();
    let mut head = stream.take(SHOWN as u64);
    while !answer.contains(&b'\n') && head.read_buf(&mut answer).await.map_err(failed)? > 0 {}
    let line = String::from_utf8_lossy(&answer);
    let code = line.split_ascii_whitespace().nth(1);
    match code.and_then(|code| code.parse::<u16>().ok()) {
        Some(200..400) => Ok(()),
        Some(code) => Err(format!("HTTP probe failed with statuscode: {code}")),
        None => Err(format!(
            "Get \"http://{address}{path}\": not an HTTP answer"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn spec_of(probe: &Value) -> Result<Spec, String> {
        let container = serde_json::from_value(json!({
            "name": "c", "ports": [{"name": "web", "containerPort": 8080}],
            "livenessProbe": probe,
        }))
        .unwrap();
        let (mut specs, mut refused) = specs(&container, "10.0.0.1");
        refused.pop().map_or_else(|| Ok(specs.remove(0)), Err)
    }

    #[test]
    fn defaults_are_those_of_the_api() {
        let spec = spec_of(&json!({"tcpSocket": {"port": 80}})).unwrap();
        let seconds = Duration::from_secs;
        assert_eq!(spec.action, Action::Tcp("10.0.0.1:80".to_owned()));
        assert_eq!(
            (spec.delay, spec.period, spec.timeout),
            (seconds(0), seconds(10), seconds(1))
        );
        assert_eq!((spec.success, spec.failure, spec.grace), (1, 3, None));
        let spec = spec_of(&json!({
            "exec": {"command": ["true"]}, "initialDelaySeconds": 5, "periodSeconds": 2,
            "timeoutSeconds": 3, "failureThreshold": 7, "terminationGracePeriodSeconds": 4,
        }))
        .unwrap();
        assert_eq!(spec.action, Action::Exec(vec!["true".to_owned()]));
        assert_eq!(
            (spec.delay, spec.period, spec.timeout),
            (seconds(5), seconds(2), seconds(3))
        );
        assert_eq!((spec.failure, spec.grace), (7, Some(seconds(4))));
    }

    #[test]
    fn a_get_is_for_the_pod_unless_it_names_a_host() {
        let http = |get: Value| spec_of(&json!({ "httpGet": get })).unwrap().action;
        let expected = |address: &str, host: &str, path: &str| Action::Http {
            address: address.to_owned(),
            host: host.to_owned(),
            path: path.to_owned(),
            headers: Vec::new(),
        };
        let pod_address = "10.0.0.1:8080";
        assert_eq!(
            http(json!({"port": "web"})),
            expected(pod_address, pod_address, "/")
        );
        let get = json!({"port": "8080", "path": "healthz?x", "host": "::1",
            "httpHeaders": [{"name": "host", "value": "a.b"}]});
        assert_eq!(http(get), expected("[::1]:8080", "a.b", "/healthz?x"));
    }

    #[test]
    fn probe_unsupported_is_refused_with_field() {
        for (probe, text) in [
            (
                json!({"httpGet": {"port": "db"}}),
                "httpGet.port: no port of the container is called \"db\"",
            ),
            (
                json!({"tcpSocket": {"port": 70000}}),
                "tcpSocket.port: 70000 is not a port",
            ),
            (
                json!({"httpGet": {"port": 1, "scheme": "HTTPS"}}),
                "httpGet.scheme: \"HTTPS\"",
            ),
            (
                json!({"httpGet": {"port": 1, "path": "/a\nb"}}),
                "a line break",
            ),
            (json!({"grpc": {"port": 1}}), "grpc is not supported"),
            (json!({"exec": {}}), "exec.command: is empty"),
            (json!({}), "asks for nothing"),
        ] {
            let error = spec_of(&probe).unwrap_err();
            assert!(
                error.starts_with("liveness probe is not run: ") && error.contains(text),
                "{error}"
            );
        }
    }

    #[test]
    fn only_answers_in_a_row_count() {
        let mut spec = spec_of(&json!({"tcpSocket": {"port": 80}})).unwrap();
        spec.success = 2;
        let mut streak = ResultStreak::default();
        let answers = [false, false, true, false, false, false, true, true, true];
        let results: Vec<_> = answers
            .iter()
            .map(|good| streak.record(*good, &spec))
            .collect();
        let (bad, good) = (Some(false), Some(true));
        assert_eq!(
            results,
            [None, None, None, None, None, bad, None, good, good]
        );
    }

    #[tokio::test]
    async fn the_status_of_a_get_decides() {
        for (status, good) in [
            ("200 OK", true),
            ("399 ", true),
            ("400 Bad", false),
            ("503 No", false),
        ] {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap().to_string();
            let serve = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = vec![0; 1024];
                let length = stream.read(&mut request).await.unwrap();
                let answer = format!("HTTP/1.1 {status}\r\n\r\n");
                stream.write_all(answer.as_bytes()).await.unwrap();
                String::from_utf8_lossy(&request[..length]).into_owned()
            };
            let headers = [("X-A".to_owned(), "b".to_owned())];
            let (answer, request) = tokio::join!(get(&address, "h", "/p", &headers), serve);
            assert_eq!(answer.is_ok(), good, "{status}: {answer:?}");
            assert!(
                request.starts_with("GET /p HTTP/1.1\r\nHost: h\r\n"),
                "{request}"
            );
            assert!(request.contains("\r\nX-A: b\r\n"), "{request}");
        }
    }
}
