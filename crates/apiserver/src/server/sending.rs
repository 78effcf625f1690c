//! Limits on unread response data and long requests, per user and connection.

use super::limits::Limits;
use crate::authz::{MASTERS, User};
use crate::store::{QueueCharge, QueueStage, SendQueue, SendQueues};
use axum::body::Body;
use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use koord_kinds::status::ApiError;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use tokio::sync::futures::OwnedNotified;

/// Users with requests in progress.
#[derive(Debug, Clone)]
pub(super) struct Clients(Arc<ClientsInner>);

#[derive(Debug)]
struct ClientsInner {
    max_watches: usize,
    queue_bytes: usize,
    users: Mutex<ClientTable>,
}

#[derive(Debug, Default)]
struct ClientTable {
    by_name: FxHashMap<String, Weak<ClientUsage>>,
    /// Number of users above which those without requests are removed.
    sweep_at: usize,
}

#[derive(Debug)]
struct ClientUsage {
    queue: Arc<SendQueue>,
    watches: AtomicUsize,
}

impl Clients {
    pub(super) fn new(limits: &Limits) -> Self {
        Self(Arc::new(ClientsInner {
            max_watches: limits.max_watches_per_user,
            queue_bytes: limits.unread_bytes_per_user,
            users: Mutex::default(),
        }))
    }

    fn client(&self, name: &str) -> Arc<ClientUsage> {
        let mut users = self.0.users.lock();
        if let Some(client) = users.by_name.get(name).and_then(Weak::upgrade) {
            return client;
        }
        if users.by_name.len() >= users.sweep_at {
            users.by_name.retain(|_, client| client.strong_count() > 0);
            users.sweep_at = 64.max(users.by_name.len() * 2);
        }
        let client = Arc::new(ClientUsage {
            queue: Arc::new(SendQueue::new(self.0.queue_bytes)),
            watches: AtomicUsize::new(0),
        });
        let weak = Arc::downgrade(&client);
        users.by_name.insert(name.to_owned(), weak);
        client
    }

    /// Counts a request of `user` until the result is dropped; `None` for members of `system:masters`, who
    /// have no limits. `long` requests are watches, followed logs and the like.
    ///
    /// # Errors
    /// 429 if the user has too many long requests, or too much unread data.
    pub(super) fn admit(
        &self,
        user: &User,
        connection: Option<&Arc<SendQueue>>,
        long: bool,
    ) -> Result<Option<Admission>, ApiError> {
        if user.is_in(MASTERS) {
            return Ok(None);
        }
        let client = self.client(&user.name);
        let queues = [Some(&client.queue), connection];
        let queues = SendQueues::new(queues.into_iter().flatten().cloned());
        // Other requests still work while watches have objects queued.
        let full = if long {
            queues.full()
        } else {
            queues.stalled()
        };
        if let Some(limit) = full {
            let description = if client.queue.limit() == limit {
                format!("user {:?}", user.name)
            } else {
                format!("a connection of user {:?}", user.name)
            };
            let message = format!("{description} has {limit} bytes of unread responses, the limit");
            return Err(ApiError::too_many_requests(message, 1));
        }
        let mut watches = None;
        if long {
            let most = match self.0.max_watches {
                0 => usize::MAX,
                most => most,
            };
            let before = client.watches.fetch_add(1, Ordering::Relaxed);
            watches = Some(LongRequest(client.clone()));
            if before >= most {
                let message = format!(
                    "user {:?} has {most} watches and other long requests open, the limit",
                    user.name
                );
                return Err(ApiError::too_many_requests(message, 1));
            }
        }
        Ok(Some(Admission {
            queues,
            client,
            _watches: watches,
        }))
    }
}

/// Guard that counts a long request of a user.
#[derive(Debug)]
struct LongRequest(Arc<ClientUsage>);

