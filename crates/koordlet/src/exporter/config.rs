//! The kubelet's topology alignment, read from its `/configz` endpoint or its configuration file.

use crate::states::NodeInfo;
use crate::states::kubelet::{Config, Kubelet, TOKEN, url_of};
use k8s_openapi::api::core::v1::Node;
use koord_api::Quantity;
use koord_kube::endpoint::{self, Trust};
use koord_kube::failure_log::causes;
use koord_kube::{Api, Client};
use koord_model::alignment::{Policy, Scope};
use koord_model::export::Reserved;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Maximum time for a response of the kubelet.
const KUBELET_TIMEOUT: Duration = Duration::from_secs(10);

/// Source of the kubelet's configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigSource {
    /// A file with a KubeletConfiguration, as YAML or JSON.
    File(PathBuf),
    /// The kubelet's `/configz`, at the address in its Node.
    Node(Kubelet),
    /// A given URL of the kubelet.
    Kubelet {
        /// Scheme, host and port.
        server: String,
        /// URL path, such as `/configz`.
        path: String,
        /// File with a token that the kubelet accepts.
        token: Option<PathBuf>,
        /// Verification of the kubelet's certificate.
        trust: Trust,
    },
}

impl ConfigSource {
    /// Parses `file:///path` or `https://host:10250/configz`.
    ///
    /// # Errors
    /// Describes why the text is invalid.
    pub fn parse(text: &str, token: Option<PathBuf>, trust: Trust) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("file://") {
            let path = Path::new(path);
            return match path.is_absolute() {
                true => Ok(Self::File(path.to_owned())),
                false => Err(format!(
                    "{text:?} is not an absolute path such as file:///path"
                )),
            };
        }
        let wrong = || format!("{text:?} is neither file:///path nor https://host:port/configz");
        let uri: http::Uri = text.parse().map_err(|_| wrong())?;
        match (uri.scheme_str(), uri.authority()) {
            (Some(scheme @ ("https" | "http")), Some(authority)) => Ok(Self::Kubelet {
                server: format!("{scheme}://{authority}"),
                path: uri.path().to_owned(),
                token,
                trust,
            }),
            _ => Err(wrong()),
        }
    }

    /// Reads the policy and the scope of the kubelet's topology manager, and its reserved resources.
    ///
    /// # Errors
    /// Fails if the configuration cannot be read or has values that no kubelet accepts.
    pub async fn read(&self, api: &Client, node: &str) -> Result<Alignment, String> {
        match self {
            Self::Node(kubelet) => {
                let api: Api<Node> = Api::all(api.clone());
                let response = api.get(node).await;
                let response = response.map_err(|error| format!("Node {node}: {error}"))?;
                let server =
                    url_of(kubelet, &NodeInfo::from_node(&response)).map_err(|e| e.to_string())?;
                let token = Some(Path::new(TOKEN)).filter(|path| path.exists());
                configz(&server, "/configz", token, &kubelet.trust).await
            }
            Self::File(path) => {
                let named = |why: String| format!("{}: {why}", path.display());
                let text = tokio::fs::read_to_string(path).await;
                let text = text.map_err(|error| named(error.to_string()))?;
                let value: Value = serde_saphyr::from_str(&text)
                    .map_err(|error| named(format!("no KubeletConfiguration: {error}")))?;
                if value.get("kind").and_then(Value::as_str) != Some("KubeletConfiguration") {
                    return Err(named("kind is not KubeletConfiguration".to_owned()));
                }
                alignment(&json!({ "kubeletconfig": value }).to_string()).map_err(named)
            }
            Self::Kubelet {
                server,
                path,
                token,
                trust,
            } => configz(server, path, token.as_deref(), trust).await,
        }
    }
}

/// Reads the configuration of the kubelet at `server`.
async fn configz(
    server: &str,
    path: &str,
    token: Option<&Path>,
    trust: &Trust,
) -> Result<Alignment, String> {
    let named = |why: String| format!("{server}{path}: {why}");
    let client = endpoint::connect(server, trust, token, KUBELET_TIMEOUT);
    let client = client.map_err(|error| named(error.to_string()))?;
    let request = http::Request::get(path).body(Vec::new());
    let request = request.map_err(|error| named(error.to_string()))?;
    let response = tokio::time::timeout(KUBELET_TIMEOUT, client.request_text(request)).await;
    let text = match response {
        Ok(answer) => answer.map_err(|error| named(causes(&error)))?,
        Err(_) => return Err(named(format!("no answer within {KUBELET_TIMEOUT:?}"))),
    };
    alignment(&text).map_err(named)
}

/// The kubelet's alignment of containers to NUMA nodes.
#[derive(Debug, Clone, PartialEq)]
pub struct Alignment {
    /// `topologyManagerPolicy`.
    pub policy: Policy,
    /// `topologyManagerScope`.
    pub scope: Scope,
    /// Resources that the kubelet reserves, and which of its resource managers are enabled.
    pub reserved: Reserved,
}

