//! The command line, with upstream's names and defaults.

use crate::webhook::{QuotaRetries, ServeMode, Settings};
use crate::{GATES, Options, OptionsError, ProfileFlags, features, recommender};
use clap::{ArgAction, Parser};
use koord_api::GoDuration;
use koord_app::features::Gates;
use koord_app::flags::{self, Selection};
use koord_kube::client::{ClientOptions, RestMetrics};
use koord_kube::lease::Election;
use koord_kube::secure::SecureServingArgs;
use prometheus::Registry;
use std::path::Path;

/// Arguments of the manager.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "koord-manager",
    version,
    about = "Controllers and webhooks of co-location: offers unused resources of nodes to batch pods"
)]
pub struct Args {
    /// Path of a kubeconfig; default: KUBECONFIG, the pod's service account or ~/.kube/config
    #[arg(long, default_value = "")]
    pub kubeconfig: String,
    /// Address to serve metrics on; 0 disables it
    #[arg(long, default_value = ":8080")]
    pub metrics_addr: String,
    /// Address to serve /healthz and /readyz on; 0 disables it
    #[arg(long, default_value = ":8000")]
    pub health_probe_addr: String,
    /// IP address of the TLS server
    #[arg(long, default_value = "0.0.0.0")]
    pub bind_address: std::net::IpAddr,
    /// Port of the TLS server, which serves health, metrics and the dashboard to authorized clients; 0 disables
    /// it
    #[arg(long, default_value_t = 0)]
    pub secure_port: u16,
    /// Certificate of the TLS server, and authentication of its clients.
    #[command(flatten)]
    pub secure: SecureServingArgs,
    /// Run the controllers on one replica only, the elected leader
    #[arg(long, default_value_t = true, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set, value_parser = flags::boolean)]
    pub enable_leader_election: bool,
    /// Namespace of the leader election lease
    #[arg(long, default_value = "koordinator-system")]
    pub leader_election_namespace: String,
    /// Lock type of the leader election; only leases is supported
    #[arg(long, default_value = "leases")]
    pub leader_elect_resource_lock: String,
    /// Accepted for compatibility; all namespaces are watched
    #[arg(long, default_value = "")]
    pub namespace: String,
    /// Accepted for compatibility; cached objects are never copied
    #[arg(long, default_value_t = false, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set, value_parser = flags::boolean)]
    pub disable_no_deepcopy: bool,
    /// Serve /debug/pprof, which answers 501 because there are no Go profiles
    #[arg(long, default_value_t = true, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set, value_parser = flags::boolean)]
    pub enable_pprof: bool,
    /// Address to serve /debug/pprof on; 0 disables it
    #[arg(long, default_value = ":8090")]
    pub pprof_addr: String,
    /// Accepted for compatibility; changes are watched, not polled
    #[arg(long, default_value = "")]
    pub sync_period: String,
    /// Maximum requests per second to the API server; values of 0 or less mean 20
    #[arg(long, default_value_t = 30.0, value_parser = flags::number, allow_hyphen_values = true)]
    pub rest_config_qps: f64,
    /// Maximum burst of requests to the API server; values of 0 or less mean 30
    #[arg(long, default_value_t = 50, allow_hyphen_values = true)]
    pub rest_config_burst: i32,
    /// Controllers to run: *, name or -name, comma-separated
    #[arg(long, default_value = "*", value_parser = flags::selection)]
    pub controllers: Selection,
    /// Plugins of the noderesource controller: *, name or -name, comma-separated
    #[arg(long, default_value = "*", value_parser = flags::selection)]
    pub noderesource_plugins: Selection,
    /// Namespace of the ConfigMap with the settings
    #[arg(long, default_value = "koordinator-system")]
    pub config_namespace: String,
    /// Name of the ConfigMap with the settings
    #[arg(long, default_value = "slo-controller-config")]
    pub slo_config_name: String,
    /// Require a name for each node strategy in the settings if the value is "true"
    #[arg(long, default_value = "")]
    pub node_strategy_name_need_check: String,
    /// Maximum number of retries of a quota update for one batch of pods
    #[arg(long, default_value_t = 3)]
    pub quota_update_max_retries: u32,
    /// Maximum random delay before a retry of a quota update, as a Go duration; 0 disables it
    #[arg(long, default_value = "0s")]
    pub quota_update_retry_jitter: GoDuration,
    /// Maximum total delay of all retries of a quota update for one batch of pods
    #[arg(long, default_value = "1s")]
    pub quota_update_max_total_jitter: GoDuration,
    /// Read the quota from the API server after every conflict
    #[arg(long, default_value_t = false, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set, value_parser = flags::boolean)]
    pub quota_update_conflict_fresh_get: bool,
    /// Feature gates: Name=true,Other=false
    #[arg(long, default_value = "")]
    pub feature_gates: String,
    /// Write nothing: log what would be written, count it, and serve it at /debug/dry-run of the metrics port. For
    /// use next to another manager. Not in upstream.
    #[arg(long, default_value_t = false, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set, value_parser = flags::boolean)]
    pub dry_run: bool,
    /// Flags of the recommender.
    #[command(flatten)]
    pub recommender: recommender::RecommenderArgs,
    /// Flags of the pod webhooks.
    #[command(flatten)]
    pub pods: crate::webhook::pod::Flags,
    /// Flags of the colocationprofile controller.
    #[command(flatten)]
    pub colocation_profile: ProfileFlags,
}

