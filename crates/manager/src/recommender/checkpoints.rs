//! Loads and saves histories as RecommendationCheckpoint objects.

use super::learn::ContainerHistory;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use koord_api::Uid;
use koord_api::analysis::{
    HistogramCheckpoint, MemoryPeak, RecommendationCheckpoint, RecommendationCheckpointSpec,
    RecommendationCheckpointStatus,
};
use koord_kube::api::{ListParams, PostParams};
use koord_kube::{Api, Client, ObjectKey, patch};
use koord_model::histogram::{Checkpoint, UnixMillis, ZERO_TIME};
use koord_model::recommend::{ContainerCheckpoint, ContainerModel, SavedInstance, Settings};
use std::collections::{BTreeMap, HashMap};

/// Number of objects per page of a list request.
const PAGE: u32 = 200;
/// Maximum length of an object's name.
const MAX_NAME_LENGTH: usize = 253;

/// Loaded histories by Recommendation, each with the UID of its Recommendation and its container.
pub(crate) type LoadedHistories = HashMap<ObjectKey, Vec<(Uid, String, ContainerHistory)>>;

/// Availability of checkpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CheckpointSupport {
    /// Checkpoints were loaded and are saved.
    Available,
    /// Checkpoints cannot be used, with the reason.
    Unavailable(String),
}

/// Loads all checkpoints. Invalid ones are skipped with a warning.
///
/// # Errors
/// The request failed for a temporary reason: learning must not start from nothing before a later attempt
/// succeeds.
pub(crate) async fn load(
    client: &Client,
    settings: &Settings,
    now: UnixMillis,
) -> Result<(CheckpointSupport, LoadedHistories), koord_kube::Error> {
    let api: Api<RecommendationCheckpoint> = Api::all(client.clone());
    let mut loaded = LoadedHistories::new();
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = match api.list(&params).await {
            Ok(page) => page,
            Err(error) if patch::is_not_found(&error) => {
                let reason = "there is no definition of RecommendationCheckpoint";
                return Ok((CheckpointSupport::Unavailable(reason.to_owned()), loaded));
            }
            Err(error) if patch::is_status(&error, 403) => {
                let reason = "the manager may not list recommendationcheckpoints";
                return Ok((CheckpointSupport::Unavailable(reason.to_owned()), loaded));
            }
            Err(error) => return Err(error),
        };
        for object in page.items {
            let key = ObjectKey::from_object(&object);
            match read(&object, settings, now) {
                Ok(history) => {
                    let owner_key =
                        ObjectKey::new(key.namespace, object.spec.recommendation.clone());
                    let owners = object.metadata.owner_references.iter().flatten();
                    let uid = owners.map(|owner| Uid::from(owner.uid.as_str())).next();
                    let container = object.spec.container_name.clone();
                    let entry = (uid.unwrap_or_default(), container, history);
                    loaded.entry(owner_key).or_default().push(entry);
                }
                Err(problem) => {
                    tracing::warn!(checkpoint = %key, problem, "ignoring invalid RecommendationCheckpoint");
                }
            }
        }
        params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
        if params.continue_token.is_none() {
            return Ok((CheckpointSupport::Available, loaded));
        }
    }
}

/// Parses the history in a checkpoint.
fn read(
    object: &RecommendationCheckpoint,
    settings: &Settings,
    now: UnixMillis,
) -> Result<ContainerHistory, String> {
    let status = object.status.as_ref().ok_or("status is absent")?;
    let histogram = |field: &str, saved: &Option<HistogramCheckpoint>| {
        let saved = saved.as_ref().ok_or(format!("{field} is absent"))?;
        let mut weights = BTreeMap::new();
        for (bucket, weight) in &saved.bucket_weights {
            let invalid =
                |_| format!("{field}: bucketWeights {bucket:?}: {weight} is no bucket and weight");
            let number: i64 = bucket
                .parse()
                .map_err(|_| format!("{field}: bucketWeights key {bucket:?} is no number"))?;
            weights.insert(number, u32::try_from(*weight).map_err(invalid)?);
        }
        let half_life = saved.half_life_seconds.saturating_mul(1000);
        let checkpoint = Checkpoint {
            reference: millis(saved.reference_timestamp.as_ref()).unwrap_or(ZERO_TIME),
            weights,
            total: saved.total_weight,
        };
        Ok::<_, String>((checkpoint, half_life))
    };
    let (cpu, cpu_half_life_ms) = histogram("cpuHistogram", &status.cpu_histogram)?;
    let (memory, memory_half_life_ms) = histogram("memoryHistogram", &status.memory_histogram)?;
    let instance = |peak: &MemoryPeak| SavedInstance {
        pod: peak.pod_uid.clone(),
        last: millis(peak.last_sample_start.as_ref()),
        window_end: peak.window_end.0.as_millisecond(),
        peak: peak.peak,
        oom_peak: peak.oom_peak,
        last_oom: millis(peak.last_oom_time.as_ref()),
    };
    let saved = ContainerCheckpoint {
        version: status.version.clone(),
        cpu,
        memory,
        cpu_half_life_ms,
        memory_half_life_ms,
        first: millis(status.first_sample_start.as_ref()),
        last: millis(status.last_sample_start.as_ref()),
        count: u64::try_from(status.total_samples_count).map_err(|_| {
            format!(
                "totalSamplesCount must not be negative, got {}",
                status.total_samples_count
            )
        })?,
        instances: status.memory_peaks.iter().map(instance).collect(),
    };
    let model = ContainerModel::load(settings, &saved, now).map_err(|error| error.to_string())?;
    Ok(ContainerHistory {
        model,
        saved: millis(status.last_update_time.as_ref()).unwrap_or(UnixMillis::MIN),
        dirty: false,
        version: object.metadata.resource_version.as_deref().map(Box::from),
    })
}

