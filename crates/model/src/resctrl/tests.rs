use super::*;
use proptest::prelude::*;
use serde_json::json;

const INTEL: &str = "GenuineIntel";
const AMD: &str = "AuthenticAMD";

/// Upstream: `Test_calculateCatL3Schemata`.
#[test]
fn masks() {
    for (name, cbm, start, end, want) in [
        (
            "do not panic but throw an error for empty input",
            0,
            0,
            0,
            None,
        ),
        ("cbm value is invalid", 0x101, 0, 100, None),
        ("cbm value is invalid 1", 4, 0, 100, None),
        ("percent value is invalid", 0xff, -10, 100, None),
        ("percent value is invalid 1", 0xff, 30, 30, None),
        ("calculate l3 schemata correctly", 0xff, 0, 100, Some(0xff)),
        (
            "calculate l3 schemata correctly 1",
            0x3ff,
            10,
            80,
            Some(0xfe),
        ),
        (
            "calculate l3 schemata correctly 2",
            0x7ff,
            10,
            50,
            Some(0x3c),
        ),
        ("calculate l3 schemata correctly 3", 0x3ff, 0, 30, Some(0x7)),
        (
            "calculate l3 schemata correctly 4",
            0x3ff,
            10,
            85,
            Some(0x1fe),
        ),
        // Ours.
        ("beyond the end", 0xff, 0, 101, None),
        ("backwards", 0xff, 60, 40, None),
        ("64 ways", u64::MAX, 50, 100, Some(0xffff_ffff_0000_0000)),
        (
            "a range below one way still has one",
            0x7ff,
            1,
            2,
            Some(0b10),
        ),
        ("also at the end", 0xf, 99, 100, Some(0b1000)),
    ] {
        assert_eq!(mask(cbm, 1, start, end).ok(), want, "{name}");
    }
    assert_eq!(mask(0xff, 3, 0, 10), Ok(0b111), "the kernel's least width");
    assert_eq!(
        mask(0x101, 1, 0, 100).unwrap_err().to_string(),
        "cbm_mask must be of the form 2^n - 1, got 101"
    );
    assert_eq!(
        mask(0xff, 1, 30, 30).unwrap_err().to_string(),
        "cache range must be 0 <= start < end <= 100, got 30-30"
    );
}

/// Reads the domains of a `schemata` file.
fn domains(root: &str) -> BTreeMap<Resource, Vec<u32>> {
    let all = [
        Resource::L3,
        Resource::L3Code,
        Resource::L3Data,
        Resource::Mb,
    ];
    let lines = root.lines().filter_map(|line| {
        let (name, domains) = line.trim().split_once(':')?;
        let resource = all.into_iter().find(|candidate| candidate.name() == name)?;
        let ids = domains.split(';').filter_map(|domain| {
            let (id, _) = domain.split_once('=')?;
            id.trim().parse().ok()
        });
        Some((resource, ids.collect()))
    });
    lines.collect()
}

fn hardware(cbm: u64, vendor: &str, root: &str) -> Hardware {
    Hardware {
        cbm_mask: Some(cbm),
        min_cbm_bits: 1,
        bandwidth: Some(Bandwidth::from_vendor(vendor, None, None)),
        domains: domains(root),
    }
}

fn class(start: Option<i64>, end: Option<i64>, bandwidth: Option<i64>) -> ResctrlQOSCfg {
    ResctrlQOSCfg {
        enable: Some(true),
        cat_range_start_percent: start,
        cat_range_end_percent: end,
        mba_percent: bandwidth,
    }
}

fn texts((lines, errors): (Vec<SchemataLine>, Vec<FieldError>)) -> (Vec<String>, Vec<String>) {
    (
        lines.iter().map(ToString::to_string).collect(),
        errors.iter().map(ToString::to_string).collect(),
    )
}

