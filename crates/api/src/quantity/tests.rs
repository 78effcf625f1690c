use super::{Format, Quantity};
use proptest::prelude::*;

fn parse(text: &str) -> Quantity {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

/// Lists input, canonical text, `value()` and `milli_value()`: the rules of apimachinery's `resource`
/// package.
#[test]
fn parses_and_prints_as_kubernetes_does() {
    for (input, printed, value, milli) in [
        ("0", "0", 0, 0),
        ("0Ki", "0", 0, 0),
        ("-0", "0", 0, 0),
        ("1", "1", 1, 1000),
        ("+1", "1", 1, 1000),
        ("001", "1", 1, 1000),
        ("1.", "1", 1, 1000),
        (".5", "500m", 1, 500),
        ("0.5", "500m", 1, 500),
        ("-0.5", "-500m", -1, -500),
        ("1500m", "1500m", 2, 1500),
        ("1000m", "1", 1, 1000),
        ("100m", "100m", 1, 100),
        ("1m", "1m", 1, 1),
        ("100u", "100u", 1, 1),
        ("1n", "1n", 1, 1),
        ("0.1n", "1n", 1, 1),
        ("-0.1n", "-1n", -1, -1),
        ("1.0000000001", "1000000001n", 2, 1001),
        ("1000", "1k", 1000, 1_000_000),
        ("1000k", "1M", 1_000_000, 1_000_000_000),
        ("1.5k", "1500", 1500, 1_500_000),
        (
            "12345678901",
            "12345678901",
            12_345_678_901,
            12_345_678_901_000,
        ),
        ("5e3", "5e3", 5000, 5_000_000),
        ("5E3", "5e3", 5000, 5_000_000),
        ("12e0", "12", 12, 12_000),
        ("12e1", "120", 120, 120_000),
        ("120e4", "1200e3", 1_200_000, 1_200_000_000),
        ("1e-3", "1e-3", 1, 1),
        ("1.5e6", "1500e3", 1_500_000, 1_500_000_000),
        ("1E", "1E", 1_000_000_000_000_000_000, i64::MAX),
        ("9E", "9E", 9_000_000_000_000_000_000, i64::MAX),
        ("10E", "10E", i64::MAX, i64::MAX),
        ("1000E", "1000E", i64::MAX, i64::MAX),
        ("1Ki", "1Ki", 1024, 1_024_000),
        ("1024Ki", "1Mi", 1 << 20, 1_048_576_000),
        ("1000Ki", "1000Ki", 1_024_000, 1_024_000_000),
        ("1536Mi", "1536Mi", 1_610_612_736, 1_610_612_736_000),
        ("1.5Gi", "1536Mi", 1_610_612_736, 1_610_612_736_000),
        ("0.5Mi", "512Ki", 524_288, 524_288_000),
        ("0.5Ki", "512", 512, 512_000),
        ("1.5Ki", "1536", 1536, 1_536_000),
        ("0.001Ki", "1024m", 2, 1024),
        ("1.0001Ki", "1024102400u", 1025, 1_024_103),
        ("0.0001Ki", "102400u", 1, 103),
        ("-1Gi", "-1Gi", -(1 << 30), -1_073_741_824_000),
        ("7Ei", "7Ei", 7 << 60, i64::MAX),
        ("8Ei", "9223372036854775807", i64::MAX, i64::MAX),
        ("100Ei", "9223372036854775807", i64::MAX, i64::MAX),
        (
            "99999999999999999999Ki",
            "9223372036854775807",
            i64::MAX,
            i64::MAX,
        ),
        ("0.00000000000000000001Ei", "11529216n", 1, 12),
    ] {
        let quantity = parse(input);
        assert_eq!(quantity.value(), value, "value of {input}");
        assert_eq!(quantity.milli_value(), milli, "milli value of {input}");
        assert_eq!(quantity.to_string(), printed, "text of {input}");
    }
}

#[test]
fn refuses_with_the_text_in_the_message() {
    for (input, part) in [
        ("", "empty"),
        ("a", "does not start with a decimal number"),
        (".", "does not start with a decimal number"),
        ("-", "does not start with a decimal number"),
        ("m", "does not start with a decimal number"),
        ("--1", "does not start with a decimal number"),
        ("1.2.3", "does not start with a decimal number"),
        (" 1", "does not start with a decimal number"),
        ("1 ", "unknown suffix \" \""),
        ("1K", "unknown suffix \"K\""),
        ("1mi", "unknown suffix \"mi\""),
        ("1ki", "unknown suffix \"ki\""),
        ("1KiB", "unknown suffix \"KiB\""),
        ("1e", "unknown suffix \"e\""),
        ("1e1.5", "unknown suffix"),
        ("1Gi500Mi", "unknown suffix"),
        ("1\u{fc}", "unknown suffix"),
        ("1e30", "out of range"),
        ("1e99999999999", "out of range"),
        ("9999999999999999999999999999999999999999", "out of range"),
    ] {
        let error = input.parse::<Quantity>().unwrap_err().to_string();
        assert!(error.contains(part), "{input:?}: {error}");
        assert!(
            input.is_empty() || error.contains(&format!("{input:?}")),
            "{input:?}: {error}"
        );
    }
}

#[test]
fn tiny_exponents_round_up_to_one_billionth() {
    assert_eq!(parse("1e-99999999").nanos(), 1);
    assert_eq!(parse("0e-99999999").nanos(), 0);
    assert_eq!(parse("0e99999999"), Quantity::ZERO);
}

#[test]
fn arithmetic_keeps_the_left_family_unless_left_is_zero() {
    assert_eq!((parse("1Gi") + parse("1G")).to_string(), "2073741824");
    assert_eq!((parse("1Gi") + parse("1Gi")).to_string(), "2Gi");
    assert_eq!((parse("1G") + parse("1Gi")).to_string(), "2073741824");
    assert_eq!((Quantity::ZERO + parse("1Gi")).to_string(), "1Gi");
    assert_eq!((parse("0Ki") + parse("1000")).to_string(), "1k");
    assert_eq!((parse("2Gi") - parse("1Gi")).format(), Format::BinarySi);
    assert_eq!((parse("1") - parse("1500m")).to_string(), "-500m");
    let total: Quantity = [parse("100m"), parse("1"), parse("2500m")]
        .into_iter()
        .sum();
    assert_eq!(total.to_string(), "3600m");
}

#[test]
fn constructors_pick_the_family() {
    assert_eq!(Quantity::from_milli(1500).to_string(), "1500m");
    assert_eq!(Quantity::from_milli(2000).to_string(), "2");
    assert_eq!(Quantity::from_value(2000).to_string(), "2k");
    assert_eq!(Quantity::from_bytes(2048).to_string(), "2Ki");
    assert_eq!(Quantity::from_bytes(1000).to_string(), "1k");
    assert_eq!(
        Quantity::from_bytes(5_862_330_450).to_string(),
        "5862330450"
    );
    assert_eq!(Quantity::from_value(i64::MIN).value(), i64::MIN);
}

#[test]
fn json_takes_numbers_and_text_and_gives_text() {
    let read = |json: &str| serde_json::from_str::<Quantity>(json);
    assert_eq!(read("\"1500m\"").unwrap(), Quantity::from_milli(1500));
    assert_eq!(read("4").unwrap(), Quantity::from_value(4));
    assert_eq!(read("-4").unwrap(), Quantity::from_value(-4));
    assert_eq!(read("1.5").unwrap(), Quantity::from_milli(1500));
    assert_eq!(read("18446744073709551615").unwrap().value(), i64::MAX);
    assert!(read("true").unwrap_err().to_string().contains("quantity"));
    assert!(read("\"1x\"").unwrap_err().to_string().contains("\"1x\""));
    assert_eq!(serde_json::to_string(&parse("1024Ki")).unwrap(), "\"1Mi\"");
}

fn any_format() -> impl Strategy<Value = Format> {
    prop_oneof![
        Just(Format::DecimalSi),
        Just(Format::BinarySi),
        Just(Format::DecimalExponent)
    ]
}

fn any_quantity() -> impl Strategy<Value = Quantity> {
    let nanos = prop_oneof![
        any::<i64>().prop_map(i128::from),
        any::<i32>().prop_map(|units| i128::from(units) * 1_000_000_000),
        (-4096i128..4096, 0u32..50).prop_map(|(n, shift)| (n << shift) * 1_000_000_000),
        (-1_000_000i128..1_000_000, 0u32..18).prop_map(|(n, power)| n * 10i128.pow(power)),
    ];
    (nanos, any_format()).prop_map(|(nanos, format)| Quantity::from_nanos(nanos, format))
}

proptest! {
    #[test]
    fn text_round_trips(quantity in any_quantity()) {
        let text = quantity.to_string();
        // Binary text above the cap is capped again when it is read.
        prop_assume!(quantity.nanos().abs() <= i128::from(i64::MAX) * 1_000_000_000);
        prop_assert_eq!(parse(&text), quantity, "{}", text);
    }

    #[test]
    fn canonical_text_is_a_fixed_point(quantity in any_quantity()) {
        prop_assume!(quantity.nanos().abs() <= i128::from(i64::MAX) * 1_000_000_000);
        let text = quantity.to_string();
        // `-2000` may have been written in the binary family; read alone it is decimal.
        prop_assert_eq!(parse(&text).with_format(quantity.format()).to_string(), text.clone());
        let reparsed = parse(&text).to_string();
        prop_assert_eq!(parse(&reparsed).to_string(), reparsed);
    }

    #[test]
    fn order_is_the_order_of_amounts(a in any_quantity(), b in any_quantity()) {
        prop_assert_eq!(a.cmp(&b), a.nanos().cmp(&b.nanos()));
        prop_assert_eq!(a < b, (a - b).signum() < 0);
    }

    #[test]
    fn addition_and_subtraction_undo_each_other(a in any_quantity(), b in any_quantity()) {
        prop_assert_eq!(a + b - b, a);
        prop_assert_eq!(a + b, b + a);
        prop_assert_eq!(a - a, Quantity::ZERO);
    }

    #[test]
    fn rounding_goes_away_from_zero(quantity in any_quantity()) {
        let milli = i128::from(quantity.milli_value());
        prop_assume!(milli.abs() < i128::from(i64::MAX));
        let exact = quantity.nanos();
        prop_assert!((milli * 1_000_000).abs() >= exact.abs());
        prop_assert!((milli * 1_000_000).abs() - exact.abs() < 1_000_000);
        prop_assert_eq!(i128::from(-(-quantity).milli_value()), milli);
    }

    #[test]
    fn never_panics(text in "[+-]?[0-9.]{0,45}[eEinumkKMGTP]{0,3}[-+]?[0-9]{0,12}") {
        let _ = text.parse::<Quantity>();
    }

    #[test]
    fn every_accepted_text_reads_its_own_print(text in "[+-]?[0-9]{1,9}(\\.[0-9]{0,12})?(n|u|m||k|M|G|T|P|E|Ki|Mi|Gi|Ti|e3|e-3|E6)") {
        let quantity = parse(&text);
        prop_assert_eq!(parse(&quantity.to_string()), quantity);
    }
}
