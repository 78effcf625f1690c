//! The part of the manager that every replica runs, leader or not: caches, settings, health and readiness of
//! the webhooks.

use crate::cache::{Cache, CacheState, ObjectCache, ObjectKind};
use crate::dry_run::DryRun;
use crate::facts::{
    FieldMask, Interner, MetricFacts, PodFacts, PodsByNode, RecommendationFacts, SloFacts, Specs,
    trim_node, trim_topology,
};
use crate::metrics::Metrics;
use crate::settings::SettingsStore;
use crate::{Error, Options};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Pod};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use koord_api::analysis::Recommendation;
use koord_api::config::ClusterColocationProfile;
use koord_api::quota::ElasticQuotaProfile;
use koord_api::scheduling::{Device, ElasticQuota};
use koord_api::slo::{NodeMetric, NodeSLO};
use koord_api::topology::v1alpha1;
use koord_api::topology::v1alpha2::NodeResourceTopology;
use koord_app::admin::{Admin, Exposure, refuse_profiles};
use koord_app::{Clock, Context};
use koord_kube::events::Recorder;
use koord_kube::webhook::run::Readiness;
use koord_kube::{Client, Decode, Informer, Scope, Text, kube_core};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// A cache for each [`ObjectKind`].
pub(crate) struct Caches {
    pub(crate) settings: Cache<ConfigMap>,
    pub(crate) nodes: Cache<Text<Node>>,
    pub(crate) pods: Cache<PodFacts>,
    pub(crate) node_metrics: Cache<MetricFacts>,
    pub(crate) node_slos: Cache<SloFacts>,
    pub(crate) devices: Cache<Device>,
    pub(crate) topologies: Cache<NodeResourceTopology>,
    pub(crate) profiles: Cache<ClusterColocationProfile>,
    pub(crate) namespaces: Cache<Namespace>,
    pub(crate) priority_classes: Cache<PriorityClass>,
    pub(crate) quotas: Cache<ElasticQuota>,
    pub(crate) quota_profiles: Cache<ElasticQuotaProfile>,
    pub(crate) recommendations: Cache<RecommendationFacts>,
}

impl Caches {
    /// Creates the caches; none is started yet.
    fn new(options: &Options, client: &Client) -> Self {
        let all = Scope::default;
        let settings = {
            let (client, namespace) = (client.clone(), options.config_namespace.clone());
            let only = Scope {
                fields: Some(format!("metadata.name={}", options.config_name)),
                ..all()
            };
            move |stop| Informer::start_in_namespace(client, &namespace, only, stop)
        };
        let nodes = client.clone();
        let node_text = |mut node: Node| {
            trim_node(&mut node);
            Text::encode(node)
        };
        let (pods, fields) = (client.clone(), FieldMask::from_options(options));
        let pod_facts = move |pod: Pod| PodFacts::from_pod(&pod, fields);
        let (metrics, topologies) = (client.clone(), client.clone());
        let (slos, specs) = (client.clone(), Specs::default());
        let recommendations = client.clone();
        let metric_facts = |metric: NodeMetric| MetricFacts::from_metric(&metric);
        Self {
            settings: Cache::new(ObjectKind::Settings, settings),
            nodes: Cache::new(ObjectKind::Nodes, move |stop| {
                Informer::start_mapped(nodes, all(), node_text, stop)
            }),
            pods: Cache::new(ObjectKind::Pods, move |stop| {
                Informer::start_mapped(pods, all(), pod_facts, stop)
            }),
            node_metrics: Cache::new(ObjectKind::NodeMetrics, move |stop| {
                Informer::start_mapped(metrics, all(), metric_facts, stop)
            }),
            node_slos: Cache::new(ObjectKind::NodeSlos, move |stop| {
                Informer::start_mapped(slos, all(), move |slo: NodeSLO| specs.facts(slo), stop)
            }),
            devices: full_cache(ObjectKind::Devices, client),
            topologies: Cache::new(ObjectKind::Topologies, move |stop| {
                Informer::start_either::<_, v1alpha1::NodeResourceTopology>(
                    topologies,
                    all(),
                    trim_topology,
                    stop,
                )
            }),
            profiles: full_cache(ObjectKind::Profiles, client),
            namespaces: full_cache(ObjectKind::Namespaces, client),
            priority_classes: full_cache(ObjectKind::PriorityClasses, client),
            quotas: full_cache(ObjectKind::Quotas, client),
            quota_profiles: full_cache(ObjectKind::QuotaProfiles, client),
            recommendations: Cache::new(ObjectKind::Recommendations, move |stop| {
                let conditions = Interner::default();
                let convert = move |object: Recommendation| {
                    RecommendationFacts::with_interner(object, &conditions)
                };
                Informer::start_mapped(recommendations, all(), convert, stop)
            }),
        }
    }

    fn all(&self) -> [&dyn ObjectCache; 13] {
        [
            &self.settings,
            &self.nodes,
            &self.pods,
            &self.node_metrics,
            &self.node_slos,
            &self.devices,
            &self.topologies,
            &self.profiles,
            &self.namespaces,
            &self.priority_classes,
            &self.quotas,
            &self.quota_profiles,
            &self.recommendations,
        ]
    }

    /// Returns the caches of `kinds`.
    fn select(&self, kinds: &[ObjectKind]) -> impl Iterator<Item = &dyn ObjectCache> {
        let all = self.all().into_iter();
        all.filter(|cache| kinds.contains(&cache.kind()))
    }
}

