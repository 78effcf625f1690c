//! Durations as kubectl formats them: at most two units, coarser with length.

use jiff::Timestamp;

/// Formats the age of an RFC 3339 timestamp at `now`; `<unknown>` if it is missing or invalid.
#[must_use]
pub fn age(timestamp: &str, now: Timestamp) -> String {
    match timestamp.parse::<Timestamp>() {
        Ok(t) => human_duration(now.as_second() - t.as_second()),
        Err(_) => "<unknown>".to_owned(),
    }
}

/// Formats a duration in whole seconds.
#[must_use]
pub fn human_duration(seconds: i64) -> String {
    if seconds < -1 {
        return "<invalid>".to_owned();
    }
    if seconds < 0 {
        return "0s".to_owned();
    }
    let two = |big: i64, unit: &str, small: i64, small_unit: &str| {
        if small == 0 {
            format!("{big}{unit}")
        } else {
            format!("{big}{unit}{small}{small_unit}")
        }
    };
    let minutes = seconds / 60;
    let hours = seconds / 3600;
    let days = hours / 24;
    if seconds < 120 {
        format!("{seconds}s")
    } else if minutes < 10 {
        two(minutes, "m", seconds % 60, "s")
    } else if minutes < 180 {
        format!("{minutes}m")
    } else if hours < 8 {
        two(hours, "h", minutes % 60, "m")
    } else if hours < 48 {
        format!("{hours}h")
    } else if days < 8 {
        two(days, "d", hours % 24, "h")
    } else if days < 365 * 2 {
        format!("{days}d")
    } else if days < 365 * 8 {
        two(days / 365, "y", days % 365, "d")
    } else {
        format!("{}y", days / 365)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps() {
        for (seconds, text) in [
            (-5, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (600, "10m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (11_460, "3h11m"),
            (28_800, "8h"),
            (172_799, "47h"),
            (172_800, "2d"),
            (180_000, "2d2h"),
            (691_200, "8d"),
            (63_072_000, "2y"),
            (63_158_400, "2y1d"),
            (252_288_000, "8y"),
        ] {
            assert_eq!(human_duration(seconds), text, "{seconds}");
        }
        assert_eq!(age("", Timestamp::UNIX_EPOCH), "<unknown>");
    }
}
