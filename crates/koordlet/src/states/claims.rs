//! Persistent volumes that the claims of pods are bound to.
//!
//! They are needed only for block I/O settings of pods, and only for the volumes that these name. Such claims
//! are looked up one by one until they are bound, which never changes afterwards.

use super::States;
use super::pod::{PodInfo, VolumeSource};
use crate::log_on_change::LogOnChange;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use koord_kube::{Api, Client, patch};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Interval between two rounds.
const INTERVAL: Duration = Duration::from_secs(5);
/// Timeout of one look-up.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(3);

/// Claims by namespace and name, with their volume; `None` for an unbound claim.
pub type Claims = BTreeMap<(String, String), Option<String>>;

/// Updates `states.claims` until `shutdown`.
pub(crate) async fn follow(states: Arc<States>, client: Client, shutdown: CancellationToken) {
    let mut log = LogOnChange::default();
    let rounds = async {
        loop {
            update_claims(&states, &client, &mut log).await;
            sleep(INTERVAL).await;
        }
    };
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = rounds => {}
    }
}

/// Looks up claims that are needed and not bound yet. Claims whose look-up fails are left out.
async fn update_claims(states: &States, client: &Client, log: &mut LogOnChange) {
    let pods = states.pods.load_full();
    let last = states.claims.load_full();
    let mut claims = Claims::new();
    let mut failed = None;
    for key in pods
        .iter()
        .flat_map(|pods| pods.iter())
        .flat_map(volume_claims)
    {
        if claims.contains_key(&key) {
            continue;
        }
        if let Some(bound @ Some(_)) = last.get(&key) {
            claims.insert(key, bound.clone());
            continue;
        }
        let api: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &key.0);
        let volume = match timeout(LOOKUP_TIMEOUT, api.get(&key.1)).await {
            Ok(Ok(claim)) => claim.spec.and_then(|spec| spec.volume_name),
            Ok(Err(error)) if patch::is_not_found(&error) => None,
            Ok(Err(error)) => {
                failed = Some(format!("claim {}/{}: {error}", key.0, key.1));
                continue;
            }
            Err(_) => {
                failed = Some(format!("claim {}/{}: no answer in time", key.0, key.1));
                continue;
            }
        };
        claims.insert(key, volume.filter(|volume| !volume.is_empty()));
    }
    match failed {
        Some(error) => log.log_failure("claims", &error),
        None => log.clear("claims"),
    }
    if *last != claims {
        states.claims.store(Arc::new(claims));
    }
}

/// Returns the claims that the pod's block I/O settings refer to.
fn volume_claims(pod: &PodInfo) -> impl Iterator<Item = (String, String)> {
    let sources = pod.settings().volumes.values();
    sources.filter_map(|source| match source {
        VolumeSource::Claim(name) => Some((pod.namespace.clone(), name.clone())),
        VolumeSource::Csi => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::states::{Driver, Layout};
    use k8s_openapi::api::core::v1::Pod;
    use koord_apiserver::{ApiServer, Config};
    use koord_app::Clock;
    use koord_host::CgroupPath;
    use koord_kube::api::PostParams;
    use serde_json::{Value, json};

    fn pods(states: &States, claims: &[&str]) {
        let volume =
            |name: &&str| json!({"name": name, "persistentVolumeClaim": {"claimName": name}});
        let block = |name: &&str| json!({"name": name, "type": "podvolume"});
        let volumes: Vec<Value> = claims.iter().map(volume).collect();
        let blocks: Vec<Value> = claims.iter().map(block).collect();
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"uid": "u", "name": "p", "namespace": "default",
                "annotations": {"koordinator.sh/blkioQOS": json!({"blocks": blocks}).to_string()}},
            "spec": {"containers": [], "volumes": volumes}}))
        .unwrap();
        let layout = Layout::new(Driver::Cgroupfs, CgroupPath::root());
        states.publish_pods([pod].iter(), &layout);
    }

    #[tokio::test]
    async fn claims_are_looked_up_until_they_are_bound() {
        let clock = Clock::following_tokio("2026-01-01T00:00:00Z".parse().unwrap());
        let server = ApiServer::open(Config::memory(clock)).await.unwrap();
        let client = koord_kube::client::in_process(server.service());
        let api: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), "default");
        let claim = |name: &str, volume: Option<&str>| {
            let spec = json!({"accessModes": ["ReadWriteOnce"], "volumeName": volume,
                "resources": {"requests": {"storage": "1Gi"}}});
            let claim = json!({"metadata": {"name": name}, "spec": spec});
            serde_json::from_value::<PersistentVolumeClaim>(claim).unwrap()
        };
        let create = |name: &'static str, volume: Option<&'static str>| {
            let api = api.clone();
            async move {
                let created = api
                    .create(&PostParams::default(), &claim(name, volume))
                    .await;
                created.unwrap();
            }
        };
        create("a", Some("pv-1")).await;
        create("b", None).await;
        let states = States::default();
        let mut log = LogOnChange::default();
        pods(&states, &["a", "b", "c"]);
        update_claims(&states, &client, &mut log).await;
        let claims = |states: &States| -> Vec<(String, Option<String>)> {
            let claims = states.claims.load_full();
            let each = claims
                .iter()
                .map(|((_, name), volume)| (name.clone(), volume.clone()));
            each.collect()
        };
        let bound = |name: &str, volume: Option<&str>| (name.to_owned(), volume.map(str::to_owned));
        let none = [bound("a", Some("pv-1")), bound("b", None), bound("c", None)];
        assert_eq!(claims(&states), none);
        create("c", Some("pv-3")).await;
        update_claims(&states, &client, &mut log).await;
        let all = [
            bound("a", Some("pv-1")),
            bound("b", None),
            bound("c", Some("pv-3")),
        ];
        assert_eq!(claims(&states), all);
        // The claims are not used any more.
        pods(&states, &["a"]);
        update_claims(&states, &client, &mut log).await;
        assert_eq!(claims(&states), all[..1]);
        assert_eq!(log.text("claims"), None);
    }
}
