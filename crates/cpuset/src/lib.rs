//! Sets of CPU numbers, and lists of them as Linux and Koordinator write them: `0-5,8`.

use std::fmt;
use std::str::FromStr;

/// Error for a text that is not a CPU list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "CPU list {text:?}: part {part:?} is not a number or a rising range up to {}",
    CpuSet::MAX
)]
pub struct CpuListError {
    /// The whole text.
    pub text: String,
    /// The offending part.
    pub part: String,
}

/// A set of the numbers of CPUs or NUMA nodes, one bit each.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct CpuSet {
    /// Bit `i` of word `w` is CPU `64 * w + i`. Never ends in a zero word, so that equal sets have
    /// equal words.
    words: Vec<u64>,
}

impl CpuSet {
    /// The largest number that can be a member: kernels are built for at most 8192 CPUs (`NR_CPUS` of x86-64).
    pub const MAX: u32 = 8191;

    /// Returns the empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self { words: Vec::new() }
    }

    /// Adds `cpu`; numbers above [`CpuSet::MAX`] are ignored.
    #[inline]
    pub fn insert(&mut self, cpu: u32) {
        if cpu > Self::MAX {
            return;
        }
        let word = cpu as usize / 64;
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (cpu % 64);
    }

    /// Removes `cpu`.
    pub fn remove(&mut self, cpu: u32) {
        if let Some(word) = self.words.get_mut(cpu as usize / 64) {
            *word &= !(1 << (cpu % 64));
            self.trim();
        }
    }

    /// Returns true if `cpu` is a member.
    #[must_use]
    #[inline]
    pub fn contains(&self, cpu: u32) -> bool {
        let word = self.words.get(cpu as usize / 64);
        word.is_some_and(|word| word & (1 << (cpu % 64)) != 0)
    }

    /// Returns the number of members.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// Returns true if the set has no member.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Returns an iterator over the members in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.words.iter().zip(0u32..).flat_map(|(word, at)| {
            let bits = (0..64).filter(move |bit| word & (1 << bit) != 0);
            bits.map(move |bit| at * 64 + bit)
        })
    }

    /// Adds every member of `other`.
    pub fn add(&mut self, other: &Self) {
        if self.words.len() < other.words.len() {
            self.words.resize(other.words.len(), 0);
        }
        for (word, more) in self.words.iter_mut().zip(&other.words) {
            *word |= more;
        }
    }

    /// Removes every member of `other`.
    pub fn subtract(&mut self, other: &Self) {
        for (word, less) in self.words.iter_mut().zip(&other.words) {
            *word &= !less;
        }
        self.trim();
    }

    /// Intersects this set with `other` in place: removes every member that is not in `other`.
    pub fn keep(&mut self, other: &Self) {
        self.words.truncate(other.words.len());
        for (word, kept) in self.words.iter_mut().zip(&other.words) {
            *word &= kept;
        }
        self.trim();
    }

    /// Returns the set of numbers that are in `self` or in `other`.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let mut out = self.clone();
        out.add(other);
        out
    }

    /// Returns the set of numbers that are in both `self` and `other`.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let mut out = self.clone();
        out.keep(other);
        out
    }

    /// Returns the members of `self` that are not in `other`.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        let mut out = self.clone();
        out.subtract(other);
        out
    }

    /// Returns true if the sets have no member in common.
    #[must_use]
    pub fn is_disjoint(&self, other: &Self) -> bool {
        let mut pairs = self.words.iter().zip(&other.words);
        pairs.all(|(a, b)| a & b == 0)
    }

    /// Returns true if every member of `self` is in `other`.
    #[must_use]
    pub fn is_subset(&self, other: &Self) -> bool {
        self.words.len() <= other.words.len()
            && self
                .words
                .iter()
                .zip(&other.words)
                .all(|(a, b)| a & !b == 0)
    }

    /// Parses a list as the kernel parses one that is written to its files: like [`CpuSet::from_str`], and a
    /// range can have a stride, such as `0-7:2/4` for the first two CPUs of every four.
    ///
    /// # Errors
    /// Returns the first part that is neither a number nor a valid range.
    pub fn from_kernel_list(text: &str) -> Result<Self, CpuListError> {
        Self::parse(text, true)
    }

    /// Parses a comma-separated list of numbers and ranges, which may have strides if `allows_strides`.
    fn parse(text: &str, allows_strides: bool) -> Result<Self, CpuListError> {
        let mut set = Self::new();
        if text.trim().is_empty() {
            return Ok(set);
        }
        for part in text.split(',') {
            let stride = part.split_once(':').filter(|_| allows_strides);
            let (range, stride) = stride.unwrap_or((part, "1/1"));
            let inserted = set.insert_part(range.trim(), stride.trim());
            inserted.ok_or_else(|| CpuListError {
                text: text.to_owned(),
                part: part.to_owned(),
            })?;
        }
        Ok(set)
    }

    /// Adds the CPUs of one part of a list. `stride` has the form `used/group`: of every `group` CPUs in `range`, the
    /// first `used` are added. Returns `None` if the part is invalid.
    fn insert_part(&mut self, range: &str, stride: &str) -> Option<()> {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (number(first)?, number(last)?);
        let (used, group) = stride.split_once('/')?;
        let (used, group) = (number(used)?, number(group)?);
        if first > last || used > group || group == 0 {
            return None;
        }
        if used == group {
            self.insert_range(first, last);
        } else if used > 0 {
            for first in (first..=last).step_by(group as usize) {
                self.insert_range(first, last.min(first + used - 1));
            }
        }
        Some(())
    }

    /// Adds the numbers `first` to `last`, both at most [`CpuSet::MAX`]. Works a word at a time, so the cost
    /// does not depend on the length of the range.
    fn insert_range(&mut self, first: u32, last: u32) {
        let (low, high) = (first as usize / 64, last as usize / 64);
        if high >= self.words.len() {
            self.words.resize(high + 1, 0);
        }
        for (at, word) in self.words[low..=high].iter_mut().enumerate() {
            let from = if at == 0 { first % 64 } else { 0 };
            let to = if at == high - low { last % 64 } else { 63 };
            *word |= (u64::MAX << from) & (u64::MAX >> (63 - to));
        }
    }

    fn trim(&mut self) {
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        let mut out = Self::new();
        for cpu in cpus {
            out.insert(cpu);
        }
        out
    }
}

