//! Bounds for requests that handle much data, and their execution off the threads that all requests share.
//!
//! A worker of the runtime that computes for a second delays every request behind it by that second, and
//! there are as few workers as cores. So the handler of a request about much data is polled outside the
//! workers, on a thread of its own, and only when it has a slot: there are fewer slots than cores, and no
//! user has all of them. A handler that waits (for the disk, for a webhook) holds no slot.

use super::User;
use koord_kinds::status::ApiError;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Semaphore;

/// Bytes of a request's body and stored objects up to which it is handled on the worker that received it.
pub(super) const LIGHT: usize = 64 * 1024;

/// Most requests about much data that one user may have in progress. Further ones get 429, so that one user
/// cannot occupy all places for requests.
const REQUESTS_PER_USER: usize = 16;

/// Group whose members are exempt from [`REQUESTS_PER_USER`].
const PRIVILEGED: &str = "system:masters";

/// Runs long `work` on the current thread, while another thread takes over its tasks (`block_in_place`). A
/// runtime with a single thread has none to take over: its tasks wait.
pub(crate) fn run_in_place<T>(work: impl FnOnce() -> T) -> T {
    let is_multi_threaded = Handle::try_current().is_ok_and(|runtime| {
        // In a single-threaded runtime (tests with their own clock) there is no other thread.
        runtime.runtime_flavor() == RuntimeFlavor::MultiThread
    });
    if is_multi_threaded {
        tokio::task::block_in_place(work)
    } else {
        work()
    }
}

/// Bounds the work that runs off the workers at the same time.
#[derive(Debug)]
pub(super) struct WorkSlots {
    slots: Semaphore,
    slots_per_user: usize,
    users: Mutex<HashMap<String, UserSlots>>,
}

/// Slots of a user with requests in progress.
#[derive(Debug)]
struct UserSlots {
    slots: Arc<Semaphore>,
    requests: usize,
}

/// Guard that counts a request for its user.
struct RequestGuard<'a> {
    all: &'a WorkSlots,
    user: &'a str,
    slots: Arc<Semaphore>,
}

impl Drop for RequestGuard<'_> {
    fn drop(&mut self) {
        let mut users = self.all.users.lock();
        if let Some(user) = users.get_mut(self.user) {
            user.requests -= 1;
            if user.requests == 0 {
                users.remove(self.user);
            }
        }
    }
}

impl Default for WorkSlots {
    /// Returns half of the cores as slots, and a quarter of them for a single user, at least one each.
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self::new((cores / 2).max(1), (cores / 4).max(1))
    }
}

impl WorkSlots {
    fn new(slots: usize, slots_per_user: usize) -> Self {
        Self {
            slots: Semaphore::new(slots),
            slots_per_user,
            users: Mutex::default(),
        }
    }

    fn enter<'a>(&'a self, user: &'a User) -> Result<RequestGuard<'a>, ApiError> {
        let mut users = self.users.lock();
        let own = users.entry(user.name.clone()).or_insert_with(|| UserSlots {
            slots: Arc::new(Semaphore::new(self.slots_per_user)),
            requests: 0,
        });
        let privileged = user.groups.iter().any(|group| group == PRIVILEGED);
        if own.requests >= REQUESTS_PER_USER && !privileged {
            let reason = "Too many requests, please try again later.";
            return Err(ApiError::too_many_requests(reason, 1));
        }
        own.requests += 1;
        Ok(RequestGuard {
            all: self,
            user: &user.name,
            slots: Arc::clone(&own.slots),
        })
    }

    /// Runs `work` for `user` off the workers.
    ///
    /// # Errors
    /// 429 if the user has too many such requests in progress.
    pub(super) async fn run<T>(
        &self,
        user: &User,
        work: impl Future<Output = T>,
    ) -> Result<T, ApiError> {
        let place = self.enter(user)?;
        let mut work = pin!(work);
        loop {
            let polled = {
                // The semaphores are never closed.
                let _own = place.slots.acquire().await;
                let _slot = self.slots.acquire().await;
                poll_fn(|context| Poll::Ready(run_in_place(|| work.as_mut().poll(context)))).await
            };
            match polled {
                Poll::Ready(done) => return Ok(done),
                Poll::Pending => wait_for_wake().await,
            }
        }
    }
}

/// Completes when the task is polled again; the work itself has registered the waker.
async fn wait_for_wake() {
    let mut polled = false;
    poll_fn(|_| {
        if std::mem::replace(&mut polled, true) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;
    use tokio::sync::{Notify, oneshot};

    fn user(name: &str) -> User {
        User {
            name: name.to_owned(),
            groups: Vec::new(),
            ..User::default()
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn blocking_work_leaves_worker_free() {
        let slots = Arc::new(WorkSlots::new(1, 1));
        let (sender, receiver) = mpsc::channel();
        let blocked = tokio::spawn(async move {
            // On the worker this would wait for a task that never runs.
            let work = async move { receiver.recv_timeout(Duration::from_secs(60)) };
            slots.run(&user("a"), work).await.unwrap()
        });
        tokio::spawn(async move { sender.send("sent by another task") });
        assert_eq!(blocked.await.unwrap(), Ok("sent by another task"));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn slots_limit_total_and_user_work() {
        let slots = Arc::new(WorkSlots::new(2, 1));
        let running = Arc::new([const { AtomicUsize::new(0) }; 3]);
        let mut tasks = Vec::new();
        for n in 0..24 {
            let (slots, running) = (Arc::clone(&slots), Arc::clone(&running));
            tasks.push(tokio::spawn(async move {
                let work = async {
                    for _ in 0..5 {
                        let own = running[n % 2].fetch_add(1, Ordering::SeqCst);
                        let all = running[2].fetch_add(1, Ordering::SeqCst);
                        std::thread::yield_now();
                        running[n % 2].fetch_sub(1, Ordering::SeqCst);
                        running[2].fetch_sub(1, Ordering::SeqCst);
                        assert!(own == 0 && all <= 1, "{own} of one user, {all} of all");
                        tokio::task::yield_now().await;
                    }
                };
                slots.run(&user(["a", "b"][n % 2]), work).await
            }));
        }
        for task in tasks {
            task.await.unwrap().unwrap();
        }
        assert!(
            slots.users.lock().is_empty(),
            "users without requests are kept"
        );
    }

    #[tokio::test]
    async fn waiting_work_counts_without_slot() {
        let slots = Arc::new(WorkSlots::new(1, 1));
        let go = Arc::new(Notify::new());
        let mut waiting = Vec::new();
        for _ in 0..REQUESTS_PER_USER {
            let (slots, go) = (Arc::clone(&slots), Arc::clone(&go));
            let (started, has_started) = oneshot::channel();
            waiting.push(tokio::spawn(async move {
                let work = async {
                    let _ = started.send(());
                    go.notified().await;
                };
                slots.run(&user("a"), work).await
            }));
            has_started.await.unwrap();
        }
        let refused = slots.run(&user("a"), async {}).await.unwrap_err();
        assert_eq!(
            (refused.code, refused.retry_after_seconds()),
            (429, Some(1))
        );
        slots.run(&user("b"), async {}).await.unwrap();
        let mut admin = user("a");
        admin.groups = vec![PRIVILEGED.to_owned()];
        slots.run(&admin, async {}).await.unwrap();
        go.notify_waiters();
        for task in waiting {
            task.await.unwrap().unwrap();
        }
        slots.run(&user("a"), async {}).await.unwrap();
    }
}
