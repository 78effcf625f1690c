use super::*;
use koord_rpc::cri;
use proptest::prelude::*;
use prost::Message as _;

fn field() -> impl Strategy<Value = Vec<u8>> {
    let number = prop_oneof![1_u32..20, 1_u32..1 << 29];
    let sized = proptest::collection::vec(any::<u8>(), 0..20);
    prop_oneof![
        (number.clone(), any::<u64>()).prop_map(|(number, value)| {
            let mut out = Vec::new();
            encode_varint(u64::from(number) << 3, &mut out);
            encode_varint(value, &mut out);
            out
        }),
        (number.clone(), sized)
            .prop_map(|(number, content)| Field::sized(number, &content).bytes.to_vec()),
        (number.clone(), any::<[u8; 8]>()).prop_map(|(number, value)| {
            let mut out = Vec::new();
            encode_varint(u64::from(number) << 3 | 1, &mut out);
            out.extend(value);
            out
        }),
        (number, any::<[u8; 4]>()).prop_map(|(number, value)| {
            let mut out = Vec::new();
            // In a group.
            encode_varint(u64::from(number) << 3 | 3, &mut out);
            encode_varint(5 << 3 | 5, &mut out);
            out.extend(value);
            encode_varint(u64::from(number) << 3 | 4, &mut out);
            out
        }),
    ]
}

proptest! {
    #[test]
    fn unchanged_fields_keep_their_bytes(fields in proptest::collection::vec(field(), 0..12)) {
        let bytes = Bytes::from(fields.concat());
        let message = Message::parse(&bytes).unwrap();
        prop_assert_eq!(message.fields.len(), fields.len());
        prop_assert_eq!(message.encode(), bytes);
    }

    #[test]
    fn nothing_is_read_behind_the_end(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        let bytes = Bytes::from(bytes);
        if let Ok(message) = Message::parse(&bytes) {
            prop_assert_eq!(message.encode(), bytes);
        }
    }

    /// Verifies that decoding shows exactly the change, and that all other fields are at their place.
    #[test]
    fn a_change_is_the_only_one(
        before in proptest::collection::vec(field(), 0..6),
        after in proptest::collection::vec(field(), 0..6),
        shares in any::<i64>(),
        cpus in "[0-9,-]{0,8}",
        value in "\\PC{0,8}",
    ) {
        let original = cri::LinuxContainerResources {
            cpu_shares: 7,
            cpuset_cpus: "3".to_owned(),
            unified: [("k".to_owned(), "v".to_owned())].into(),
            ..Default::default()
        };
        // Numbers above those of the definition, so that a decoder takes them for unknown.
        let foreign = |fields: &[Vec<u8>]| -> Vec<u8> {
            let raw = fields.concat();
            Field::sized(4000, &raw).bytes.to_vec()
        };
        let (before, after) = (foreign(&before), foreign(&after));
        let bytes = Bytes::from([&*before, &original.encode_to_vec(), &after].concat());
        let mut message = Message::parse(&bytes).unwrap();
        message.set_int(3, shares);
        message.set_text(6, cpus.as_bytes());
        message.set_entry(9, "k", value.as_bytes()).unwrap();
        message.set_entry(9, "new", b"1").unwrap();
        let changed = message.encode();
        prop_assert!(changed.starts_with(&before));
        let mut expected = original.clone();
        expected.cpu_shares = shares;
        expected.cpuset_cpus = cpus;
        expected.unified.insert("k".to_owned(), value);
        expected.unified.insert("new".to_owned(), "1".to_owned());
        prop_assert_eq!(cri::LinuxContainerResources::decode(changed.clone()).unwrap(), expected);
        prop_assert!(changed.windows(after.len()).any(|part| part == after));
        // And back: setting a field to its present value changes nothing.
        let reparsed = Message::parse(&changed).unwrap();
        let mut edited = reparsed.clone();
        edited.set_int(3, shares);
        edited.set_entry(9, "new", b"1").unwrap();
        prop_assert_eq!(edited.encode(), reparsed.encode());
    }
}

#[test]
fn a_message_that_came_in_parts_is_one() {
    // config { linux { resources { cpu_shares: 2 } } } twice, the second with a quota.
    let part = |number: u8, value: u8| vec![0x12, 6, 0x7a, 4, 0x0a, 2, number << 3, value];
    let bytes = Bytes::from([part(3, 2), part(2, 9)].concat());
    let mut message = Message::parse(&bytes).unwrap();
    message
        .edit(2, |config| {
            config.edit(15, |linux| {
                linux.edit(1, |now| {
                    now.set_int(3, 4096);
                    Ok(())
                })
            })
        })
        .unwrap();
    let decoded = cri::CreateContainerRequest::decode(message.encode()).unwrap();
    let resources = decoded.config.unwrap().linux.unwrap().resources.unwrap();
    assert_eq!((resources.cpu_shares, resources.cpu_quota), (4096, 9));
}

#[test]
fn invalid_messages_are_refused() {
    let parse = |bytes: &'static [u8]| Message::parse(&Bytes::from_static(bytes)).unwrap_err();
    assert_eq!(parse(b"\x0a\x05abc"), WireError::Truncated(2));
    assert_eq!(parse(b"\x08"), WireError::Truncated(1));
    assert_eq!(parse(b"\x02\x00"), WireError::Key { key: 2, at: 0 });
    assert_eq!(parse(b"\x0f"), WireError::Key { key: 15, at: 0 });
    // A group that ends as another one, one that never begins, and one too many.
    assert_eq!(parse(b"\x0b\x14"), WireError::Key { key: 0x14, at: 1 });
    assert_eq!(parse(b"\x0c"), WireError::Key { key: 0x0c, at: 0 });
    assert_eq!(parse(&[0x0b; 101]), WireError::TooDeep(100));
    assert_eq!(parse(&[0x0b; 100]), WireError::Truncated(100));
    assert_eq!(
        parse(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        WireError::Truncated(11)
    );
}