/// Upstream: `Test_calculateMbaPercentForGroup`.
#[test]
fn bandwidth() {
    for (name, vendor, percent, want) in [
        ("mbPercent not config", INTEL, None, vec![]),
        (
            "mbPercent value is invalid,not between (0,100]",
            INTEL,
            Some(0),
            vec![],
        ),
        ("the same, above", INTEL, Some(101), vec![]),
        (
            "mbPercent value is invalid, not multiple of 10",
            INTEL,
            Some(85),
            vec!["MB:0=90"],
        ),
        (
            "mbPercent value is valid on intel",
            INTEL,
            Some(80),
            vec!["MB:0=80"],
        ),
        (
            "mbPercent value is valid on amd",
            AMD,
            Some(80),
            vec!["MB:0=128"],
        ),
        (
            "mbPercent value is unlimited on amd",
            AMD,
            Some(100),
            vec!["MB:0=2048"],
        ),
        (
            "any other vendor counts like Intel",
            "0x48",
            Some(95),
            vec!["MB:0=100"],
        ),
        ("never nothing on AMD", AMD, Some(0), vec![]),
    ] {
        let hardware = hardware(0xf, vendor, "MB:0=100");
        let (lines, errors) = texts(class_lines(&hardware, &class(None, None, percent)));
        assert_eq!(lines, want, "{name}");
        let refused = percent.is_some_and(|percent| !(1..=100).contains(&percent));
        assert_eq!(errors.len(), usize::from(refused), "{name}: {errors:?}");
    }
    // The step that the kernel reports is used: MPAM is often finer.
    let fine = Bandwidth::from_vendor("0x48", Some(5), Some(3));
    assert_eq!(
        [1, 6, 33, 100].map(|percent| fine.value(percent)),
        [5, 10, 35, 100]
    );
    assert_eq!(
        Bandwidth::from_vendor(INTEL, Some(1), Some(10)).value(2),
        10
    );
    assert_eq!(Bandwidth::from_vendor(INTEL, Some(0), None).value(2), 10);
}

/// Upstream: `calculateAndApplyRDTL3PolicyForGroup` and `…MbPolicyForGroup`. Writing, and skipping
/// values that are already set, is done by the executor.
#[test]
fn groups_of_classes() {
    let two = "L3:0=7ff;1=7ff;\nMB:0=100;1=100;\n";
    let four = "    L3:0=f;1=f;2=f;3=f\n    MB:0=2048;1=2048;2=2048;3=2048";
    let bad_cbm = "cbm_mask must be of the form 2^n - 1, got 4";
    for (name, hardware, class, want, error) in [
        (
            "warning to empty policy",
            hardware(0xf, INTEL, two),
            class(None, None, None),
            vec![],
            None,
        ),
        (
            "throw an error for calculating schemata failed",
            hardware(0x4, INTEL, two),
            class(Some(0), Some(100), None),
            vec![],
            Some(bad_cbm),
        ),
        (
            "apply policy correctly",
            hardware(0xf, INTEL, two),
            class(Some(0), Some(100), None),
            vec!["L3:0=f;1=f"],
            None,
        ),
        (
            "apply policy correctly 1",
            hardware(0x7ff, INTEL, two),
            class(Some(10), Some(50), None),
            vec!["L3:0=3c;1=3c"],
            None,
        ),
        (
            "apply policy correctly 2",
            hardware(0x7ff, INTEL, two),
            class(Some(0), Some(50), None),
            vec!["L3:0=3f;1=3f"],
            None,
        ),
        (
            "apply policy correctly on intel",
            hardware(0xff, INTEL, two),
            class(None, None, Some(90)),
            vec!["MB:0=90;1=90"],
            None,
        ),
        (
            "apply policy correctly on amd",
            hardware(0xff, AMD, four),
            class(None, None, Some(30)),
            vec!["MB:0=48;1=48;2=48;3=48"],
            None,
        ),
        (
            "apply unlimited policy correctly on amd",
            hardware(0xff, AMD, four),
            class(None, None, Some(100)),
            vec!["MB:0=2048;1=2048;2=2048;3=2048"],
            None,
        ),
        // Ours.
        (
            "AMD's ids have gaps, and sub-NUMA clusters leave them as they are",
            hardware(0xffff, AMD, "L3:0=ffff;8=ffff;24=ffff"),
            class(Some(0), Some(30), Some(50)),
            vec!["L3:0=1f;8=1f;24=1f"],
            None,
        ),
        (
            "code and data apart",
            hardware(0xff, INTEL, "L3DATA:0=ff\nL3CODE:0=ff\n"),
            class(Some(0), Some(50), None),
            vec!["L3CODE:0=f", "L3DATA:0=f"],
            None,
        ),
        (
            "a machine with cache control only",
            Hardware {
                bandwidth: None,
                ..hardware(0xff, INTEL, "L3:0=ff")
            },
            class(Some(0), Some(50), Some(50)),
            vec!["L3:0=f"],
            None,
        ),
        (
            "a machine with bandwidth control only",
            Hardware {
                cbm_mask: None,
                ..hardware(0, INTEL, "MB:0=100")
            },
            class(Some(0), Some(50), Some(50)),
            vec!["MB:0=50"],
            None,
        ),
    ] {
        let (lines, errors) = texts(class_lines(&hardware, &class));
        assert_eq!(lines, want, "{name}");
        assert_eq!(errors, Vec::from_iter(error), "{name}");
    }
}

