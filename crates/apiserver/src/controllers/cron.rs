//! Cron schedules: minute, hour, day of the month, month, day of the week.

use jiff::civil::{Date, Time};
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, ToSpan};

/// Days that a search looks ahead or back: long enough to find 29 February.
const DAYS: i32 = 366 * 8;

/// A parsed schedule: the values of each field as a bit set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Schedule {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// True if a date must match both day fields, because one of them is `*`.
    both: bool,
}

const MONTHS: [&str; 12] = [
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

impl Schedule {
    /// Parses five fields or a name such as `@daily`; `None` if `text` is neither.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let text = match text.trim() {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            other => other,
        };
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [minute, hour, day, month, weekday] = fields[..] else {
            return None;
        };
        let any = |field: &str| field.starts_with(['*', '?']);
        Some(Self {
            minutes: bits(minute, 0, 59, &[])?,
            hours: bits(hour, 0, 23, &[])?,
            days: bits(day, 1, 31, &[])?,
            months: bits(month, 1, 12, &MONTHS)?,
            weekdays: bits(weekday, 0, 6, &WEEKDAYS)?,
            both: any(day) || any(weekday),
        })
    }

    fn matches_date(&self, date: Date) -> bool {
        let has = |set: u64, n: i8| set >> n & 1 == 1;
        let day = has(self.days, date.day());
        let weekday = has(self.weekdays, date.weekday().to_sunday_zero_offset());
        has(self.months, date.month())
            && if self.both {
                day && weekday
            } else {
                day || weekday
            }
    }

    /// Returns the scheduled times of a day in order.
    fn times_on(&self, date: Date, zone: &TimeZone) -> Vec<Timestamp> {
        if !self.matches_date(date) {
            return Vec::new();
        }
        let set = |bits: u64, end: i8| (0..end).filter(move |n| bits >> n & 1 == 1);
        let minutes = |hour: i8| set(self.minutes, 60).map(move |minute| (hour, minute));
        let times = set(self.hours, 24).flat_map(minutes);
        let at = |(hour, minute): (i8, i8)| {
            let time = Time::new(hour, minute, 0, 0).ok()?;
            let zoned = date.to_datetime(time).to_zoned(zone.clone()).ok()?;
            Some(zoned.timestamp())
        };
        times.filter_map(at).collect()
    }

    fn search(
        &self,
        from: Timestamp,
        zone: &TimeZone,
        step: Span,
        mut pick: impl FnMut(Vec<Timestamp>) -> Option<Timestamp>,
    ) -> Option<Timestamp> {
        let mut date = from.to_zoned(zone.clone()).date();
        for _ in 0..DAYS {
            if let Some(time) = pick(self.times_on(date, zone)) {
                return Some(time);
            }
            date = date.checked_add(step).ok()?;
        }
        None
    }

    /// Returns the first scheduled time after `now`.
    pub(super) fn next(&self, now: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        self.search(now, zone, 1.day(), |times| {
            times.into_iter().find(|time| *time > now)
        })
    }

    /// Returns the last scheduled time at or before `now`.
    pub(super) fn last(&self, now: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        self.search(now, zone, (-1).days(), |times| {
            times.into_iter().rev().find(|time| *time <= now)
        })
    }
}

/// Parses a field into a bit set: a comma-separated list of `*`, `a` and `a-b`, each with an optional step
/// (`/n`).
fn bits(field: &str, min: u32, max: u32, names: &[&str]) -> Option<u64> {
    let number = |text: &str| {
        let named = names
            .iter()
            .position(|name| text.eq_ignore_ascii_case(name));
        match named.and_then(|at| u32::try_from(at).ok()) {
            Some(at) => Some(at + min),
            None => text.parse::<u32>().ok(),
        }
    };
    let mut out = 0;
    for part in field.split(',') {
        let (range, step) = match part.split_once('/') {
            None => (part, None),
            Some((range, step)) => (range, Some(step.parse::<u32>().ok().filter(|n| *n > 0)?)),
        };
        let (first, last) = match range.split_once('-') {
            _ if matches!(range, "*" | "?") => (min, max),
            Some((a, b)) => (number(a)?, number(b)?),
            None if step.is_some() => (number(range)?, max),
            None => (number(range)?, number(range)?),
        };
        if first < min || last > max || first > last {
            return None;
        }
        let step = usize::try_from(step.unwrap_or(1)).ok()?;
        (first..=last).step_by(step).for_each(|n| out |= 1 << n);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(schedule: &str, now: &str, zone: &str) -> Option<String> {
        let zone = TimeZone::get(zone).unwrap();
        let matches = Schedule::parse(schedule)?.next(now.parse().unwrap(), &zone);
        matches.map(|time| time.to_string())
    }

    #[test]
    fn schedule_returns_next_time() {
        // A Sunday.
        let now = "2026-03-01T12:00:30Z";
        for (schedule, time) in [
            ("*/1 * * * ?", "2026-03-01T12:01:00Z"),
            ("*/15 * * * *", "2026-03-01T12:15:00Z"),
            ("5/20 * * * *", "2026-03-01T12:05:00Z"),
            ("0 0 13 * *", "2026-03-13T00:00:00Z"),
            ("0 0 13 * fri", "2026-03-06T00:00:00Z"),
            ("0 0 * * MON-wed", "2026-03-02T00:00:00Z"),
            ("30 3 1,15 feb *", "2027-02-01T03:30:00Z"),
            ("0 0 29 2 *", "2028-02-29T00:00:00Z"),
            ("@monthly", "2026-04-01T00:00:00Z"),
        ] {
            assert_eq!(
                next(schedule, now, "UTC").as_deref(),
                Some(time),
                "{schedule}"
            );
        }
        assert_eq!(
            next("0 9 * * *", now, "America/New_York").as_deref(),
            Some("2026-03-01T14:00:00Z")
        );
        assert_eq!(next("0 0 31 2 *", now, "UTC"), None);
    }

    #[test]
    fn last_time_is_not_in_the_future() {
        let schedule = Schedule::parse("0 6 * * *").unwrap();
        let last = |now: &str| schedule.last(now.parse().unwrap(), &TimeZone::UTC).unwrap();
        assert_eq!(
            last("2026-03-01T06:00:00Z").to_string(),
            "2026-03-01T06:00:00Z"
        );
        assert_eq!(
            last("2026-03-01T05:59:59Z").to_string(),
            "2026-02-28T06:00:00Z"
        );
    }

    #[test]
    fn invalid_schedule_is_none() {
        for text in [
            "",
            "* * * *",
            "60 * * * *",
            "* 24 * * *",
            "* * 0 * *",
            "* * * 13 *",
            "* * * * 7",
            "5-1 * * * *",
            "*/0 * * * *",
            "a * * * *",
            "@every 1m",
            "-1 * * * *",
            "99999999999 * * * *",
        ] {
            assert_eq!(Schedule::parse(text), None, "{text}");
        }
    }
}
