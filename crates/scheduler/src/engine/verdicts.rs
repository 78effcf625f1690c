//! Verdicts by row in four bytes each: many rows are refused for few reasons.

use crate::framework::{Code, RejectionCounts, RowVerdict};
use crate::state::NodeIndex;
use rustc_hash::FxHashMap;

/// A verdict by number: the lowest bit is set if it fits, the others are an index into [`Verdicts::kinds`].
type Number = u32;

const ABSENT: Number = 0;
/// Fits without selected NUMA nodes.
const FITS: Number = 1;

#[derive(Debug)]
struct DistinctVerdict {
    verdict: RowVerdict,
    rows: usize,
}

/// Verdicts by row. Equal ones are stored once and counted.
#[derive(Debug, Default)]
pub(super) struct Verdicts {
    rows: Vec<Number>,
    /// The verdicts other than [`ABSENT`] and [`FITS`]. Entries that no row uses are reused.
    kinds: Vec<DistinctVerdict>,
    unused: Vec<usize>,
    numbers: FxHashMap<RowVerdict, Number>,
    fitting: usize,
}

impl Verdicts {
    /// Creates `rows` rows, all absent.
    pub(super) fn absent(rows: usize) -> Self {
        Self {
            rows: vec![ABSENT; rows],
            ..Self::default()
        }
    }

    /// Extends to `rows` rows; new ones are absent.
    pub(super) fn grow(&mut self, rows: usize) {
        self.rows.resize(rows, ABSENT);
    }

    /// Appends the rows of `other`.
    pub(super) fn append(&mut self, other: Self) {
        let mut numbers = Vec::with_capacity(other.kinds.len());
        for kind in other.kinds {
            if kind.rows == 0 {
                numbers.push(ABSENT);
                continue;
            }
            let number = self.number(kind.verdict);
            self.kinds[at(number)].rows += kind.rows;
            numbers.push(number);
        }
        let renumbered = |number: &Number| match *number {
            simple @ (ABSENT | FITS) => simple,
            number => numbers[at(number)],
        };
        if numbers.is_empty() {
            self.rows.extend_from_slice(&other.rows);
        } else {
            self.rows.extend(other.rows.iter().map(renumbered));
        }
        self.fitting += other.fitting;
    }

    /// Reserves memory for `rows` rows.
    pub(super) fn reserve(&mut self, rows: usize) {
        self.rows.reserve_exact(rows - self.rows.len().min(rows));
    }

    /// Returns the number of rows.
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns how many rows fit.
    pub(super) fn fitting(&self) -> usize {
        self.fitting
    }

    /// Returns true if row `row` fits.
    pub(super) fn fits(&self, row: usize) -> bool {
        self.rows[row] & FITS != 0
    }

    /// Returns the verdict on row `row`; `None` if there is no such row.
    pub(super) fn get(&self, row: usize) -> Option<&RowVerdict> {
        Some(match *self.rows.get(row)? {
            ABSENT => &RowVerdict::Absent,
            FITS => &RowVerdict::Fits(None),
            number => &self.kinds[at(number)].verdict,
        })
    }

    /// Sets the verdict on row `row`.
    pub(super) fn set(&mut self, row: usize, verdict: RowVerdict) {
        let new = self.number(verdict);
        let old = std::mem::replace(&mut self.rows[row], new);
        self.fitting += (new & FITS) as usize;
        self.fitting -= (old & FITS) as usize;
        if new > FITS {
            self.kinds[at(new)].rows += 1;
        }
        if old > FITS {
            let kind = &mut self.kinds[at(old)];
            kind.rows -= 1;
            if kind.rows == 0 {
                self.numbers.remove(&kind.verdict);
                kind.verdict = RowVerdict::Absent;
                self.unused.push(at(old));
            }
        }
    }

    /// Returns the number of `verdict`; adds the verdict if it is new.
    fn number(&mut self, verdict: RowVerdict) -> Number {
        let fits = match &verdict {
            RowVerdict::Absent => return ABSENT,
            RowVerdict::Fits(None) => return FITS,
            RowVerdict::Fits(Some(_)) => FITS,
            RowVerdict::Refused(..) => 0,
        };
        if let Some(number) = self.numbers.get(&verdict) {
            return *number;
        }
        let kind = DistinctVerdict {
            verdict: verdict.clone(),
            rows: 0,
        };
        let place = match self.unused.pop() {
            Some(place) => {
                self.kinds[place] = kind;
                place
            }
            None => {
                self.kinds.push(kind);
                self.kinds.len() - 1
            }
        };
        // There are no more kinds than rows, whose numbers are 32 bits wide; half of them would do.
        let number = (Number::try_from(place).unwrap_or(Number::MAX >> 1) + 1) << 1 | fits;
        self.numbers.insert(verdict, number);
        number
    }

    /// Returns the counts of refusals.
    pub(super) fn tally(&self) -> RejectionCounts {
        let mut tally = RejectionCounts::default();
        for kind in &self.kinds {
            if let RowVerdict::Refused(plugin, rejection) = &kind.verdict {
                tally.add_many(*plugin, rejection, kind.rows);
            }
        }
        tally
    }

