//! Reclaimable resources: requests of production pods that they are not expected to use.
//!
//! Two estimates, by pod and by class; the published one is the smaller of both, resource by
//! resource, and the published peak the larger.

use super::{Forecast, Predictor, SYSTEM, class_uid};
use crate::states::node::Amounts;
use crate::states::{Phase, PodInfo};
use jiff::Timestamp;
use koord_api::PriorityClass;

/// An estimate of reclaimable resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Estimate {
    /// Amount that can be offered to other pods.
    pub reclaimable: Amounts,
    /// Expected peak usage.
    pub peak: Amounts,
}

/// Estimates by pod and by class, and the published one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reclaimable {
    /// Estimate from the pods' models.
    pub by_pod: Estimate,
    /// Estimate from the classes' models.
    pub by_class: Estimate,
    /// The smaller reclaimable amount and the larger peak.
    pub published: Estimate,
}

/// A production pod and its forecast.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodForecast {
    /// Resources that the pod requests.
    pub request: Amounts,
    /// Expected peak with margin; `None` if the pod is too young or has no model.
    pub peak: Option<Amounts>,
}

/// Returns the estimate from the pods' models.
#[must_use]
pub fn by_pod(pods: &[PodForecast], allocatable: Amounts) -> Estimate {
    let mut unreclaimable = Amounts::default();
    let mut unpredicted = Amounts::default();
    let mut reclaimable = Amounts::default();
    for pod in pods {
        match pod.peak {
            None => unpredicted = plus(unpredicted, pod.request),
            Some(peak) => {
                unreclaimable = plus(unreclaimable, peak);
                reclaimable = plus(reclaimable, clamp_to_zero(subtract(pod.request, peak)));
            }
        }
    }
    Estimate {
        reclaimable: smaller(
            reclaimable,
            clamp_to_zero(subtract(allocatable, unreclaimable)),
        ),
        peak: plus(unreclaimable, unpredicted),
    }
}

/// Returns the estimate from the classes' models: `requests` of production pods, and the peak of the system
/// and of production pods with margin.
#[must_use]
pub fn by_class(requests: Amounts, unreclaimable: Amounts, allocatable: Amounts) -> Estimate {
    Estimate {
        reclaimable: smaller(
            clamp_to_zero(subtract(requests, unreclaimable)),
            clamp_to_zero(subtract(allocatable, unreclaimable)),
        ),
        peak: unreclaimable,
    }
}

/// Estimates for `pods`, which are the pods that have a usage sample in the report's window.
///
/// A pod of class prod or none that is old enough but has no model is also excluded from the class estimate,
/// which errs on the safe side.
#[must_use]
pub fn estimate<'a>(
    predictor: &Predictor,
    pods: impl Iterator<Item = &'a PodInfo>,
    allocatable: Amounts,
    now: Timestamp,
) -> Reclaimable {
    let config = predictor.config();
    let margin = config.safety_margin_percent;
    let mut forecasts = Vec::new();
    let mut requests = Amounts::default();
    for pod in pods {
        let production = matches!(
            pod.priority_class,
            PriorityClass::Prod | PriorityClass::None
        );
        if !production || pod.deleting || matches!(pod.phase, Phase::Succeeded | Phase::Failed) {
            continue;
        }
        let request = Amounts {
            cpu: pod.cpu_request,
            memory: pod.memory_request,
        };
        let young = pod.created.is_none_or(|created| {
            now.as_millisecond()
                .saturating_sub(created.as_millisecond())
                <= config.cold_start_ms
        });
        let forecast = predictor.forecast(&pod.uid).filter(|_| !young);
        if young || forecast.is_some() {
            requests = plus(requests, request);
        }
        let peak = forecast.map(|forecast| with_margin(forecast, margin));
        forecasts.push(PodForecast { request, peak });
    }
    let mut unreclaimable = Amounts::default();
    let classes = [PriorityClass::Prod, PriorityClass::None].map(class_uid);
    for uid in classes.iter().map(String::as_str).chain([SYSTEM]) {
        if let Some(forecast) = predictor.forecast(uid) {
            unreclaimable = plus(unreclaimable, with_margin(forecast, margin));
        }
    }
    let by_pod = by_pod(&forecasts, allocatable);
    let by_class = by_class(requests, unreclaimable, allocatable);
    let published = Estimate {
        reclaimable: smaller(by_pod.reclaimable, by_class.reclaimable),
        peak: max_amounts(by_pod.peak, by_class.peak),
    };
    Reclaimable {
        by_pod,
        by_class,
        published,
    }
}

fn with_margin(forecast: Forecast, percent: i64) -> Amounts {
    let scale = |value: i64| (value as f64 * (100 + percent) as f64 / 100.0) as i64;
    Amounts {
        cpu: scale(forecast.cpu_p95),
        memory: scale(forecast.memory_p98),
    }
}

fn plus(a: Amounts, b: Amounts) -> Amounts {
    Amounts {
        cpu: a.cpu.saturating_add(b.cpu),
        memory: a.memory.saturating_add(b.memory),
    }
}

fn subtract(a: Amounts, b: Amounts) -> Amounts {
    Amounts {
        cpu: a.cpu.saturating_sub(b.cpu),
        memory: a.memory.saturating_sub(b.memory),
    }
}

fn smaller(a: Amounts, b: Amounts) -> Amounts {
    Amounts {
        cpu: a.cpu.min(b.cpu),
        memory: a.memory.min(b.memory),
    }
}

fn max_amounts(a: Amounts, b: Amounts) -> Amounts {
    Amounts {
        cpu: a.cpu.max(b.cpu),
        memory: a.memory.max(b.memory),
    }
}

fn clamp_to_zero(a: Amounts) -> Amounts {
    max_amounts(a, Amounts::default())
}
