//! Resolves the chain of controllers above an object: from a pod to its workload, of any kind.

use crate::Api;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIResource, ObjectMeta};
use koord_api::Uid;
use kube::Client;
use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Time that a result is cached: a kind may be installed, an owner adopted.
const CACHE_TTL: Duration = Duration::from_secs(600);
/// Maximum length of a chain. Chains with a cycle would not end otherwise.
const MAX_CHAIN_LENGTH: usize = 8;

/// Number of objects of a kind from which on all are listed instead of getting each.
const LIST_THRESHOLD: usize = 50;
/// Objects per page of a list.
const PAGE_SIZE: u32 = 500;

/// Returns a chain with its first owner as the key; `None` if the chain is empty.
fn with_key((_, chain): (String, Vec<Arc<Owner>>)) -> Option<(Arc<Owner>, Vec<Arc<Owner>>)> {
    Some((chain.first()?.clone(), chain))
}

/// The controller of an object in the same namespace.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Owner {
    /// API version, such as `apps/v1`.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
    /// Uid.
    pub uid: Uid,
}

impl Owner {
    /// Returns the controller in the owner references of an object; `None` if it has none.
    #[must_use]
    pub fn controller_of(meta: &ObjectMeta) -> Option<Self> {
        let mut owners = meta.owner_references.iter().flatten();
        let owner = owners.find(|owner| owner.controller == Some(true))?;
        Some(Self {
            api_version: owner.api_version.clone(),
            kind: owner.kind.clone(),
            name: owner.name.clone(),
            uid: owner.uid.as_str().into(),
        })
    }

    /// Returns the API group; empty for the core group.
    #[must_use]
    pub fn group(&self) -> &str {
        group_of(&self.api_version)
    }
}

fn uid(meta: &ObjectMeta) -> Uid {
    meta.uid.as_deref().unwrap_or_default().into()
}

/// Returns the group in an `apiVersion`; empty for the core group.
#[must_use]
pub fn group_of(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

/// Resolves resources of kinds, and controllers of owners. Caches the results for ten minutes.
pub struct Owners {
    client: Client,
    kinds: HashMap<String, (Instant, Vec<APIResource>)>,
    owners: HashMap<Uid, (Instant, Option<Arc<Owner>>)>,
}

impl std::fmt::Debug for Owners {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Owners")
            .field("kinds", &self.kinds.len())
            .field("owners", &self.owners.len())
            .finish_non_exhaustive()
    }
}

