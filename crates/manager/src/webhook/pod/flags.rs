//! Flags of the pod webhooks, with upstream's names and defaults.

use super::{AnnotationPolicy, BindingPolicy, Namespaces, Options, binding, protected};
use clap::{ArgAction, Args};
use koord_app::flags;
use koord_kube::ObjectKey;
use std::time::Duration;

/// Flags of the pod webhooks.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub struct Flags {
    /// Users allowed to bind pods to nodes, comma-separated; a name without colons is also the service account of that
    /// name in koordinator-system; if empty, bindings are not checked
    #[arg(long, default_value = "")]
    pub binding_admission_user_name: String,
    /// Allow bindings that would be denied, and only count them
    #[arg(long, default_value_t = false, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set, value_parser = flags::boolean)]
    pub binding_admission_dry_run: bool,
    /// Namespaces where bindings are checked, comma-separated; * selects all
    #[arg(long, default_value = "")]
    pub binding_admission_namespaces: String,
    /// Namespaces where bindings are never checked, comma-separated
    #[arg(long, default_value = "kube-system")]
    pub binding_admission_exclude_namespaces: String,
    /// Label keys of pods that any user may bind, comma-separated
    #[arg(long, default_value = koord_api::labels::BINDING_ADMISSION_BYPASS)]
    pub binding_admission_bypass_labels: String,
    /// Annotation keys of pods that any user may bind, comma-separated
    #[arg(long, default_value = "")]
    pub binding_admission_bypass_annotations: String,
    /// Keys of pod annotations that only listed users and groups may write, comma-separated; if empty, every
    /// author may write them, as in Koordinator
    #[arg(long, default_value = protected::KEYS)]
    pub protected_pod_annotations: String,
    /// Users allowed to write protected pod annotations, comma-separated
    #[arg(long, default_value = protected::USERS)]
    pub protected_pod_annotations_users: String,
    /// Groups whose members may write protected pod annotations, comma-separated
    #[arg(long, default_value = protected::GROUPS)]
    pub protected_pod_annotations_groups: String,
    /// Namespaces where every author may write protected pod annotations, comma-separated
    #[arg(long, default_value = protected::EXEMPT_NAMESPACES)]
    pub protected_pod_annotations_exclude_namespaces: String,
    /// Namespace of the ConfigMap with the labels that pods must have
    #[arg(long, default_value = "koordinator-system")]
    pub pod_enhanced_validator_config_namespace: String,
    /// Name of the ConfigMap with the labels that pods must have
    #[arg(long, default_value = "pod-enhanced-validator-config")]
    pub pod_enhanced_validator_config_name: String,
    /// Interval at which the ConfigMap with the required labels is read
    #[arg(long, default_value = "5m", value_parser = flags::duration)]
    pub pod_enhanced_validator_reconcile_interval: Duration,
}

impl Flags {
    /// Converts the flags to options.
    #[must_use]
    pub fn options(&self) -> Options {
        Options {
            binding: BindingPolicy {
                users: binding::users(&self.binding_admission_user_name),
                namespaces: Namespaces::parse(&self.binding_admission_namespaces),
                exempt_namespaces: binding::set(&self.binding_admission_exclude_namespaces),
                bypass_labels: binding::set(&self.binding_admission_bypass_labels),
                bypass_annotations: binding::set(&self.binding_admission_bypass_annotations),
                dry_run: self.binding_admission_dry_run,
            },
            annotations: AnnotationPolicy {
                keys: binding::set(&self.protected_pod_annotations),
                users: binding::set(&self.protected_pod_annotations_users),
                groups: binding::set(&self.protected_pod_annotations_groups),
                exempt_namespaces: binding::set(&self.protected_pod_annotations_exclude_namespaces),
            },
            enhanced_source: ObjectKey::new(
                &self.pod_enhanced_validator_config_namespace,
                &self.pod_enhanced_validator_config_name,
            ),
            enhanced_interval: self.pod_enhanced_validator_reconcile_interval,
        }
    }
}
