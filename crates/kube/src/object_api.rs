//! Typed requests to the API server.

use crate::decode::Decode;
use crate::raw_object::RawObject;
use futures::StreamExt;
use futures::stream::BoxStream;
use kube::api::{
    DeleteParams, EvictParams, GetParams, ListParams, Patch, PatchParams, PostParams, WatchEvent,
    WatchParams,
};
use kube::core::{
    DynamicResourceScope, NamespaceResourceScope, ObjectList, PartialObjectMeta, Request, Resource,
};
use kube::{Client, Error};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use std::fmt;
use std::marker::PhantomData;

type Result<T> = std::result::Result<T, Error>;
type HttpRequest = http::Request<Vec<u8>>;

/// Requests for objects of the kind `K`, in one namespace or in all.
///
/// It has the methods of [`kube::Api`] with the same meaning. Objects are decoded by [`Decode`], so that
/// neither decoders nor requests are compiled again in each crate that uses a kind. For other requests (logs,
/// exec) use [`kube::Api`].
pub struct Api<K> {
    client: Client,
    request: Request,
    kind: PhantomData<fn() -> K>,
}

impl<K> Clone for Api<K> {
    fn clone(&self) -> Self {
        Self {
            client: self.client.clone(),
            request: self.request.clone(),
            kind: PhantomData,
        }
    }
}

impl<K> fmt::Debug for Api<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Api").field(&self.request.url_path).finish()
    }
}

impl<K: Resource> Api<K> {
    /// Creates an API for objects of all namespaces, or of a cluster-scoped kind.
    #[must_use]
    pub fn all(client: Client) -> Self
    where
        K::DynamicType: Default,
    {
        Self::all_with(client, &K::DynamicType::default())
    }

    /// Like [`Api::all`], for a kind that is known only at run time.
    #[must_use]
    pub fn all_with(client: Client, kind: &K::DynamicType) -> Self {
        Self::with_path(client, K::url_path(kind, None))
    }

    /// Creates an API for objects of one namespace.
    #[must_use]
    pub fn namespaced(client: Client, namespace: &str) -> Self
    where
        K: Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        let kind = K::DynamicType::default();
        Self::with_path(client, K::url_path(&kind, Some(namespace)))
    }

    /// Like [`Api::namespaced`], for a kind that is known only at run time.
    #[must_use]
    pub fn namespaced_with(client: Client, namespace: &str, kind: &K::DynamicType) -> Self
    where
        K: Resource<Scope = DynamicResourceScope>,
    {
        Self::with_path(client, K::url_path(kind, Some(namespace)))
    }

    /// Creates an API for objects of the client's default namespace.
    #[must_use]
    pub fn default_namespaced(client: Client) -> Self
    where
        K: Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        let namespace = client.default_namespace().to_owned();
        Self::namespaced(client, &namespace)
    }

    fn with_path(client: Client, path: String) -> Self {
        Self {
            client,
            request: Request::new(path),
            kind: PhantomData,
        }
    }
}

impl<K> Api<K> {
    /// Returns the URL path of the collection.
    #[must_use]
    pub fn resource_url(&self) -> &str {
        &self.request.url_path
    }

    /// Returns the metadata of one object.
    ///
    /// # Errors
    /// The refusal by the API server, or the error of sending the request or decoding the response. This holds for all
    /// requests here.
    pub async fn get_metadata(&self, name: &str) -> Result<PartialObjectMeta<K>> {
        let request = self.request.get_metadata(name, &GetParams::default());
        let metadata = fetch::<PartialObjectMeta>(&self.client, built(request)?).await?;
        Ok(partial(metadata))
    }

    /// Returns the metadata of one object; `None` if it does not exist.
    pub async fn get_metadata_opt(&self, name: &str) -> Result<Option<PartialObjectMeta<K>>> {
        optional(self.get_metadata(name).await)
    }

    /// Returns the metadata of the objects that `params` select.
    pub async fn list_metadata(
        &self,
        params: &ListParams,
    ) -> Result<ObjectList<PartialObjectMeta<K>>>
    where
        K: Clone,
    {
        let request = built(self.request.list_metadata(params))?;
        let list = fetch::<ObjectList<PartialObjectMeta>>(&self.client, request).await?;
        Ok(ObjectList {
            types: list.types,
            metadata: list.metadata,
            items: list.items.into_iter().map(partial).collect(),
        })
    }

    /// Deletes one object. The response (its last state, or a status) is not decoded.
    pub async fn delete(&self, name: &str, params: &DeleteParams) -> Result<()> {
        let request = built(self.request.delete(name, params))?;
        self.client.request_text(request).await.map(drop)
    }

    /// Deletes the objects that `list` selects.
    pub async fn delete_collection(&self, params: &DeleteParams, list: &ListParams) -> Result<()> {
        let request = built(self.request.delete_collection(params, list))?;
        self.client.request_text(request).await.map(drop)
    }

    /// Evicts a pod.
    pub async fn evict(&self, name: &str, params: &EvictParams) -> Result<()> {
        let request = built(self.request.evict(name, params))?;
        self.client.request_text(request).await.map(drop)
    }

    /// Posts `body` to a subresource and decodes the response as `T`.
    pub async fn create_subresource<B: Serialize, T: DeserializeOwned>(
        &self,
        subresource: &str,
        name: &str,
        params: &PostParams,
        body: &B,
    ) -> Result<T> {
        let body = serde_json::to_vec(body).map_err(Error::SerdeError)?;
        let request = self
            .request
            .create_subresource(subresource, name, params, body);
        fetch(&self.client, built(request)?).await
    }
}