impl Drop for LongRequest {
    fn drop(&mut self) {
        self.0.watches.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request that counts in the limits of its user and connection.
#[derive(Debug)]
pub(super) struct Admission {
    queues: SendQueues,
    /// Keeps the user's counters alive.
    client: Arc<ClientUsage>,
    _watches: Option<LongRequest>,
}

impl Admission {
    /// Returns the queues that the response is charged to.
    pub(super) fn queues(&self) -> &SendQueues {
        &self.queues
    }

    /// Wraps `body`: its bytes are charged until they are sent, and it pauses while a queue is full.
    pub(super) fn meter(self, body: Body) -> Body {
        let total = body.size_hint().exact().unwrap_or(0);
        let total = usize::try_from(total).unwrap_or(usize::MAX);
        let body_charge = self.queues.charge(QueueStage::Unsent, total);
        Body::new(ChargedBody {
            body,
            body_charge,
            space: None,
            admission: self,
        })
    }
}

/// Body of a response that is charged to queues.
struct ChargedBody {
    body: Body,
    /// Charge of a body of known length, from the start.
    body_charge: QueueCharge,
    /// Completes when a full queue may have free space again.
    space: Option<Pin<Box<OwnedNotified>>>,
    admission: Admission,
}

/// Bytes on their way to the client, with their charge.
struct ChargedBytes {
    bytes: Bytes,
    _charge: QueueCharge,
    /// Keeps the queue alive: otherwise a request without other open responses would start with an empty
    /// queue.
    _client: Arc<ClientUsage>,
}

impl AsRef<[u8]> for ChargedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl http_body::Body for ChargedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        // A body that is already charged in full must not wait for its own charge.
        while self.body_charge.bytes() == 0 {
            if self.space.is_none() {
                self.space = self.admission.queues.wait_for_space();
            }
            let Some(space) = self.space.as_mut() else {
                break;
            };
            ready!(space.as_mut().poll(context));
            self.space = None;
        }
        let frame = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
            Some(Ok(frame)) => frame,
            other => return Poll::Ready(other),
        };
        let queues = self.admission.queues.clone();
        let client = Arc::clone(&self.admission.client);
        let frame = frame.map_data(|bytes| {
            let mut charge = self.body_charge.split(bytes.len());
            let missing_bytes = bytes.len() - charge.bytes();
            if missing_bytes > 0 {
                charge = queues.charge(QueueStage::Unsent, bytes.len());
            }
            Bytes::from_owner(ChargedBytes {
                bytes,
                _charge: charge,
                _client: client,
            })
        });
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;
    use http_body_util::BodyExt as _;
    use std::convert::Infallible;

    fn clients(max_watches_per_user: usize, unread_bytes_per_user: usize) -> Clients {
        Clients::new(&Limits {
            max_watches_per_user,
            unread_bytes_per_user,
            ..Limits::default()
        })
    }

    fn jane() -> User {
        User::new("jane", ["system:authenticated"])
    }

    /// Returns a body of unknown length, in parts of eight bytes.
    fn parts() -> Body {
        let part = || Ok::<_, Infallible>(Bytes::from_static(b"12345678"));
        Body::from_stream(futures::stream::repeat_with(part))
    }

    #[test]
    fn long_requests_beyond_a_users_limit_are_refused() {
        let clients = clients(2, 0);
        let admit = |user: &User, long| clients.admit(user, None, long);
        let _first = admit(&jane(), true).unwrap();
        let second = admit(&jane(), true).unwrap();
        let refused = admit(&jane(), true).unwrap_err();
        assert_eq!(
            (refused.code, refused.retry_after_seconds()),
            (429, Some(1))
        );
        assert!(
            refused.message.contains("\"jane\" has 2 watches"),
            "{refused}"
        );
        assert!(admit(&jane(), false).is_ok(), "a short request");
        assert!(admit(&User::new("joe", ["x"]), true).is_ok());
        assert!(admit(&User::default(), true).unwrap().is_none());
        drop(second);
        assert!(admit(&jane(), true).is_ok());
    }

    #[test]
    fn users_without_requests_are_dropped() {
        let clients = clients(2, 0);
        for number in 0..1000 {
            let user = User::new(format!("user-{number}"), ["x"]);
            assert!(clients.admit(&user, None, true).is_ok());
        }
        assert!(clients.0.users.lock().by_name.len() <= 64);
    }

    #[tokio::test]
    async fn responses_resume_after_unread_bytes_are_sent() {
        let clients = clients(0, 10);
        let meter = || clients.admit(&jane(), None, true).unwrap().unwrap();
        let (mut first, mut second) = (meter().meter(parts()), meter().meter(parts()));
        let first_chunk = first.frame().await.unwrap().unwrap();
        let second_chunk = first.frame().await.unwrap().unwrap();
        assert!(first.frame().now_or_never().is_none());
        assert!(second.frame().now_or_never().is_none());
        let refused = clients.admit(&jane(), None, true).unwrap_err();
        assert!(refused.message.contains("10 bytes of unread"), "{refused}");
        assert_eq!(clients.admit(&jane(), None, false).unwrap_err().code, 429);
        assert!(clients.admit(&User::default(), None, false).is_ok());
        drop(first_chunk);
        let frame = second.frame().await.unwrap().unwrap();
        drop((second_chunk, frame));
        first.frame().await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn whole_answer_counts_until_all_of_it_is_sent() {
        let clients = clients(0, 10);
        let admission = clients.admit(&jane(), None, false).unwrap().unwrap();
        let mut body = admission.meter(Body::from("a long answer"));
        assert_eq!(body.size_hint().exact(), Some(13));
        assert!(
            clients.admit(&jane(), None, false).is_err(),
            "before it is sent"
        );
        let part = body.frame().await.unwrap().unwrap();
        drop(body);
        assert!(clients.admit(&jane(), None, false).is_err(), "on its way");
        drop(part);
        assert!(clients.admit(&jane(), None, false).is_ok());
    }
}
