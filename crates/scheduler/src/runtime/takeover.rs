//! The cache of a standby that becomes the leader.
//!
//! A standby has collected all objects, so that it need not list them again. But a watch may be broken or
//! stall unnoticed, and a leader with an outdated view would allocate what is in use already. So after the
//! lease is won, the API server is queried for the versions of all objects until it answers. A cache that is
//! behind waits a little, and then relists.

use koord_kube::api::{ApiResource, DynamicObject, ListParams, PartialObjectMeta};
use koord_kube::{Api, Cacheable, Change, Client, Informer, ObjectKey};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Time during which a new leader only receives events: the last writes of its predecessor arrive meanwhile.
const SETTLE: Duration = Duration::from_millis(500);
/// Maximum time that an outdated watch may take to catch up with the API server.
const CATCH_UP: Duration = Duration::from_secs(2);
/// The timeout for one page of a list.
const ANSWER: Duration = Duration::from_secs(30);
/// The delay before a failed list is retried; doubled each time up to `LONGEST_PAUSE`.
const PAUSE: Duration = Duration::from_millis(500);
/// The longest delay before a failed list is retried.
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// The number of objects in a page.
const PAGE: u32 = 5_000;

/// The versions of all objects of a kind in the API server at the time of a list.
#[derive(Debug, Default)]
pub(super) struct ListSnapshot {
    /// The resource version of the list itself.
    at: String,
    objects: BTreeMap<ObjectKey, String>,
}

/// Lists the versions of all objects of a kind directly from the API server; only the objects' metadata is
/// transferred.
pub(super) async fn listed(
    client: Client,
    kind: ApiResource,
) -> Result<ListSnapshot, koord_kube::Error> {
    let api: Api<DynamicObject> = Api::all_with(client, &kind);
    let mut out = ListSnapshot::default();
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let answer = timeout(ANSWER, api.list_metadata(&page)).await;
        let answer = match answer.map_err(|late| koord_kube::Error::Service(late.into()))? {
            // The kind is not installed, so there are no objects of it.
            Err(koord_kube::Error::Api(status)) if status.code == 404 => return Ok(out),
            answer => answer?,
        };
        out.at = answer.metadata.resource_version.unwrap_or_default();
        for PartialObjectMeta { metadata, .. } in answer.items {
            let name = metadata.name.unwrap_or_default();
            let key = ObjectKey::new(metadata.namespace.unwrap_or_default(), name);
            out.objects
                .insert(key, metadata.resource_version.unwrap_or_default());
        }
        match answer.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = ListParams::default().limit(PAGE).continue_token(&token),
            None => return Ok(out),
        }
    }
}

/// Lists like [`listed`] a kind that the API server may serve in the version `older` only.
pub(super) async fn listed_with_fallback(
    client: Client,
    kind: ApiResource,
    older: ApiResource,
) -> Result<ListSnapshot, koord_kube::Error> {
    let list = listed(client.clone(), kind).await?;
    // Every list of an installed kind has a resource version.
    if list.at.is_empty() {
        return listed(client, older).await;
    }
    Ok(list)
}

/// Lists until it succeeds. Without a list, the age of the cache is unknown: scheduling on it could allocate
/// what the previous leader had allocated already.
async fn answered<F>(listed: impl Fn() -> F) -> ListSnapshot
where
    F: Future<Output = Result<ListSnapshot, koord_kube::Error>>,
{
    let mut pause = PAUSE;
    loop {
        match listed().await {
            Ok(listed) => return listed,
            Err(error) => {
                tracing::warn!(
                    %error,
                    after = ?pause,
                    "failed to list objects for the takeover, retrying; no pod is scheduled before"
                );
            }
        }
        sleep(pause).await;
        pause = LONGEST_PAUSE.min(2 * pause);
    }
}

/// Returns true if `version` is not older than `expected`. Versions of a kind's objects are increasing
/// numbers.
fn reached(version: Option<&str>, expected: &str) -> bool {
    let number = |text: &str| text.parse::<u64>().ok();
    let version = version.unwrap_or_default();
    let numbers = number(version).zip(number(expected));
    version == expected || numbers.is_some_and(|(version, expected)| version >= expected)
}

/// The objects of a kind that a standby has received.
struct StandbyCache<V> {
    objects: BTreeMap<ObjectKey, Arc<V>>,
    /// True if the initial list is complete.
    synced: bool,
    /// Objects that are outdated, with the version to wait for.
    behind: BTreeMap<ObjectKey, String>,
}

