//! Checks files in which one field has an arbitrary value.

use super::*;
use crate::device::PartitionTable;
use proptest::prelude::*;
use proptest::sample::select;
use std::collections::BTreeSet;

const FIELDS: [&str; 16] = [
    "",
    "/vendor",
    "/model",
    "/uuid",
    "/minor",
    "/resources",
    "/resources/koordinator.sh~1gpu-memory",
    "/topology",
    "/topology/nodeID",
    "/topology/mustHonorPartition",
    "/topology/p2pLinks",
    "/topology/p2pLinks/0",
    "/topology/p2pLinks/0/peerMinor",
    "/status",
    "/status/healthy",
    "/status/errCode",
];

fn anything() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,80}".prop_map(Value::from),
        "[0-9,]{0,12}".prop_map(Value::from),
        "[-A-Za-z0-9 _:,.]{0,80}".prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("[a-zA-Z]{0,12}", inner, 0..3)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn is_reason(text: &str) -> bool {
    let inside = |c: char| c.is_ascii_alphanumeric() || "_,:".contains(c);
    let end = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.ends_with(end)
        && text.chars().all(inside)
}

proptest! {
    /// Nothing panics, the other devices are reported, and the written object is valid for the
    /// API server and the scheduler.
    #[test]
    fn bad_field_drops_at_most_its_own_device(
        card in 0..4_usize, field in select(&FIELDS[..]), value in anything(),
    ) {
        let mut file = ascend();
        if let Some(place) = file[card].pointer_mut(field) {
            *place = value;
        }
        let (cards, _) = xpu::parse(&file.to_string()).unwrap();
        let (report, _) = xpu::report(&cards);
        let ids: BTreeSet<&str> = report.devices.iter().map(|detected| detected.info.id.as_str()).collect();
        let minors: BTreeSet<Option<i32>> = report.devices.iter().map(|detected| detected.info.minor).collect();
        prop_assert_eq!(minors.len(), report.devices.len());
        // A minor equal to that of another device removes one of the two.
        let least = if field == "/minor" || field.is_empty() { 2 } else { 3 };
        let candidates = ["NPU-3", "NPU-1", "NPU-2", "NPU-4"];
        let connected = candidates.iter().enumerate().filter(|(at, id)| *at != card && ids.contains(**id));
        prop_assert!(connected.count() >= least);

        let device = plan(None, owner(), &report, early()).unwrap();
        prop_assert_eq!(plan(Some(&device), owner(), &report, early()), None);
        if let Some(notes) = &device.metadata.annotations {
            let table = PartitionTable::parse(&notes[annotations::DEVICE_GPU_PARTITIONS]);
            let (_, left_out) = table.unwrap();
            prop_assert!(left_out.is_empty(), "{:?}", left_out);
        }
        for condition in device.spec.devices.iter().flat_map(|detected| &detected.conditions) {
            prop_assert!(is_reason(&condition.reason), "{}", condition.reason);
        }
        let labels = device.metadata.labels.unwrap_or_default();
        for value in labels.values() {
            let plain = value.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
            prop_assert!(plain && (1..=63).contains(&value.len()), "{}", value);
        }
    }

    #[test]
    fn arbitrary_text_is_parsed_or_rejected(text in ".{0,200}") {
        let _ = xpu::parse(&text);
    }
}
