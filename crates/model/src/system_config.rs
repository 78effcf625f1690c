//! Kernel settings of the whole node, from `systemStrategy` of a NodeSLO.
//!
//! An unset setting leaves the kernel unchanged, and an invalid one does not affect the others. Source:
//! Koordinator `pkg/koordlet/qosmanager/plugins/sysreconcile`.

use crate::field::FieldError;
use koord_api::slo::SystemStrategy;
use std::collections::{BTreeMap, BTreeSet};

/// Kernel setting: a file that contains one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Setting {
    /// `vm.min_free_kbytes`, KiB.
    MinFreeKbytes,
    /// `vm.watermark_scale_factor`, 1/10000 of memory.
    WatermarkScaleFactor,
    /// `mm/memcg_reaper/reap_background`, 0 or 1 (Anolis).
    MemcgReapBackground,
    /// `kernel.sched_group_identity_enabled`, 0 or 1 (Anolis).
    SchedGroupIdentityEnabled,
    /// `kernel.sched_idle_saver_wmark`, nanoseconds (Anolis).
    SchedIdleSaverWmark,
    /// `mm/pagecache_limit/enabled`, 0 or 1 (Anolis).
    PageCacheLimitEnabled,
}

/// Returns the values to write on a node with `memory` bytes, and the invalid settings.
///
/// `vm.min_free_kbytes` is `memory in KiB · minFreeKbytesFactor / 10000`.
#[must_use]
pub fn values(strategy: &SystemStrategy, memory: i64) -> (BTreeMap<Setting, i64>, Vec<FieldError>) {
    const SWITCH: (i64, i64, &str) = (0, 1, "0 or 1");
    let mut values = BTreeMap::new();
    let mut errors = Vec::new();
    let min_free = strategy
        .min_free_kbytes_factor
        .filter(|_| memory > 0)
        .map(|factor| {
            let kbytes = i128::from(memory / 1024) * i128::from(factor) / 10_000;
            kbytes.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
        });
    for (setting, field, value, (low, high, want)) in [
        (
            Setting::MinFreeKbytes,
            "minFreeKbytesFactor as KiB",
            min_free,
            (10_240, 10_485_760, "in 10240..=10485760"),
        ),
        (
            Setting::WatermarkScaleFactor,
            "watermarkScaleFactor",
            strategy.watermark_scale_factor,
            (10, 400, "in 10..=400"),
        ),
        (
            Setting::MemcgReapBackground,
            "memcgReapBackGround",
            strategy.memcg_reap_back_ground,
            SWITCH,
        ),
        (
            Setting::SchedGroupIdentityEnabled,
            "schedGroupIdentityEnabled",
            strategy.sched_group_identity_enabled,
            SWITCH,
        ),
        (
            Setting::SchedIdleSaverWmark,
            "schedIdleSaverWmark",
            strategy.sched_idle_saver_wmark,
            (0, i64::MAX, "at least 0"),
        ),
        (
            Setting::PageCacheLimitEnabled,
            "pageCacheLimitEnabled",
            strategy.page_cache_limit_enabled,
            SWITCH,
        ),
    ] {
        match value {
            Some(value) if (low..=high).contains(&value) => {
                values.insert(setting, value);
            }
            Some(value) => errors.push(FieldError::new(field, want, &value)),
            None => {}
        }
    }
    (values, errors)
}

/// Returns the words to write to the scheduler's features file, one per write. Its `present` content lists a
/// feature that is on by its name and one that is off with the prefix `NO_`. Features that the kernel does
/// not list are reported.
#[must_use]
pub fn sched_features(
    wanted: &BTreeMap<String, bool>,
    present: &str,
) -> (Vec<String>, Vec<FieldError>) {
    let listed: BTreeSet<&str> = present.split_whitespace().collect();
    let (mut writes, mut errors) = (Vec::new(), Vec::new());
    for (name, on) in wanted {
        let off = format!("NO_{name}");
        match (
            listed.contains(name.as_str()),
            listed.contains(off.as_str()),
        ) {
            (false, false) => errors.push(FieldError::new(
                "schedFeatures",
                "a feature of this kernel",
                name,
            )),
            (is_on, _) if is_on == *on => {}
            (_, _) => writes.push(if *on { name.clone() } else { off }),
        }
    }
    (writes, errors)
}

#[cfg(test)]
mod tests {
    use super::Setting::*;
    use super::*;

    const MEMORY: i64 = 512 << 30;