impl Owners {
    /// Creates a resolver with an empty cache.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self {
            client,
            kinds: HashMap::new(),
            owners: HashMap::new(),
        }
    }

    /// Returns the client that the requests use.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Returns the resource of `kind` in `api_version`; `None` if the API server does not have it, or it is
    /// cluster-scoped.
    ///
    /// # Errors
    /// The error of discovery.
    pub async fn resource(
        &mut self,
        api_version: &str,
        kind: &str,
    ) -> Result<Option<ApiResource>, kube::Error> {
        let now = Instant::now();
        let cached = self.kinds.get(api_version);
        if cached.is_none_or(|(asked, _)| now.duration_since(*asked) >= CACHE_TTL) {
            let listed = if group_of(api_version).is_empty() {
                self.client.list_core_api_resources(api_version).await
            } else {
                self.client.list_api_group_resources(api_version).await
            };
            let listed = match listed {
                Ok(list) => list.resources,
                Err(error) if crate::patch::is_not_found(&error) => Vec::new(),
                Err(error) => return Err(error),
            };
            self.kinds.insert(api_version.to_owned(), (now, listed));
        }
        let Some((_, resources)) = self.kinds.get(api_version) else {
            return Ok(None);
        };
        let resource = resources
            .iter()
            .find(|it| it.kind == kind && it.namespaced && !it.name.contains('/'));
        let version = api_version.rsplit('/').next().unwrap_or(api_version);
        Ok(resource.map(|resource| ApiResource {
            group: group_of(api_version).to_owned(),
            version: version.to_owned(),
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            plural: resource.name.clone(),
        }))
    }

    /// Returns whether `resource`, which [`Self::resource`] returned, has the subresource `scale`.
    #[must_use]
    pub fn has_scale(&self, resource: &ApiResource) -> bool {
        let cached = self.kinds.get(&resource.api_version);
        let name = format!("{}/scale", resource.plural);
        cached.is_some_and(|(_, all)| all.iter().any(|resource| resource.name == name))
    }

    /// Returns the controller of `owner`, an object in `namespace`. `None` if it has no controller, does not
    /// exist any more, is not of a namespaced kind of the API server, or may not be read.
    ///
    /// # Errors
    /// The error of the API server.
    pub async fn controller_of(
        &mut self,
        namespace: &str,
        owner: &Owner,
    ) -> Result<Option<Arc<Owner>>, kube::Error> {
        let now = Instant::now();
        if let Some((cached_at, cached)) = self.owners.get(&owner.uid)
            && now.duration_since(*cached_at) < CACHE_TTL
        {
            return Ok(cached.clone());
        }
        let mut controller = None;
        if let Some(resource) = self.resource(&owner.api_version, &owner.kind).await? {
            let objects: Api<DynamicObject> =
                Api::namespaced_with(self.client.clone(), namespace, &resource);
            let object = match objects.get_metadata_opt(&owner.name).await {
                // Without the permission to read the object its owner is unknown.
                Err(kube::Error::Api(status)) if matches!(status.code, 403 | 405) => None,
                object => object?,
            };
            // The owner of another object with the same name does not matter.
            let is_owner = |meta: &&ObjectMeta| uid(meta) == owner.uid;
            controller = object
                .as_ref()
                .map(|object| &object.metadata)
                .filter(is_owner)
                .and_then(Owner::controller_of)
                .map(Arc::new);
        }
        self.owners
            .insert(owner.uid.clone(), (now, controller.clone()));
        Ok(controller)
    }

    /// Resolves the chains of `starts` (an owner with its namespace). Each chain contains the start and the
    /// controllers above it, up to the first for which `enough` is true, or the topmost.
    ///
    /// # Errors
    /// The error of the API server. A chain ends at an object that may not be read.
    pub async fn chains(
        &mut self,
        starts: Vec<(String, Arc<Owner>)>,
        enough: impl Fn(&str, &Owner) -> bool,
    ) -> Result<HashMap<Arc<Owner>, Vec<Arc<Owner>>>, kube::Error> {
        let mut ended = HashMap::new();
        let mut open: Vec<(String, Vec<Arc<Owner>>)> = starts
            .into_iter()
            .map(|(namespace, owner)| (namespace, vec![owner]))
            .collect();
        for _ in 1..MAX_CHAIN_LENGTH {
            let (done, rest): (Vec<_>, Vec<_>) =
                open.into_iter().partition(|(namespace, chain)| {
                    chain.last().is_none_or(|last| enough(namespace, last))
                });
            ended.extend(done.into_iter().filter_map(with_key));
            self.list_many(&rest).await?;
            open = Vec::new();
            for (namespace, mut chain) in rest {
                let next = match chain.last() {
                    Some(last) => self.controller_of(&namespace, last).await?,
                    None => None,
                };
                match next {
                    Some(next) => {
                        chain.push(next);
                        open.push((namespace, chain));
                    }
                    None => ended.extend(with_key((namespace, chain))),
                }
            }
        }
        ended.extend(open.into_iter().filter_map(with_key));
        Ok(ended)
    }

    /// Lists the kinds with many unknown owners instead of getting each owner.
    async fn list_many(&mut self, chains: &[(String, Vec<Arc<Owner>>)]) -> Result<(), kube::Error> {
        let now = Instant::now();
        let mut unknown: HashMap<(String, String), HashSet<Uid>> = HashMap::new();
        for last in chains.iter().filter_map(|(_, chain)| chain.last()) {
            let cached = self.owners.get(&last.uid);
            if cached.is_none_or(|(cached_at, _)| now.duration_since(*cached_at) >= CACHE_TTL) {
                let kind = (last.api_version.clone(), last.kind.clone());
                unknown.entry(kind).or_default().insert(last.uid.clone());
            }
        }
        for ((api_version, kind), mut uids) in unknown {
            if uids.len() < LIST_THRESHOLD {
                continue;
            }
            let Some(resource) = self.resource(&api_version, &kind).await? else {
                continue;
            };
            let objects: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
            let mut params = ListParams::default().limit(PAGE_SIZE);
            loop {
                // Without the permission to list, each owner is read instead.
                let page = match objects.list_metadata(&params).await {
                    Err(kube::Error::Api(status)) if status.code == 403 => break,
                    page => page?,
                };
                for object in page.items {
                    let uid = uid(&object.metadata);
                    if uids.remove(&uid) {
                        let owner = Owner::controller_of(&object.metadata).map(Arc::new);
                        self.owners.insert(uid, (now, owner));
                    }
                }
                params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
                if params.continue_token.is_none() {
                    // The others do not exist any more.
                    self.owners
                        .extend(uids.into_iter().map(|uid| (uid, (now, None))));
                    break;
                }
            }
        }
        Ok(())
    }

    /// Removes expired results.
    pub fn tidy(&mut self) {
        let now = Instant::now();
        let fresh = |cached_at: &Instant| now.duration_since(*cached_at) < CACHE_TTL;
        self.owners.retain(|_, (cached_at, _)| fresh(cached_at));
        self.kinds.retain(|_, (cached_at, _)| fresh(cached_at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::answer;
    use http::StatusCode;
    use serde_json::{Value, json};
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn owner(api_version: &str, kind: &str, name: &str) -> Owner {
        Owner {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            name: name.to_owned(),
            uid: format!("{name}-uid").as_str().into(),
        }
    }

    fn meta(kind: &str, name: &str, owner: Option<(&str, &str, &str)>) -> Value {
        let owners: Vec<Value> = owner
            .iter()
            .map(|(api_version, kind, name)| {
                json!({"apiVersion": api_version, "kind": kind, "name": name,
                       "uid": format!("{name}-uid"), "controller": true})
            })
            .collect();
        json!({"apiVersion": "meta.k8s.io/v1", "kind": kind,
               "metadata": {"name": name, "uid": format!("{name}-uid"), "ownerReferences": owners}})
    }

    #[tokio::test(start_paused = true)]
    async fn chain_reaches_a_custom_kind_and_is_cached() {
        let requests = Arc::new(AtomicUsize::new(0));
        let count = requests.clone();
        let server = answer(move |request| {
            count.fetch_add(1, Ordering::SeqCst);
            let apps = |kind: &str, name: &str| json!({"name": name, "kind": kind, "namespaced": true, "singularName": "", "verbs": []});
            let resources = |list: Value| json!({"kind": "APIResourceList", "groupVersion": "x", "resources": list});
            match request.uri().path() {
                "/apis/apps/v1" => (
                    StatusCode::OK,
                    resources(json!([
                        apps("Deployment", "deployments/scale"),
                        apps("ReplicaSet", "replicasets")
                    ])),
                ),
                "/apis/argoproj.io/v1alpha1" => (
                    StatusCode::OK,
                    resources(json!([apps("Rollout", "rollouts")])),
                ),
                "/apis/apps/v1/namespaces/shop/replicasets/web-1" => (
                    StatusCode::OK,
                    meta(
                        "PartialObjectMetadata",
                        "web-1",
                        Some(("argoproj.io/v1alpha1", "Rollout", "web")),
                    ),
                ),
                "/apis/argoproj.io/v1alpha1/namespaces/shop/rollouts/web" => {
                    (StatusCode::OK, meta("PartialObjectMetadata", "web", None))
                }
                _ => (
                    StatusCode::NOT_FOUND,
                    json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": ""}),
                ),
            }
        });
        let mut owners = Owners::new(Client::new(server, "default"));
        let start = Arc::new(owner("apps/v1", "ReplicaSet", "web-1"));
        for _ in 0..2 {
            let starts = vec![("shop".to_owned(), start.clone())];
            let chains = owners.chains(starts, |_, _| false).await.unwrap();
            let chain = &chains[&start];
            let kinds: Vec<&str> = chain.iter().map(|it| it.kind.as_str()).collect();
            assert_eq!(kinds, ["ReplicaSet", "Rollout"]);
        }
        assert_eq!(requests.load(Ordering::SeqCst), 4);
        // The chain ends at the first owner that is enough.
        let starts = vec![("shop".to_owned(), start.clone())];
        let chains = owners.chains(starts, |_, one| one.kind == "ReplicaSet");
        assert_eq!(chains.await.unwrap()[&start].len(), 1);
        // A subresource is not a kind, the group has no such kind, the group does not exist.
        for (api_version, kind) in [
            ("apps/v1", "Deployment"),
            ("apps/v1", "Nothing"),
            ("none.io/v1", "X"),
        ] {
            let resource = owners.resource(api_version, kind).await.unwrap();
            assert_eq!(resource, None, "{kind}");
        }
        let sets = owners.resource("apps/v1", "ReplicaSet").await.unwrap();
        assert!(!owners.has_scale(&sets.unwrap()));
        let scaled = ApiResource {
            plural: "deployments".to_owned(),
            ..owners
                .resource("apps/v1", "ReplicaSet")
                .await
                .unwrap()
                .unwrap()
        };
        assert!(owners.has_scale(&scaled));
        // A later object of the same name is a different owner.
        let mut stale = Owner::clone(&start);
        stale.uid = "older".into();
        assert_eq!(owners.controller_of("shop", &stale).await.unwrap(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn many_owners_are_listed_instead_of_read() {
        let requests = Arc::new(AtomicUsize::new(0));
        let count = requests.clone();
        let server = answer(move |request| {
            count.fetch_add(1, Ordering::SeqCst);
            let path = request.uri().path();
            let body = match path {
                "/apis/apps/v1" => json!({"kind": "APIResourceList", "groupVersion": "apps/v1",
                    "resources": [{"name": "replicasets", "kind": "ReplicaSet", "namespaced": true, "singularName": "", "verbs": []}]}),
                "/apis/apps/v1/replicasets" => {
                    let second = request
                        .uri()
                        .query()
                        .unwrap_or("")
                        .contains("continue=next");
                    let range = if second { 40..99 } else { 0..40 };
                    let items: Vec<Value> = range
                        .map(|at| {
                            meta(
                                "PartialObjectMetadata",
                                &format!("web-{at}"),
                                Some(("apps/v1", "Deployment", "web")),
                            )
                        })
                        .collect();
                    let next = if second { "" } else { "next" };
                    json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList",
                           "metadata": {"continue": next}, "items": items})
                }
                _ => panic!("{path} was requested"),
            };
            (StatusCode::OK, body)
        });
        let mut owners = Owners::new(Client::new(server, "default"));
        let starts: Vec<_> = (0..100)
            .map(|at| {
                (
                    "shop".to_owned(),
                    Arc::new(owner("apps/v1", "ReplicaSet", &format!("web-{at}"))),
                )
            })
            .collect();
        let chains = owners
            .chains(starts.clone(), |_, one| one.kind == "Deployment")
            .await
            .unwrap();
        assert_eq!(chains[&starts[98].1][1].name, "web");
        assert_eq!(chains[&starts[99].1].len(), 1, "it is gone");
        assert_eq!(requests.load(Ordering::SeqCst), 3);
    }
}
