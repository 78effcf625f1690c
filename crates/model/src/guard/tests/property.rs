//! Checks that the output stays within its bounds for any input.

use crate::guard::{Config, Guard, Input, Lever, Readings, ServiceSample, Signal};
use proptest::prelude::*;

fn number() -> impl Strategy<Value = f64> {
    prop_oneof![
        4 => 0.0..1.0_f64,
        1 => Just(f64::NAN),
        1 => Just(f64::INFINITY),
        1 => Just(-1.0),
        1 => any::<f64>(),
    ]
}

fn sample() -> impl Strategy<Value = ServiceSample<u64>> {
    let readings = proptest::array::uniform7(proptest::option::weighted(0.6, number()));
    (0..4_u64, number(), any::<i64>(), number(), readings).prop_map(
        |(key, vote, load, throttled, values)| ServiceSample {
            key,
            vote,
            load,
            throttled,
            readings: Signal::ALL
                .into_iter()
                .zip(values)
                .fold(Readings::default(), |all, (signal, value)| {
                    all.with(signal, value)
                }),
        },
    )
}

type GuardStep = (u64, i64, bool, bool, bool, f64, Vec<ServiceSample<u64>>);

fn steps() -> impl Strategy<Value = Vec<GuardStep>> {
    let passed = prop_oneof![6 => Just(1000_u64), 1 => 0..10_000_u64, 1 => Just(u64::MAX / 2)];
    let step = (
        passed,
        any::<i64>(),
        prop::bool::weighted(0.8),
        prop::bool::weighted(0.05),
        any::<bool>(),
        number(),
        prop::collection::vec(sample(), 0..4),
    );
    prop::collection::vec(step, 1..80)
}

proptest! {
    #[test]
    fn absurd_input_keeps_the_bounds(steps in steps()) {
        let mut guard = Guard::new(Config::default());
        let mut now_ms = 0_u64;
        for (passed, threshold, batch_ran, held, sees_bandwidth, dice, samples) in steps {
            now_ms = now_ms.saturating_add(passed);
            let input = Input {
                now_ms,
                threshold,
                batch_ran,
                held,
                levers: &Lever::ALL,
                sees_bandwidth,
                dice,
            };
            let settings = guard.step(&input, &samples).settings;
            prop_assert!(settings.cap.is_none_or(|cap| (0..=100).contains(&cap)));
            prop_assert!(settings.bandwidth.is_none_or(|level| (10..=100).contains(&level)));
            prop_assert!(guard.budget_ms().is_finite());
            for state in guard.services() {
                prop_assert!((0.0..=1.0).contains(&state.vote));
                if let Some((_, value, expected, margin)) = state.signal {
                    prop_assert!(value.is_finite() && expected.is_finite());
                    prop_assert!(margin > 0.0);
                }
            }
        }
    }
}