/// Creates a cache that stores objects unchanged.
fn full_cache<K>(kind: ObjectKind, client: &Client) -> Cache<K>
where
    K: kube_core::Resource<DynamicType = ()> + Decode + Send + Sync + 'static,
{
    let client = client.clone();
    Cache::new(kind, move |stop| {
        Informer::start(client, Scope::default(), stop)
    })
}

/// State shared by all parts of a replica.
pub(crate) struct Replica {
    pub(crate) options: Options,
    pub(crate) client: Client,
    pub(crate) clock: Clock,
    pub(crate) metrics: Metrics,
    pub(crate) recorder: Recorder,
    pub(crate) settings: Arc<SettingsStore>,
    pub(crate) caches: Caches,
    pub(crate) pods_by_node: Arc<PodsByNode>,
    /// Report of a dry run; `None` if changes are written.
    pub(crate) dry_run: Option<Arc<DryRun>>,
    /// Cancelled when the replica stops.
    pub(crate) stop: CancellationToken,
}

impl Replica {
    /// Creates a replica; no cache is started yet.
    pub(crate) fn new(
        options: Options,
        client: Client,
        dry_run: Option<Arc<DryRun>>,
        metrics: Metrics,
        ctx: &Context,
    ) -> Arc<Self> {
        let stop = ctx.shutdown.child_token();
        let recorder = match dry_run {
            Some(_) => Recorder::silent(),
            None => Recorder::start(
                client.clone(),
                "koordinator-manager",
                &options.identity,
                ctx.clock.clone(),
                stop.clone(),
            ),
        };
        let caches = Caches::new(&options, &client);
        Arc::new(Self {
            settings: SettingsStore::from_cache(&caches.settings),
            pods_by_node: PodsByNode::from_cache(&caches.pods),
            options,
            client,
            clock: ctx.clock.clone(),
            metrics,
            recorder,
            caches,
            dry_run,
            stop,
        })
    }

    /// Ends the difference that a dry run has reported for an object, because nothing is to be written.
    pub(crate) fn resolve_difference(&self, resource: &str, name: &str) {
        if let Some(dry_run) = &self.dry_run {
            dry_run.resolve(resource, "", name);
        }
    }

    /// Starts the caches of `kinds` that are not started yet.
    pub(crate) fn start(&self, kinds: &[ObjectKind]) {
        for cache in self.caches.select(kinds) {
            cache.start(&self.stop);
        }
    }

    /// Waits until all of `needs` are in sync (without a timeout if one is never installed), and all of
    /// `wants` are in sync or known to be not installed.
    pub(crate) async fn wait_for(&self, needs: &[ObjectKind], wants: &[ObjectKind]) {
        for cache in self.caches.select(needs) {
            // The sender lives as long as `self`, here and below.
            let _ = cache.state().wait_for(|s| *s == CacheState::Synced).await;
        }
        for cache in self.caches.select(wants) {
            let _ = cache.state().wait_for(|s| s.is_settled()).await;
        }
    }

    /// Checks that all started caches are in sync.
    ///
    /// # Errors
    /// Lists the kinds that are not.
    pub(crate) fn is_ready(&self) -> Result<(), String> {
        let caches = self.caches.all();
        let missing: Vec<_> = caches
            .iter()
            .filter_map(|cache| match *cache.state().borrow() {
                CacheState::Off | CacheState::Synced | CacheState::Absent => None,
                CacheState::Waiting => {
                    Some(format!("{} are not in sync yet", cache.kind().plural()))
                }
                CacheState::Stopped => {
                    Some(format!("{} are no longer watched", cache.kind().plural()))
                }
            })
            .collect();
        if missing.is_empty() {
            Ok(())
        } else {
            Err(missing.join(", "))
        }
    }

    /// Serves health and metrics on the addresses of the options; the secure server has `secure_routes`, too.
    pub(crate) async fn serve(
        self: &Arc<Self>,
        ctx: &Context,
        webhooks: Option<Readiness>,
        secure_routes: axum::Router,
    ) -> Result<(), Error> {
        let replica = Arc::downgrade(self);
        // Upstream's registry of user metrics is empty.
        let admin = Admin::new(ctx.metrics.clone()).split_metrics(|_| false);
        let admin = admin.ready_when("informers", move || {
            replica
                .upgrade()
                .ok_or("the replica has stopped")?
                .is_ready()
        });
        let admin = match webhooks {
            Some(state) => admin.ready_when("webhook-ready", move || state.borrow().clone()),
            None => admin,
        };
        let admin = match self.dry_run.clone() {
            Some(dry_run) => admin.page("/debug/dry-run", move || dry_run.report()),
            None => admin,
        };
        let options = &self.options;
        let addresses: BTreeSet<_> = [options.metrics_address, options.health_address]
            .into_iter()
            .flatten()
            .collect();
        for address in addresses {
            let address = admin
                .serve(address, Exposure::Anyone, ctx.shutdown.clone())
                .await?;
            tracing::info!(%address, "serving health and metrics");
        }
        if let Some(server) = &options.secure_server {
            server.serve(admin.with_routes(secure_routes).router());
        }
        if let Some(address) = options.profiling_address {
            // As upstream, a failure is only logged.
            let refused = refuse_profiles(address, ctx.shutdown.clone()).await;
            let _ =
                refused.inspect_err(|error| tracing::warn!(%error, "failed to serve --pprof-addr"));
        }
        Ok(())
    }
}