impl Args {
    /// Validates all flags and converts them to [`Options`].
    ///
    /// # Errors
    ///
    /// Names the flag and its value.
    pub fn options(&self) -> Result<Options, OptionsError> {
        let invalid = OptionsError::flag;
        let gates = Gates::parse(GATES, &self.feature_gates)
            .map_err(|error| invalid("feature-gates", error.to_string()))?;
        if self.leader_elect_resource_lock != "leases" {
            let problem = format!("{:?} is not supported", self.leader_elect_resource_lock);
            return Err(invalid("leader-elect-resource-lock", problem));
        }
        let address = |flag, value: &str| {
            flags::bind_address(value).map_err(|error| invalid(flag, error.to_string()))
        };
        let defaults = Options::default();
        self.controllers
            .check(&crate::CONTROLLERS)
            .map_err(|error| invalid("controllers", error.to_string()))?;
        self.noderesource_plugins
            .check(&crate::noderesource::PLUGINS)
            .map_err(|error| invalid("noderesource-plugins", error.to_string()))?;
        let election = self.enable_leader_election.then(|| {
            let namespace = &self.leader_election_namespace;
            Election::new(namespace, crate::LEASE_NAME, &defaults.identity)
        });
        let profiling_address = address("pprof-addr", &self.pprof_addr)?;
        Ok(Options {
            metrics_address: address("metrics-addr", &self.metrics_addr)?,
            health_address: address("health-probe-addr", &self.health_probe_addr)?,
            profiling_address: profiling_address.filter(|_| self.enable_pprof),
            notes: self.notes(&gates),
            election,
            controllers: self.controllers.clone(),
            noderesource_plugins: self.noderesource_plugins.clone(),
            config_namespace: self.config_namespace.clone(),
            config_name: self.slo_config_name.clone(),
            // Upstream's flag is a string that only enables the check when it equals "true".
            node_strategy_names_needed: self.node_strategy_name_need_check == "true",
            gates,
            install: true,
            dry_run: self.dry_run,
            webhooks: ServeMode::Https(Settings::from_env(|name| std::env::var(name).ok())?),
            recommender: self.recommender.options()?,
            pods: self.pods.options(),
            colocation_profile: self.colocation_profile.options(),
            quota_retries: QuotaRetries {
                max: self.quota_update_max_retries,
                jitter: self.quota_update_retry_jitter.to_std().unwrap_or_default(),
                max_total_jitter: self
                    .quota_update_max_total_jitter
                    .to_std()
                    .unwrap_or_default(),
                fresh_get: self.quota_update_conflict_fresh_get,
            },
            ..defaults
        })
    }

    /// Returns a note, with the reason, for each flag or gate that is set and has no effect.
    fn notes(&self, gates: &Gates) -> Vec<String> {
        let flags = [
            (
                format!("--namespace={}", self.namespace),
                !self.namespace.is_empty(),
                "nodes are cluster-scoped, and their pods are in all namespaces",
            ),
            (
                format!("--sync-period={}", self.sync_period),
                !matches!(self.sync_period.as_str(), "" | "0" | "0s"),
                "all changes are watched, and lost ones are recovered by a relist",
            ),
            (
                format!("--disable-no-deepcopy={}", self.disable_no_deepcopy),
                self.disable_no_deepcopy,
                "cached objects are immutable and never copied",
            ),
            (
                "--colocation-profile-expire-pod-cache-duration".to_owned(),
                self.colocation_profile
                    .colocation_profile_expire_pod_cache_duration
                    != ProfileFlags::EXPIRE_POD_CACHE,
                "a pod's entry expires when the pod may be updated again",
            ),
        ];
        let set = gates.iter().filter(|(gate, on)| *on != gate.default);
        let gates = set.filter_map(|(gate, on)| {
            let reason = features::ineffective_reason(gate.name)?;
            Some((format!("--feature-gates={}={on}", gate.name), true, reason))
        });
        flags
            .into_iter()
            .chain(gates)
            .filter(|(_, is_set, _)| *is_set)
            .map(|(what, _, reason)| format!("{what} has no effect: {reason}"))
            .collect()
    }

    /// Returns the kubeconfig file; `None` if the flag is empty.
    #[must_use]
    pub fn kubeconfig(&self) -> Option<&Path> {
        Some(Path::new(&self.kubeconfig)).filter(|path| !path.as_os_str().is_empty())
    }