/// Returns the name of a container's checkpoint. Container names have no dots, so the last dot separates the
/// two parts.
pub(crate) fn name(recommendation: &str, container: &str) -> String {
    let full_name = format!("{recommendation}.{container}");
    if full_name.len() <= MAX_NAME_LENGTH {
        return full_name;
    }
    // 64-bit FNV-1a of the part that does not fit.
    let hash = recommendation
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    let head: String = recommendation.chars().take(150).collect();
    format!(
        "{}-{hash:016x}.{container}",
        head.trim_end_matches(['.', '-'])
    )
}

/// Returns the checkpoint object of a history.
pub(crate) fn object(
    recommendation: &ObjectKey,
    uid: &Uid,
    container: &str,
    history: &ContainerHistory,
    now: UnixMillis,
) -> RecommendationCheckpoint {
    let saved = history.model.save();
    let histogram = |saved: Checkpoint, half_life_ms: i64| HistogramCheckpoint {
        reference_timestamp: (!saved.weights.is_empty())
            .then(|| time(saved.reference))
            .flatten(),
        bucket_weights: saved
            .weights
            .into_iter()
            .map(|(bucket, weight)| (bucket.to_string(), i64::from(weight)))
            .collect(),
        total_weight: saved.total,
        half_life_seconds: half_life_ms / 1000,
    };
    let peaks = saved.instances.into_iter().filter_map(|instance| {
        Some(MemoryPeak {
            pod_uid: instance.pod,
            window_end: time(instance.window_end)?,
            peak: instance.peak,
            oom_peak: instance.oom_peak,
            last_sample_start: instance.last.and_then(time),
            last_oom_time: instance.last_oom.and_then(time),
        })
    });
    let mut object = RecommendationCheckpoint::new(
        &name(&recommendation.name, container),
        RecommendationCheckpointSpec {
            recommendation: recommendation.name.clone(),
            container_name: container.to_owned(),
        },
    );
    object.metadata.namespace = Some(recommendation.namespace.clone());
    object.metadata.resource_version = history.version.as_deref().map(str::to_owned);
    object.metadata.owner_references = Some(vec![OwnerReference {
        api_version: "analysis.koordinator.sh/v1alpha1".to_owned(),
        kind: "Recommendation".to_owned(),
        name: recommendation.name.clone(),
        uid: uid.to_string(),
        ..OwnerReference::default()
    }]);
    object.status = Some(RecommendationCheckpointStatus {
        version: saved.version,
        cpu_histogram: Some(histogram(saved.cpu, saved.cpu_half_life_ms)),
        memory_histogram: Some(histogram(saved.memory, saved.memory_half_life_ms)),
        memory_peaks: peaks.collect(),
        first_sample_start: saved.first.and_then(time),
        last_sample_start: saved.last.and_then(time),
        total_samples_count: i64::try_from(saved.count).unwrap_or(i64::MAX),
        last_update_time: time(now),
    });
    object
}

