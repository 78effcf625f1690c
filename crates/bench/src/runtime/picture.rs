//! A picture of creation times in the three ways.

use super::{RuntimeFigures, WayTimes};
use std::fmt::Write as _;

/// Pixels: the picture's width, where bars begin, the longest bar, and a row's height.
const WIDTH: f64 = 760.0;
const LEFT: f64 = 170.0;
const LONGEST: f64 = 440.0;
const ROW: f64 = 26.0;

/// Draws bars of medians, with a thin line to the 99th percentile.
pub(super) fn svg(report: &RuntimeFigures) -> String {
    let parts = [
        ("CreateContainer, ms", &report.create),
        ("CreateContainer and StartContainer, ms", &report.start),
    ];
    let height = 2.0 * (4.0 * ROW + 22.0) + 40.0;
    let mut page = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"13\" fill=\"#222\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\n"
    );
    let mut y = 26.0;
    for (title, ways) in parts {
        let _ = writeln!(
            page,
            "<text x=\"12\" y=\"{y}\" font-weight=\"bold\">{title}</text>"
        );
        y += 12.0;
        bars(&mut page, ways, &mut y);
        y += 32.0;
    }
    let _ = writeln!(
        page,
        "<text x=\"12\" y=\"{y}\" fill=\"#666\">{} containers each, in turns; bar: median, line: p99; {}</text>\n</svg>",
        report.created,
        report.runtime.replace(['<', '&'], " ")
    );
    page
}

/// Draws a bar for each way of creating a container, and moves `y` below them.
fn bars(page: &mut String, ways: &WayTimes, y: &mut f64) {
    let rows = [
        ("directly", ways.alone, "#9aa5b1"),
        ("NRI plugin", ways.nri, "#2a78c2"),
        ("proxy and hook server", ways.proxy, "#d9822b"),
    ];
    let longest = rows.iter().map(|(_, times, _)| times.p99_ms);
    let longest = longest.fold(f64::MIN_POSITIVE, f64::max);
    for (name, times, color) in rows {
        let (median, tail) = (
            times.p50_ms / longest * LONGEST,
            times.p99_ms / longest * LONGEST,
        );
        let middle = *y + ROW / 2.0;
        let _ = writeln!(
            page,
            "<text x=\"12\" y=\"{:.0}\">{name}</text>\
             <rect x=\"{LEFT}\" y=\"{:.0}\" width=\"{median:.1}\" height=\"16\" fill=\"{color}\"/>\
             <line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{middle:.0}\" y2=\"{middle:.0}\" stroke=\"{color}\" stroke-width=\"2\"/>\
             <text x=\"{:.1}\" y=\"{:.0}\">{:.1} / {:.1}</text>",
            middle + 4.0,
            middle - 8.0,
            LEFT + tail,
            LEFT + tail + 8.0,
            middle + 4.0,
            times.p50_ms,
            times.p99_ms,
        );
        *y += ROW;
    }
}

#[cfg(test)]
mod tests {
    use super::super::times::Percentiles;
    use super::*;

    #[test]
    fn bars_scale_to_the_slowest_way() {
        let spread = |p50_ms, p99_ms| Percentiles { p50_ms, p99_ms };
        let ways = WayTimes {
            alone: spread(10.0, 20.0),
            nri: spread(11.0, 40.0),
            proxy: spread(12.0, 30.0),
        };
        let (mut page, mut y) = (String::new(), 0.0);
        bars(&mut page, &ways, &mut y);
        let line = |to: f64| format!("x2=\"{:.1}\"", LEFT + to);
        assert!(page.contains(&line(LONGEST)), "{page}");
        assert!(page.contains(&line(LONGEST / 2.0)), "{page}");
        assert!(page.contains("10.0 / 20.0"), "{page}");
        assert_eq!(y, 3.0 * ROW);
    }
}
