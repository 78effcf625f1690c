//! The manager's admission webhooks: their handlers, feature gates and webhook configurations.

mod configmap;
mod dry_run;
mod json;
mod lookup;
mod metrics;
mod node;
pub mod offline;
pub mod pod;
pub(crate) mod profile;
mod quota;
mod reservation;
mod serving;
mod settings;

pub use configmap::SettingsSource;
pub use metrics::WebhookMetrics;
pub(crate) use pod::strategic as strategic_pod;
pub use profile::Priority;
pub use quota::{Admission as QuotaAdmission, Retries as QuotaRetries};
pub use serving::ServeMode;
pub(crate) use serving::start;
pub use settings::{MUTATING, Settings, VALIDATING};

use crate::cache::ObjectKind;
use koord_app::features::Gates;
use koord_kube::webhook::FailurePolicy::{Fail, Ignore};
use koord_kube::webhook::Operation::{Create, Delete, Update};
use koord_kube::webhook::configuration::{Service, manifest};
use koord_kube::webhook::{Handler, Registration, Selector, Webhook};
use serde_json::Value;
use std::sync::Arc;

/// Dependencies of the handlers.
#[derive(Clone)]
pub struct Deps {
    /// Client for objects that are not cached.
    pub client: koord_kube::Client,
    /// The manager's feature gates.
    pub gates: Gates,
    /// Metrics of the webhooks.
    pub metrics: WebhookMetrics,
    /// Lookup of profiles and the objects they refer to.
    pub lookup: Arc<dyn pod::ProfileLookup>,
    /// Admission of quotas; `None` allows every quota.
    pub admission: Option<Arc<QuotaAdmission>>,
    /// Quota checks of pods; `None` skips them.
    pub quotas: Option<Arc<dyn pod::PodQuotas>>,
    /// Flags of the pod webhooks.
    pub pods: pod::Options,
    /// Access to `slo-controller-config` and the nodes that it applies to.
    pub settings: Arc<dyn configmap::SettingsSource>,
}

impl std::fmt::Debug for Deps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Deps")
            .field("gates", &self.gates)
            .finish_non_exhaustive()
    }
}

/// Static description of one webhook path.
pub(crate) struct WebhookSpec {
    /// The HTTP path.
    pub(crate) path: &'static str,
    /// Feature gate; if it is off, the path is neither served nor configured.
    pub(crate) gate: &'static str,
    /// True for the MutatingWebhookConfiguration, false for the validating one.
    pub(crate) mutating: bool,
    /// Entries in that configuration.
    pub(crate) registrations: &'static [Registration],
    /// Caches that the handler reads; a request waits until they are in sync or known to be not installed.
    pub(crate) caches: &'static [ObjectKind],
    /// Creates the handler; `None` if there is none yet.
    pub(crate) handler: Option<HandlerFactory>,
}

/// Function that creates a handler.
pub(crate) type HandlerFactory = fn(&Deps) -> Arc<dyn Handler>;

/// Feature gate of all webhooks together.
const FRAMEWORK: &str = "WebhookFramework";
const SCHEDULING: &str = "scheduling.koordinator.sh";
const QUOTAS: &str = "scheduling.sigs.k8s.io";
/// Excludes namespaces of the control plane by label: its pods must start without the manager.
const NOT_CONTROL_PLANE: Option<Selector> = Some(Selector::DoesNotExist("control-plane"));

/// A configuration entry for all objects of the core group, with failure policy Fail.
const CORE: Registration = Registration {
    name: "",
    operations: &[],
    group: "",
    version: "v1",
    resource: "",
    failure_policy: Fail,
    namespace_selector: None,
    object_selector: None,
};

