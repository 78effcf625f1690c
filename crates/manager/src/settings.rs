//! The settings in force, and what is wrong with the ConfigMap they come from.

use crate::cache::Cache;
use crate::config::{Config, Problem};
use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference};
use koord_kube::Change;
use koord_kube::events::{self, Recorder, Severity};
use parking_lot::RwLock;
use std::sync::Arc;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// What is wrong with a ConfigMap, for events.
#[derive(Debug, Default, Clone)]
struct Complaints {
    about: Option<ObjectReference>,
    problems: Vec<Problem>,
}

impl Complaints {
    /// The problems that were not there `before`.
    fn since<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = &'a Problem> {
        let known = |problem: &&Problem| !before.problems.contains(problem);
        self.problems.iter().filter(known)
    }
}

type Listener = Box<dyn Fn() + Send + Sync>;

/// Follows the ConfigMap.
pub(crate) struct Settings {
    current: RwLock<Arc<Config>>,
    complaints: watch::Sender<Complaints>,
    listeners: RwLock<Vec<Listener>>,
}

impl Settings {
    /// The settings that `cache` leads to.
    pub(crate) fn of(cache: &Cache<ConfigMap>) -> Arc<Self> {
        let settings = Arc::new(Self {
            current: RwLock::default(),
            complaints: watch::channel(Complaints::default()).0,
            listeners: RwLock::default(),
        });
        let listener = settings.clone();
        cache.on_change(move |change| listener.change(change));
        settings
    }

    /// What is in force.
    pub(crate) fn current(&self) -> Arc<Config> {
        self.current.read().clone()
    }

    /// Calls `listener` after every change of what is in force; it must not block.
    pub(crate) fn on_change(&self, listener: impl Fn() + Send + Sync + 'static) {
        self.listeners.write().push(Box::new(listener));
    }

    fn change(&self, change: &Change<ConfigMap>) {
        let current = self.current();
        let (next, complaints) = match change {
            Change::Applied { new, .. } => {
                let data = new.data.clone().unwrap_or_default();
                let (next, problems) = current.updated(&data);
                let about = Some(events::reference(&**new));
                (next, Complaints { about, problems })
            }
            // Without the ConfigMap the defaults apply, but only if there never was one: losing it by
            // accident must not switch co-location off everywhere.
            Change::Synced if !current.is_available() && !current.is_present() => {
                let (next, _) = current.updated(&Default::default());
                (next, Complaints::default())
            }
            Change::Deleted(config) => {
                let gone = Problem {
                    key: "",
                    reason: "SLOConfigDeleted",
                    message: "the settings are gone; the last ones stay in force until a restart"
                        .to_owned(),
                    is_refused: true,
                };
                let complaints = Complaints {
                    about: Some(events::reference(&**config)),
                    problems: vec![gone],
                };
                ((*current).clone(), complaints)
            }
            Change::Synced => return,
        };
        for Problem {
            key,
            message: problem,
            is_refused,
            ..
        } in complaints.since(&self.complaints.borrow())
        {
            if *is_refused {
                tracing::error!(key, problem, "settings are refused");
            } else {
                tracing::warn!(key, problem, "there is something odd about the settings");
            }
        }
        self.complaints.send_replace(complaints);
        let changed = *current != next;
        *self.current.write() = Arc::new(next);
        if changed {
            for listener in self.listeners.read().iter() {
                listener();
            }
        }
    }

    /// Makes events of what is wrong now and later, until `stop`. One replica does so. What is still
    /// wrong after a change is not said again: one source may say only so much about one object.
    pub(crate) async fn complain(&self, recorder: &Recorder, stop: CancellationToken) {
        let mut complaints = self.complaints.subscribe();
        let mut said = Complaints::default();
        loop {
            let now = complaints.borrow_and_update().clone();
            if let Some(about) = &now.about {
                for problem in now.since(&said) {
                    let (warning, message) = (Severity::Warning, problem.message.as_str());
                    recorder.event(about.clone(), warning, problem.reason, message);
                }
            }
            said = now;
            tokio::select! {
                () = stop.cancelled() => return,
                changed = complaints.changed() => if changed.is_err() { return },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_still_wrong_is_not_said_again() {
        let complaints = |messages: &[&str]| Complaints {
            about: None,
            problems: messages
                .iter()
                .map(|message| Problem {
                    key: "",
                    reason: "SLOCfgUnknownKey",
                    message: (*message).to_owned(),
                    is_refused: false,
                })
                .collect(),
        };
        let (before, now) = (complaints(&["a", "b"]), complaints(&["b", "c"]));
        let said = |now: &Complaints, before: &Complaints| -> Vec<String> {
            now.since(before).map(|p| p.message.clone()).collect()
        };
        assert_eq!(said(&now, &before), ["c"]);
        assert_eq!(said(&now, &complaints(&[])), ["b", "c"], "a new leader");
        assert_eq!(said(&complaints(&["b"]), &now), [""; 0]);
    }
}
