//! Aggregates and limits events; pure functions, with the time as a parameter.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use koord_app::TokenBucket;
use koord_app::clock::since_epoch;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// Similar events are folded once there are more different messages than this ...
const FOLD_AFTER: usize = 10;
/// ... each at most this long after the one before, in seconds.
const FOLD_WINDOW: f64 = 600.0;
const FOLDED_PREFIX: &str = "(combined from similar events): ";
/// Number of events that one source may send about one object for one reason at once. (client-go counts all
/// reasons together for this API; upstream's scheduler uses the newer one, which has no such limit. After
/// many failures the success is still recorded.)
const BURST: u32 = 25;
/// Time until the source may send one more.
const REFILL: Duration = Duration::from_secs(300);
/// Maximum number of keys in each map; the least recently used ones are removed first.
const MAX_KEYS: usize = 4096;

/// The request for an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EventAction {
    /// Create a new Event object.
    Create,
    /// Update the count of the existing Event of which this is a repeat; its name is filled in.
    Count,
    /// Send nothing: the rate limit is exceeded.
    Drop,
}

#[derive(Debug, Default)]
pub(super) struct Correlator {
    similar: LruMap<EventAggregate>,
    sent: LruMap<SentEvent>,
    buckets: LruMap<Bucket>,
}

#[derive(Debug, Default)]
struct EventAggregate {
    messages: HashSet<String>,
    last: Option<Timestamp>,
}

#[derive(Debug, Default, Clone)]
struct SentEvent {
    name: Option<String>,
    count: i32,
    first: Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>,
}

#[derive(Debug)]
struct Bucket(TokenBucket);

impl Default for Bucket {
    fn default() -> Self {
        Self(TokenBucket::new(REFILL, BURST))
    }
}

impl Correlator {
    /// Decides how to send `event`, and sets its message, name and count.
    pub(super) fn correlate(&mut self, mut event: Event, now: Timestamp) -> (EventAction, Event) {
        let source_key = {
            let source = event.source.clone().unwrap_or_default();
            let object = &event.involved_object;
            key(&[
                &source.component,
                &source.host,
                &object.kind,
                &object.namespace,
                &object.name,
                &object.uid,
                &object.api_version,
            ])
        };
        let event_key = key(&[
            &Some(source_key.clone()),
            &event.type_,
            &event.reason,
            &event.action,
            &event.reporting_component,
            &event.reporting_instance,
        ]);
        let message = event.message.clone().unwrap_or_default();

        let similar = self.similar.entry(&event_key);
        if similar
            .last
            .is_some_and(|last| seconds(last, now) > FOLD_WINDOW)
        {
            similar.messages.clear();
        }
        similar.last = Some(now);
        let folded = similar.messages.len() >= FOLD_AFTER && !similar.messages.contains(&message);
        if !folded {
            similar.messages.insert(message.clone());
        }
        // Folded events are one object although their messages differ.
        let identity = if folded {
            event.message = Some(format!("{FOLDED_PREFIX}{message}"));
            key(&[&Some(event_key), &None])
        } else {
            key(&[&Some(event_key), &Some(message)])
        };

        let sent_event = self.sent.entry(&identity);
        sent_event.count = sent_event.count.saturating_add(1);
        let verdict = match &sent_event.name {
            Some(name) => {
                event.metadata.name = Some(name.clone());
                event.first_timestamp = sent_event.first.clone();
                EventAction::Count
            }
            None => {
                sent_event.name = event.metadata.name.clone();
                sent_event.first = event.first_timestamp.clone();
                EventAction::Create
            }
        };
        event.count = Some(sent_event.count);

        let bucket = self
            .buckets
            .entry(&key(&[&Some(source_key), &event.reason]));
        if !bucket.0.take(since_epoch(now)) {
            if verdict == EventAction::Create {
                // No object was created, so a later count cannot be updated.
                self.sent.remove(&identity);
            }
            return (EventAction::Drop, event);
        }
        (verdict, event)
    }
}

fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64().max(0.0)
}

fn key(parts: &[&Option<String>]) -> String {
    let mut key = String::new();
    for part in parts {
        key.push_str(part.as_deref().unwrap_or_default());
        key.push('\u{1f}');
    }
    key
}

/// A map that removes the least recently used half when it is full.
#[derive(Debug)]
struct LruMap<V> {
    entries: HashMap<String, (u64, V)>,
    tick: u64,
}

