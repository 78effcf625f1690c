//! Failover: leaders stop at any point of a run, with requests in flight, or lose their lease; a standby
//! takes over. Checked against the API only: nothing is over-allocated, no CPU or GPU share has two owners,
//! gangs are complete or absent, and the statuses of quotas and reservations match the bound pods.

mod checks;
mod contender;
mod preemption;
mod takeover;
mod wire;
mod world;

use koord_app::Clock;
use std::time::Duration;
use wire::{Fuse, Which, any_write, gang_binding, reservation_write, rival_binding};
use world::FailoverWorld;

/// Timeout in virtual time; only a run that hangs reaches it.
const PATIENCE: Duration = Duration::from_secs(120);

/// Returns a clock for a test world.
fn clock() -> Clock {
    Clock::following_tokio("2026-01-01T00:00:00Z".parse().unwrap())
}

/// Returns a pseudorandom number for `seed` (SplitMix64).
pub(crate) fn draw(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Runs once; the first leader stops at write number `at` of those that `counted` selects. Returns how many
/// such writes there were.
async fn run(at: i64, counted: Which, arrives: bool) -> i64 {
    run_with(at, counted, arrives, true).await
}

/// Runs like [`run`]; the next leader is a standby if `stands_by`, otherwise it starts when the first one has
/// stopped.
async fn run_with(at: i64, counted: Which, arrives: bool, stands_by: bool) -> i64 {
    let case = format!("dead at write {at}, which arrives: {arrives}, stands by: {stands_by}");
    let world = FailoverWorld::start().await;
    let fuse = Fuse::new(at, counted, arrives);
    let first = world.schedule("one", fuse.clone());
    world.leader("one").await;
    let second = stands_by.then(|| world.schedule("two", Fuse::endless()));
    let mut pods = world.pods().await;
    world.create().await;
    tokio::select! {
        () = fuse.blown() => {}
        () = pods.wait_bound(&case) => {}
    }
    let used = fuse.used();
    first.kill(&fuse).await;
    let second = second.unwrap_or_else(|| world.schedule("two", Fuse::endless()));
    // Its lease expires: it could not be released.
    pods.wait_bound(&case).await;
    world.check(&case).await;
    // Decisions from here on use rebuilt state.
    world.create_late().await;
    pods.wait_late_bound(&case).await;
    world.check(&case).await;
    second.stop().await;
    used
}

#[tokio::test(start_paused = true)]
async fn failover_works_at_any_write() {
    let write_count = run(i64::MAX, any_write, true).await;
    assert!(
        write_count > 40,
        "{write_count} writes are too few to die between"
    );
    for round in 100..114 {
        let number = draw(round);
        let at = i64::try_from(number % u64::try_from(write_count).unwrap()).unwrap() + 1;
        run(at, any_write, number & (1 << 40) == 0).await;
    }
}

#[tokio::test(start_paused = true)]
async fn gang_is_completed_after_failover() {
    // Two gangs of four; whether the last binding arrives is random.
    for at in 1..=8_i64 {
        let arrives = draw(at.unsigned_abs()) & 1 == 0;
        run(at, gang_binding, arrives).await;
        run_with(at, gang_binding, arrives, false).await;
    }
}

#[tokio::test(start_paused = true)]
async fn started_gang_is_completed_before_its_rival() {
    for at in 1..=3 {
        for arrives in [true, false] {
            run(at, rival_binding, arrives).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn reservations_survive_failover_at_any_write() {
    let write_count = run(i64::MAX, reservation_write, true).await;
    for at in (1..=write_count.min(10)).chain([write_count]) {
        run(at, reservation_write, draw(at.unsigned_abs()) & 1 == 0).await;
    }
}
