//! Learns usage histories and computes recommendations. No I/O.

use super::pods::RecommenderPod;
use super::sources::PodMeasurement;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use koord_api::analysis::{ContainerDistribution, RecommendedContainerStatus};
use koord_api::quantity::{Quantity, ResourceList};
use koord_api::{Uid, resources};
use koord_model::histogram::UnixMillis;
use koord_model::recommend::container::Sample;
use koord_model::recommend::{
    ContainerModel, Distribution, Percentiles, Recommended, Settings, estimate,
};
use std::collections::{BTreeMap, BTreeSet};

/// Days of history from which a recommendation is reliable.
pub(crate) const ENOUGH_DAYS: f64 = 1.0;

/// Usage history of one container, and the state of its checkpoint.
#[derive(Debug)]
pub(crate) struct ContainerHistory {
    pub(crate) model: ContainerModel,
    /// Time of the last save, in Unix milliseconds.
    pub(crate) saved: UnixMillis,
    /// True if it changed since then.
    pub(crate) dirty: bool,
    /// `resourceVersion` of its checkpoint; `None` if there is none.
    pub(crate) version: Option<Box<str>>,
}

/// Histories sorted by container name. A pod has few containers, for which a map would take twice the memory.
#[derive(Debug, Default)]
pub(crate) struct ContainerHistories(Vec<(Box<str>, ContainerHistory)>);

impl ContainerHistories {
    fn find(&self, name: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(one, _)| (**one).cmp(name))
    }

    pub(crate) fn get(&self, name: &str) -> Option<&ContainerHistory> {
        let index = self.find(name).ok()?;
        self.0.get(index).map(|(_, history)| history)
    }

    pub(crate) fn get_mut(&mut self, name: &str) -> Option<&mut ContainerHistory> {
        let index = self.find(name).ok()?;
        self.0.get_mut(index).map(|(_, history)| history)
    }

    /// Returns the history of a container, creating it with `fresh` if there is none.
    pub(crate) fn or_insert_with(
        &mut self,
        name: &str,
        fresh: impl FnOnce() -> ContainerHistory,
    ) -> &mut ContainerHistory {
        let index = self.find(name).unwrap_or_else(|index| {
            self.0.reserve_exact(1);
            self.0.insert(index, (name.into(), fresh()));
            index
        });
        &mut self.0[index].1
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &ContainerHistory)> {
        self.0.iter().map(|(name, history)| (&**name, history))
    }
}

/// Learned state of one Recommendation.
#[derive(Debug, Default)]
pub(crate) struct RecommendationState {
    /// `metadata.uid` of the Recommendation.
    pub(crate) uid: Uid,
    pub(crate) containers: ContainerHistories,
    /// The last valid percentiles.
    pub(crate) percentiles: Option<Percentiles>,
    /// True if the last sample measured whole pods, so that the usage of containers was estimated.
    is_estimated: bool,
    /// Number of consecutive failed writes, and when the next write is attempted.
    pub(crate) failures: u32,
    pub(crate) retry_at: UnixMillis,
}

/// Estimated usage of the containers of a Recommendation's pods.
#[derive(Debug, Default)]
pub(crate) struct ContainerEstimates {
    /// Usage distribution by container name.
    pub(crate) containers: Vec<(String, Distribution)>,
    /// Running containers without a sample.
    pub(crate) unmeasured: Vec<String>,
    /// True if the usage of single containers was estimated from that of pods.
    pub(crate) is_estimated: bool,
    /// Days of history of the container with the shortest one.
    pub(crate) days: f64,
}

impl RecommendationState {
    pub(crate) fn new(uid: &Uid) -> Self {
        Self {
            uid: uid.clone(),
            ..Self::default()
        }
    }

