//! Leaders die at any point of a run, with requests under way; the next one takes over what is
//! there. Checked against the API alone: nothing is over-allocated, no CPU and no share of a GPU has
//! two owners, gangs are whole or not there, quotas and reservations count what is bound.

mod wire;
mod world;

use wire::Fuse;
use world::World;

/// A number drawn from `seed` (SplitMix64).
fn draw(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// One run in which the first leader dies with its `writes`th write; how many it needed when it
/// lived to the end.
async fn run(writes: i64, arrives: bool) -> i64 {
    let what = format!("dead at write {writes}, which arrives: {arrives}");
    let world = World::start().await;
    let fuse = Fuse::new(writes, arrives);
    let first = world.schedule("one", fuse.clone());
    let mut pods = world.pods().await;
    world.create().await;
    tokio::select! {
        () = fuse.blown() => {}
        () = pods.settled(&what) => {}
    }
    let used = fuse.used();
    first.kill(&fuse).await;
    // Its lease runs out: it could not be given back.
    let second = world.schedule("two", Fuse::endless());
    pods.settled(&what).await;
    world.check(&what).await;
    // What is decided now is decided on rebuilt state.
    world.create_late().await;
    pods.late(&what).await;
    world.check(&what).await;
    second.stop().await;
    used
}

#[tokio::test(start_paused = true)]
async fn whenever_the_leader_dies_the_next_one_carries_on() {
    let whole = run(i64::MAX, true).await;
    assert!(whole > 40, "{whole} writes are too few to die between");
    for round in 100..112 {
        let number = draw(round);
        let writes = i64::try_from(number % u64::try_from(whole).unwrap()).unwrap() + 1;
        run(writes, number & (1 << 40) == 0).await;
    }
}
