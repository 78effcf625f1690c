//! Markers of figures in documents, and figures as documents write them.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

const MARKER: &str = "<!-- figures:";

/// A marker, and the text it is for.
#[derive(Debug)]
pub(super) struct Marker {
    pub(super) line: usize,
    pub(super) ids: Vec<String>,
    /// Range from the marker's end to the next empty line or marker.
    pub(super) body: Range<usize>,
}

/// Returns the markers of a document in their order. One without an end has no text.
pub(super) fn markers(document: &str) -> Vec<Marker> {
    let mut all_markers = Vec::new();
    for (at, _) in document.match_indices(MARKER) {
        let rest = &document[at + MARKER.len()..];
        let ids = rest.split("-->").next().unwrap_or_default();
        let start = (at + MARKER.len() + ids.len() + "-->".len()).min(document.len());
        let rest = &document[start..];
        let length = rest.find("\n\n").into_iter().chain(rest.find(MARKER)).min();
        all_markers.push(Marker {
            line: document[..at].matches('\n').count() + 1,
            ids: ids.split_whitespace().map(str::to_owned).collect(),
            body: start..length.map_or(document.len(), |length| start + length),
        });
    }
    all_markers
}

/// Returns the first place at or after `from` where `document` has the words of `figure` with any space between them,
/// and no digits around that make it another number.
pub(super) fn find(document: &str, from: usize, figure: &str) -> Option<Range<usize>> {
    let first = figure.split(' ').next()?;
    let mut start = from;
    while let Some(at) = document.get(start..)?.find(first) {
        let at = start + at;
        if let Some(end) = match_words(document, at, figure) {
            let (before, after) = (&document[..at], &document[end..]);
            if !goes_on(before.chars().rev()) && !goes_on(after.chars()) {
                return Some(at..end);
            }
        }
        start = at + first.len();
    }
    None
}

/// Returns where the words of `figure` end that begin at `at`.
fn match_words(document: &str, at: usize, figure: &str) -> Option<usize> {
    let mut rest = &document[at..];
    for (position, word) in figure.split(' ').enumerate() {
        let trimmed = rest.trim_start();
        if position > 0 && trimmed.len() == rest.len() {
            return None;
        }
        rest = trimmed.strip_prefix(word)?;
    }
    Some(document.len() - rest.len())
}

/// Returns true if a number continues: with a digit, or with a point or comma and a digit.
fn goes_on(mut chars: impl Iterator<Item = char>) -> bool {
    match chars.next() {
        Some('.' | ',') => chars.next().is_some_and(|c| c.is_ascii_digit()),
        Some(c) => c.is_ascii_digit(),
        None => false,
    }
}

