//! The moment at which a leader is killed.

use http::Method;
use serde_json::Value;
use std::time::Duration;

/// Point of a leader's work at which it dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Moment {
    /// A binding is in flight.
    Binding,
    /// A patch of a pod's annotations before its binding is in flight.
    PreBind,
    /// A gang is bound in part.
    InsideGang,
    /// A write of a reservation or its status is in flight, or the patch of a pod with its reservation.
    Reservation,
    /// Random delay after the leader's first write, while pods that can be placed are pending.
    AnyTime,
}

pub(super) const MOMENTS: [Moment; 5] = [
    Moment::Binding,
    Moment::PreBind,
    Moment::InsideGang,
    Moment::Reservation,
    Moment::AnyTime,
];

/// Last parts of the annotations that the patch before a binding sets.
const DECIDED: [&str; 4] = [
    "resource-status",
    "device-allocated",
    "reservation-allocated",
    "bind-gang-group-id",
];

/// Annotation that names the reservation of a pod.
const ALLOTTED: &str = "scheduling.koordinator.sh/reservation-allocated";

/// A moment, and the number of its write.
#[derive(Debug, Clone, Copy)]
pub(super) struct Aim {
    pub(super) moment: Moment,
    /// The number of the write among those of the moment, from 1.
    pub(super) at: u64,
    /// True if the last write is done; its response never arrives.
    pub(super) arrives: bool,
    /// Delay after the first write, for [`Moment::AnyTime`].
    pub(super) after: Duration,
}

impl Aim {
    pub(super) fn draw(moment: Moment, random: &mut fastrand::Rng) -> Self {
        let most = match moment {
            Moment::Binding => 12,
            Moment::PreBind => 8,
            Moment::InsideGang => 2,
            Moment::Reservation => 4,
            Moment::AnyTime => 1,
        };
        Self {
            moment,
            at: random.u64(1..=most),
            arrives: random.bool(),
            after: Duration::from_millis(random.u64(0..100)),
        }
    }
}

impl Moment {
    /// Returns true if a write with `body` may be the last at this moment. For a gang's members it also
    /// depends on the others.
    pub(super) fn is(self, method: &Method, path: &str, body: &str) -> bool {
        let binding = path.ends_with("/binding");
        match self {
            Self::Binding => binding,
            Self::PreBind => {
                *method == Method::PATCH && pod_of(path).is_some_and(|pod| path.ends_with(pod))
            }
            Self::InsideGang => binding && gang_of(path).is_some(),
            Self::Reservation => is_reservation(path) || allots(method, path, body),
            Self::AnyTime => false,
        }
    }
}

fn is_reservation(path: &str) -> bool {
    path.contains("/reservations/")
}

/// Returns true if a write sets the reservation of a pod.
fn allots(method: &Method, path: &str, body: &str) -> bool {
    *method == Method::PATCH && pod_of(path).is_some() && body.contains(ALLOTTED)
}

/// Returns the name of the pod in a path.
pub(super) fn pod_of(path: &str) -> Option<&str> {
    path.split_once("/pods/")?.1.split('/').next()
}

/// Returns the gang of the pod in a path, and the number of its members.
pub(super) fn gang_of(path: &str) -> Option<(&str, usize)> {
    let kind = pod_of(path)?.split('-').next()?;
    // The names of rivals do not include the gang.
    kind.starts_with("gang").then_some((kind, 4))
}

/// Returns the path of an object without its sub-resource.
pub(super) fn object_of(path: &str) -> &str {
    ["/binding", "/status"]
        .iter()
        .find_map(|end| path.strip_suffix(end))
        .unwrap_or(path)
}

/// The last write of a leader.
#[derive(Debug)]
pub(super) struct Last {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) body: String,
    /// Status of the server's response, which the leader never received; `None` for a write that was lost.
    pub(super) answered: Option<http::StatusCode>,
    /// The object before and after.
    pub(super) object: [Value; 2],
    /// Members of the object's gang that are bound afterwards.
    pub(super) members: Option<usize>,
}

impl Last {
    pub(super) fn what(&self) -> String {
        let outcome = match self.answered {
            Some(status) => format!("answered with {}", status.as_u16()),
            None => "lost".to_owned(),
        };
        format!("{} {}, {outcome}", self.method, self.path)
    }

    /// Checks that the write was of the intended kind, and was done or not as intended.
    pub(super) fn check(&self, aim: Aim) {
        let context = format!("{} for {aim:?}", self.what());
        let is = aim.moment.is(&self.method, &self.path, &self.body);
        assert!(is, "{context}: {}", self.body);
        assert_eq!(self.answered.is_some(), aim.arrives, "{context}");
        let [before, after] = &self.object;
        let succeeded = self.answered.is_some_and(|status| status.is_success());
        if !succeeded {
            assert_eq!(before, after, "{context}: no other client writes it");
        }
        let node = |object: &Value| object["spec"]["nodeName"].as_str().map(str::to_owned);
        match aim.moment {
            Moment::Binding | Moment::InsideGang => {
                assert_eq!(node(before), None, "{context}: bound twice");
                assert_eq!(node(after).is_some(), succeeded, "{context}");
            }
            Moment::PreBind => {
                assert_eq!(node(before), None, "{context}: patched too late");
                assert_eq!(node(after), None, "{context}: bound before it was patched");
                let decided = |key: &&str| {
                    let key = format!("scheduling.koordinator.sh/{key}");
                    !after["metadata"]["annotations"][key].is_null()
                };
                let is_set = DECIDED.iter().any(decided);
                assert!(is_set || !succeeded, "{context}: {after}");
            }
            Moment::Reservation if is_reservation(&self.path) => {
                assert_eq!(after["kind"], "Reservation", "{context}: {after}");
                assert!(
                    before != after || !succeeded,
                    "{context}: nothing came of it"
                );
            }
            Moment::Reservation => {
                let allotted = |object: &Value| object["metadata"]["annotations"][ALLOTTED].clone();
                let sent = allotted(&serde_json::from_str(&self.body).unwrap());
                assert_eq!(node(before), None, "{context}: set too late");
                assert!(sent.is_string(), "{context}: {}", self.body);
                // An earlier leader may have written the same.
                assert!(!succeeded || allotted(after) == sent, "{context}: {after}");
            }
            Moment::AnyTime => {}
        }
        if aim.moment == Moment::InsideGang {
            let (_, size) = gang_of(&self.path).unwrap();
            let bound = self.members.unwrap();
            assert!((1..size).contains(&bound), "{context}: {bound} of {size}");
        }
    }
}