/// Returns the alignment that a response of `/configz` describes. Default: policy none, scope container.
fn alignment(answer: &str) -> Result<Alignment, String> {
    let (config, malformed) = Config::read(answer).map_err(|error| error.to_string())?;
    // A malformed field must not be treated as an absent one.
    const FIELDS: [&str; 5] = [
        ".topologyManager",
        ".cpuManagerPolicy",
        ".memoryManagerPolicy",
        "eserved",
        ".evictionHard",
    ];
    let mut relevant = malformed
        .iter()
        .filter(|it| FIELDS.iter().any(|name| it.field.contains(name)));
    if let Some(field) = relevant.next() {
        let (name, value, why) = (&field.field, &field.value, &field.error);
        return Err(format!("{name}: {value}: {why}"));
    }
    let policy = match config.topology_policy.as_str() {
        "" => Policy::None,
        text => text
            .parse()
            .map_err(|error| format!("topologyManagerPolicy: {error}"))?,
    };
    let scope = match config.topology_scope.as_str() {
        "" => Scope::Container,
        text => text
            .parse()
            .map_err(|error| format!("topologyManagerScope: {error}"))?,
    };
    let (bytes, memory_percent) = threshold(&config.eviction_memory)?;
    let memory = u64::try_from(config.reserved_memory).unwrap_or(0);
    let reserved = Reserved {
        cpu_manager: config.is_cpu_manager_static(),
        memory_manager: config.is_memory_manager_static(),
        cpus: config.reserved_cpus.iter().collect(),
        milli: config.reserved_milli,
        memory: memory.saturating_add(bytes),
        memory_percent,
    };
    Ok(Alignment {
        policy,
        scope,
        reserved,
    })
}

/// Parses an eviction threshold: bytes, or percent.
fn threshold(text: &str) -> Result<(u64, f64), String> {
    let wrong = || {
        format!(
            "invalid value {text:?} for evictionHard[memory.available]: expected a quantity or a percentage"
        )
    };
    if text.is_empty() {
        return Ok((0, 0.0));
    }
    if let Some(percent) = text.strip_suffix('%') {
        let percent = percent
            .parse::<f64>()
            .ok()
            .filter(|it| (0.0..=100.0).contains(it));
        return Ok((0, percent.ok_or_else(wrong)?));
    }
    let bytes = text.parse::<Quantity>().map_err(|_| wrong())?.value();
    Ok((u64::try_from(bytes).map_err(|_| wrong())?, 0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a client whose API server refuses every request.
    fn refusing_client() -> Client {
        let refused = |_: http::Request<koord_kube::client::Body>| async {
            Err::<http::Response<koord_kube::client::Body>, _>(std::io::Error::other("not asked"))
        };
        koord_kube::client::in_process(tower::service_fn(refused))
    }

    #[test]
    fn both_kinds_of_source_are_understood() {
        let token = Some(PathBuf::from("/t"));
        assert_eq!(
            ConfigSource::parse("https://n1:10250/configz", token.clone(), Trust::Any),
            Ok(ConfigSource::Kubelet {
                server: "https://n1:10250".to_owned(),
                path: "/configz".to_owned(),
                token,
                trust: Trust::Any,
            })
        );
        assert_eq!(
            ConfigSource::parse("file:///var/lib/kubelet/config.yaml", None, Trust::Any),
            Ok(ConfigSource::File("/var/lib/kubelet/config.yaml".into()))
        );
        for text in [
            "",
            "file://config",
            "n1:10250",
            "ftp://n1/configz",
            "/configz",
        ] {
            let error = ConfigSource::parse(text, None, Trust::Any).unwrap_err();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }

    #[tokio::test]
    async fn read_file_returns_alignment() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.yaml");
        let read = async |text: &str| {
            std::fs::write(&path, text).unwrap();
            let read = ConfigSource::File(path.clone())
                .read(&refusing_client(), "n")
                .await;
            read.map(|read| (read.policy, read.scope))
        };
        let kind = "kind: KubeletConfiguration\n";
        assert_eq!(read(kind).await, Ok((Policy::None, Scope::Container)));
        let text = "topologyManagerPolicy: single-numa-node\ntopologyManagerScope: pod\n";
        assert_eq!(
            read(&format!("{kind}{text}")).await,
            Ok((Policy::SingleNumaNode, Scope::Pod))
        );
        for (text, part) in [
            ("kind: Pod", "kind is not KubeletConfiguration"),
            ("- 1", "kind is not"),
            ("{", "no KubeletConfiguration"),
            (
                "kind: KubeletConfiguration\ntopologyManagerPolicy: strict",
                "topologyManagerPolicy: \"strict\"",
            ),
            (
                "kind: KubeletConfiguration\ntopologyManagerScope: {a: 1}",
                "topologyManagerScope",
            ),
        ] {
            let error = read(text).await.unwrap_err();
            assert!(
                error.contains(part) && error.contains("config.yaml"),
                "{error}"
            );
        }
        // The default of the kubelet, a share, and none; of both lists of reserved amounts.
        for (text, memory, percent) in [
            ("", 100 << 20, 0.0),
            ("evictionHard: {memory.available: 5%}", 0, 5.0),
            ("evictionHard: {nodefs.available: 5%}", 0, 0.0),
            (
                "kubeReserved: {memory: 1Gi}\nsystemReserved: {memory: 1Gi}",
                (2 << 30) + (100 << 20),
                0.0,
            ),
        ] {
            std::fs::write(&path, format!("{kind}{text}")).unwrap();
            let read = ConfigSource::File(path.clone())
                .read(&refusing_client(), "n")
                .await;
            let reserved = read.unwrap().reserved;
            assert_eq!(
                (reserved.memory, reserved.memory_percent),
                (memory, percent),
                "{text}"
            );
            assert!(!reserved.cpu_manager && !reserved.memory_manager);
        }
        let error = read(&format!("{kind}evictionHard: {{memory.available: much}}")).await;
        assert!(error.unwrap_err().contains("invalid value \"much\""));
        let missing = ConfigSource::File("/nonexistent/config.yaml".into());
        let error = missing.read(&refusing_client(), "n").await.unwrap_err();
        assert!(error.contains("/nonexistent"), "{error}");
    }
}