    /// Records the OOM kills and the usage of one pod.
    pub(crate) fn learn(
        &mut self,
        settings: &Settings,
        pod: &RecommenderPod,
        used: Option<&(UnixMillis, PodMeasurement)>,
        now: UnixMillis,
    ) {
        let uid = pod.uid.to_string();
        let recent = |time: &UnixMillis| now.saturating_sub(*time) <= settings.expiry_ms();
        for container in &*pod.containers {
            // OOM kills come first: the memory window that a sample opens would exclude an earlier kill.
            if let Some(time) = container
                .oom_killed
                .map(|time| time.min(now))
                .filter(recent)
            {
                let history = self.history_mut(settings, &container.name);
                history.dirty |= history.model.oom(settings, &uid, time, container.memory);
            }
        }
        let Some((time, used)) = used else { return };
        self.is_estimated = used.is_estimated(pod);
        for (name, used) in used.container_usage(pod) {
            let sample = Sample {
                pod: &uid,
                time: *time,
                cpu: used.cpu,
                memory: used.memory,
            };
            let history = self.history_mut(settings, name);
            history.dirty |= history.model.add(settings, sample);
        }
    }

    fn history_mut(&mut self, settings: &Settings, container: &str) -> &mut ContainerHistory {
        self.containers
            .or_insert_with(container, || ContainerHistory {
                model: ContainerModel::new(settings),
                saved: UnixMillis::MIN,
                dirty: false,
                version: None,
            })
    }

    /// Drops expired histories and returns the names of containers without one.
    pub(crate) fn expire(&mut self, settings: &Settings, now: UnixMillis) -> Vec<String> {
        let mut removed = Vec::new();
        self.containers.0.retain_mut(|(name, history)| {
            let keep = !history.model.expire(settings, now);
            if !keep {
                removed.push(name.to_string());
            }
            keep
        });
        removed
    }

    /// Returns the usage estimates of the containers of these pods.
    pub(crate) fn estimates(
        &self,
        settings: &Settings,
        percentiles: Percentiles,
        pods: &[&RecommenderPod],
    ) -> ContainerEstimates {
        let names: BTreeSet<&str> = pods
            .iter()
            .flat_map(|pod| pod.containers.iter().map(|c| &*c.name))
            .collect();
        let most = pods.iter().map(|pod| pod.containers.len()).max();
        let mut estimates = ContainerEstimates {
            is_estimated: self.is_estimated,
            days: f64::INFINITY,
            ..ContainerEstimates::default()
        };
        for name in names {
            let distribution = self.containers.get(name).and_then(|history| {
                estimate(&history.model, settings, percentiles, most.unwrap_or(1))
            });
            match distribution {
                Some(distribution) => {
                    estimates.days = estimates.days.min(distribution.confidence);
                    estimates.containers.push((name.to_owned(), distribution));
                }
                None => estimates.unmeasured.push(name.to_owned()),
            }
        }
        estimates
    }
}

/// Converts recommended amounts to the resource list of a status.
fn resource_list(amounts: Recommended) -> ResourceList {
    [
        (
            resources::CPU.to_owned(),
            Quantity::from_milli(amounts.cpu_milli),
        ),
        (
            resources::MEMORY.to_owned(),
            Quantity::from_bytes(amounts.memory),
        ),
    ]
    .into()
}

/// Returns the recommended amounts for the status of a Recommendation, sorted by container name.
///
/// An amount in `before` that comes from at least a day of history (`days` returns it by container) is not
/// lowered by a shorter history, for example after a manager lost its checkpoints. Containers without a
/// sample keep the old recommendation, too.
pub(crate) fn statuses(
    estimates: &ContainerEstimates,
    before: &[RecommendedContainerStatus],
    days: impl Fn(&str) -> f64,
) -> Vec<RecommendedContainerStatus> {
    let old = |name: &str| before.iter().find(|status| status.container_name == name);
    let mut all: Vec<_> = estimates
        .containers
        .iter()
        .map(|(name, distribution)| {
            let mut amounts = resource_list(distribution.target);
            let guard = distribution.confidence < ENOUGH_DAYS && days(name) >= ENOUGH_DAYS;
            if let Some(old) = old(name).filter(|_| guard) {
                for (resource, amount) in &mut amounts {
                    let floor = old.resources.get(resource);
                    *amount = floor.map_or(*amount, |floor| (*amount).max(*floor));
                }
            }
            RecommendedContainerStatus {
                container_name: name.clone(),
                resources: amounts,
            }
        })
        .collect();
    all.extend(
        estimates
            .unmeasured
            .iter()
            .filter_map(|name| old(name).cloned()),
    );
    all.sort_by(|a, b| a.container_name.cmp(&b.container_name));
    all
}

