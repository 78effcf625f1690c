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
        } in &complaints.problems
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

    /// Makes events of what is wrong now and later, until `stop`. One replica does so.
    pub(crate) async fn complain(&self, recorder: &Recorder, stop: CancellationToken) {
        let mut complaints = self.complaints.subscribe();
        loop {
            let Complaints { about, problems } = complaints.borrow_and_update().clone();
            for (about, problem) in about
                .iter()
                .flat_map(|a| problems.iter().map(move |p| (a, p)))
            {
                let (warning, message) = (Severity::Warning, problem.message.as_str());
                recorder.event(about.clone(), warning, problem.reason, message);
            }
            tokio::select! {
                () = stop.cancelled() => return,
                changed = complaints.changed() => if changed.is_err() { return },
            }
        }
    }
}