/// All webhooks, in upstream's order of paths.
pub(crate) const TABLE: &[WebhookSpec] = &[
    WebhookSpec {
        path: "/mutate-pod",
        gate: "PodMutatingWebhook",
        mutating: true,
        registrations: &[
            Registration {
                name: "mpod-create.koordinator.sh",
                operations: &[Create],
                resource: "pods",
                namespace_selector: NOT_CONTROL_PLANE,
                ..CORE
            },
            Registration {
                name: "mpod-update.koordinator.sh",
                operations: &[Update],
                resource: "pods",
                namespace_selector: NOT_CONTROL_PLANE,
                object_selector: Some(Selector::In(
                    "pod.koordinator.sh/mutating-update",
                    &["true"],
                )),
                ..CORE
            },
        ],
        caches: &[
            ObjectKind::Profiles,
            ObjectKind::Namespaces,
            ObjectKind::PriorityClasses,
            ObjectKind::Quotas,
            ObjectKind::QuotaProfiles,
            ObjectKind::Recommendations,
        ],
        handler: Some(pod::mutating),
    },
    WebhookSpec {
        path: "/validate-pod",
        gate: "PodValidatingWebhook",
        mutating: false,
        registrations: &[Registration {
            name: "vpod.koordinator.sh",
            operations: &[Create, Update],
            resource: "pods",
            namespace_selector: NOT_CONTROL_PLANE,
            ..CORE
        }],
        caches: &[ObjectKind::Quotas],
        handler: Some(pod::validating),
    },
    WebhookSpec {
        path: "/validate-pod-binding",
        gate: "PodValidatingWebhook",
        mutating: false,
        registrations: &[Registration {
            name: "vpodbinding.koordinator.sh",
            operations: &[Create],
            resource: "pods/binding",
            failure_policy: Ignore,
            ..CORE
        }],
        caches: &[],
        handler: Some(pod::binding),
    },
    WebhookSpec {
        path: "/mutate-scheduling-sigs-k8s-io-v1alpha1-elasticquota",
        gate: "ElasticMutatingWebhook",
        mutating: true,
        registrations: &[Registration {
            name: "melasticquota.koordinator.sh",
            operations: &[Create],
            group: QUOTAS,
            version: "v1alpha1",
            resource: "elasticquotas",
            ..CORE
        }],
        caches: &[ObjectKind::Quotas],
        handler: Some(quota::mutating),
    },
    WebhookSpec {
        path: "/validate-scheduling-sigs-k8s-io-v1alpha1-elasticquota",
        gate: "ElasticValidatingWebhook",
        mutating: false,
        registrations: &[Registration {
            name: "velasticquota.koordinator.sh",
            operations: &[Create, Update, Delete],
            group: QUOTAS,
            version: "v1alpha1",
            resource: "elasticquotas",
            ..CORE
        }],
        caches: &[ObjectKind::Quotas, ObjectKind::Pods],
        handler: Some(quota::validating),
    },
    WebhookSpec {
        path: "/mutate-node-status",
        gate: "NodeMutatingWebhook",
        mutating: true,
        registrations: &[Registration {
            name: "mnode-status.koordinator.sh",
            operations: &[Create, Update],
            resource: "nodes/status",
            failure_policy: Ignore,
            ..CORE
        }],
        caches: &[],
        handler: Some(node::mutating),
    },
    WebhookSpec {
        path: "/validate-node",
        gate: "NodeValidatingWebhook",
        mutating: false,
        registrations: &[Registration {
            name: "vnode.koordinator.sh",
            operations: &[Create, Update],
            resource: "nodes",
            failure_policy: Ignore,
            ..CORE
        }],
        caches: &[ObjectKind::Settings],
        handler: Some(node::validating),
    },
    WebhookSpec {
        path: "/validate-configmap",
        gate: "ConfigMapValidatingWebhook",
        mutating: false,
        registrations: &[Registration {
            name: "vconfigmap.koordinator.sh",
            operations: &[Create, Update, Delete],
            resource: "configmaps",
            object_selector: Some(Selector::In(
                "koordinator.sh/configmap-type",
                &["slo-controller-config"],
            )),
            ..CORE
        }],
        caches: &[ObjectKind::Nodes],
        handler: Some(configmap::validating),
    },
    WebhookSpec {
        path: "/mutate-reservation",
        gate: "ReservationMutatingWebhook",
        mutating: true,
        registrations: &[Registration {
            name: "mreservation-create.koordinator.sh",
            operations: &[Create],
            group: SCHEDULING,
            version: "v1alpha1",
            resource: "reservations",
            ..CORE
        }],
        caches: &[ObjectKind::Profiles, ObjectKind::PriorityClasses],
        handler: Some(reservation::mutating),
    },
];

/// Returns the webhooks whose gates are enabled and that have a handler.
pub(crate) fn enabled(gates: &Gates) -> impl Iterator<Item = &'static WebhookSpec> {
    let framework = gates.enabled(FRAMEWORK);
    TABLE
        .iter()
        .filter(move |row| framework && gates.enabled(row.gate) && row.handler.is_some())
}

/// Returns the paths that are served with these gates.
pub fn paths(gates: &Gates) -> impl Iterator<Item = &'static str> {
    enabled(gates).map(|row| row.path)
}

/// Returns the manifests of the two webhook configurations, with the paths that are served with these gates.
#[must_use]
pub fn configurations(gates: &Gates, service: &Service) -> [Value; 2] {
    render_configurations(|| enabled(gates), service)
}

/// Returns the manifests of the two webhook configurations for installation, with all paths. A running
/// manager removes those it does not serve.
#[must_use]
pub fn manifests(service: &Service) -> [Value; 2] {
    render_configurations(|| TABLE.iter(), service)
}

fn render_configurations<I: Iterator<Item = &'static WebhookSpec>>(
    rows: impl Fn() -> I,
    service: &Service,
) -> [Value; 2] {
    [(MUTATING, true), (VALIDATING, false)].map(|(name, mutating)| {
        let rows = rows().filter(|row| row.mutating == mutating);
        let entries = rows.flat_map(|row| row.registrations.iter().map(|entry| (row.path, entry)));
        manifest(name, mutating, entries, service)
    })
}

/// Returns all webhooks, for callers without a replica such as tests.
#[must_use]
pub fn webhooks(deps: &Deps) -> Vec<Webhook> {
    let make = |row: &WebhookSpec| {
        Some(Webhook {
            path: row.path,
            mutating: row.mutating,
            handler: row.handler?(deps),
        })
    };
    TABLE.iter().filter_map(make).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifests_of_the_chart_match_webhook_table() {
        let text = include_str!("../../../../charts/koord/files/manager/webhooks.yaml");
        let documents = text.split("\n---\n").skip(1);
        let documents: Vec<Value> = documents
            .map(|text| serde_saphyr::from_str(text).unwrap())
            .collect();
        let service = Service {
            namespace: "koordinator-system".to_owned(),
            name: "koordinator-webhook-service".to_owned(),
        };
        assert_eq!(documents, manifests(&service));
    }

    /// Verifies this because an undeclared gate would never be enabled.
    #[test]
    fn gates_are_declared_and_names_unique() {
        let mut names = std::collections::BTreeSet::new();
        for row in TABLE {
            assert!(
                crate::GATES.iter().any(|gate| gate.name == row.gate),
                "{}",
                row.gate
            );
            for entry in row.registrations {
                assert!(names.insert(entry.name), "{}", entry.name);
            }
        }
        let none = Gates::parse(crate::GATES, "WebhookFramework=false").unwrap();
        assert_eq!(enabled(&none).count(), 0);
    }
}
