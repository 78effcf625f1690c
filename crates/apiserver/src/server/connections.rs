//! Table of open connections, which decides which one to close when there are too many.
//!
//! At the limit the connection that has waited longest is closed: first among those without an authenticated
//! user, then among those without requests. Members of `system:masters` have reserved places beyond the
//! limit. Handshakes are counted apart, so that handshakes and connections do not displace each other.

use super::limits::Limits;
use crate::authz::{MASTERS, User};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio_util::sync::CancellationToken;

/// Open connections of a server.
#[derive(Debug, Clone)]
pub(super) struct Connections(Arc<ConnectionsInner>);

#[derive(Debug)]
struct ConnectionsInner {
    most: usize,
    /// Places for members of `system:masters` beyond `most`.
    reserved: usize,
    handshakes: usize,
    table: Mutex<ConnectionTable>,
}

#[derive(Debug, Default)]
struct ConnectionTable {
    /// Number of the latest connection or class change.
    serial: u64,
    open: FxHashMap<u64, Slot>,
    /// Connections by class and, within it, by how long they have been in it, longest first.
    order: BTreeSet<(ConnectionClass, u64, u64)>,
    handshakes: usize,
}

/// Class of a connection; connections of lower classes are closed first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ConnectionClass {
    StrangerIdle,
    StrangerBusy,
    Idle,
    PrivilegedIdle,
    Busy,
    PrivilegedBusy,
    Handshake,
}

#[derive(Debug)]
struct Slot {
    class: ConnectionClass,
    since: u64,
    trust: TrustLevel,
    busy: bool,
    end: CancellationToken,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum TrustLevel {
    Stranger,
    Proven,
    Privileged,
}

impl TrustLevel {
    fn from_user(user: Option<&User>) -> Self {
        match user {
            None => Self::Stranger,
            Some(user) if user.is_in(MASTERS) => Self::Privileged,
            Some(_) => Self::Proven,
        }
    }

    fn class(self, busy: bool) -> ConnectionClass {
        match (self, busy) {
            (Self::Stranger, false) => ConnectionClass::StrangerIdle,
            (Self::Stranger, true) => ConnectionClass::StrangerBusy,
            (Self::Proven, false) => ConnectionClass::Idle,
            (Self::Proven, true) => ConnectionClass::Busy,
            (Self::Privileged, false) => ConnectionClass::PrivilegedIdle,
            (Self::Privileged, true) => ConnectionClass::PrivilegedBusy,
        }
    }
}

impl ConnectionTable {
    fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    fn established(&self) -> usize {
        self.open.len() - self.handshakes
    }

    fn set_class(&mut self, id: u64, class: ConnectionClass) {
        let since = self.next_serial();
        let Some(slot) = self.open.get_mut(&id) else {
            return;
        };
        if slot.class == class {
            return;
        }
        let was_handshake = slot.class == ConnectionClass::Handshake;
        self.order.remove(&(slot.class, slot.since, id));
        (slot.class, slot.since) = (class, since);
        self.order.insert((class, since, id));
        self.handshakes -= usize::from(was_handshake);
    }

    /// Removes a connection and returns its slot.
    fn remove(&mut self, id: u64) -> Option<Slot> {
        let slot = self.open.remove(&id)?;
        self.order.remove(&(slot.class, slot.since, id));
        self.handshakes -= usize::from(slot.class == ConnectionClass::Handshake);
        Some(slot)
    }

    fn end(&mut self, id: u64) {
        if let Some(slot) = self.remove(id) {
            tracing::debug!(class = ?slot.class, "closing a connection to make room for another");
            slot.end.cancel();
        }
    }

    /// Returns the connection to close first among those up to `class`, other than `id`.
    fn first(&self, class: ConnectionClass, id: u64) -> Option<u64> {
        let mut candidates = self.order.iter().take_while(|(other, ..)| *other <= class);
        candidates
            .find(|(.., other)| *other != id)
            .map(|(.., other)| *other)
    }

