//! Cost of authorization per request.

use super::load::{self, LoadClient, Owner, Throughput};
use super::{
    AuthorizationFigures, BenchError, BenchOptions, GROUP, USER, bind_user, config, serve,
};
use koord_apiserver::authz::{AUTHENTICATED, Attributes, ResourceTarget, Target, User};
use koord_apiserver::{ApiServer, Authorization, Storage};
use koord_app::Clock;
use serde_json::json;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Number of measurements of each of the two servers, which take turns.
const ROUNDS: u32 = 10;
/// Bindings of others in the server.
const OTHERS: usize = 500;
/// Decisions of the measurement without HTTP.
const DECISIONS: u32 = 200_000;

impl AuthorizationFigures {
    /// Returns the CPU time that authorization adds to a read, in percent.
    pub(super) fn percent(&self) -> f64 {
        (self.rbac_get_cpu_us / self.allowed_get_cpu_us - 1.0) * 100.0
    }
}

/// A server with the client that reads from it.
struct ServedApi {
    server: Arc<ApiServer>,
    client: LoadClient,
    stop: CancellationToken,
    serving: JoinHandle<Result<(), koord_apiserver::Error>>,
}

/// Starts a server with this authorization and many bindings of other users.
async fn start(
    mode: Authorization,
    options: &BenchOptions,
    clock: &Clock,
) -> Result<ServedApi, BenchError> {
    let mut config = config(Storage::Memory, clock);
    config.authorization = mode;
    let server = ApiServer::open(config).await?;
    bind_user(&server).await?;
    let path = format!("/apis/{GROUP}/v1/namespaces/default/rolebindings");
    for number in 0..OTHERS {
        let binding = json!({
            "metadata": {"name": format!("other-{number}")},
            "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": "view"},
            "subjects": [{"kind": "User", "apiGroup": GROUP, "name": format!("other-{number}")}],
        });
        load::post(&server.service(), &path, binding.to_string().into()).await?;
    }
    let owner = Owner::create(server.service()).await?;
    load::prepare_gets(&server.service(), &owner).await?;
    let (address, stop, serving) = serve(&server).await?;
    let client = LoadClient::new(&server, address, options, owner)?;
    Ok(ServedApi {
        server,
        client,
        stop,
        serving,
    })
}

/// Measures reads in turns from a server where roles decide and from one where everything is allowed.
pub(super) async fn measure(
    options: &BenchOptions,
    clock: &Clock,
) -> Result<AuthorizationFigures, BenchError> {
    let modes = [Authorization::AlwaysAllow, Authorization::Rbac];
    let mut servers = Vec::new();
    for mode in modes {
        servers.push(start(mode, options, clock).await?);
    }
    let mut sums = [Throughput {
        per_s: 0.0,
        cpu_us: 0.0,
    }; 2];
    // The first turn of each warms it up.
    for round in 0..=ROUNDS {
        for (served, sum) in servers.iter().zip(&mut sums) {
            let throughput = load::http_gets(&served.client, options.measure / ROUNDS).await?;
            if round > 0 {
                sum.per_s += throughput.per_s / f64::from(ROUNDS);
                sum.cpu_us += throughput.cpu_us / f64::from(ROUNDS);
            }
        }
    }
    let decision_ns = servers
        .last()
        .map_or(0.0, |served| decision_ns(&served.server));
    for served in servers {
        served.stop.cancel();
        if let Ok(result) = served.serving.await {
            result?;
        }
        served.server.close().await;
    }
    let [allowed, rbac] = sums;
    Ok(AuthorizationFigures {
        allowed_get_cpu_us: allowed.cpu_us,
        rbac_get_cpu_us: rbac.cpu_us,
        allowed_gets_per_s: allowed.per_s,
        rbac_gets_per_s: rbac.per_s,
        decision_ns,
        other_bindings: OTHERS,
    })
}

/// Returns the mean time of one decision, in nanoseconds.
fn decision_ns(server: &ApiServer) -> f64 {
    let user = User::new(USER, [AUTHENTICATED]);
    let target = Target::Resource(ResourceTarget {
        resource: "pods",
        namespace: "default",
        name: "read-00000000",
        ..ResourceTarget::default()
    });
    let verb = "get";
    let attributes = Attributes { verb, target };
    let began = Instant::now();
    for _ in 0..DECISIONS {
        let _ = black_box(
            server
                .api()
                .guard()
                .authorize(&user, black_box(&attributes)),
        );
    }
    began.elapsed().as_secs_f64() * 1e9 / f64::from(DECISIONS)
}
