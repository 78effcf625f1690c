//! Usage of a simulated pod at a moment: a pure function of the pod, the time and a seed.

use crate::USAGE_ANNOTATION;
use k8s_openapi::api::core::v1::Pod;
use koord_api::{PriorityClass, QosClass, Quantity, priority, qos, quantity, resources};

/// Annotation of kwok: constant CPU usage, a quantity in cores.
pub const KWOK_CPU_ANNOTATION: &str = "kwok.x-k8s.io/usage-cpu";
/// Annotation of kwok: constant memory usage, a quantity in bytes.
pub const KWOK_MEMORY_ANNOTATION: &str = "kwok.x-k8s.io/usage-memory";

/// Usage of a pod without requests: kwok's 1m and 1Mi.
const IDLE: Usage = Usage {
    cpu: 1.0,
    memory: 1_048_576.0,
};

/// Load of a public production trace by hour of the day, 1 at its peak: two humps and a quiet night.
const TWO_HUMPS: [f64; 24] = [
    0.20, 0.30, 0.55, 0.83, 0.70, 0.45, 0.40, 0.72, 0.88, 1.00, 0.84, 0.67, 0.45, 0.31, 0.24, 0.22,
    0.20, 0.18, 0.15, 0.12, 0.10, 0.10, 0.09, 0.12,
];

/// Seconds a batch pod needs to reach its plateau.
const RAMP_SECONDS: f64 = 60.0;

/// An amount used.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Usage {
    /// Milli-cores.
    pub cpu: f64,
    /// Bytes.
    pub memory: f64,
}

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        self.cpu += other.cpu;
        self.memory += other.memory;
    }
}

/// The shape of a usage curve.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Shape {
    /// Always the request.
    Constant,
    /// Daily curve with two humps; base and amplitude are shares of the request.
    Diurnal {
        base: f64,
        amplitude: f64,
        phase_hours: f64,
    },
    /// Ramp-up, then a plateau near the request.
    Batch { plateau: f64 },
}

/// The usage curve of one pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Generator {
    full: Usage,
    limit: Usage,
    shape: Shape,
    memory_share: f64,
    seed: u64,
}

/// Requests and limits of a pod as CPU and memory; batch and mid resources are converted to these.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Demand {
    /// Requested amounts.
    pub request: Usage,
    /// Limits; 0 means no limit.
    pub limit: Usage,
}

impl Generator {
    /// Returns the curve of `pod`. kwok's usage annotations give a constant; otherwise
    /// `sim.koordinator.sh/usage` picks the shape; otherwise batch, mid and free pods are `batch` and all
    /// others `diurnal`. Pods of one owner share the time of their humps.
    #[must_use]
    pub fn for_pod(pod: &Pod, seed: u64) -> Self {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let own = hash(seed, uid);
        let demand = demand(pod);
        let annotation = |key: &str| pod.metadata.annotations.as_ref()?.get(key);
        let amount = |key: &str| annotation(key)?.parse::<Quantity>().ok();
        let cpu = amount(KWOK_CPU_ANNOTATION).map(|cpu| cpu.to_f64() * 1000.0);
        let memory = amount(KWOK_MEMORY_ANNOTATION).map(|memory| memory.to_f64());
        if cpu.is_some() || memory.is_some() {
            let full = Usage {
                cpu: cpu.unwrap_or(IDLE.cpu),
                memory: memory.unwrap_or(IDLE.memory),
            };
            return Self {
                full,
                limit: demand.limit,
                shape: Shape::Constant,
                memory_share: 1.0,
                seed: own,
            };
        }
        let request = demand.request;
        let full = Usage {
            cpu: if request.cpu > 0.0 {
                request.cpu
            } else {
                IDLE.cpu
            },
            memory: if request.memory > 0.0 {
                request.memory
            } else {
                IDLE.memory
            },
        };
        let batch = match annotation(USAGE_ANNOTATION).map(String::as_str) {
            Some("batch") => true,
            Some("diurnal") => false,
            Some("idle") => {
                return Self {
                    full: IDLE,
                    limit: demand.limit,
                    shape: Shape::Constant,
                    memory_share: 1.0,
                    seed: own,
                };
            }
            _ => is_batch(pod),
        };
        let (shape, memory_share) = if batch {
            let shape = Shape::Batch {
                plateau: between(own, 1, 0.8, 1.0),
            };
            (shape, between(own, 2, 0.6, 0.95))
        } else {
            let owner = pod
                .metadata
                .owner_references
                .as_ref()
                .and_then(|owners| owners.first());
            let group = owner.map_or(own, |owner| hash(seed, &owner.uid));
            let shape = Shape::Diurnal {
                base: between(own, 3, 0.10, 0.20),
                amplitude: between(own, 4, 0.25, 0.45),
                phase_hours: between(group, 5, -2.0, 2.0),
            };
            (shape, between(own, 6, 0.4, 0.7))
        };
        Self {
            full,
            limit: demand.limit,
            shape,
            memory_share,
            seed: own,
        }
    }

