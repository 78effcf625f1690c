//! Collection policy of the NodeMetric: what to collect and how often to report.

use super::Malformed;
use crate::store::Metric;
use koord_api::GoDuration;
use koord_api::lenient::{self, ReadError};
use koord_api::slo::{MemoryCollectPolicy, NodeMetricSpec};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Memory that counts as used by nodes, pods and host applications. That of the system never has page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MemoryPolicy {
    /// Memory without page cache.
    #[default]
    WithoutPageCache,
    /// Memory with all page cache.
    WithPageCache,
    /// Memory with recently accessed page cache if the kernel reports it, else without any.
    WithHotPageCache,
}

impl MemoryPolicy {
    /// Returns the metric to read; `hot` is true if the kernel reports which page cache was accessed.
    #[must_use]
    pub fn metric(self, hot: bool) -> Metric {
        match self {
            Self::WithPageCache => Metric::MemoryUsageWithPageCache,
            Self::WithHotPageCache if hot => Metric::MemoryUsageWithHotPageCache,
            Self::WithoutPageCache | Self::WithHotPageCache => Metric::MemoryUsage,
        }
    }
}

/// The collection policy in force: that of the NodeMetric, with defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricPolicy {
    /// Window of the averages, in milliseconds; at least a minute.
    pub aggregate_ms: u64,
    /// Time between two reports, in milliseconds; at least half a minute (tests may go below).
    pub interval_ms: u64,
    /// Windows of the percentiles.
    pub windows: Vec<GoDuration>,
    /// Memory that counts as used.
    pub memory: MemoryPolicy,
}

impl Default for MetricPolicy {
    fn default() -> Self {
        Self {
            aggregate_ms: 300_000,
            interval_ms: 60_000,
            windows: [5, 10, 30].map(GoDuration::from_mins).to_vec(),
            memory: MemoryPolicy::default(),
        }
    }
}

impl MetricPolicy {
    /// Returns the policy of `spec`, like [`Self::read`] without an earlier one.
    #[must_use]
    pub fn from_spec(spec: &NodeMetricSpec) -> Self {
        let value = serde_json::to_value(spec).unwrap_or_default();
        Self::read(&value, None).0
    }

    /// Parses the raw `spec` of a NodeMetric. Values below the minimum are raised to it, and missing ones
    /// have their default. A malformed value is reported in the second result and replaced by that of `last`,
    /// else by the default.
    #[must_use]
    pub fn read(spec: &Value, last: Option<&Self>) -> (Self, Vec<Malformed>) {
        let default = Self::default();
        let Some(section) = member(spec, SECTION) else {
            return (default, Vec::new());
        };
        let mut fields = PolicyFields {
            section,
            malformed: Vec::new(),
        };
        let last = last.cloned().unwrap_or_else(Self::default);
        if !section.is_object() {
            fields.refuse(&[], "is no object");
            return (last, fields.malformed);
        }
        let seconds = |value: i64, least: u64| {
            let value = u64::try_from(value).unwrap_or(0);
            value.max(least).saturating_mul(1000)
        };
        for (name, least) in MINIMUMS {
            let value = fields.at(&[name]);
            let value = value.and_then(|value| lenient::from_value::<i64>(value).ok());
            if value.is_some_and(|value| value < least) {
                let error = format!("expected at least {least}: {least} is used");
                fields.refuse(&[name], &error);
            }
        }
        let memory = |name: MemoryCollectPolicy| match name {
            MemoryCollectPolicy::WithoutPageCache => Some(MemoryPolicy::WithoutPageCache),
            MemoryCollectPolicy::WithPageCache => Some(MemoryPolicy::WithPageCache),
            MemoryCollectPolicy::WithHotPageCache => Some(MemoryPolicy::WithHotPageCache),
            MemoryCollectPolicy::Other(name) => name.is_empty().then(MemoryPolicy::default),
        };
        let policy = Self {
            aggregate_ms: fields.read(&["aggregateDurationSeconds"]).or(
                last.aggregate_ms,
                default.aggregate_ms,
                |s| seconds(s, LEAST_AGGREGATE_SECONDS),
            ),
            interval_ms: fields.read(&["reportIntervalSeconds"]).or(
                last.interval_ms,
                default.interval_ms,
                |s| seconds(s, MIN_REPORT_INTERVAL_SECONDS),
            ),
            windows: match fields.read::<Value>(&[AGGREGATES]) {
                Field::Open => default.windows,
                Field::Given(policy) if !policy.is_object() => {
                    fields.refuse(&[AGGREGATES], "is no object");
                    last.windows
                }
                _ => fields.read(&[AGGREGATES, "durations"]).or(
                    last.windows,
                    Vec::new(),
                    |windows| windows,
                ),
            },
            memory: match fields.read(&[MEMORY]) {
                Field::Open => default.memory,
                Field::Malformed => last.memory,
                Field::Given(name) => memory(name).unwrap_or_else(|| {
                    let error = "must be usageWithoutPageCache, usageWithPageCache or \
                                 usageWithHotPageCache";
                    fields.refuse(&[MEMORY], error);
                    last.memory
                }),
            },
        };
        (policy, fields.malformed)
    }
}

