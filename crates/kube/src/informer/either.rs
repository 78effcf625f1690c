//! An informer for a kind that the API server may serve in one of two versions only.

use super::failure::WatchFailure;
use super::{Cacheable, Informer, Scope, Unread, kind_of, run, watch_objects};
use crate::decode::Decode;
use futures::stream::BoxStream;
use futures::{StreamExt, stream};
use kube::runtime::watcher;
use tokio_util::sync::CancellationToken;

impl<V: Cacheable> Informer<V> {
    /// Like [`Informer::start_mapped`], for a kind that is watched as `K`, or as `O` if the API server does not
    /// serve `K`. It is absent if the server serves neither.
    #[must_use]
    pub fn start_either<K, O>(
        client: kube::Client,
        scope: Scope,
        keep: impl Fn(K) -> V + Clone + Send + 'static,
        shutdown: CancellationToken,
    ) -> Self
    where
        K: kube::Resource<DynamicType = ()> + Decode + 'static,
        O: kube::Resource<DynamicType = ()> + Decode + 'static,
        O: Into<K>,
    {
        Self::start_either_reporting::<K, O>(client, scope, keep, |_| {}, shutdown)
    }

    /// Like [`Informer::start_either`]; `report` is called for each object that cannot be decoded.
    #[must_use]
    pub fn start_either_reporting<K, O>(
        client: kube::Client,
        scope: Scope,
        keep: impl Fn(K) -> V + Clone + Send + 'static,
        report: impl Fn(&Unread) + Clone + Send + 'static,
        shutdown: CancellationToken,
    ) -> Self
    where
        K: kube::Resource<DynamicType = ()> + Decode + 'static,
        O: kube::Resource<DynamicType = ()> + Decode + 'static,
        O: Into<K>,
    {
        let first = watch_objects(client.clone(), scope.clone(), keep.clone(), report.clone());
        let keep = move |object: O| keep(object.into());
        let other = watch_objects(client, scope, keep, report);
        run(either(first, other), kind_of::<K>(), shutdown)
    }
}

type Events<T> = BoxStream<'static, Result<watcher::Event<T>, watcher::Error>>;

/// Returns the events of `first` while its kind exists, and those of `other` when it does not, and the other
/// way round. The kind is reported as absent only if both are absent, one after the other.
fn either<T: Send + 'static>(first: Events<T>, other: Events<T>) -> Events<T> {
    let state = (first, other, false);
    let next = |(mut now, mut other, mut missed): (Events<T>, Events<T>, bool)| async move {
        loop {
            let event = now.next().await?;
            match &event {
                Err(error) if WatchFailure::classify(error) == WatchFailure::Absent && !missed => {
                    missed = true;
                    std::mem::swap(&mut now, &mut other);
                    continue;
                }
                // Both are absent: the next round begins with this one.
                Err(error) if WatchFailure::classify(error) == WatchFailure::Absent => {
                    missed = false
                }
                // The list has not been requested yet.
                Ok(watcher::Event::Init) | Err(_) => {}
                Ok(_) => missed = false,
            }
            return Some((event, (now, other, missed)));
        }
    };
    stream::unfold(state, next).boxed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::core::Status;
    use watcher::Event::{Apply, Init, InitApply, InitDone};

    type Item = Result<watcher::Event<ConfigMap>, watcher::Error>;

    fn object(name: &str) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.name = Some(name.to_owned());
        object
    }

    fn failed(code: u16) -> Item {
        let status = Status::failure("no", "").with_code(code);
        Err(watcher::Error::InitialListFailed(kube::Error::Api(
            status.boxed(),
        )))
    }

    fn show(item: &Item) -> String {
        match item {
            Ok(Init) => "init".to_owned(),
            Ok(InitApply(object) | Apply(object)) => object.metadata.name.clone().unwrap(),
            Ok(InitDone) => "done".to_owned(),
            Ok(watcher::Event::Delete(_)) => "gone".to_owned(),
            Err(watcher::Error::InitialListFailed(kube::Error::Api(status))) => {
                status.code.to_string()
            }
            Err(error) => error.to_string(),
        }
    }

    async fn merged(first: Vec<Item>, other: Vec<Item>) -> String {
        let stream = |items: Vec<Item>| stream::iter(items).boxed();
        let all = either(stream(first), stream(other));
        let shown: Vec<String> = all.map(|item| show(&item)).collect().await;
        shown.join(" ")
    }

    #[tokio::test]
    async fn served_version_is_watched() {
        let new = vec![Ok(Init), Ok(InitApply(object("new"))), Ok(InitDone)];
        assert_eq!(
            merged(new, vec![Ok(Init), failed(404)]).await,
            "init new done"
        );
        let old = vec![Ok(Init), Ok(InitApply(object("old"))), Ok(InitDone)];
        let first = vec![Ok(Init), failed(404)];
        assert_eq!(merged(first, old).await, "init init old done");
    }

    /// This happens if a CRD loses a version, or is not installed yet.
    #[tokio::test]
    async fn kind_is_absent_only_if_both_versions_are() {
        let first = vec![
            Ok(Init),
            failed(404),
            Ok(Init),
            failed(404),
            Ok(Init),
            Ok(InitDone),
        ];
        let other = vec![
            Ok(Init),
            failed(404),
            Ok(Init),
            Ok(InitDone),
            Ok(Apply(object("a"))),
            failed(404),
        ];
        assert_eq!(
            merged(first, other).await,
            "init init 404 init done a init 404 init done"
        );
    }

    #[tokio::test]
    async fn denied_kind_is_not_absent() {
        let first = vec![Ok(Init), failed(403), Ok(Init), failed(403)];
        assert_eq!(merged(first, Vec::new()).await, "init 403 init 403");
    }
}
