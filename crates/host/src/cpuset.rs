//! Sets of CPU (or NUMA node) numbers in the kernel's list format.

use crate::error::Malformed;
use std::fmt;
use std::str::FromStr;

/// A set of CPU numbers, `0..=4095`.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct CpuSet {
    /// Bit i of word w is CPU 64·w + i. No trailing zero words, so equality is set equality.
    words: Vec<u64>,
}

impl CpuSet {
    /// Largest number that can be a member; more than any kernel is built for.
    pub const MAX_CPU: u32 = 4095;

    /// The empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `cpu`; numbers above [`CpuSet::MAX_CPU`] are ignored.
    pub fn insert(&mut self, cpu: u32) {
        if cpu > Self::MAX_CPU {
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
        }
        self.trim();
    }

    /// Whether `cpu` is a member.
    #[must_use]
    pub fn contains(&self, cpu: u32) -> bool {
        self.words
            .get(cpu as usize / 64)
            .is_some_and(|word| word & (1 << (cpu % 64)) != 0)
    }

    /// How many members.
    #[must_use]
    pub fn len(&self) -> usize {
        self.words
            .iter()
            .map(|word| word.count_ones() as usize)
            .sum()
    }

    /// Whether there is no member.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The members, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.words.iter().enumerate().flat_map(|(index, &word)| {
            let base = u32::try_from(index * 64).unwrap_or(0);
            (0..64)
                .filter(move |bit| word & (1 << bit) != 0)
                .map(move |bit| base + bit)
        })
    }

    /// Members of either.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        self.zip(other, |a, b| a | b)
    }

    /// Members of both.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        self.zip(other, |a, b| a & b)
    }

    /// Members of `self` that are not in `other`.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        self.zip(other, |a, b| a & !b)
    }

    /// Whether every member is in `other`.
    #[must_use]
    pub fn is_subset(&self, other: &Self) -> bool {
        self.difference(other).is_empty()
    }

    fn zip(&self, other: &Self, op: impl Fn(u64, u64) -> u64) -> Self {
        let len = self.words.len().max(other.words.len());
        let at = |words: &[u64], i| words.get(i).copied().unwrap_or(0);
        let words = (0..len)
            .map(|i| op(at(&self.words, i), at(&other.words, i)))
            .collect();
        let mut set = Self { words };
        set.trim();
        set
    }

    fn trim(&mut self) {
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        let mut set = Self::new();
        for cpu in cpus {
            set.insert(cpu);
        }
        set
    }
}

impl FromStr for CpuSet {
    type Err = Malformed;

    /// Reads `0-3,8,10-11`; the empty string is the empty set. Also takes the kernel's
    /// `first-last:used/group` form, since the kernel does.
    fn from_str(list: &str) -> Result<Self, Malformed> {
        let bad = || Malformed::new("a CPU list such as \"0-3,8\"", list);
        let number = |text: &str| -> Result<u32, Malformed> {
            if !text.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(bad());
            }
            text.parse()
                .ok()
                .filter(|cpu| *cpu <= Self::MAX_CPU)
                .ok_or_else(bad)
        };
        let mut set = Self::new();
        let trimmed = list.trim();
        if trimmed.is_empty() {
            return Ok(set);
        }
        for item in trimmed.split(',') {
            let (range, stride) = match item.split_once(':') {
                Some((range, stride)) => (range, Some(stride)),
                None => (item, None),
            };
            let (first, last) = match range.split_once('-') {
                Some((first, last)) => (number(first)?, number(last)?),
                None => (number(range)?, number(range)?),
            };
            if first > last {
                return Err(bad());
            }
            let (used, group) = match stride {
                None => (1, 1),
                Some(stride) => {
                    let (used, group) = stride.split_once('/').ok_or_else(bad)?;
                    (number(used)?, number(group)?)
                }
            };
            if group == 0 || used > group {
                return Err(bad());
            }
            for cpu in (first..=last).filter(|cpu| (cpu - first) % group < used) {
                set.insert(cpu);
            }
        }
        Ok(set)
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if_eq(&(last + 1)) {
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
    use crate::damage::survives;
    use proptest::prelude::*;

    #[test]
    fn list_format() {
        for (text, printed) in [
            ("0-3,8", "0-3,8"),
            ("", ""),
            (" 1,0\n", "0-1"),
            ("3,1,2,7", "1-3,7"),
            ("0-7:2/4", "0-1,4-5"),
        ] {
            assert_eq!(
                text.parse::<CpuSet>().unwrap().to_string(),
                printed,
                "{text}"
            );
        }
        for bad in [
            "a", "3-1", "1,,2", "-1", "0-", "99999", "1 2", "0-3:1", "0-3:1/0", "+1",
        ] {
            assert!(bad.parse::<CpuSet>().is_err(), "{bad}");
        }
    }

    #[test]
    fn algebra() {
        let a: CpuSet = "0-3,64".parse().unwrap();
        let b: CpuSet = "2-5".parse().unwrap();
        assert_eq!(a.union(&b).to_string(), "0-5,64");
        assert_eq!(a.intersection(&b).to_string(), "2-3");
        assert_eq!(a.difference(&b).to_string(), "0-1,64");
        assert_eq!(a.len(), 5);
        assert!(!a.is_subset(&b) && a.intersection(&b).is_subset(&b));
        let mut c = a.clone();
        c.remove(64);
        assert_eq!(c, "0-3".parse().unwrap());
    }

    proptest! {
        #[test]
        fn printed_sets_read_back(cpus in proptest::collection::vec(0u32..4096, 0..60)) {
            let set: CpuSet = cpus.into_iter().collect();
            prop_assert_eq!(set.to_string().parse::<CpuSet>().unwrap(), set);
        }
    }

    #[test]
    fn any_text_is_handled() {
        survives("0-3,8,10-11\n", |text| text.parse::<CpuSet>().is_ok());
    }
}