    /// Returns the demand of the pod at `unix_seconds`, `age_seconds` after it started, capped by its limits.
    #[must_use]
    pub fn at(&self, unix_seconds: i64, age_seconds: f64) -> Usage {
        // Noise changes with the quarter of a minute, so samples of one tick agree.
        let noise = normal(self.seed, unix_seconds.div_euclid(15));
        let (cpu, memory) = match self.shape {
            Shape::Constant => (1.0, 1.0),
            Shape::Diurnal {
                base,
                amplitude,
                phase_hours,
            } => {
                let load = base + amplitude * day_shape(unix_seconds, phase_hours) + 0.03 * noise;
                (load, self.memory_share + 0.01 * noise)
            }
            Shape::Batch { plateau } => {
                let ramp = (age_seconds / RAMP_SECONDS).clamp(0.1, 1.0);
                let growth = (age_seconds / (5.0 * RAMP_SECONDS)).clamp(0.3, 1.0);
                (plateau * ramp + 0.02 * noise, self.memory_share * growth)
            }
        };
        let capped = |value: f64, limit: f64| {
            let value = value.max(0.0);
            if limit > 0.0 { value.min(limit) } else { value }
        };
        Usage {
            cpu: capped(self.full.cpu * cpu, self.limit.cpu),
            memory: capped(self.full.memory * memory, self.limit.memory),
        }
    }
}

/// Returns whether a pod runs on reclaimed resources and yields to others.
#[must_use]
pub fn is_batch(pod: &Pod) -> bool {
    qos::pod_qos_class(pod) == QosClass::Be
        || matches!(
            priority::pod_priority_class(pod),
            PriorityClass::Batch | PriorityClass::Mid | PriorityClass::Free
        )
}

/// Returns the sum of the requests and limits of a pod's containers. Batch and mid resources count as cpu and
/// memory; invalid amounts count as 0. Init containers do not count: they have ended.
#[must_use]
pub fn demand(pod: &Pod) -> Demand {
    let mut sum = Demand::default();
    for container in pod.spec.iter().flat_map(|spec| &spec.containers) {
        let Some(resources) = &container.resources else {
            continue;
        };
        let total = |list: Option<&std::collections::BTreeMap<String, _>>| {
            let mut usage = Usage::default();
            for (name, amount) in list.into_iter().flatten() {
                let amount = quantity::parse(amount)
                    .map(|amount| amount.to_f64())
                    .unwrap_or(0.0);
                match name.as_str() {
                    resources::CPU => usage.cpu += amount * 1000.0,
                    resources::BATCH_CPU | resources::MID_CPU => usage.cpu += amount,
                    resources::MEMORY | resources::BATCH_MEMORY | resources::MID_MEMORY => {
                        usage.memory += amount;
                    }
                    _ => {}
                }
            }
            usage
        };
        sum.request += total(resources.requests.as_ref());
        sum.limit += total(resources.limits.as_ref());
    }
    sum
}

/// Returns the load at a time of day, shifted by `phase_hours`, interpolated between the hours of [`TWO_HUMPS`].
fn day_shape(unix_seconds: i64, phase_hours: f64) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "a second of the day is exact")]
    let hour = unix_seconds.rem_euclid(86_400) as f64 / 3600.0 + phase_hours;
    let hour = hour.rem_euclid(24.0);
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "0 <= hour < 24"
    )]
    let index = hour as usize % 24;
    let (now, next) = (TWO_HUMPS[index], TWO_HUMPS[(index + 1) % 24]);
    now + (next - now) * hour.fract()
}

