//! The effective settings, and the problems in the ConfigMap that they come from.

use crate::cache::Cache;
use crate::config::{Config, SettingsProblem};
use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference};
use koord_kube::Change;
use koord_kube::events::{self, Recorder, Severity};
use parking_lot::RwLock;
use std::sync::Arc;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The problems in a ConfigMap, for events.
#[derive(Debug, Default, Clone)]
struct SettingsProblems {
    about: Option<ObjectReference>,
    problems: Vec<SettingsProblem>,
}

impl SettingsProblems {
    /// Returns the problems that are not in `before`.
    fn since<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = &'a SettingsProblem> {
        let is_new = |problem: &&SettingsProblem| !before.problems.contains(problem);
        self.problems.iter().filter(is_new)
    }
}

type SettingsListener = Box<dyn Fn() + Send + Sync>;

/// Tracks the ConfigMap with the settings.
pub(crate) struct SettingsStore {
    current: RwLock<Arc<Config>>,
    settings_problems: watch::Sender<SettingsProblems>,
    listeners: RwLock<Vec<SettingsListener>>,
}

impl SettingsStore {
    /// Creates settings that follow the ConfigMap in `cache`.
    pub(crate) fn from_cache(cache: &Cache<ConfigMap>) -> Arc<Self> {
        let settings = Arc::new(Self {
            current: RwLock::default(),
            settings_problems: watch::channel(SettingsProblems::default()).0,
            listeners: RwLock::default(),
        });
        let listener = settings.clone();
        cache.on_change(move |change| listener.apply_change(change));
        settings
    }

    /// Returns the effective settings.
    pub(crate) fn current(&self) -> Arc<Config> {
        self.current.read().clone()
    }

    /// Calls `listener` after every change of the effective settings; it must not block.
    pub(crate) fn on_change(&self, listener: impl Fn() + Send + Sync + 'static) {
        self.listeners.write().push(Box::new(listener));
    }

    /// Applies a change of the ConfigMap: parses it, reports its problems and notifies the listeners.
    fn apply_change(&self, change: &Change<ConfigMap>) {
        let current = self.current();
        let (next, settings_problems) = match change {
            Change::Applied { new, .. } => {
                let data = new.data.clone().unwrap_or_default();
                let (next, problems) = current.updated(&data);
                let about = Some(events::reference(&**new));
                (next, SettingsProblems { about, problems })
            }
            // Without a ConfigMap the defaults apply, but only if there never was one: its accidental loss
            // must not switch off co-location everywhere.
            Change::Synced if !current.is_available() && !current.is_present() => {
                let (next, _) = current.updated(&Default::default());
                (next, SettingsProblems::default())
            }
            Change::Deleted(config) => {
                let deleted = SettingsProblem {
                    key: "",
                    reason: "SLOConfigDeleted",
                    message: "the settings are gone; the last ones stay in force until a restart"
                        .to_owned(),
                    is_refused: true,
                };
                let settings_problems = SettingsProblems {
                    about: Some(events::reference(&**config)),
                    problems: vec![deleted],
                };
                ((*current).clone(), settings_problems)
            }
            Change::Synced => return,
        };
        for SettingsProblem {
            key,
            message: problem,
            is_refused,
            ..
        } in settings_problems.since(&self.settings_problems.borrow())
        {
            if *is_refused {
                tracing::error!(
                    key,
                    problem,
                    "slo-controller-config entry refused, previous settings stay in effect"
                );
            } else {
                tracing::warn!(key, problem, "suspicious slo-controller-config entry");
            }
        }
        self.settings_problems.send_replace(settings_problems);
        let changed = *current != next;
        *self.current.write() = Arc::new(next);
        if changed {
            for listener in self.listeners.read().iter() {
                listener();
            }
        }
    }

    /// Records events for current and later problems until `stop` is cancelled. Only the leader does so. A
    /// problem that persists after a change is not recorded again, because the number of events per source
    /// and object is limited.
    pub(crate) async fn record_problems(&self, recorder: &Recorder, stop: CancellationToken) {
        let mut settings_problems = self.settings_problems.subscribe();
        let mut recorded = SettingsProblems::default();
        loop {
            let now = settings_problems.borrow_and_update().clone();
            if let Some(about) = &now.about {
                for problem in now.since(&recorded) {
                    let (warning, message) = (Severity::Warning, problem.message.as_str());
                    recorder.event(about.clone(), warning, problem.reason, message);
                }
            }
            recorded = now;
            tokio::select! {
                () = stop.cancelled() => return,
                changed = settings_problems.changed() => if changed.is_err() { return },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn persisting_problems_are_not_reported_again() {
        let settings_problems = |messages: &[&str]| SettingsProblems {
            about: None,
            problems: messages
                .iter()
                .map(|message| SettingsProblem {
                    key: "",
                    reason: "SLOCfgUnknownKey",
                    message: (*message).to_owned(),
                    is_refused: false,
                })
                .collect(),
        };
        let (before, now) = (
            settings_problems(&["a", "b"]),
            settings_problems(&["b", "c"]),
        );
        let new_messages = |now: &SettingsProblems, before: &SettingsProblems| -> Vec<String> {
            now.since(before).map(|p| p.message.clone()).collect()
        };
        assert_eq!(new_messages(&now, &before), ["c"]);
        assert_eq!(
            new_messages(&now, &settings_problems(&[])),
            ["b", "c"],
            "a new leader"
        );
        assert_eq!(new_messages(&settings_problems(&["b"]), &now), [""; 0]);
    }
}