impl<V> Default for LruMap<V> {
    fn default() -> Self {
        Self {
            entries: HashMap::new(),
            tick: 0,
        }
    }
}

impl<V: Default> LruMap<V> {
    fn entry(&mut self, key: &str) -> &mut V {
        self.tick += 1;
        if self.entries.len() >= MAX_KEYS && !self.entries.contains_key(key) {
            let mut ages: Vec<u64> = self.entries.values().map(|(age, _)| *age).collect();
            let (_, middle, _) = ages.select_nth_unstable(MAX_KEYS / 2);
            let middle = *middle;
            self.entries.retain(|_, (age, _)| *age > middle);
        }
        let entry = self.entries.entry(key.to_owned()).or_default();
        entry.0 = self.tick;
        &mut entry.1
    }

    fn remove(&mut self, key: &str) {
        self.entries.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{EventSource, ObjectReference};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    fn event(number: u32, object: &str, message: &str) -> Event {
        Event {
            metadata: ObjectMeta {
                name: Some(format!("e{number}")),
                ..ObjectMeta::default()
            },
            involved_object: ObjectReference {
                name: Some(object.to_owned()),
                ..ObjectReference::default()
            },
            source: Some(EventSource {
                component: Some("c".to_owned()),
                host: None,
            }),
            reason: Some("R".to_owned()),
            message: Some(message.to_owned()),
            count: Some(1),
            ..Event::default()
        }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    #[test]
    fn similar_events_are_folded() {
        let mut correlator = Correlator::default();
        for number in 0..10 {
            let (verdict, _) = correlator.correlate(event(number, "a", &number.to_string()), at(1));
            assert_eq!(verdict, EventAction::Create);
        }
        let (verdict, folded) = correlator.correlate(event(10, "a", "ten"), at(2));
        assert_eq!(verdict, EventAction::Create);
        assert_eq!(
            folded.message.as_deref(),
            Some("(combined from similar events): ten")
        );
        let (verdict, folded) = correlator.correlate(event(11, "a", "eleven"), at(3));
        assert_eq!(verdict, EventAction::Count);
        assert_eq!(folded.metadata.name.as_deref(), Some("e10"));
        assert_eq!(folded.count, Some(2));
        // An earlier message still has its own event.
        let (verdict, repeated) = correlator.correlate(event(12, "a", "3"), at(4));
        assert_eq!(
            (verdict, repeated.metadata.name.as_deref()),
            (EventAction::Count, Some("e3"))
        );
        // After a while without events, messages are separate again.
        let (_, fresh) = correlator.correlate(event(13, "a", "new"), at(700));
        assert_eq!(fresh.message.as_deref(), Some("new"));
    }

    #[test]
    fn rate_limit_is_per_object() {
        let mut correlator = Correlator::default();
        let mut correlate = |number, object: &str, time| {
            correlator
                .correlate(event(number, object, "same"), at(time))
                .0
        };
        assert_eq!(correlate(0, "a", 0), EventAction::Create);
        for number in 1..25 {
            assert_eq!(correlate(number, "a", 0), EventAction::Count);
        }
        assert_eq!(correlate(25, "a", 0), EventAction::Drop);
        assert_eq!(correlate(26, "b", 0), EventAction::Create);
        assert_eq!(correlate(27, "a", 299), EventAction::Drop);
        assert_eq!(correlate(28, "a", 301), EventAction::Count);
        assert_eq!(correlate(29, "a", 302), EventAction::Drop);
    }

    #[test]
    fn success_is_recorded_after_many_failures() {
        let mut correlator = Correlator::default();
        for number in 0..40 {
            correlator.correlate(event(number, "a", "no room"), at(0));
        }
        let well = Event {
            reason: Some("Scheduled".to_owned()),
            ..event(40, "a", "assigned")
        };
        assert_eq!(correlator.correlate(well, at(0)).0, EventAction::Create);
    }

    #[test]
    fn map_is_bounded_and_keeps_recent_entries() {
        let mut map = LruMap::<u32>::default();
        for number in 0..MAX_KEYS + 10 {
            *map.entry(&number.to_string()) = 1;
        }
        assert!(map.entries.len() <= MAX_KEYS);
        assert_eq!(*map.entry(&(MAX_KEYS + 9).to_string()), 1);
        assert_eq!(*map.entry("0"), 0);
    }
}