/// Distributions by container for the annotation of a Recommendation.
#[derive(Debug)]
pub(crate) struct Details {
    /// Details of the current estimates, by container.
    all: BTreeMap<String, ContainerDistribution>,
    /// Containers whose details are taken from the old annotation.
    from_old: Vec<String>,
}

impl Details {
    /// Creates the details of `estimates`, and lists the containers whose details in the old annotation are
    /// kept, because their old recommendation is. `days` is as in [`statuses`], `None` for a container that the
    /// old annotation does not have.
    pub(crate) fn new(estimates: &ContainerEstimates, days: impl Fn(&str) -> Option<f64>) -> Self {
        let all = estimates
            .containers
            .iter()
            .map(|(name, distribution)| (name.clone(), details(distribution)));
        let superseded = estimates
            .containers
            .iter()
            .filter(|(_, distribution)| distribution.confidence < ENOUGH_DAYS)
            .map(|(name, _)| name)
            .filter(|name| days(name).is_some_and(|days| days >= ENOUGH_DAYS));
        let unmeasured = estimates.unmeasured.iter();
        let unmeasured = unmeasured.filter(|name| days(name).is_some());
        Self {
            all: all.collect(),
            from_old: superseded.chain(unmeasured).cloned().collect(),
        }
    }

    /// Returns true if the old annotation is needed.
    pub(crate) fn needs_old(&self) -> bool {
        !self.from_old.is_empty()
    }

    /// Returns the new annotation, completed from the old one; empty without containers.
    pub(crate) fn with(
        self,
        mut old: BTreeMap<String, ContainerDistribution>,
    ) -> BTreeMap<String, ContainerDistribution> {
        let mut all = self.all;
        let from_old = self.from_old.into_iter();
        all.extend(from_old.filter_map(|name| old.remove_entry(&name)));
        all
    }
}

