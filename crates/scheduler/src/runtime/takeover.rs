//! What a standby knows when it becomes the leader.
//!
//! It has gathered everything there is, so that it need not list it again. But a watch may be broken or
//! stall without a word, and who decides on an older view books what somebody else has. So the API
//! server is asked once more, after the lease is won, for the versions of all objects, until it answers:
//! whoever is behind them waits a little, and then lists anew.

use koord_kube::api::{ApiResource, DynamicObject, ListParams, PartialObjectMeta};
use koord_kube::{Api, Change, Client, Informer, Mirrored, ObjectKey};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

/// How long a replica that has just become the leader still only listens: what the one before it
/// wrote last has arrived by then.
const SETTLE: Duration = Duration::from_millis(500);
/// How long a watch that is behind may take to show what the API server has.
const CATCH_UP: Duration = Duration::from_secs(2);
/// How long the API server may take over a page of what it has.
const ANSWER: Duration = Duration::from_secs(30);
/// How long to wait before it is asked again that did not answer: twice as long each time, at most
/// `LONGEST_PAUSE`.
const PAUSE: Duration = Duration::from_millis(500);
/// See `PAUSE`.
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// Objects in an answer.
const PAGE: u32 = 5_000;

/// What the API server had when it was asked: the version of each object.
#[derive(Debug, Default)]
pub(super) struct Listed {
    /// The version of the list itself.
    at: String,
    objects: BTreeMap<ObjectKey, String>,
}