/// Writes a checkpoint and returns its new `resourceVersion`.
pub(crate) async fn save(
    client: &Client,
    mut object: RecommendationCheckpoint,
) -> Result<Option<String>, koord_kube::Error> {
    let ObjectKey { namespace, name } = ObjectKey::from_object(&object);
    let api: Api<RecommendationCheckpoint> = Api::namespaced(client.clone(), &namespace);
    let params = PostParams::default();
    let written = if object.metadata.resource_version.is_some() {
        api.replace(&name, &params, &object).await
    } else {
        api.create(&params, &object).await
    };
    let written = match written {
        // It was deleted in the meantime.
        Err(error) if patch::is_not_found(&error) => {
            object.metadata.resource_version = None;
            api.create(&params, &object).await
        }
        // Another manager wrote it before this one became leader: the history of this one continues it or is
        // equivalent.
        Err(error) if patch::is_conflict(&error) => {
            object.metadata.resource_version = api.get(&name).await?.metadata.resource_version;
            api.replace(&name, &params, &object).await
        }
        other => other,
    };
    written.map(|object| object.metadata.resource_version)
}

/// Deletes the checkpoint of a container that no longer exists.
pub(crate) async fn remove(
    client: &Client,
    recommendation: &ObjectKey,
    container: &str,
) -> Result<(), koord_kube::Error> {
    let api: Api<RecommendationCheckpoint> =
        Api::namespaced(client.clone(), &recommendation.namespace);
    let deleted = api
        .delete(&name(&recommendation.name, container), &Default::default())
        .await;
    crate::object::ignore_not_found(deleted)
}

fn millis(time: Option<&Time>) -> Option<UnixMillis> {
    time.map(|time| time.0.as_millisecond())
}

fn time(millis: UnixMillis) -> Option<Time> {
    Timestamp::from_second(millis.div_euclid(1000))
        .ok()
        .map(Time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_model::recommend::container::Sample;

    const NOW: UnixMillis = 1_767_225_600_000;

    fn history(settings: &Settings) -> ContainerHistory {
        let mut model = ContainerModel::new(settings);
        for minute in 0..600 {
            let sample = Sample {
                pod: "u",
                time: NOW + minute * 60_000,
                cpu: Some(0.1 + minute as f64 / 100.0),
                memory: Some(1e9),
            };
            model.add(settings, sample);
        }
        ContainerHistory {
            model,
            saved: 0,
            dirty: true,
            version: None,
        }
    }

    #[test]
    fn checkpoint_round_trips() {
        let settings = Settings::peak();
        let history = history(&settings);
        let recommendation = ObjectKey::new("shop", "web");
        let now = NOW + 36_000_000;
        let object = object(&recommendation, &"uid".into(), "main", &history, now);
        // Encode and decode, as over the network.
        let text = serde_json::to_string(&object).unwrap();
        let object: RecommendationCheckpoint = serde_json::from_str(&text).unwrap();
        let back = read(&object, &settings, now).unwrap();
        let fields = |history: &ContainerHistory| {
            koord_model::recommend::estimate(&history.model, &settings, settings.percentiles, 1)
        };
        assert_eq!(fields(&back), fields(&history));
        assert_eq!(back.saved, now);
        assert_eq!(object.metadata.name.as_deref(), Some("web.main"));
    }

    #[test]
    fn invalid_checkpoint_names_the_field() {
        let settings = Settings::peak();
        let recommendation = ObjectKey::new("shop", "web");
        let good = object(
            &recommendation,
            &"uid".into(),
            "main",
            &history(&settings),
            NOW,
        );
        let error = |change: &dyn Fn(&mut RecommendationCheckpointStatus)| {
            let mut bad = good.clone();
            change(bad.status.as_mut().unwrap());
            read(&bad, &settings, NOW).err().unwrap()
        };
        for (text, says) in [
            (error(&|s| s.version = "v9".to_owned()), "v9"),
            (error(&|s| s.cpu_histogram = None), "cpuHistogram is absent"),
            (error(&|s| s.total_samples_count = -3), "got -3"),
            (
                error(&|s| {
                    let weights = [("many".to_owned(), 1)].into();
                    s.memory_histogram.as_mut().unwrap().bucket_weights = weights;
                }),
                "memoryHistogram: bucketWeights key \"many\"",
            ),
            (
                error(&|s| {
                    let weights = [("3".to_owned(), -1)].into();
                    s.cpu_histogram.as_mut().unwrap().bucket_weights = weights;
                }),
                "cpuHistogram: bucketWeights \"3\": -1",
            ),
        ] {
            assert!(text.contains(says), "{text}");
        }
        let mut empty = good;
        empty.status = None;
        assert_eq!(
            read(&empty, &settings, NOW).err().unwrap(),
            "status is absent"
        );
    }

    #[test]
    fn names_are_valid_and_differ() {
        assert_ne!(name("a.b", "c"), name("a", "b-c"));
        let long = "r".repeat(253);
        let other = format!("{}s", "r".repeat(252));
        assert!(name(&long, "main").len() <= MAX_NAME_LENGTH);
        assert_ne!(name(&long, "main"), name(&other, "main"));
    }
}
