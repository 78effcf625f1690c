//! What is learned for each Recommendation. No I/O: samples in, recommendations out.

use super::pods::PodFacts;
use super::sources::PodUse;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use koord_api::analysis::{ContainerDistribution, RecommendedContainerStatus};
use koord_api::quantity::{Quantity, ResourceList};
use koord_api::resources;
use koord_model::histogram::UnixMillis;
use koord_model::recommend::container::Sample;
use koord_model::recommend::{
    ContainerModel, Distribution, Percentiles, Recommended, Settings, estimate,
};
use std::collections::{BTreeMap, BTreeSet};

/// With this many days of history a recommendation is no guess any more.
pub(crate) const ENOUGH_DAYS: f64 = 1.0;

/// One container's history, and how it is saved.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) model: ContainerModel,
    /// When it was last saved.
    pub(crate) saved: UnixMillis,
    /// Whether it learned something since.
    pub(crate) dirty: bool,
    /// `resourceVersion` of its checkpoint, where there is one.
    pub(crate) version: Option<String>,
}

/// Everything learned for one Recommendation.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    /// `metadata.uid` of the Recommendation.
    pub(crate) uid: String,
    /// Boxed: a node of the map has room for eleven.
    pub(crate) containers: BTreeMap<String, Box<Kept>>,
    /// The last percentiles that made sense.
    pub(crate) percentiles: Option<Percentiles>,
    /// Whether what single containers used had to be guessed of late.
    guessed: bool,
    /// After how many failures in a row the next write is tried, and when.
    pub(crate) failures: u32,
    pub(crate) retry_at: UnixMillis,
}

/// What is known of the containers of a Recommendation's pods.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// By container name.
    pub(crate) containers: Vec<(String, Distribution)>,
    /// Containers that run and were never measured.
    pub(crate) unmeasured: Vec<String>,
    /// Whether single containers' use was guessed.
    pub(crate) guessed: bool,
    /// Days of history of the container that is known least.
    pub(crate) days: f64,
}

impl Entry {
    pub(crate) fn new(uid: &str) -> Self {
        Self {
            uid: uid.to_owned(),
            ..Self::default()
        }
    }

    /// Learns from one pod: its kills, and what it used.
    pub(crate) fn learn(
        &mut self,
        settings: &Settings,
        pod: &PodFacts,
        used: Option<&(UnixMillis, PodUse)>,
        now: UnixMillis,
    ) {
        let recent = |time: &UnixMillis| now.saturating_sub(*time) <= settings.expiry_ms();
        for container in &pod.containers {
            // Kills come first: the window that a sample opens would leave an earlier kill out.
            if let Some(time) = container.killed.map(|time| time.min(now)).filter(recent) {
                let kept = self.kept(settings, &container.name);
                kept.dirty |= kept.model.oom(settings, &pod.uid, time, container.memory);
            }
        }
        let Some((time, used)) = used else { return };
        self.guessed = used.is_guess(pod);
        for (name, used) in used.by_container(pod) {
            let sample = Sample {
                pod: &pod.uid,
                time: *time,
                cpu: used.cpu,
                memory: used.memory,
            };
            let kept = self.kept(settings, name);
            kept.dirty |= kept.model.add(settings, sample);
        }
    }

    fn kept(&mut self, settings: &Settings, container: &str) -> &mut Kept {
        let fresh = || {
            Box::new(Kept {
                model: ContainerModel::new(settings),
                saved: UnixMillis::MIN,
                dirty: false,
                version: None,
            })
        };
        self.containers
            .entry(container.to_owned())
            .or_insert_with(fresh)
    }

    /// Drops what was not heard of for long; the names of the containers that are gone.
    pub(crate) fn expire(&mut self, settings: &Settings, now: UnixMillis) -> Vec<String> {
        let mut gone = Vec::new();
        self.containers.retain(|name, kept| {
            let keep = !kept.model.expire(settings, now);
            if !keep {
                gone.push(name.clone());
            }
            keep
        });
        gone
    }

    /// What is known of the containers of these pods.
    pub(crate) fn known(
        &self,
        settings: &Settings,
        percentiles: Percentiles,
        pods: &[&PodFacts],
    ) -> Known {
        let names: BTreeSet<&str> = pods
            .iter()
            .flat_map(|pod| pod.containers.iter().map(|c| c.name.as_str()))
            .collect();
        let most = pods.iter().map(|pod| pod.containers.len()).max();
        let mut known = Known {
            guessed: self.guessed,
            days: f64::INFINITY,
            ..Known::default()
        };
        for name in names {
            let found = self
                .containers
                .get(name)
                .and_then(|kept| estimate(&kept.model, settings, percentiles, most.unwrap_or(1)));
            match found {
                Some(distribution) => {
                    known.days = known.days.min(distribution.confidence);
                    known.containers.push((name.to_owned(), distribution));
                }
                None => known.unmeasured.push(name.to_owned()),
            }
        }
        known
    }
}