    fn oldest_handshake(&self) -> Option<u64> {
        let mut handshakes = self.order.range((ConnectionClass::Handshake, 0, 0)..);
        handshakes.next().map(|(.., id)| *id)
    }
}

impl Connections {
    /// Returns an empty table. `files` is how many files this process may have open: at most half of them may
    /// be connections.
    pub(super) fn new(limits: &Limits, files: Option<u64>) -> Self {
        let files = files.and_then(|files| usize::try_from(files).ok());
        let part = |n: usize| files.map_or(usize::MAX, |files| (files / n).max(1));
        Self(Arc::new(ConnectionsInner {
            most: limits.max_connections.min(part(2)).max(1),
            reserved: limits.reserved_connections.min(part(16)),
            handshakes: limits.max_handshakes.min(part(8)).max(1),
            table: Mutex::default(),
        }))
    }

    /// Adds an accepted connection, which begins its handshake. At the limit the oldest handshake is closed.
    pub(super) fn accept(&self) -> OpenConnection {
        let mut table = self.0.table.lock();
        while table.handshakes >= self.0.handshakes {
            let Some(oldest) = table.oldest_handshake() else {
                break;
            };
            table.end(oldest);
        }
        let id = table.next_serial();
        let end = CancellationToken::new();
        let slot = Slot {
            class: ConnectionClass::Handshake,
            since: id,
            trust: TrustLevel::Stranger,
            busy: false,
            end: end.clone(),
        };
        table.order.insert((slot.class, slot.since, id));
        table.open.insert(id, slot);
        table.handshakes += 1;
        OpenConnection(Arc::new(ConnectionEntry {
            id,
            connections: self.clone(),
            end,
            proven: Default::default(),
        }))
    }

    /// Closes a connection because the process has no file descriptors left.
    pub(super) fn make_room(&self) {
        let mut table = self.0.table.lock();
        let first = table.first(ConnectionClass::Idle, 0);
        if let Some(id) = first.or_else(|| table.oldest_handshake()) {
            table.end(id);
        }
    }

    /// Returns the number of open connections, including handshakes.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.table.lock().open.len()
    }
}

/// An open connection; it is removed from the table when its last clone is dropped.
#[derive(Debug, Clone)]
pub(super) struct OpenConnection(Arc<ConnectionEntry>);

#[derive(Debug)]
struct ConnectionEntry {
    id: u64,
    connections: Connections,
    end: CancellationToken,
    /// First: true if a request has authenticated an ordinary user. Second: true if one has authenticated a
    /// member of `system:masters`.
    proven: [AtomicBool; 2],
}

impl Drop for ConnectionEntry {
    fn drop(&mut self) {
        self.connections.0.table.lock().remove(self.id);
    }
}

impl OpenConnection {
    /// Completes when the connection has to be closed.
    pub(super) async fn ended(&self) {
        self.0.end.cancelled().await;
    }

    /// Counts the connection as established, by `user` if the handshake has authenticated one; false if there
    /// is no free place.
    pub(super) fn establish(&self, user: Option<&User>) -> bool {
        let ConnectionsInner { most, reserved, .. } = *self.0.connections.0;
        let trust = TrustLevel::from_user(user);
        let id = self.0.id;
        let mut table = self.0.connections.0.table.lock();
        let Some(slot) = table.open.get_mut(&id) else {
            return false;
        };
        slot.trust = trust;
        if table.established() >= most {
            let last = match trust {
                TrustLevel::Privileged if table.established() >= most + reserved => {
                    ConnectionClass::PrivilegedIdle
                }
                _ => ConnectionClass::Idle,
            };
            if let Some(first) = table.first(last, id) {
                table.end(first);
            } else if trust < TrustLevel::Privileged || table.established() >= most + reserved {
                table.remove(id);
                return false;
            }
        }
        table.set_class(id, trust.class(false));
        true
    }

    /// Records that a request has authenticated `user`.
    pub(super) fn record_user(&self, user: &User) {
        let trust = TrustLevel::from_user(Some(user));
        let [proven, privileged] = &self.0.proven;
        let recorded = match trust {
            TrustLevel::Privileged => privileged,
            _ => proven,
        };
        // Once per connection, because all connections share the table.
        if recorded.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut table = self.0.connections.0.table.lock();
        let Some(slot) = table.open.get_mut(&self.0.id) else {
            return;
        };
        if trust > slot.trust {
            slot.trust = trust;
            let class = trust.class(slot.busy);
            table.set_class(self.0.id, class);
        }
    }

