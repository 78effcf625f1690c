//! Leaders that are real processes, killed at drawn moments of their work: while a certain write is in flight
//! to the API server, or after it is done and before its response, or at any time. The server is in this
//! process, the schedulers connect to it over a socket each. The objects are compared as in the scheduler's
//! own failover tests, whose world and checks these are.
//!
//! `KOORD_DEATHS` sets how many there are, by default 12, and `KOORD_SEED` the seed; docs/measurements.md has
//! a recorded run.

mod aim;
#[path = "../../../plugins/tests/it/failover/checks.rs"]
mod checks;
mod process;
#[allow(dead_code, reason = "leaders in the same process need more of it")]
#[path = "../../../plugins/tests/it/failover/world.rs"]
mod world;

use aim::{Aim, MOMENTS, Moment};
use koord_app::Clock;
use process::Process;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use world::FailoverWorld;

/// Time limit of a run on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// Number of concurrent clusters: most of the time they wait for a lease to run out.
const LANES: usize = 4;

fn clock() -> Clock {
    Clock::system()
}

/// Returns the number of pods that can be placed.
fn places() -> usize {
    world::PODS.iter().map(|(_, _, placed)| placed).sum()
}

/// Counts over all deaths of leaders.
struct Record {
    wanted: usize,
    random: fastrand::Rng,
    deaths: BTreeMap<Moment, usize>,
    /// Deaths whose last write was done.
    arrived: usize,
    /// Leaders that ended by themselves.
    left: usize,
    clusters: usize,
    spared: Arc<AtomicBool>,
}

impl Record {
    fn dead(&self) -> usize {
        self.deaths.values().sum()
    }

    /// Draws an aim at one of the moments with the fewest deaths so far.
    fn aim(&mut self) -> Aim {
        let count = |moment: &Moment| self.deaths.get(moment).copied().unwrap_or_default();
        let fewest = MOMENTS.iter().map(count).min().unwrap_or_default();
        let rarest: Vec<Moment> = MOMENTS
            .into_iter()
            .filter(|moment| count(moment) == fewest)
            .collect();
        let moment = rarest[self.random.usize(..rarest.len())];
        Aim::draw(moment, &mut self.random)
    }

    /// Returns true if there were enough deaths: few of them at any moments, many at every moment.
    fn enough(&self) -> bool {
        let is_small = self.wanted < 2 * MOMENTS.len();
        self.dead() >= self.wanted && (is_small || self.deaths.len() == MOMENTS.len())
    }
}

struct Lane<'a> {
    world: FailoverWorld,
    dir: &'a Path,
    record: &'a Mutex<Record>,
}

impl Lane<'_> {
    async fn next(&self) -> Process {
        let (aim, spared) = {
            let mut record = self.record.lock().unwrap();
            (record.aim(), record.spared.clone())
        };
        Process::start(&self.world, self.dir, aim, places(), spared).await
    }

    /// Records the end of `process`, and starts a replacement.
    async fn replace(&self, process: &mut Process, death: Option<process::Death>) {
        self.note(process, death.as_ref());
        *process = self.next().await;
    }

    fn note(&self, process: &Process, death: Option<&process::Death>) {
        let mut record = self.record.lock().unwrap();
        let Some(death) = death else {
            record.left += 1;
            assert!(record.left <= 3 + record.dead(), "leaders do not stay");
            return;
        };
        death.fell_where_intended(process);
        let aim = process.aim();
        *record.deaths.entry(aim.moment).or_default() += 1;
        record.arrived += usize::from(death.last.is_some() && aim.arrives);
        let last = death.last.as_ref().map(aim::Last::what);
        println!(
            "death {}: {:?}: {}; {} of {} pods bound",
            record.dead(),
            aim.moment,
            last.unwrap_or_else(|| format!("{:?} after the first write", aim.after)),
            death.bound,
            places(),
        );
        let enough = record.enough();
        record.spared.store(enough, Ordering::SeqCst);
    }

    /// Runs one cluster, whose leaders are killed until all pods are placed. There are always two.
    async fn run(&self) {
        let mut pods = self.world.pods().await;
        let mut first = self.next().await;
        let mut other = self.next().await;
        self.world.create().await;
        loop {
            let aims = format!("{:?} and {:?}", first.aim(), other.aim());
            tokio::select! {
                death = first.died() => self.replace(&mut first, death).await,
                death = other.died() => self.replace(&mut other, death).await,
                () = pods.wait_bound(&aims) => break,
            }
        }
        // The remaining decisions are based on the state that the last leaders found.
        first.spare();
        other.spare();
        let when = "after the deaths";
        self.world.check(when).await;
        self.world.create_late().await;
        pods.wait_late_bound(when).await;
        self.world.check(when).await;
        for process in [first, other] {
            process.stop().await;
        }
    }
}

async fn lane(record: &Mutex<Record>) {
    loop {
        {
            let mut record = record.lock().unwrap();
            if record.enough() {
                return;
            }
            record.clusters += 1;
            assert!(
                record.clusters <= record.wanted + LANES,
                "leaders do not die: {:?}",
                record.deaths
            );
        }
        let dir = tempfile::tempdir().unwrap();
        let lane = Lane {
            world: FailoverWorld::start().await,
            dir: dir.path(),
            record,
        };
        lane.run().await;
    }
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().expect("a number"))
}

#[test]
fn leaders_that_are_killed_leave_nothing_wrong() {
    let begun = std::time::Instant::now();
    let record = Mutex::new(Record {
        wanted: usize::try_from(number("KOORD_DEATHS", 4)).unwrap(),
        random: fastrand::Rng::with_seed(number("KOORD_SEED", 1)),
        deaths: BTreeMap::new(),
        arrived: 0,
        left: 0,
        clusters: 0,
        spared: Arc::default(),
    });
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let lanes = futures::future::join_all((0..LANES).map(|_| lane(&record)));
    runtime.block_on(Box::pin(lanes));
    let record = record.into_inner().unwrap();
    println!(
        "{} deaths in {} clusters, {:?}; the last write of {} was done; {} ended by themselves; {:.0} s",
        record.dead(),
        record.clusters,
        record.deaths,
        record.arrived,
        record.left,
        begun.elapsed().as_secs_f64(),
    );
    assert!(record.enough(), "{:?}", record.deaths);
}
