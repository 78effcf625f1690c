//! `koord bench scheduler` on the engine alone, in a program that is built in a tenth of the time:
//! `cargo run --release -p koord-bench --example engine -- SCENARIO [NODES [PODS [BOUND [plain|koord
//! [alone|beside [distinct]]]]]]`; alone: without the exhaustive engine, as for a profiler; distinct: each of the bound
//! pods says what no other does.

use anyhow::{Context as _, Result};
use koord_bench::engine::Options;

// As in the daemons.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: usize| match args.get(at) {
        Some(text) => text
            .parse()
            .with_context(|| format!("{text:?} is no number")),
        None => Ok(default),
    };
    let scenario = args.first().context("which scenario?")?;
    let options = Options {
        scenario: scenario.parse()?,
        nodes: number(1, 5000)?,
        pods: number(2, 10_000)?,
        bound: number(3, 0)?,
        distinct: args.get(6).is_some_and(|word| word == "distinct"),
        koord: args.get(4).is_none_or(|profile| profile != "plain"),
        baseline: args.get(5).is_none_or(|word| word != "alone"),
    };
    let report = koord_bench::engine::run(&koord_plugins::registry(), &options)?;
    println!("{}", serde_json::to_string_pretty(&report)?);
    Ok(())
}