impl<V: Cacheable> StandbyCache<V> {
    fn new() -> Self {
        Self {
            objects: BTreeMap::new(),
            synced: false,
            behind: BTreeMap::new(),
        }
    }

    fn take(&mut self, change: Change<V>) {
        match change {
            Change::Applied { new, .. } => {
                let key = new.key();
                self.caught_up(&key, &*new);
                self.objects.insert(key, new);
            }
            Change::Deleted(last) => {
                let key = last.key();
                self.caught_up(&key, &*last);
                self.objects.remove(&key);
            }
            Change::Synced => self.synced = true,
        }
    }

    fn caught_up(&mut self, key: &ObjectKey, object: &V) {
        if let Some(version) = self.behind.get(key)
            && reached(object.resource_version(), version)
        {
            self.behind.remove(key);
        }
    }

    /// Returns true if the objects are at least as new as the list.
    fn is_current(&self) -> bool {
        self.synced && self.behind.is_empty()
    }

    /// Compares the objects with those of the API server.
    fn compare(&mut self, listed: &ListSnapshot) {
        let Self {
            objects, behind, ..
        } = self;
        for (key, version) in &listed.objects {
            let object = objects.get(key);
            if !object.is_some_and(|object| reached(object.resource_version(), version)) {
                behind.insert(key.clone(), version.clone());
            }
        }
        for (key, object) in &*objects {
            // Objects created after the list are not part of it.
            let newer = !reached(
                Some(&listed.at),
                object.resource_version().unwrap_or_default(),
            );
            if !newer && !listed.objects.contains_key(key) {
                behind.insert(key.clone(), listed.at.clone());
            }
        }
    }

    fn into_changes(self) -> Vec<Change<V>> {
        let applied = |new| Change::Applied { old: None, new };
        let changes = self.objects.into_values().map(applied);
        let synced = self.synced.then_some(Change::Synced);
        changes.chain(synced).collect()
    }
}

/// An informer, and whether the API server may lack its kind.
pub(super) struct Feed<V> {
    informer: Informer<V>,
    absence: bool,
}

impl<V: Cacheable> Feed<V> {
    pub(super) fn new(informer: Informer<V>, absence: bool) -> Self {
        Self { informer, absence }
    }

    /// Returns the next change; an absent kind counts as a list without objects.
    pub(super) async fn next(&mut self) -> Option<Change<V>> {
        let Self { informer, absence } = self;
        loop {
            tokio::select! {
                biased;
                change = informer.changes.recv() => return change,
                changed = informer.absent.changed(), if *absence => {
                    *absence = changed.is_ok();
                    if *absence && *informer.absent.borrow_and_update() {
                        return Some(Change::Synced);
                    }
                }
            }
        }
    }

    /// Collects changes until `end`, or until `done` returns true; `None` if the informer ended.
    async fn listen(
        &mut self,
        gathered: &mut StandbyCache<V>,
        end: impl Future<Output = ()>,
        done: impl Fn(&StandbyCache<V>) -> bool,
    ) -> Option<()> {
        tokio::pin!(end);
        while !done(gathered) {
            tokio::select! {
                biased;
                change = self.next() => gathered.take(change?),
                () = &mut end => break,
            }
        }
        Some(())
    }