impl FromStr for CpuSet {
    type Err = CpuListError;

    /// Parses a list such as `0-5,8`. Blanks around parts are allowed; the empty text is the empty set.
    fn from_str(text: &str) -> Result<Self, CpuListError> {
        Self::parse(text, false)
    }
}

/// Parses decimal digits. Returns `None` for other text and for numbers above [`CpuSet::MAX`].
fn number(digits: &str) -> Option<u32> {
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.parse().ok().filter(|number| *number <= CpuSet::MAX);
    number.filter(|_| is_number)
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut members = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = members.next() {
            let mut last = first;
            while let Some(next) = members.next_if(|next| *next == last + 1) {
                last = next;
            }
            write!(f, "{separator}{first}")?;
            if last > first {
                write!(f, "-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuSet({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn set(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    #[test]
    fn lists_parse_and_print_ranges() {
        for (text, printed) in [
            ("", ""),
            ("0", "0"),
            ("0-3,8", "0-3,8"),
            ("1,3,5", "1,3,5"),
            ("63-64,127-129,8191", "63-64,127-129,8191"),
            (" 1,0\n", "0-1"),
            ("3,1-2, 8", "1-3,8"),
            ("3,1,2,0-1", "0-3"),
            (" 1, 3 ", "1,3"),
            ("0-127", "0-127"),
            ("5-200,64-70", "5-200"),
        ] {
            assert_eq!(set(text).to_string(), printed, "{text}");
            assert_eq!(CpuSet::from_kernel_list(text), Ok(set(text)), "{text}");
        }
        let malformed = [
            "a", "3-1", "2-1", "1,,2", "-1", "1-", "0-", "99999", "99999999", "8192", "0-8192",
            "1 2", "+1", "0-3:1", "0-3:1/0", "0-3:2/1", "0-3:/", "0 - 1", ",",
        ];
        for text in malformed {
            let error = text.parse::<CpuSet>().unwrap_err();
            assert_eq!(error.text, text);
            assert_eq!(CpuSet::from_kernel_list(text), Err(error), "{text}");
        }
        let error = "0,3-1".parse::<CpuSet>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "CPU list \"0,3-1\": part \"3-1\" is not a number or a rising range up to 8191"
        );
    }

    #[test]
    fn only_kernel_lists_accept_strides() {
        for (text, printed) in [
            ("0-7:2/4", "0-1,4-5"),
            ("1-10:1/3,20", "1,4,7,10,20"),
            ("0-8:3/4", "0-2,4-6,8"),
            ("0-7:4/4", "0-7"),
            ("0-7:0/4", ""),
        ] {
            let read = CpuSet::from_kernel_list(text).unwrap();
            assert_eq!(read.to_string(), printed, "{text}");
            assert!(text.parse::<CpuSet>().is_err(), "{text}");
        }
    }

    /// Annotations come from users and may have 256 KiB, so a long list must not take much memory.
    #[test]
    fn long_range_list_parses_in_bounded_memory() {
        let text = vec!["0-8191"; 40_000].join(",");
        assert_eq!(set(&text).len(), 8192);
        assert_eq!(set(&text).words.len(), 128);
    }

    #[test]
    fn algebra() {
        let (a, b) = (set("0-3,64"), set("2-5"));
        assert_eq!(a.union(&b).to_string(), "0-5,64");
        assert_eq!(a.intersection(&b).to_string(), "2-3");
        assert_eq!(a.difference(&b).to_string(), "0-1,64");
        assert_eq!(a.len(), 5);
        assert!(!a.is_subset(&b) && a.intersection(&b).is_subset(&b));
        let mut c = a.clone();
        c.remove(64);
        assert_eq!(c, set("0-3"));
        c.insert(CpuSet::MAX + 1);
        assert_eq!(c, set("0-3"));
        let (a, b) = (set("0-70"), set("64-80"));
        assert_eq!(a.intersection(&b).to_string(), "64-70");
        assert_eq!(a.difference(&b), set("0-63"));
        assert!(set("65").is_subset(&b) && !a.is_subset(&b) && set("0").is_disjoint(&b));
    }

    proptest! {
        #[test]
        fn printed_set_roundtrips(cpus in prop::collection::vec(0..=CpuSet::MAX, 0..60)) {
            let cpus: CpuSet = cpus.into_iter().collect();
            prop_assert_eq!(set(&cpus.to_string()), cpus);
        }

        #[test]
        fn ranges_have_the_numbers_within(first in 0..=CpuSet::MAX, last in 0..=CpuSet::MAX) {
            let expected: CpuSet = (first..=last).collect();
            prop_assert_eq!(format!("{first}-{last}").parse().ok(), (first <= last).then_some(expected));
        }

        #[test]
        fn sets_behave_like_sets(a in prop::collection::btree_set(0u32..200, 0..40),
                                 b in prop::collection::btree_set(0u32..200, 0..40)) {
            let collect = |set: &mut dyn Iterator<Item = &u32>| set.copied().collect::<CpuSet>();
            let [x, y] = [&a, &b].map(|set| collect(&mut set.iter()));
            prop_assert_eq!(x.intersection(&y), collect(&mut a.intersection(&b)));
            prop_assert_eq!(x.difference(&y), collect(&mut a.difference(&b)));
            prop_assert_eq!(x.union(&y), collect(&mut a.union(&b)));
            prop_assert_eq!(x.is_subset(&y), a.is_subset(&b));
            prop_assert_eq!(x.is_disjoint(&y), a.is_disjoint(&b));
            prop_assert_eq!(x.iter().collect::<BTreeSet<_>>(), a);
        }
    }
}