impl<K: Decode> Api<K> {
    /// Returns one object.
    pub async fn get(&self, name: &str) -> Result<K> {
        let request = built(self.request.get(name, &GetParams::default()))?;
        self.object(request).await
    }

    /// Returns one object; `None` if it does not exist.
    pub async fn get_opt(&self, name: &str) -> Result<Option<K>> {
        optional(self.get(name).await)
    }

    /// Returns the objects that `params` select.
    pub async fn list(&self, params: &ListParams) -> Result<ObjectList<K>>
    where
        K: Clone,
    {
        let request = built(self.request.list(params))?;
        let list = fetch::<ObjectList<RawObject>>(&self.client, request).await?;
        let items = list.items.iter().map(decoded).collect::<Result<_>>()?;
        Ok(ObjectList {
            types: list.types,
            metadata: list.metadata,
            items,
        })
    }

    /// Watches the objects that `params` select, starting at `version`.
    pub async fn watch(
        &self,
        params: &WatchParams,
        version: &str,
    ) -> Result<BoxStream<'static, Result<WatchEvent<K>>>>
    where
        K: 'static,
    {
        let request = built(self.request.watch(params, version))?;
        let events = self.client.request_events::<RawObject>(request).await?;
        let decode = |event: Result<WatchEvent<RawObject>>| {
            Ok(match event? {
                WatchEvent::Added(raw) => WatchEvent::Added(decoded(&raw)?),
                WatchEvent::Modified(raw) => WatchEvent::Modified(decoded(&raw)?),
                WatchEvent::Deleted(raw) => WatchEvent::Deleted(decoded(&raw)?),
                WatchEvent::Bookmark(bookmark) => WatchEvent::Bookmark(bookmark),
                WatchEvent::Error(status) => WatchEvent::Error(status),
            })
        };
        Ok(events.map(decode).boxed())
    }

    /// Creates an object and returns the stored one.
    pub async fn create(&self, params: &PostParams, object: &K) -> Result<K>
    where
        K: Serialize,
    {
        let body = serde_json::to_vec(object).map_err(Error::SerdeError)?;
        let request = built(self.request.create(params, body))?;
        self.object(request).await
    }

    /// Replaces an object and returns the stored one.
    pub async fn replace(&self, name: &str, params: &PostParams, object: &K) -> Result<K>
    where
        K: Serialize,
    {
        let body = serde_json::to_vec(object).map_err(Error::SerdeError)?;
        let request = built(self.request.replace(name, params, body))?;
        self.object(request).await
    }

    /// Replaces the status of an object and returns the stored object.
    pub async fn replace_status(&self, name: &str, params: &PostParams, object: &K) -> Result<K>
    where
        K: Serialize,
    {
        let body = serde_json::to_vec(object).map_err(Error::SerdeError)?;
        let request = self
            .request
            .replace_subresource("status", name, params, body);
        self.object(built(request)?).await
    }

    /// Patches an object and returns the stored one.
    pub async fn patch<P: Serialize + fmt::Debug>(
        &self,
        name: &str,
        params: &PatchParams,
        patch: &Patch<P>,
    ) -> Result<K> {
        let request = built(self.request.patch(name, params, &raw_patch(patch)?))?;
        self.object(request).await
    }

    /// Patches the status of an object and returns the stored object.
    pub async fn patch_status<P: Serialize + fmt::Debug>(
        &self,
        name: &str,
        params: &PatchParams,
        patch: &Patch<P>,
    ) -> Result<K> {
        self.patch_subresource("status", name, params, patch).await
    }

    /// Patches a subresource of an object and decodes the response as the object.
    pub async fn patch_subresource<P: Serialize + fmt::Debug>(
        &self,
        subresource: &str,
        name: &str,
        params: &PatchParams,
        patch: &Patch<P>,
    ) -> Result<K> {
        let patch = raw_patch(patch)?;
        let request = self
            .request
            .patch_subresource(subresource, name, params, &patch);
        self.object(built(request)?).await
    }

    async fn object(&self, request: HttpRequest) -> Result<K> {
        let text = self.client.request_text(request).await?;
        K::decode(&text).map_err(Error::SerdeError)
    }
}

fn built(
    request: std::result::Result<HttpRequest, kube::core::request::Error>,
) -> Result<HttpRequest> {
    request.map_err(Error::BuildRequest)
}

fn decoded<K: Decode>(raw: &RawObject) -> Result<K> {
    K::decode(raw.json.get()).map_err(Error::SerdeError)
}

async fn fetch<T: DeserializeOwned>(client: &Client, request: HttpRequest) -> Result<T> {
    let text = client.request_text(request).await?;
    serde_json::from_str(&text).map_err(Error::SerdeError)
}

fn optional<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Ok(object) => Ok(Some(object)),
        Err(Error::Api(status)) if status.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Encodes a patch, so that kube's code is not compiled for each type of patch.
fn raw_patch<P: Serialize>(patch: &Patch<P>) -> Result<Patch<Box<RawValue>>> {
    let raw = |patch: &P| serde_json::value::to_raw_value(patch).map_err(Error::SerdeError);
    Ok(match patch {
        Patch::Apply(patch) => Patch::Apply(raw(patch)?),
        Patch::Json(patch) => Patch::Json(patch.clone()),
        Patch::Merge(patch) => Patch::Merge(raw(patch)?),
        Patch::Strategic(patch) => Patch::Strategic(raw(patch)?),
        _ => {
            return Err(Error::SerdeError(serde::de::Error::custom(
                "unknown type of patch",
            )));
        }
    })
}

fn partial<K>(object: PartialObjectMeta) -> PartialObjectMeta<K> {
    PartialObjectMeta {
        types: object.types,
        metadata: object.metadata,
        _phantom: PhantomData,
    }
}