    /// Records whether a request is in progress.
    pub(super) fn set_busy(&self, busy: bool) {
        let mut table = self.0.connections.0.table.lock();
        let Some(slot) = table.open.get_mut(&self.0.id) else {
            return;
        };
        slot.busy = busy;
        let class = slot.trust.class(busy);
        table.set_class(self.0.id, class);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connections(most: usize, reserved: usize, handshakes: usize) -> Connections {
        let limits = Limits {
            max_connections: most,
            reserved_connections: reserved,
            max_handshakes: handshakes,
            ..Limits::default()
        };
        Connections::new(&limits, None)
    }

    fn jane() -> User {
        User::new("jane", ["system:authenticated"])
    }

    fn open(connections: &Connections, user: Option<&User>) -> OpenConnection {
        let connection = connections.accept();
        assert!(connection.establish(user));
        connection
    }

    fn has_ended(connection: &OpenConnection) -> bool {
        connection.0.end.is_cancelled()
    }

    #[test]
    fn limit_ends_strangers_then_idle_connections() {
        let connections = connections(4, 1, 8);
        let jane = jane();
        let idle = open(&connections, Some(&jane));
        let busy = open(&connections, Some(&jane));
        busy.set_busy(true);
        let stranger = open(&connections, None);
        stranger.set_busy(true);
        let by_token = open(&connections, None);
        by_token.record_user(&jane);
        let all = || [&stranger, &idle, &by_token, &busy].map(has_ended);
        assert_eq!(all(), [false; 4]);

        let extra = open(&connections, Some(&jane));
        extra.set_busy(true);
        assert_eq!(all(), [true, false, false, false]);
        let _second = open(&connections, Some(&jane));
        assert_eq!(all(), [true, true, false, false], "the oldest idle one");
        let third = open(&connections, Some(&jane));
        third.set_busy(true);
        assert_eq!(all(), [true, true, true, false]);
        assert_eq!(connections.len(), 4);
    }

    #[test]
    fn busy_connections_leave_the_reserve_to_administrators() {
        let connections = connections(2, 2, 8);
        let busy: Vec<_> = (0..2).map(|_| open(&connections, Some(&jane()))).collect();
        busy.iter().for_each(|connection| connection.set_busy(true));
        assert!(!connections.accept().establish(Some(&jane())));
        assert!(!connections.accept().establish(None));
        let admin = User::default();
        let first = open(&connections, Some(&admin));
        let second = open(&connections, Some(&admin));
        second.set_busy(true);
        // Beyond the reserve an administrator displaces an idle connection.
        let third = open(&connections, Some(&admin));
        assert!(has_ended(&first) && !has_ended(&second));
        assert!(!busy.iter().any(has_ended));
        third.set_busy(true);
        assert!(!connections.accept().establish(Some(&admin)));
        assert_eq!(connections.len(), 4);
    }

    #[test]
    fn handshakes_beyond_their_limit_end_the_oldest() {
        let connections = connections(2, 1, 3);
        let idle: Vec<_> = (0..2).map(|_| open(&connections, Some(&jane()))).collect();
        let handshakes: Vec<_> = (0..5).map(|_| connections.accept()).collect();
        let ended: Vec<_> = handshakes.iter().map(has_ended).collect();
        assert_eq!(ended, [true, true, false, false, false]);
        assert!(!idle.iter().any(has_ended), "handshakes end no connection");
        assert!(!handshakes[0].establish(Some(&User::default())));
        assert!(handshakes[4].establish(Some(&jane())));
        drop(handshakes);
        assert_eq!(connections.len(), 1);
    }

    #[test]
    fn open_files_bound_the_connections() {
        let limits = Limits::default();
        let connections = Connections::new(&limits, Some(64));
        let open: Vec<_> = (0..40).map(|_| open(&connections, None)).collect();
        assert_eq!(connections.len(), 32);
        connections.make_room();
        assert_eq!(connections.len(), 31);
        assert!(open.iter().rev().take(31).all(|it| !has_ended(it)));
    }
}