fn list(amounts: Recommended) -> ResourceList {
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

/// The recommendation as the status of a Recommendation has it, sorted by name.
///
/// What was recommended `before` from a day of history or more (`days` says it by container) is not
/// lowered by what was learned in less: a manager that had to begin anew knows less than it did. Of
/// containers that were never measured the old recommendation stays, too.
pub(crate) fn statuses(
    known: &Known,
    before: &[RecommendedContainerStatus],
    days: impl Fn(&str) -> f64,
) -> Vec<RecommendedContainerStatus> {
    let old = |name: &str| before.iter().find(|one| one.container_name == name);
    let mut all: Vec<_> = known
        .containers
        .iter()
        .map(|(name, distribution)| {
            let mut amounts = list(distribution.target);
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
        known
            .unmeasured
            .iter()
            .filter_map(|name| old(name).cloned()),
    );
    all.sort_by(|a, b| a.container_name.cmp(&b.container_name));
    all
}

/// What the annotation says beside it. `days` as in [`statuses`]: while the old recommendation
/// holds, so does the history that it came from.
pub(crate) fn distributions(
    known: &Known,
    before: &BTreeMap<String, ContainerDistribution>,
) -> BTreeMap<String, ContainerDistribution> {
    let time = |millis: Option<UnixMillis>| {
        let seconds = millis?.div_euclid(1000);
        jiff::Timestamp::from_second(seconds).ok().map(Time)
    };
    let mut all = BTreeMap::new();
    for (name, found) in &known.containers {
        if let Some(old) = before.get(name)
            && old.confidence_days >= ENOUGH_DAYS
            && found.confidence < ENOUGH_DAYS
        {
            all.insert(name.clone(), old.clone());
            continue;
        }
        let one = ContainerDistribution {
            lower_bound: list(found.lower),
            upper_bound: list(found.upper),
            usage: found
                .points
                .iter()
                .map(|(point, amounts)| ((*point).to_owned(), list(*amounts)))
                .collect(),
            samples: found.samples,
            first_sample: time(found.first),
            last_sample: time(found.last),
            confidence_days: (found.confidence * 100.0).floor() / 100.0,
        };
        all.insert(name.clone(), one);
    }
    for name in &known.unmeasured {
        if let Some(old) = before.get(name) {
            all.insert(name.clone(), old.clone());
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn known(confidence: f64, cpu_milli: i64) -> Known {
        let distribution = Distribution {
            target: Recommended {
                cpu_milli,
                memory: 1 << 30,
            },
            confidence,
            ..Distribution::default()
        };
        Known {
            containers: vec![("web".to_owned(), distribution)],
            unmeasured: vec!["proxy".to_owned()],
            ..Known::default()
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

    /// While the old recommendation holds, so does the history that it came from.
    #[test]
    fn little_history_does_not_replace_what_much_history_said() {
        let one = |days: f64| ContainerDistribution {
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
            let before = before
                .map(|(name, days)| (name.to_owned(), one(days)))
                .into();
            let all = distributions(&known(confidence, 500), &before);
            let names: Vec<_> = all.keys().map(String::as_str).collect();
            assert_eq!(
                names,
                ["proxy", "web"],
                "what is no container any more goes"
            );
            assert_eq!(all["proxy"], one(0.5), "never measured: as before");
            let old = all["web"] == one(days);
            assert_eq!(old, stays, "{confidence} days after {days}");
            assert!(old || all["web"].confidence_days == confidence);
        }
    }

    /// One container that is hardly known makes all of the pod hardly known.
    #[test]
    fn the_container_that_is_known_least_says_how_sure_a_recommendation_is() {
        const DAY: UnixMillis = 86_400_000;
        let settings = Settings::peak();
        let spec = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"containers": [{"name": "old"}, {"name": "new"}]}});
        let pod = PodFacts::of(&serde_json::from_value(spec).unwrap());
        let mut entry = Entry::new("r");
        let mut sample = |container: &str, time: UnixMillis| {
            let kept = entry.kept(&settings, container);
            let sample = Sample {
                pod: "u",
                time,
                cpu: Some(0.5),
                memory: Some(1e9),
            };
            kept.model.add(&settings, sample);
        };
        for minute in 0..3 * 1440 {
            sample("old", minute * 60_000);
        }
        for minute in 0..60 {
            sample("new", 3 * DAY + minute * 60_000);
        }
        let known = entry.known(&settings, settings.percentiles, &[&pod]);
        let days = |name: &str| {
            let found = known.containers.iter().find(|(one, _)| one == name);
            found.unwrap().1.confidence
        };
        assert!(days("old") > 2.0 && days("new") < 1.0);
        assert_eq!(known.days, days("new"));
    }

    #[test]
    fn little_history_does_not_lower_what_much_history_said() {
        let before = [status("web", "2", "512Mi"), status("proxy", "50m", "64Mi")];
        let cpu = |confidence, days| {
            let all = statuses(&known(confidence, 500), &before, |_| days);
            assert_eq!(all[0], before[1], "never measured: as before");
            (all[1].resources["cpu"], all[1].resources["memory"])
        };
        let amount = |text: &str| text.parse::<Quantity>().unwrap();
        assert_eq!(cpu(0.1, 7.0), (amount("2"), amount("1Gi")));
        assert_eq!(cpu(1.0, 7.0), (amount("500m"), amount("1Gi")));
        assert_eq!(cpu(0.1, 0.5), (amount("500m"), amount("1Gi")));
    }
}