/// Converts a distribution to the form in the annotation.
fn details(distribution: &Distribution) -> ContainerDistribution {
    let time = |millis: Option<UnixMillis>| {
        let seconds = millis?.div_euclid(1000);
        jiff::Timestamp::from_second(seconds).ok().map(Time)
    };
    ContainerDistribution {
        lower_bound: resource_list(distribution.lower),
        upper_bound: resource_list(distribution.upper),
        usage: distribution
            .points
            .iter()
            .map(|(point, amounts)| ((*point).to_owned(), resource_list(*amounts)))
            .collect(),
        samples: distribution.samples,
        first_sample: time(distribution.first),
        last_sample: time(distribution.last),
        confidence_days: (distribution.confidence * 100.0).floor() / 100.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn containers_are_found_by_name() {
        let settings = Settings::peak();
        let history = |saved| ContainerHistory {
            model: ContainerModel::new(&settings),
            saved,
            dirty: false,
            version: None,
        };
        let mut all = ContainerHistories::default();
        for (at, name) in ["web", "a", "proxy", "web"].into_iter().enumerate() {
            all.or_insert_with(name, || history(at as i64));
        }
        let sorted: Vec<_> = all
            .iter()
            .map(|(name, history)| (name, history.saved))
            .collect();
        assert_eq!(sorted, [("a", 1), ("proxy", 2), ("web", 0)]);
        assert_eq!(all.get("proxy").map(|history| history.saved), Some(2));
        assert!(all.get_mut("b").is_none());
    }

    fn estimates(confidence: f64, cpu_milli: i64) -> ContainerEstimates {
        let distribution = Distribution {
            target: Recommended {
                cpu_milli,
                memory: 1 << 30,
            },
            confidence,
            ..Distribution::default()
        };
        ContainerEstimates {
            containers: vec![("web".to_owned(), distribution)],
            unmeasured: vec!["proxy".to_owned()],
            ..ContainerEstimates::default()
        }
    }

    fn status(name: &str, cpu: &str, memory: &str) -> RecommendedContainerStatus {
        RecommendedContainerStatus {
            container_name: name.to_owned(),
            resources: [
                ("cpu".to_owned(), cpu.parse().unwrap()),
                ("memory".to_owned(), memory.parse().unwrap()),
            ]
            .into(),
        }
    }

    /// Verifies that the details are kept together with the old recommendation.
    #[test]
    fn short_history_keeps_longer_details() {
        let distribution = |days: f64| ContainerDistribution {
            samples: 7,
            confidence_days: days,
            ..ContainerDistribution::default()
        };
        for (confidence, days, stays) in [
            (0.1, 7.0, true),
            (0.99, 1.0, true),
            (1.0, 7.0, false),
            (0.1, 0.99, false),
        ] {
            let before = [("web", days), ("proxy", 0.5), ("gone", 9.0)];
            let before: BTreeMap<_, _> = before
                .map(|(name, days)| (name.to_owned(), distribution(days)))
                .into();
            let reported_days = |name: &str| {
                before
                    .get(name)
                    .map(|distribution| distribution.confidence_days)
            };
            let details = Details::new(&estimates(confidence, 500), reported_days);
            assert!(details.needs_old());
            let all = details.with(before.clone());
            let names: Vec<_> = all.keys().map(String::as_str).collect();
            assert_eq!(
                names,
                ["proxy", "web"],
                "what is no container any more goes"
            );
            assert_eq!(all["proxy"], distribution(0.5), "never measured: as before");
            let old = all["web"] == distribution(days);
            assert_eq!(old, stays, "{confidence} days after {days}");
            assert!(old || all["web"].confidence_days == confidence);
        }
    }

    /// One container with a short history lowers the confidence of the whole pod.
    #[test]
    fn confidence_is_the_lowest_of_the_containers() {
        const DAY: UnixMillis = 86_400_000;
        let settings = Settings::peak();
        let spec = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"containers": [{"name": "old"}, {"name": "new"}]}});
        let pod = RecommenderPod::from_pod(&serde_json::from_value(spec).unwrap());
        let mut entry = RecommendationState::new(&"r".into());
        let mut sample = |container: &str, time: UnixMillis| {
            let history = entry.history_mut(&settings, container);
            let sample = Sample {
                pod: "u",
                time,
                cpu: Some(0.5),
                memory: Some(1e9),
            };
            history.model.add(&settings, sample);
        };
        for minute in 0..3 * 1440 {
            sample("old", minute * 60_000);
        }
        for minute in 0..60 {
            sample("new", 3 * DAY + minute * 60_000);
        }
        let estimates = entry.estimates(&settings, settings.percentiles, &[&pod]);
        let days = |name: &str| {
            let container = estimates
                .containers
                .iter()
                .find(|(container, _)| container == name);
            container.unwrap().1.confidence
        };
        assert!(days("old") > 2.0 && days("new") < 1.0);
        assert_eq!(estimates.days, days("new"));
    }

    #[test]
    fn short_history_does_not_lower_amounts() {
        let before = [status("web", "2", "512Mi"), status("proxy", "50m", "64Mi")];
        let cpu = |confidence, days| {
            let all = statuses(&estimates(confidence, 500), &before, |_| days);
            assert_eq!(all[0], before[1], "never measured: as before");
            (all[1].resources["cpu"], all[1].resources["memory"])
        };
        let amount = |text: &str| text.parse::<Quantity>().unwrap();
        assert_eq!(cpu(0.1, 7.0), (amount("2"), amount("1Gi")));
        assert_eq!(cpu(1.0, 7.0), (amount("500m"), amount("1Gi")));
        assert_eq!(cpu(0.1, 0.5), (amount("500m"), amount("1Gi")));
    }

    #[test]
    fn details_need_no_missing_annotation() {
        let details = Details::new(&estimates(0.1, 500), |_| None);
        assert!(!details.needs_old());
        let all = details.with(BTreeMap::new());
        assert_eq!(all.keys().collect::<Vec<_>>(), ["web"]);
    }
}