#[test]
fn groups_of_pods() {
    let machine = hardware(0x3ff, INTEL, "L3:0=3ff;1=3ff\nMB:0=100;1=100");
    for (name, annotation, want, error) in [
        (
            "only MB",
            json!({"mb": {"schemata": {"percent": 25}}}),
            vec!["MB:0=30;1=30"],
            None,
        ),
        (
            "a single cache overrides",
            json!({
                "llc": {"schemata": {"range": [0, 30]}, "schemataPerCache": [{"cacheID": 1, "range": [10, 80]}]},
                "mb": {"schemata": {"percent": 50}, "schemataPerCache": [{"cacheID": 0, "percent": 100}]},
            }),
            vec!["L3:0=7;1=fe", "MB:0=100;1=50"],
            None,
        ),
        (
            "only a single cache",
            json!({"llc": {"schemataPerCache": [{"cacheID": 0, "range": [0, 50]}]}}),
            vec!["L3:0=1f"],
            None,
        ),
        (
            "a cache that is not there",
            json!({"llc": {"schemata": {"range": [0, 50]}, "schemataPerCache": [{"cacheID": 7, "range": [0, 50]}]}}),
            vec!["L3:0=1f;1=1f"],
            Some("cacheID must be a cache of this machine, got 7"),
        ),
        (
            "a range of one number",
            json!({"llc": {"schemata": {"range": [50]}}}),
            vec![],
            Some("llc range must be start and end, got [50]"),
        ),
        (
            "a bad percent does not take the cache with it",
            json!({"llc": {"schemata": {"range": [0, 50]}}, "mb": {"schemata": {"percent": -1}}}),
            vec!["L3:0=1f;1=1f"],
            Some("mb percent must be in 1..=100, got -1"),
        ),
        ("nothing", json!({}), vec![], None),
    ] {
        let annotation: Resctrl = serde_json::from_value(annotation).unwrap();
        let (lines, errors) = texts(pod_lines(&machine, &annotation));
        assert_eq!(lines, want, "{name}");
        assert_eq!(errors, Vec::from_iter(error), "{name}");
    }
}

#[test]
fn classes_share_groups() {
    use QosClass::{Be, Ls, Lse, Lsr, None as Unset, System};
    let groups = [Lse, Lsr, Ls, Be, System, Unset].map(class_group);
    assert_eq!(
        groups,
        [Some("LSR"), Some("LSR"), Some("LS"), Some("BE"), None, None]
    );
}

proptest! {
    /// The kernel accepts one contiguous block of at least the minimum number of bits, inside the full mask.
    #[test]
    fn every_mask_is_accepted_by_the_kernel(
        ways in 1_u32..=64,
        min_bits in 0_u32..4,
        start in 0_i64..100,
        width in 1_i64..=100,
    ) {
        let full = low_bits(ways);
        let mask = mask(full, min_bits, start, (start + width).min(100)).unwrap();
        prop_assert_eq!(mask & !full, 0);
        prop_assert!(mask.count_ones() >= min_bits.clamp(1, ways));
        prop_assert_eq!(mask.count_ones(), 64 - mask.leading_zeros() - mask.trailing_zeros());
    }
}