    /// Returns the options of the API client; its metrics are registered in `registry`.
    ///
    /// # Errors
    ///
    /// A metric's definition is invalid, which tests would show.
    pub fn client_options(&self, registry: &Registry) -> prometheus::Result<ClientOptions> {
        let qps = Some(self.rest_config_qps).filter(|qps| *qps > 0.0);
        let burst = u32::try_from(self.rest_config_burst).unwrap_or(0);
        Ok(ClientOptions {
            // controller-runtime's default for an unset value.
            qps: qps.unwrap_or(20.0),
            burst: if burst == 0 { 30 } else { burst },
            user_agent: "koordinator-manager".to_owned(),
            metrics: Some(RestMetrics::register(registry)?),
            ..Default::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;

    fn parse(line: &str) -> Result<Options, String> {
        let argv = std::iter::once("koord-manager").chain(line.split_whitespace());
        let parsed = flags::parse::<Args>(argv.map(OsString::from)).map_err(|e| e.to_string())?;
        parsed.args.options().map_err(|error| error.to_string())
    }

    #[test]
    fn upstreams_manifest_is_accepted() {
        let options = parse(
            "--enable-leader-election --metrics-addr=:8080 --health-probe-addr=:8000 \
             --logtostderr=true --leader-election-namespace=koordinator-system --v=4 \
             -feature-gates=AllAlpha=false --sync-period=0 --config-namespace=koordinator-system",
        )
        .unwrap();
        let election = options.election.unwrap();
        assert_eq!(
            (election.namespace.as_str(), election.name.as_str()),
            ("koordinator-system", "koordinator-manager")
        );
        assert_eq!(
            options.metrics_address,
            Some("0.0.0.0:8080".parse().unwrap())
        );
    }

    #[test]
    fn flags_of_pods_have_upstreams_names_and_defaults() {
        let options = parse("").unwrap();
        assert_eq!(options.pods, crate::webhook::pod::Options::default());
        assert_eq!(options.colocation_profile, crate::ProfileOptions::default());
        let options = parse(
            "--binding-admission-user-name=a,b --binding-admission-dry-run \
             --binding-admission-namespaces=* --binding-admission-exclude-namespaces= \
             --binding-admission-bypass-labels=x --binding-admission-bypass-annotations=y \
             --pod-enhanced-validator-config-namespace=n --pod-enhanced-validator-config-name=c \
             --pod-enhanced-validator-reconcile-interval=1m30s \
             --colocation-profile-reconcile-by-default --colocation-profile-reconcile-interval=1m \
             --colocation-profile-force-update-pod-duration=2m \
             --colocation-profile-expire-pod-cache-duration=3m \
             --colocation-profile-update-pod-qps=0.5 --colocation-profile-update-pod-qps-burst=7",
        )
        .unwrap();
        let binding = options.pods.binding;
        assert!(binding.users.contains("b") && binding.dry_run);
        assert!(binding.exempt_namespaces.is_empty() && binding.bypass_annotations.contains("y"));
        assert_eq!(options.pods.enhanced_source.to_string(), "n/c");
        assert_eq!(options.pods.enhanced_interval.as_secs(), 90);
        let profile = options.colocation_profile;
        assert!(profile.by_default);
        assert_eq!((profile.qps, profile.burst), (0.5, 7));
        assert_eq!(profile.force_update.as_secs(), 120);
    }

    #[test]
    fn quota_flags_have_upstreams_names() {
        assert_eq!(parse("").unwrap().quota_retries, QuotaRetries::default());
        let options = parse(
            "--quota-update-max-retries=10 --quota-update-retry-jitter=50ms \
             --quota-update-max-total-jitter=2s --quota-update-conflict-fresh-get",
        )
        .unwrap();
        let want = QuotaRetries {
            max: 10,
            jitter: std::time::Duration::from_millis(50),
            max_total_jitter: std::time::Duration::from_secs(2),
            fresh_get: true,
        };
        assert_eq!(options.quota_retries, want);
        let negative = parse("--quota-update-retry-jitter=-1ms").unwrap();
        assert!(negative.quota_retries.jitter.is_zero());
    }

    #[test]
    fn mistakes_name_the_flag() {
        for (line, names) in [
            ("--controllers=nodemetrics", "nodemetrics"),
            ("--noderesource-plugins=*,-Batch", "-Batch"),
            ("--feature-gates=Nope=true", "Nope"),
            ("--metrics-addr=nowhere", "metrics-addr"),
            ("--leader-elect-resource-lock=endpoints", "endpoints"),
            ("--rest-config-qps=fast", "fast"),
            ("--quota-update-retry-jitter=soon", "soon"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(names), "{line}: {error}");
        }
        assert!(
            parse("--enable-leader-election=false")
                .unwrap()
                .election
                .is_none()
        );
    }
}
