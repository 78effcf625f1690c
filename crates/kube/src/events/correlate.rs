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
const REMEMBER: usize = 4096;

/// The request for an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Create a new Event object.
    Create,
    /// Update the count of the existing Event of which this is a repeat; its name is filled in.
    Count,
    /// Send nothing: the rate limit is exceeded.
    Drop,
}

#[derive(Debug, Default)]
pub(super) struct Correlator {
    similar: Memory<Similar>,
    sent: Memory<Sent>,
    buckets: Memory<Bucket>,
}

#[derive(Debug, Default)]
struct Similar {
    messages: HashSet<String>,
    last: Option<Timestamp>,
}

#[derive(Debug, Default, Clone)]
struct Sent {
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
    pub(super) fn judge(&mut self, mut event: Event, now: Timestamp) -> (Verdict, Event) {
        let speaker = {
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
        let what = key(&[
            &Some(speaker.clone()),
            &event.type_,
            &event.reason,
            &event.action,
            &event.reporting_component,
            &event.reporting_instance,
        ]);
        let message = event.message.clone().unwrap_or_default();

        let similar = self.similar.entry(&what);
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
            key(&[&Some(what), &None])
        } else {
            key(&[&Some(what), &Some(message)])
        };

        let sent = self.sent.entry(&identity);
        sent.count = sent.count.saturating_add(1);
        let verdict = match &sent.name {
            Some(name) => {
                event.metadata.name = Some(name.clone());
                event.first_timestamp = sent.first.clone();
                Verdict::Count
            }
            None => {
                sent.name = event.metadata.name.clone();
                sent.first = event.first_timestamp.clone();
                Verdict::Create
            }
        };
        event.count = Some(sent.count);

        let bucket = self.buckets.entry(&key(&[&Some(speaker), &event.reason]));
        if !bucket.0.take(since_epoch(now)) {
            if verdict == Verdict::Create {
                // No object was created, so a later count cannot be updated.
                self.sent.forget(&identity);
            }
            return (Verdict::Drop, event);
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
struct Memory<V> {
    entries: HashMap<String, (u64, V)>,
    tick: u64,
}

impl<V> Default for Memory<V> {
    fn default() -> Self {
        Self {
            entries: HashMap::new(),
            tick: 0,
        }
    }
}

impl<V: Default> Memory<V> {
    fn entry(&mut self, key: &str) -> &mut V {
        self.tick += 1;
        if self.entries.len() >= REMEMBER && !self.entries.contains_key(key) {
            let mut ages: Vec<u64> = self.entries.values().map(|(age, _)| *age).collect();
            let (_, middle, _) = ages.select_nth_unstable(REMEMBER / 2);
            let middle = *middle;
            self.entries.retain(|_, (age, _)| *age > middle);
        }
        let entry = self.entries.entry(key.to_owned()).or_default();
        entry.0 = self.tick;
        &mut entry.1
    }

    fn forget(&mut self, key: &str) {
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
    fn many_messages_fold_into_one_event() {
        let mut correlator = Correlator::default();
        for number in 0..10 {
            let (verdict, _) = correlator.judge(event(number, "a", &number.to_string()), at(1));
            assert_eq!(verdict, Verdict::Create);
        }
        let (verdict, folded) = correlator.judge(event(10, "a", "ten"), at(2));
        assert_eq!(verdict, Verdict::Create);
        assert_eq!(
            folded.message.as_deref(),
            Some("(combined from similar events): ten")
        );
        let (verdict, folded) = correlator.judge(event(11, "a", "eleven"), at(3));
        assert_eq!(verdict, Verdict::Count);
        assert_eq!(folded.metadata.name.as_deref(), Some("e10"));
        assert_eq!(folded.count, Some(2));
        // An earlier message still has its own event.
        let (verdict, known) = correlator.judge(event(12, "a", "3"), at(4));
        assert_eq!(
            (verdict, known.metadata.name.as_deref()),
            (Verdict::Count, Some("e3"))
        );
        // After a while without events, messages are separate again.
        let (_, fresh) = correlator.judge(event(13, "a", "new"), at(700));
        assert_eq!(fresh.message.as_deref(), Some("new"));
    }

    #[test]
    fn one_object_gets_so_many_events_and_others_are_not_affected() {
        let mut correlator = Correlator::default();
        let mut judge = |number, object: &str, time| {
            correlator.judge(event(number, object, "same"), at(time)).0
        };
        assert_eq!(judge(0, "a", 0), Verdict::Create);
        for number in 1..25 {
            assert_eq!(judge(number, "a", 0), Verdict::Count);
        }
        assert_eq!(judge(25, "a", 0), Verdict::Drop);
        assert_eq!(judge(26, "b", 0), Verdict::Create);
        assert_eq!(judge(27, "a", 299), Verdict::Drop);
        assert_eq!(judge(28, "a", 301), Verdict::Count);
        assert_eq!(judge(29, "a", 302), Verdict::Drop);
    }

    #[test]
    fn what_failed_often_is_still_told_when_it_goes_well() {
        let mut correlator = Correlator::default();
        for number in 0..40 {
            correlator.judge(event(number, "a", "no room"), at(0));
        }
        let well = Event {
            reason: Some("Scheduled".to_owned()),
            ..event(40, "a", "assigned")
        };
        assert_eq!(correlator.judge(well, at(0)).0, Verdict::Create);
    }

    #[test]
    fn memory_is_bounded_and_keeps_the_recent() {
        let mut memory = Memory::<u32>::default();
        for number in 0..REMEMBER + 10 {
            *memory.entry(&number.to_string()) = 1;
        }
        assert!(memory.entries.len() <= REMEMBER);
        assert_eq!(*memory.entry(&(REMEMBER + 9).to_string()), 1);
        assert_eq!(*memory.entry("0"), 0);
    }
}