    /// Returns the rows on which evicting pods might help, in order.
    pub(super) fn helpable(&self) -> Vec<NodeIndex> {
        let might = |number: &Number| {
            let kind = self.kinds.get(at(*number));
            let verdict = kind.filter(|_| *number > FITS).map(|kind| &kind.verdict);
            matches!(verdict, Some(RowVerdict::Refused(_, rejection)) if rejection.code == Code::Unschedulable)
        };
        self.rows_where(might)
    }

    /// Iterates over the rows that fit, in order.
    pub(super) fn feasible(&self) -> impl Iterator<Item = usize> + '_ {
        let numbers = self.rows.iter().enumerate();
        numbers.filter_map(|(row, number)| (number & FITS != 0).then_some(row))
    }

    fn rows_where(&self, are: impl Fn(&Number) -> bool) -> Vec<NodeIndex> {
        let numbers = (0_u32..).zip(&self.rows);
        let matching = numbers.filter(|(_, number)| are(number));
        matching.map(|(row, _)| NodeIndex(row)).collect()
    }

    /// Returns the approximate size in bytes.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Number>() * self.rows.capacity() + 256 * self.kinds.len()
    }
}

/// Returns the index of a kind, given a number above [`FITS`].
fn at(number: Number) -> usize {
    (number >> 1).saturating_sub(1) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framework::Rejection;
    use koord_model::numa::NumaMask;

    fn refused(plugin: usize, text: &'static str) -> RowVerdict {
        RowVerdict::Refused(plugin, Rejection::unschedulable(text))
    }

    #[test]
    fn rows_hold_last_verdict_and_reasons_are_counted() {
        let all = [
            RowVerdict::Absent,
            RowVerdict::Fits(None),
            RowVerdict::Fits(Some(NumaMask(0b10))),
            refused(1, "cpu"),
            RowVerdict::Refused(1, Rejection::unresolvable("cpu")),
            refused(2, "cpu"),
        ];
        let mut verdicts = Verdicts::absent(4);
        let mut expected_rows = vec![RowVerdict::Absent; 4];
        // Every verdict follows every other one on some row.
        for turn in 0..200_usize {
            let (row, next) = (turn % 4, &all[(turn * 7 + turn / 36) % all.len()]);
            verdicts.set(row, next.clone());
            expected_rows[row] = next.clone();
            let mut tally = RejectionCounts::default();
            for (row, verdict) in expected_rows.iter().enumerate() {
                assert_eq!(verdicts.get(row), Some(verdict), "turn {turn}");
                let fits = matches!(verdict, RowVerdict::Fits(_));
                assert_eq!(verdicts.fits(row), fits, "turn {turn}");
                if let RowVerdict::Refused(plugin, rejection) = verdict {
                    tally.add(*plugin, rejection);
                }
            }
            let names = ["a", "b", "c"];
            let (counted, expected) = (verdicts.tally(), tally.diagnosis(4, &names));
            assert_eq!(counted.diagnosis(4, &names), expected, "turn {turn}");
            let fit = |row: &usize| matches!(expected_rows[*row], RowVerdict::Fits(_));
            let fit: Vec<usize> = (0..4).filter(fit).collect();
            assert_eq!(verdicts.feasible().collect::<Vec<_>>(), fit);
            assert_eq!(verdicts.fitting(), fit.len());
            let might = |row: &NodeIndex| match &expected_rows[row.row()] {
                RowVerdict::Refused(_, rejection) => rejection.code == Code::Unschedulable,
                _ => false,
            };
            let helped: Vec<NodeIndex> = (0..4).map(NodeIndex).filter(might).collect();
            assert_eq!(verdicts.helpable(), helped);
        }
        assert!(verdicts.kinds.len() <= 4, "places are used again");
        assert_eq!(verdicts.get(4), None);
    }

    #[test]
    fn appended_parts_equal_the_whole() {
        // Kinds in another order in each part, one that no row uses any more, and one that occurs in one part
        // only.
        let mut first = Verdicts::absent(5);
        let cases = [
            refused(1, "cpu"),
            RowVerdict::Fits(None),
            refused(2, "memory"),
            RowVerdict::Absent,
            RowVerdict::Fits(Some(NumaMask(0b01))),
        ];
        let mut second = Verdicts::absent(5);
        second.set(0, refused(3, "passing"));
        let mut whole = Verdicts::absent(10);
        for (row, verdict) in cases.iter().enumerate() {
            first.set(row, verdict.clone());
            second.set(4 - row, verdict.clone());
            whole.set(row, verdict.clone());
            whole.set(9 - row, verdict.clone());
        }
        second.set(4, refused(4, "disk"));
        whole.set(9, refused(4, "disk"));
        first.append(second);
        assert_eq!(first.len(), 10);
        for row in 0..10 {
            assert_eq!(first.get(row), whole.get(row), "row {row}");
        }
        let names = ["0", "1", "2", "3", "4"];
        let diagnosis = |verdicts: &Verdicts| verdicts.tally().diagnosis(10, &names);
        assert_eq!(diagnosis(&first), diagnosis(&whole));
        assert_eq!(first.fitting(), whole.fitting());
        // Appended rows can be replaced like any other.
        for row in 0..10 {
            first.set(row, RowVerdict::Absent);
        }
        assert_eq!(diagnosis(&first), diagnosis(&Verdicts::absent(10)));
        assert_eq!(first.fitting(), 0);
    }
}
