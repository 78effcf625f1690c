//! Upstream's flags that have no effect here, with the reason. They are accepted so that upstream's manifests
//! work.

/// An accepted flag without effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IgnoredFlag {
    /// Name of the flag.
    pub name: &'static str,
    /// Upstream's default value.
    pub default: &'static str,
    /// Reason why the flag has no effect.
    pub why: &'static str,
}

macro_rules! inert {
    ($($why:literal: { $($field:ident $name:literal = $default:literal;)+ })+) => {
        /// Flags that are accepted without effect.
        pub const IGNORED_FLAGS: &[IgnoredFlag] = &[$($(
            IgnoredFlag { name: $name, default: $default, why: $why },
        )+)+];

        /// The ignored flags in clap's form.
        #[derive(Debug, Clone, clap::Args)]
        #[command(next_help_heading = "Accepted, without effect")]
        pub struct Flags {
            $($(
                #[arg(
                    long = $name,
                    num_args = 0..=1,
                    default_missing_value = "true",
                    help = concat!($why, " (upstream: ", $default, ")"),
                )]
                $field: Option<String>,
            )+)+
        }

        impl Flags {
            /// Returns the ignored flags that are set on the command line.
            #[must_use]
            pub fn set_flags(&self) -> Vec<IgnoredFlag> {
                let values = [$($(&self.$field,)+)+];
                let flags = IGNORED_FLAGS.iter().zip(values);
                flags.filter_map(|(flag, value)| value.is_some().then_some(*flag)).collect()
            }
        }
    };
}

inert! {
    "there is no Go runtime to profile": {
        enable_pprof "enable-pprof" = "false";
        pprof_addr "pprof-addr" = ":9317";
    }
    "no component reads this ConfigMap, in upstream neither": {
        configmap_name "configmap-name" = "koordlet-config";
        configmap_namespace "configmap-namespace" = "koordinator-system";
    }
    "the NodeMetric's spec sets the interval": {
        report_interval "report-interval" = "0s";
    }
    "koordlet does not call the container runtime": {
        containerd_endpoint "containerd-endpoint" = "";
        docker_endpoint "docker-endpoint" = "";
        pouch_endpoint "pouch-endpoint" = "";
        default_runtime_type "default-runtime-type" = "containerd";
        run_root_dir "run-root-dir" = "/host-run/";
    }
    "the proxy of the kubelet's PodResources is not implemented": {
        pod_resources_proxy_path "pod-resources-proxy-path" = "/var/run/koordlet/pod-resources";
    }
    "task IDs are read when needed": {
        enable_pod_taskids "enable-pod-taskids" = "false";
    }
    "cold pages are read as often as kidled scans, every 5 s": {
        coldpage_collector_interval "coldpage-collector-interval" = "5s";
    }
    "usage of the system is computed from samples of one tick": {
        collect_sys_metric_outdated_interval "collect-sys-metric-outdated-interval" = "10s";
    }
    "samples are kept in rings of a fixed size": {
        metric_gc_interval_seconds "metric-gc-interval-seconds" = "300";
        metric_expire_seconds "metric-expire-seconds" = "1800";
        tsdb_retention_duration "tsdb-retention-duration" = "12h";
        tsdb_enable_prometheus_metric "tsdb-enable-prometheus-metric" = "true";
        tsdb_stripe_size "tsdb-stripe-size" = "16384";
        tsdb_max_bytes "tsdb-max-bytes" = "104857600";
        tsdb_wal_segment_size "tsdb-wal-segment-size" = "1048576";
        tsdb_max_block_chunk_segment_size "tsdb-max-block-chunk-segment-size" = "5242880";
        tsdb_min_block_duration "tsdb-min-block-duration" = "10m";
        tsdb_max_block_duration "tsdb-max-block-duration" = "10m";
        tsdb_head_chunks_write_buffer_size "tsdb-head-chunks-write-buffer-size" = "1048576";
    }
    "there are no strategy plugins": {
        qos_extension_plugins "qos-extension-plugins" = "";
    }
    "connecting to the runtime is retried without limit, and the delay always doubles": {
        runtime_hooks_nri_backoff_steps "runtime-hooks-nri-backoff-steps" = "2147483647";
        runtime_hooks_nri_backoff_factor "runtime-hooks-nri-backoff-factor" = "2";
    }
}
