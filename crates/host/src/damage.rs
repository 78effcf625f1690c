//! Randomly damaged variants of valid kernel files, which the kernel never writes. No parser may panic on
//! them.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;

/// Pieces on which parsers fail: separators, signs, numbers out of range, letters of two bytes.
const PIECES: [&str; 12] = [
    "",
    " ",
    "\n",
    "=",
    "-",
    ":",
    ",",
    "\\",
    "x",
    "é",
    "18446744073709551616",
    "nan",
];

/// Runs `parse` on thousands of damaged variants of `sample`; it returns whether it accepted them.
///
/// Each variant has up to three places where some bytes were cut and a piece was inserted instead.
///
/// # Panics
/// When `parse` panics, rejects `sample` itself, or never accepts, or never rejects, a variant: then the
/// damage does not test it.
#[track_caller]
pub(crate) fn survives(sample: &str, mut parse: impl FnMut(&str) -> bool) {
    assert!(parse(sample), "the sample itself is refused: {sample:?}");
    let (mut taken, mut refused) = (0_u32, 0_u32);
    let cut = (
        any::<prop::sample::Index>(),
        0_usize..12,
        prop::sample::select(&PIECES[..]),
    );
    let mut runner = TestRunner::deterministic();
    for _ in 0..4000 {
        let Ok(cuts) = vec(cut.clone(), 1..=3).new_tree(&mut runner) else {
            continue;
        };
        let mut text: Vec<char> = sample.chars().collect();
        for (place, length, piece) in cuts.current() {
            let start = place.index(text.len() + 1);
            let end = (start + length).min(text.len());
            text.splice(start..end, piece.chars());
        }
        let text: String = text.into_iter().collect();
        if parse(&text) {
            taken += 1;
        } else {
            refused += 1;
        }
    }
    assert!(taken > 0 && refused > 0, "{taken} taken, {refused} refused");
}