/// Returns the ids of the figures that a word of a marker names: for `prefix*` those of `ids` that start with the
/// prefix, in their order; otherwise the word itself.
pub(super) fn expand<'a>(word: &'a str, ids: &[&'a str]) -> Vec<&'a str> {
    match word.strip_suffix('*') {
        Some(prefix) => {
            let matching = ids.iter().filter(|id| id.starts_with(prefix));
            matching.copied().collect()
        }
        None => vec![word],
    }
}

/// Replaces the figures of a document's markers, and returns the document with the lines and figures whose old text is
/// not there.
pub(super) fn replace(
    document: &str,
    ids: &[&str],
    before: &HashMap<String, String>,
    after: &BTreeMap<&str, String>,
) -> (String, Vec<(usize, String)>) {
    let mut out = String::with_capacity(document.len());
    let mut missing = Vec::new();
    let mut copied = 0;
    for marker in markers(document) {
        let mut from = marker.body.start;
        for id in marker.ids.iter().flat_map(|word| expand(word, ids)) {
            let (Some(old), Some(new)) = (before.get(id), after.get(id)) else {
                continue;
            };
            let Some(range) = find(&document[..marker.body.end], from, old) else {
                missing.push((marker.line, id.to_owned()));
                continue;
            };
            out.push_str(&document[copied..range.start]);
            out.push_str(&spaced_as(&document[range.clone()], new));
            copied = range.end;
            from = range.end;
        }
    }
    out.push_str(&document[copied..]);
    (out, missing)
}

/// Returns `new` with a line break where `old` has one, so that lines keep their lengths.
fn spaced_as(old: &str, new: &str) -> String {
    let Some((words, _)) = old.split_once('\n') else {
        return new.to_owned();
    };
    let breaks_after = words.split_whitespace().count();
    let indent = &old[words.len()..];
    let indent = &indent[..indent.len() - indent.trim_start().len()];
    let words: Vec<&str> = new.split(' ').collect();
    if breaks_after >= words.len() {
        return new.to_owned();
    }
    let (first, second) = words.split_at(breaks_after);
    format!("{}{indent}{}", first.join(" "), second.join(" "))
}

/// Writes a number with so many significant digits, and with commas between thousands.
pub(super) fn format(value: f64, digits: usize) -> String {
    if value == 0.0 || !value.is_finite() {
        return "0".to_owned();
    }
    let digits = i32::try_from(digits).unwrap_or(i32::MAX);
    let places = |value: f64| digits - 1 - exponent(value);
    let round = |value: f64, places: i32| {
        let unit = 10_f64.powi(places.abs());
        if places >= 0 {
            (value * unit).round() / unit
        } else {
            (value / unit).round() * unit
        }
    };
    let rounded = round(value, places(value));
    // 9.96 with two digits is 10, which has one place less.
    let decimals = usize::try_from(places(rounded)).unwrap_or(0);
    let plain = format!("{rounded:.decimals$}");
    let (whole, fraction) = plain
        .split_once('.')
        .map_or((plain.as_str(), None), |(w, f)| (w, Some(f)));
    let (sign, whole) = whole
        .strip_prefix('-')
        .map_or(("", whole), |whole| ("−", whole));
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    match fraction {
        Some(fraction) => format!("{sign}{grouped}.{fraction}"),
        None => format!("{sign}{grouped}"),
    }
}

/// Returns the power of ten of the first digit.
fn exponent(value: f64) -> i32 {
    #[allow(clippy::cast_possible_truncation, reason = "between -324 and 308")]
    let exponent = value.abs().log10().floor() as i32;
    exponent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_rounds_to_significant_digits() {
        for (value, digits, expected) in [
            (49_824.3, 3, "49,800"),
            (49_824.3, 5, "49,824"),
            (1_234_567.0, 3, "1,230,000"),
            (999.6, 3, "1,000"),
            (7.54, 2, "7.5"),
            (9.96, 2, "10"),
            (0.019_4, 2, "0.019"),
            (17.0, 3, "17.0"),
            (-0.39, 1, "−0.4"),
            (0.0, 3, "0"),
            (f64::NAN, 3, "0"),
        ] {
            assert_eq!(format(value, digits), expected, "{value} {digits}");
        }
    }

    #[test]
    fn find_takes_whole_numbers_only() {
        let at = |document: &str, figure: &str| find(document, 0, figure).map(|range| range.start);
        assert_eq!(at("a 7.5 m", "7.5"), Some(2));
        assert_eq!(at("17.5, 7.52, 7.5.", "7.5"), Some(12));
        assert_eq!(at("1,200 and 200, 3", "200"), Some(10));
        assert_eq!(at("200,5 x", "200"), None);
        assert_eq!(at("6,400\n  to 7,200", "6,400 to 7,200"), Some(0));
        assert_eq!(at("6,400 to7,200", "6,400 to 7,200"), None);
        assert_eq!(at("größe 5", "5"), Some(8));
        assert_eq!(at("", "5"), None);
    }

    #[test]
    fn replace_follows_the_order_of_the_marker() {
        let before = [("a", "5"), ("b", "5"), ("c", "1 to 2")];
        let before = before
            .map(|(id, text)| (id.to_owned(), text.to_owned()))
            .into();
        let after = BTreeMap::from([
            ("a", "6".to_owned()),
            ("b", "700".to_owned()),
            ("c", "3".to_owned()),
        ]);
        let document =
            "5\n<!-- figures: a b -->\n| 15 | 5 | 5 |\n\n<!-- figures: c -->\n1\nto 2 of 5\n";
        let (text, missing) = replace(document, &["b", "c", "a"], &before, &after);
        assert_eq!(
            text,
            "5\n<!-- figures: a b -->\n| 15 | 6 | 700 |\n\n<!-- figures: c -->\n3 of 5\n"
        );
        assert!(missing.is_empty());
        let (same, missing) = replace("<!-- figures: a c -->\n6\n\n5", &[], &before, &after);
        assert_eq!(same, "<!-- figures: a c -->\n6\n\n5");
        assert_eq!(missing, [(1, "a".to_owned()), (1, "c".to_owned())]);
    }

    #[test]
    fn replace_keeps_line_breaks_of_a_range() {
        let before = HashMap::from([("a".to_owned(), "1 to 2".to_owned())]);
        let after = BTreeMap::from([("a", "3 to 4".to_owned())]);
        let (text, _) = replace("<!-- figures: a -->\nx 1\n  to 2", &[], &before, &after);
        assert_eq!(text, "<!-- figures: a -->\nx 3\n  to 4");
    }

    #[test]
    fn expand_takes_the_order_of_the_record() {
        let ids = ["up-rss", "scheduler-b", "scheduler-a"];
        assert_eq!(expand("scheduler-*", &ids), ["scheduler-b", "scheduler-a"]);
        assert_eq!(expand("scheduler-a", &ids), ["scheduler-a"]);
        assert!(expand("x*", &ids).is_empty());
    }

    #[test]
    fn marker_without_an_end_has_no_text() {
        let open = markers("x <!-- figures: a");
        assert_eq!(open.len(), 1);
        assert!(open[0].body.is_empty());
        let two = "<!-- figures: a -->\n1 <!-- figures: b -->\n2";
        let bodies: Vec<_> = markers(two)
            .into_iter()
            .map(|m| two[m.body].trim())
            .collect();
        assert_eq!(bodies, ["1", "2"]);
        assert_eq!(markers("<!-- figures: a -->\r\n\r\nx")[0].ids, ["a"]);
    }
}
