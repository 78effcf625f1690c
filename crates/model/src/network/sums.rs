//! Numbers of pods that a domain can hold, if they must be multiples in it or below.

/// Set of numbers from 0 to a limit; 0 is always included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CountSet {
    /// All numbers up to this one.
    UpTo(usize),
    /// One bit per number.
    Some(Vec<u64>),
}

impl CountSet {
    /// Returns the multiples of `step` up to the smaller of `most` and `limit`.
    pub(super) fn multiples(step: usize, most: usize, limit: usize) -> Self {
        let most = most.min(limit);
        if step <= 1 {
            return Self::UpTo(most);
        }
        let mut bits = empty(limit);
        (0..=most).step_by(step).for_each(|n| set(&mut bits, n));
        Self::Some(bits)
    }

    pub(super) fn has(&self, number: usize) -> bool {
        match self {
            Self::UpTo(most) => number <= *most,
            Self::Some(bits) => bits
                .get(number / 64)
                .is_some_and(|word| word & (1 << (number % 64)) != 0),
        }
    }

    /// Returns the largest number in the set that is at most `limit` and for which `allowed` returns true.
    pub(super) fn largest(&self, limit: usize, allowed: impl Fn(usize) -> bool) -> Option<usize> {
        let limit = match self {
            Self::UpTo(most) => limit.min(*most),
            Self::Some(_) => limit,
        };
        (0..=limit).rev().find(|n| self.has(*n) && allowed(*n))
    }

    /// Returns all sums, up to `limit`, of a number in this set and one in `other`.
    pub(super) fn plus(&self, other: &Self, limit: usize) -> Self {
        if let (Self::UpTo(a), Self::UpTo(b)) = (self, other) {
            return Self::UpTo(a.saturating_add(*b).min(limit));
        }
        let (base, steps) = (self.bits(limit), other);
        let mut out = empty(limit);
        for step in (0..=limit).filter(|n| steps.has(*n)) {
            or_shifted(&mut out, &base, step);
        }
        keep_up_to(&mut out, limit);
        Self::Some(out)
    }

    /// Keeps only multiples of `step`.
    pub(super) fn only(self, step: usize, limit: usize) -> Self {
        if step <= 1 {
            return self;
        }
        let mut out = empty(limit);
        for n in (0..=limit).step_by(step).filter(|n| self.has(*n)) {
            set(&mut out, n);
        }
        Self::Some(out)
    }

    fn bits(&self, limit: usize) -> Vec<u64> {
        match self {
            Self::Some(bits) => bits.clone(),
            Self::UpTo(most) => {
                let mut bits = empty(limit);
                (0..=(*most).min(limit)).for_each(|n| set(&mut bits, n));
                bits
            }
        }
    }
}

fn empty(limit: usize) -> Vec<u64> {
    vec![0; limit / 64 + 1]
}

fn set(bits: &mut [u64], number: usize) {
    if let Some(word) = bits.get_mut(number / 64) {
        *word |= 1 << (number % 64);
    }
}

fn keep_up_to(bits: &mut [u64], limit: usize) {
    if let Some(last) = bits.get_mut(limit / 64) {
        *last &= u64::MAX >> (63 - limit % 64);
    }
}

/// Adds to `out` all numbers of `bits`, each increased by `by`.
fn or_shifted(out: &mut [u64], bits: &[u64], by: usize) {
    let (words, shift) = (by / 64, by % 64);
    for (at, word) in bits.iter().enumerate() {
        if let Some(low) = out.get_mut(at + words) {
            *low |= word << shift;
        }
        if shift > 0
            && let Some(high) = out.get_mut(at + words + 1)
        {
            *high |= word >> (64 - shift);
        }
    }
}