/// Minimum window of averages.
const LEAST_AGGREGATE_SECONDS: u64 = 60;
/// Minimum time between two reports.
const MIN_REPORT_INTERVAL_SECONDS: u64 = 30;
/// Fields whose values are raised to a minimum.
const MINIMUMS: [(&str, i64); 2] = [
    ("aggregateDurationSeconds", LEAST_AGGREGATE_SECONDS as i64),
    ("reportIntervalSeconds", MIN_REPORT_INTERVAL_SECONDS as i64),
];

const SECTION: &str = "metricCollectPolicy";
const AGGREGATES: &str = "nodeAggregatePolicy";
const MEMORY: &str = "nodeMemoryCollectPolicy";

/// Returns a member that is not null.
fn member<'a>(object: &'a Value, name: &str) -> Option<&'a Value> {
    lenient::member(object, name).filter(|value| !value.is_null())
}

/// The raw fields of a policy, and the malformed ones.
struct PolicyFields<'a> {
    section: &'a Value,
    malformed: Vec<Malformed>,
}

/// A parsed field.
enum Field<T> {
    Open,
    Malformed,
    Given(T),
}

impl<T> Field<T> {
    /// Returns the value in force.
    fn or<U>(self, last: U, default: U, of: impl FnOnce(T) -> U) -> U {
        match self {
            Self::Open => default,
            Self::Malformed => last,
            Self::Given(value) => of(value),
        }
    }
}