    /// Collects changes until this replica leads and has what the API server has then; returns the result as
    /// changes. `listed` lists the versions in the API server; `restart` starts a new informer,
    /// which then delivers everything.
    pub(super) async fn gather<F>(
        &mut self,
        leads: CancellationToken,
        listed: impl Fn() -> F,
        restart: impl Fn() -> Informer<V>,
    ) -> Option<Vec<Change<V>>>
    where
        F: Future<Output = Result<ListSnapshot, koord_kube::Error>>,
    {
        let mut gathered = StandbyCache::new();
        let settled = async {
            leads.cancelled().await;
            sleep(SETTLE).await;
        };
        self.listen(&mut gathered, settled, |_| false).await?;
        let listed = answered(listed).await;
        // The initial list has no timeout.
        let never = std::future::pending();
        self.listen(&mut gathered, never, |gathered| gathered.synced)
            .await?;
        gathered.compare(&listed);
        self.listen(&mut gathered, sleep(CATCH_UP), StandbyCache::is_current)
            .await?;
        if gathered.is_current() {
            return Some(gathered.into_changes());
        }
        let behind: Vec<String> = gathered
            .behind
            .keys()
            .take(3)
            .map(ToString::to_string)
            .collect();
        tracing::warn!(
            ?behind,
            "relisting, the watch cache is older than the lease"
        );
        self.informer = restart();
        Some(Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;

    fn object(name: &str, version: u32) -> Arc<ConfigMap> {
        let mut object = ConfigMap::default();
        object.metadata.name = Some(name.to_owned());
        object.metadata.resource_version = Some(version.to_string());
        Arc::new(object)
    }

    fn applied(name: &str, version: u32) -> Change<ConfigMap> {
        let new = object(name, version);
        Change::Applied { old: None, new }
    }

    /// Returns what is still behind after `later`, given the first `changes` and a list of objects at version
    /// 20.
    fn behind(
        changes: Vec<Change<ConfigMap>>,
        listed: &[(&str, u32)],
        later: Vec<Change<ConfigMap>>,
    ) -> Vec<String> {
        let mut gathered = StandbyCache::new();
        changes.into_iter().for_each(|change| gathered.take(change));
        let key = |name: &str| ObjectKey::new("", name);
        let objects = listed
            .iter()
            .map(|(name, version)| (key(name), version.to_string()));
        gathered.compare(&ListSnapshot {
            at: "20".to_owned(),
            objects: objects.collect(),
        });
        later.into_iter().for_each(|change| gathered.take(change));
        gathered.behind.keys().map(ToString::to_string).collect()
    }

    #[test]
    fn outdated_objects_are_behind_until_updated() {
        let none: [&str; 0] = [];
        // As new as the list, newer than it, and compared as numbers rather than strings: "9" is before "10".
        let received = || vec![applied("a", 9), applied("b", 21)];
        assert_eq!(behind(received(), &[("a", 9)], vec![]), none);
        assert_eq!(behind(received(), &[("a", 10)], vec![]), ["a"]);
        assert_eq!(
            behind(received(), &[("a", 10)], vec![applied("a", 10)]),
            none
        );
        // Never received, and deleted without an event.
        assert_eq!(behind(received(), &[("a", 9), ("c", 20)], vec![]), ["c"]);
        assert_eq!(behind(received(), &[], vec![]), ["a"]);
        let end = |version| vec![Change::Deleted(object("a", version))];
        assert_eq!(behind(received(), &[], end(20)), none);
        // The deletion of an earlier object of that name does not count.
        assert_eq!(behind(received(), &[("a", 15)], end(12)), ["a"]);
    }

    /// A standby that requests the newer version only would take every object for deleted.
    #[tokio::test]
    async fn served_version_is_listed() {
        use koord_api::topology::{v1alpha1, v1alpha2};
        use koord_kube::api::{GroupVersionKind, PostParams};
        for version in ["v1alpha1", "v1alpha2"] {
            let clock = koord_app::Clock::system();
            let config = koord_apiserver::Config::memory(clock);
            let server = koord_apiserver::ApiServer::open(config).await.unwrap();
            let client = koord_kube::client::in_process(server.service());
            let list_versions = || {
                let client = client.clone();
                let newer = ApiResource::erase::<v1alpha2::NodeResourceTopology>(&());
                let older = ApiResource::erase::<v1alpha1::NodeResourceTopology>(&());
                listed_with_fallback(client, newer, older)
            };
            assert!(list_versions().await.unwrap().objects.is_empty());
            let mut definitions = koord_api::crd_values();
            definitions.retain(|it| it["spec"]["group"] == "topology.node.k8s.io");
            let versions = definitions[0]["spec"]["versions"].as_array_mut().unwrap();
            versions.retain(|it| it["name"] == version);
            versions[0]["storage"] = true.into();
            server.install_crds(definitions).await.unwrap();
            let group =
                GroupVersionKind::gvk("topology.node.k8s.io", version, "NodeResourceTopology");
            let resource = ApiResource::from_gvk_with_plural(&group, "noderesourcetopologies");
            let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
            let object = serde_json::json!({
                "apiVersion": format!("topology.node.k8s.io/{version}"),
                "kind": "NodeResourceTopology", "metadata": {"name": "n"},
                "topologyPolicies": ["None"], "zones": []});
            let object: DynamicObject = serde_json::from_value(object).unwrap();
            let created = api.create(&PostParams::default(), &object).await.unwrap();
            let listed = list_versions().await.unwrap();
            let of_it = listed.objects.get(&ObjectKey::new("", "n"));
            assert_eq!(
                of_it,
                created.metadata.resource_version.as_ref(),
                "{version}"
            );
        }
    }
}