    fn strategy(min_free: i64, scale: i64, reap: i64) -> SystemStrategy {
        SystemStrategy {
            min_free_kbytes_factor: Some(min_free),
            watermark_scale_factor: Some(scale),
            memcg_reap_back_ground: Some(reap),
            ..SystemStrategy::default()
        }
    }

    /// Upstream: `Test_systemConfig_reconcile`; what it finds unchanged is not written here.
    #[test]
    fn settings() {
        let none = SystemStrategy::default();
        let part = SystemStrategy {
            min_free_kbytes_factor: Some(88),
            sched_idle_saver_wmark: Some(5_000_000),
            ..SystemStrategy::default()
        };
        let other_part = SystemStrategy {
            sched_group_identity_enabled: Some(0),
            sched_idle_saver_wmark: Some(5_000_000),
            ..SystemStrategy::default()
        };
        let valid = strategy(88, 99, 1);
        for (name, strategy, memory, want, errors) in [
            (
                "testNodeMemoryInvalid",
                strategy(88, 99, 1),
                0,
                vec![(WatermarkScaleFactor, 99), (MemcgReapBackground, 1)],
                0,
            ),
            ("testNil, skip unset parameters", none, MEMORY, vec![], 0),
            ("testInvalid", strategy(-1, -1, -1), MEMORY, vec![], 3),
            ("testTooSmall", strategy(0, 5, -1), MEMORY, vec![], 3),
            (
                "testValid",
                valid,
                MEMORY,
                vec![
                    (MinFreeKbytes, 4_724_464),
                    (WatermarkScaleFactor, 99),
                    (MemcgReapBackground, 1),
                ],
                0,
            ),
            ("testToolarge", strategy(400, 500, 2), MEMORY, vec![], 3),
            (
                "set part of parameters",
                part,
                MEMORY,
                vec![(MinFreeKbytes, 4_724_464), (SchedIdleSaverWmark, 5_000_000)],
                0,
            ),
            (
                "set part of parameters 1",
                other_part,
                MEMORY,
                vec![
                    (SchedGroupIdentityEnabled, 0),
                    (SchedIdleSaverWmark, 5_000_000),
                ],
                0,
            ),
            // Ours.
            (
                "one bad value leaves the others",
                strategy(88, 9, 1),
                MEMORY,
                vec![(MinFreeKbytes, 4_724_464), (MemcgReapBackground, 1)],
                1,
            ),
            (
                "absurd",
                strategy(i64::MAX, 10, 0),
                i64::MAX,
                vec![(WatermarkScaleFactor, 10), (MemcgReapBackground, 0)],
                1,
            ),
        ] {
            let (got, failed) = values(&strategy, memory);
            assert_eq!(got, BTreeMap::from_iter(want), "{name}");
            assert_eq!(failed.len(), errors, "{name}: {failed:?}");
        }
        let (_, errors) = values(&strategy(0, 401, 2), MEMORY);
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "minFreeKbytesFactor as KiB must be in 10240..=10485760, got 0",
                "watermarkScaleFactor must be in 10..=400, got 401",
                "memcgReapBackGround must be 0 or 1, got 2",
            ]
        );
    }

    #[test]
    fn features_are_written_when_they_differ() {
        let present = "GENTLE_FAIR_SLEEPERS NO_ID_ABSOLUTE_EXPEL ID_EXPELLER_SHARE_CORE\n";
        let plan = |pairs: &[(&str, bool)]| {
            let pairs = pairs.iter().map(|(name, on)| ((*name).to_owned(), *on));
            sched_features(&pairs.collect(), present)
        };
        for (name, on, want) in [
            // Upstream: the rows "set part of parameters" and "set part of parameters 1".
            ("ID_ABSOLUTE_EXPEL", true, vec!["ID_ABSOLUTE_EXPEL"]),
            (
                "ID_EXPELLER_SHARE_CORE",
                false,
                vec!["NO_ID_EXPELLER_SHARE_CORE"],
            ),
            ("ID_ABSOLUTE_EXPEL", false, vec![]),
            ("GENTLE_FAIR_SLEEPERS", true, vec![]),
        ] {
            let (writes, errors) = plan(&[(name, on)]);
            assert_eq!(
                (writes, errors),
                (want.iter().map(ToString::to_string).collect(), vec![])
            );
        }
        let (writes, errors) = plan(&[("GENTLE_FAIR_SLEEPERS", false), ("WARP", true)]);
        assert_eq!(writes, ["NO_GENTLE_FAIR_SLEEPERS"]);
        assert_eq!(
            errors[0].to_string(),
            "schedFeatures must be a feature of this kernel, got WARP"
        );
    }
}