impl<'a> PolicyFields<'a> {
    fn at(&self, path: &[&str]) -> Option<&'a Value> {
        path.iter()
            .try_fold(self.section, |at, name| member(at, name))
    }

    fn read<T: DeserializeOwned>(&mut self, path: &[&str]) -> Field<T> {
        let Some(value) = self.at(path) else {
            return Field::Open;
        };
        match lenient::from_value(value) {
            Ok(value) => Field::Given(value),
            Err(ReadError::Syntax(error) | ReadError::Field { message: error, .. }) => {
                self.refuse(path, &error);
                Field::Malformed
            }
        }
    }

    fn refuse(&mut self, path: &[&str], error: &str) {
        let shown = match self.at(path) {
            Some(Value::String(text)) => text.clone(),
            other => other.map(Value::to_string).unwrap_or_default(),
        };
        let path: Vec<&str> = [SECTION].iter().chain(path).copied().collect();
        self.malformed
            .push(Malformed::new(path.join("."), shown, error));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn policy(value: serde_json::Value) -> MetricPolicy {
        MetricPolicy::from_spec(
            &serde_json::from_value(json!({"metricCollectPolicy": value})).unwrap(),
        )
    }

    /// Upstream: `Test_nodeMetricInformer_updateMetricSpec`, `getNodeMetricReportInterval`,
    /// `generateQueryDuration`.
    #[test]
    fn missing_fields_have_defaults() {
        let default = MetricPolicy::default();
        assert_eq!(
            (default.aggregate_ms, default.interval_ms),
            (300_000, 60_000)
        );
        assert_eq!(MetricPolicy::from_spec(&NodeMetricSpec::default()), default);
        let with = |change: fn(&mut MetricPolicy)| {
            let mut policy = MetricPolicy::default();
            change(&mut policy);
            policy
        };
        for (section, want) in [
            (json!({}), with(|_| {})),
            (
                json!({"reportIntervalSeconds": 180}),
                with(|p| p.interval_ms = 180_000),
            ),
            (
                json!({"reportIntervalSeconds": 666}),
                with(|p| p.interval_ms = 666_000),
            ),
            (
                json!({"reportIntervalSeconds": 1}),
                with(|p| p.interval_ms = 30_000),
            ),
            (
                json!({"reportIntervalSeconds": -5}),
                with(|p| p.interval_ms = 30_000),
            ),
            (
                json!({"aggregateDurationSeconds": 600}),
                with(|p| p.aggregate_ms = 600_000),
            ),
            (
                json!({"aggregateDurationSeconds": 10}),
                with(|p| p.aggregate_ms = 60_000),
            ),
            (
                json!({"nodeAggregatePolicy": {"durations": ["1m"]}}),
                with(|p| p.windows = vec![GoDuration::from_mins(1)]),
            ),
            (
                json!({"nodeMemoryCollectPolicy": "usageWithPageCache"}),
                with(|p| p.memory = MemoryPolicy::WithPageCache),
            ),
            (
                json!({"nodeMemoryCollectPolicy": "usageWithHotPageCache"}),
                with(|p| p.memory = MemoryPolicy::WithHotPageCache),
            ),
            (json!({"nodeMemoryCollectPolicy": "magic"}), with(|_| {})),
            (json!({"nodeMemoryCollectPolicy": ""}), with(|_| {})),
        ] {
            assert_eq!(policy(section.clone()), want, "{section}");
        }
    }

    #[test]
    fn value_below_minimum_is_raised_and_reported() {
        for (field, value, least) in [
            ("reportIntervalSeconds", 29, 30),
            ("reportIntervalSeconds", -5, 30),
            ("aggregateDurationSeconds", 0, 60),
        ] {
            let spec = json!({"metricCollectPolicy": {field: value}});
            let (policy, malformed) = MetricPolicy::read(&spec, None);
            let used = [policy.interval_ms, policy.aggregate_ms];
            assert!(used.contains(&(least * 1000)), "{field}: {used:?}");
            let expected = Malformed::new(
                format!("metricCollectPolicy.{field}"),
                value.to_string(),
                &format!("expected at least {least}: {least} is used"),
            );
            assert_eq!(malformed, [expected]);
        }
        let spec = json!({"metricCollectPolicy": {"reportIntervalSeconds": 30}});
        assert_eq!(MetricPolicy::read(&spec, None).1, []);
    }

    #[test]
    fn a_bad_field_keeps_its_last_good_value_and_is_named() {
        let good = json!({"metricCollectPolicy": {"aggregateDurationSeconds": 600,
            "reportIntervalSeconds": 90, "nodeAggregatePolicy": {"durations": ["1m"]},
            "nodeMemoryCollectPolicy": "usageWithPageCache"}});
        let (last, malformed) = MetricPolicy::read(&good, None);
        assert!(malformed.is_empty());
        let bad = json!({"metricCollectPolicy": {"aggregateDurationSeconds": "long",
            "reportIntervalSeconds": 45, "nodeAggregatePolicy": {"durations": ["1m", "soon"]},
            "nodeMemoryCollectPolicy": "magic"}});
        let named = |malformed: &[Malformed]| -> Vec<(String, String)> {
            let all = malformed.iter();
            all.map(|entry| (entry.field.clone(), entry.value.clone()))
                .collect()
        };
        let (policy, malformed) = MetricPolicy::read(&bad, Some(&last));
        let want = MetricPolicy {
            interval_ms: 45_000,
            ..last.clone()
        };
        assert_eq!(policy, want);
        let want = [
            ("aggregateDurationSeconds", "long"),
            ("nodeAggregatePolicy.durations", r#"["1m","soon"]"#),
            ("nodeMemoryCollectPolicy", "magic"),
        ];
        let want =
            want.map(|(field, value)| (format!("metricCollectPolicy.{field}"), value.to_owned()));
        assert_eq!(named(&malformed), want);
        assert!(malformed[2].error.contains("usageWithHotPageCache"));
        let bad_part = json!({"metricCollectPolicy": {"nodeAggregatePolicy": ["5m"]}});
        let (policy, malformed) = MetricPolicy::read(&bad_part, Some(&last));
        assert_eq!((policy.windows, malformed.len()), (last.windows.clone(), 1));
        let (policy, malformed) =
            MetricPolicy::read(&json!({"metricCollectPolicy": 7}), Some(&last));
        assert_eq!((policy, malformed.len()), (last, 1));
        let (policy, _) = MetricPolicy::read(&bad, None);
        assert_eq!(policy.memory, MemoryPolicy::WithoutPageCache);
    }
}