/// Returns a stable hash of a text: equal in every run and on every machine.
#[must_use]
pub fn hash(seed: u64, text: &str) -> u64 {
    let mut state = 0xcbf2_9ce4_8422_2325_u64 ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for byte in text.bytes() {
        state = (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    mix(state)
}

fn mix(mut state: u64) -> u64 {
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

#[allow(
    clippy::cast_precision_loss,
    reason = "53 bits are kept, which an f64 holds"
)]
fn unit(seed: u64) -> f64 {
    (mix(seed) >> 11) as f64 / (1_u64 << 53) as f64
}

fn between(seed: u64, stream: u64, low: f64, high: f64) -> f64 {
    low + (high - low) * unit(seed.wrapping_add(stream.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

/// Returns a roughly normal number, mean 0 and deviation 1: the sum of four uniform numbers.
fn normal(seed: u64, tick: i64) -> f64 {
    let seed = seed ^ mix(tick.cast_unsigned());
    let sum: f64 = (10..14)
        .map(|stream| between(seed, stream, -1.0, 1.0))
        .sum();
    sum * 0.866
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(annotations: &Value, labels: &Value, resources: &Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": { "uid": "u1", "annotations": annotations, "labels": labels },
            "spec": { "containers": [{ "name": "c", "resources": resources }] },
        }))
        .unwrap()
    }

    #[test]
    fn kwoks_annotations_give_a_constant() {
        let annotations = json!({ KWOK_CPU_ANNOTATION: "1500m", KWOK_MEMORY_ANNOTATION: "1Gi" });
        let generator = Generator::for_pod(&pod(&annotations, &json!({}), &json!({})), 1);
        for time in [0, 1_000, 50_000] {
            let usage = generator.at(time, 10.0);
            assert_eq!((usage.cpu, usage.memory), (1500.0, 1_073_741_824.0));
        }
        let only_cpu = pod(&json!({ KWOK_CPU_ANNOTATION: "1" }), &json!({}), &json!({}));
        assert_eq!(
            Generator::for_pod(&only_cpu, 1).at(0, 0.0).memory,
            1_048_576.0
        );
    }

    #[test]
    fn batch_pods_use_about_what_they_ask_for() {
        let resources = json!({ "requests": {
            "kubernetes.io/batch-cpu": "4000", "kubernetes.io/batch-memory": "8Gi",
        } });
        let pod = pod(
            &json!({}),
            &json!({ "koordinator.sh/qosClass": "BE" }),
            &resources,
        );
        assert_eq!(demand(&pod).request.cpu, 4000.0);
        let generator = Generator::for_pod(&pod, 1);
        assert!(generator.at(0, 0.0).cpu < 1000.0);
        for time in 0..200 {
            let usage = generator.at(time * 60, 3600.0);
            assert!((2800.0..4400.0).contains(&usage.cpu), "{}", usage.cpu);
            assert!(usage.memory <= 0.95 * 8.0 * f64::from(1 << 30));
        }
    }

    #[test]
    fn services_follow_the_day_below_their_request() {
        let resources =
            json!({ "requests": { "cpu": "10", "memory": "10Gi" }, "limits": { "cpu": "10" } });
        let generator = Generator::for_pod(&pod(&json!({}), &json!({}), &resources), 7);
        let day: Vec<f64> = (0..24 * 60)
            .map(|minute| generator.at(minute * 60, 1e6).cpu)
            .collect();
        let (low, high) = day.iter().fold((f64::MAX, 0.0_f64), |(low, high), cpu| {
            (low.min(*cpu), high.max(*cpu))
        });
        assert!(low >= 0.0 && high <= 10_000.0);
        assert!(high > 2.0 * low, "{low} {high}");
    }

    #[test]
    fn equal_seeds_give_equal_curves() {
        let pod = pod(
            &json!({}),
            &json!({}),
            &json!({ "requests": { "cpu": "1" } }),
        );
        let (a, b, c) = (
            Generator::for_pod(&pod, 1),
            Generator::for_pod(&pod, 1),
            Generator::for_pod(&pod, 2),
        );
        assert_eq!(a.at(12_345, 1.0), b.at(12_345, 1.0));
        assert_ne!(a.at(12_345, 1.0), c.at(12_345, 1.0));
    }
}