/// Asks the API server, and no cache of ours, for the versions of all objects of a kind; nothing but
/// the objects' metadata is sent.
pub(super) async fn listed(client: Client, kind: ApiResource) -> Result<Listed, koord_kube::Error> {
    let api: Api<DynamicObject> = Api::all_with(client, &kind);
    let mut out = Listed::default();
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let answer = timeout(ANSWER, api.list_metadata(&page)).await;
        let answer = match answer.map_err(|late| koord_kube::Error::Service(late.into()))? {
            // The kind is not installed: there are no objects of it.
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

/// The same of a kind of which the API server may serve the version `older` alone.
pub(super) async fn listed_either(
    client: Client,
    kind: ApiResource,
    older: ApiResource,
) -> Result<Listed, koord_kube::Error> {
    let found = listed(client.clone(), kind).await?;
    // Every list that is there has a version.
    if found.at.is_empty() {
        return listed(client, older).await;
    }
    Ok(found)
}

/// Asks until there is an answer. Who has none knows nothing of how old its view is: to go on with it
/// would be to book on what the replica that died had booked already.
async fn answered<F>(listed: impl Fn() -> F) -> Listed
where
    F: Future<Output = Result<Listed, koord_kube::Error>>,
{
    let mut pause = PAUSE;
    loop {
        match listed().await {
            Ok(listed) => return listed,
            Err(error) => {
                tracing::warn!(%error, "what there is cannot be listed; no pod is placed before");
            }
        }
        sleep(pause).await;
        pause = LONGEST_PAUSE.min(2 * pause);
    }
}

/// Whether the version that was `seen` is not older than the one that is `wanted`. Versions of a kind's
/// objects are numbers that grow.
fn reached(seen: Option<&str>, wanted: &str) -> bool {
    let number = |text: &str| text.parse::<u64>().ok();
    let seen = seen.unwrap_or_default();
    let numbers = number(seen).zip(number(wanted));
    seen == wanted || numbers.is_some_and(|(seen, wanted)| seen >= wanted)
}

/// The objects of a kind that a standby has heard of.
struct Gathered<V> {
    objects: BTreeMap<ObjectKey, Arc<V>>,
    /// Whether the first list is complete.
    synced: bool,
    /// Objects of which there is something newer, and how new it is.
    behind: BTreeMap<ObjectKey, String>,
}

impl<V: Mirrored> Gathered<V> {
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

    fn caught_up(&mut self, key: &ObjectKey, seen: &V) {
        if let Some(wanted) = self.behind.get(key)
            && reached(seen.resource_version(), wanted)
        {
            self.behind.remove(key);
        }
    }

    /// Whether this is all there is, or newer.
    fn is_current(&self) -> bool {
        self.synced && self.behind.is_empty()
    }

    /// Holds it against what the API server has.
    fn compare(&mut self, listed: &Listed) {
        let Self {
            objects, behind, ..
        } = self;
        for (key, wanted) in &listed.objects {
            let seen = objects.get(key);
            if !seen.is_some_and(|seen| reached(seen.resource_version(), wanted)) {
                behind.insert(key.clone(), wanted.clone());
            }
        }
        for (key, seen) in &*objects {
            // What came after the list was made is no part of it.
            let newer = !reached(
                Some(&listed.at),
                seen.resource_version().unwrap_or_default(),
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

/// An informer, and whether it may be of a kind that the API server does not have.
pub(super) struct Feed<V> {
    informer: Informer<V>,
    absence: bool,
}

impl<V: Mirrored> Feed<V> {
    pub(super) fn new(informer: Informer<V>, absence: bool) -> Self {
        Self { informer, absence }
    }

    /// The next change; that there is no such kind is a list without objects.
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

    /// Takes in changes until `end`, or until `done` says so; `None` when the informer ended.
    async fn listen(
        &mut self,
        gathered: &mut Gathered<V>,
        end: impl Future<Output = ()>,
        done: impl Fn(&Gathered<V>) -> bool,
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

    /// Listens until this replica leads and knows what the API server has then; that, as changes.
    /// `listed` asks what it has; `anew` starts the informer again, which then delivers everything.
    pub(super) async fn gather<F>(
        &mut self,
        leads: CancellationToken,
        listed: impl Fn() -> F,
        anew: impl Fn() -> Informer<V>,
    ) -> Option<Vec<Change<V>>>
    where
        F: Future<Output = Result<Listed, koord_kube::Error>>,
    {
        let mut gathered = Gathered::new();
        let settled = async {
            leads.cancelled().await;
            sleep(SETTLE).await;
        };
        self.listen(&mut gathered, settled, |_| false).await?;
        let listed = answered(listed).await;
        // A first list takes as long as it takes.
        let never = std::future::pending();
        self.listen(&mut gathered, never, |gathered| gathered.synced)
            .await?;
        gathered.compare(&listed);
        self.listen(&mut gathered, sleep(CATCH_UP), Gathered::is_current)
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
            "a watch is older than the lease; objects are listed anew"
        );
        self.informer = anew();
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

    /// After the first `changes` and a list with some objects at version 20; what is still behind after
    /// the later ones.
    fn behind(
        changes: Vec<Change<ConfigMap>>,
        listed: &[(&str, u32)],
        later: Vec<Change<ConfigMap>>,
    ) -> Vec<String> {
        let mut gathered = Gathered::new();
        changes.into_iter().for_each(|change| gathered.take(change));
        let key = |name: &str| ObjectKey::new("", name);
        let objects = listed
            .iter()
            .map(|(name, version)| (key(name), version.to_string()));
        gathered.compare(&Listed {
            at: "20".to_owned(),
            objects: objects.collect(),
        });
        later.into_iter().for_each(|change| gathered.take(change));
        gathered.behind.keys().map(ToString::to_string).collect()
    }

    #[test]
    fn what_is_older_than_the_list_is_behind_until_it_is_shown() {
        let none: [&str; 0] = [];
        // As new, newer than the list, and numbers that are no words: "9" is before "10".
        let seen = || vec![applied("a", 9), applied("b", 21)];
        assert_eq!(behind(seen(), &[("a", 9)], vec![]), none);
        assert_eq!(behind(seen(), &[("a", 10)], vec![]), ["a"]);
        assert_eq!(behind(seen(), &[("a", 10)], vec![applied("a", 10)]), none);
        // Never heard of, and gone without a word.
        assert_eq!(behind(seen(), &[("a", 9), ("c", 20)], vec![]), ["c"]);
        assert_eq!(behind(seen(), &[], vec![]), ["a"]);
        let end = |version| vec![Change::Deleted(object("a", version))];
        assert_eq!(behind(seen(), &[], end(20)), none);
        // The end of one of the same name that was there before does not do.
        assert_eq!(behind(seen(), &[("a", 15)], end(12)), ["a"]);
    }

    /// A standby that asks for the newer version alone would take every object for gone.
    #[tokio::test]
    async fn the_version_that_is_served_is_listed() {
        use koord_api::topology::{v1alpha1, v1alpha2};
        use koord_kube::api::{GroupVersionKind, PostParams};
        for version in ["v1alpha1", "v1alpha2"] {
            let clock = koord_app::Clock::system();
            let config = koord_apiserver::Config::memory(clock);
            let server = koord_apiserver::ApiServer::open(config).await.unwrap();
            let client = koord_kube::client::in_process(server.service());
            let both = || {
                let client = client.clone();
                let newer = ApiResource::erase::<v1alpha2::NodeResourceTopology>(&());
                let older = ApiResource::erase::<v1alpha1::NodeResourceTopology>(&());
                listed_either(client, newer, older)
            };
            assert!(both().await.unwrap().objects.is_empty());
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
            let made = api.create(&PostParams::default(), &object).await.unwrap();
            let found = both().await.unwrap();
            let of_it = found.objects.get(&ObjectKey::new("", "n"));
            assert_eq!(of_it, made.metadata.resource_version.as_ref(), "{version}");
        }
    }
}
