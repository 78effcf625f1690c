//! Resource names as dense ids, and amounts as `i64` in one fixed unit per resource.
//!
//! Units: `cpu` in milli-cores; every other resource in its own unit (bytes, pods, devices;
//! `kubernetes.io/batch-cpu` and `kubernetes.io/mid-cpu` are milli-cores already).

use koord_api::quantity::Quantity;
use koord_api::requests::Total;
use koord_api::resources::DEPRECATED;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError, RwLock};

/// Id of a resource name in one [`ResourceTable`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceId(pub u16);

impl ResourceId {
    /// Returns the id as an index into a vector of columns.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// `cpu`, in milli-cores.
pub const CPU: ResourceId = ResourceId(0);
/// `memory`, in bytes.
pub const MEMORY: ResourceId = ResourceId(1);
/// `ephemeral-storage`, in bytes.
pub const EPHEMERAL_STORAGE: ResourceId = ResourceId(2);
/// `pods`, a count.
pub const PODS: ResourceId = ResourceId(3);
/// `kubernetes.io/batch-cpu`, in milli-cores.
pub const BATCH_CPU: ResourceId = ResourceId(4);
/// `kubernetes.io/batch-memory`, in bytes.
pub const BATCH_MEMORY: ResourceId = ResourceId(5);
/// `kubernetes.io/mid-cpu`, in milli-cores.
pub const MID_CPU: ResourceId = ResourceId(6);
/// `kubernetes.io/mid-memory`, in bytes.
pub const MID_MEMORY: ResourceId = ResourceId(7);

/// Resources whose ids are the same in every table, in order of id.
const FIXED: [&str; 8] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "pods",
    koord_api::resources::BATCH_CPU,
    koord_api::resources::BATCH_MEMORY,
    koord_api::resources::MID_CPU,
    koord_api::resources::MID_MEMORY,
];

/// Returns the current name of a resource, which may be a deprecated one.
#[must_use]
pub fn canonical(name: &str) -> &str {
    DEPRECATED
        .iter()
        .find(|(old, _)| *old == name)
        .map_or(name, |(_, new)| new)
}

/// Returns the amounts of a list by their current names. If both a deprecated and a current name are listed,
/// that of the current name is used.
pub fn current<V>(list: &BTreeMap<String, V>) -> impl Iterator<Item = (&str, &V)> {
    list.iter().filter_map(|(name, amount)| {
        let current = canonical(name);
        (current == name || !list.contains_key(current)).then_some((current, amount))
    })
}

/// Resource names and their ids. The table only grows and ids are never reused, which is why names can be
/// added through a shared reference.
#[derive(Debug)]
pub struct ResourceTable(RwLock<Interned>);

#[derive(Debug, Default)]
struct Interned {
    names: Vec<Arc<str>>,
    ids: HashMap<Arc<str>, ResourceId>,
}

impl Default for ResourceTable {
    fn default() -> Self {
        Self::new()
    }
}

impl ResourceTable {
    /// Creates a table with the fixed resources.
    #[must_use]
    pub fn new() -> Self {
        let table = Self(RwLock::default());
        for name in FIXED {
            table.intern(name);
        }
        table
    }

    /// Returns the id of `name` (deprecated names count as their successor), assigned on first use.
    ///
    /// A full table (65,536 names) maps every further name to the last id.
    pub fn intern(&self, name: &str) -> ResourceId {
        if let Some(id) = self.get(name) {
            return id;
        }
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let name: Arc<str> = Arc::from(canonical(name));
        if let Some(id) = table.ids.get(&name) {
            return *id;
        }
        let Ok(number) = u16::try_from(table.names.len()) else {
            return ResourceId(u16::MAX);
        };
        let id = ResourceId(number);
        table.names.push(name.clone());
        table.ids.insert(name, id);
        id
    }

    /// Returns the id of `name`, if it has one.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<ResourceId> {
        self.read().ids.get(canonical(name)).copied()
    }

    /// Returns the name of `id`; empty for an id of another table.
    #[must_use]
    pub fn name(&self, id: ResourceId) -> Arc<str> {
        self.read()
            .names
            .get(id.index())
            .cloned()
            .unwrap_or_default()
    }

    /// Returns the number of names; every id is below this.
    #[must_use]
    pub fn len(&self) -> usize {
        self.read().names.len()
    }

    /// Returns false: the fixed resources always exist.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Interned> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Maximum amount of one resource that a single pod, node or part of a node requests or has (8 Pi). Larger
/// values in objects are invalid and count as this: a thousand of them can be added and subtracted again, and
/// the sums are exact.
pub const MOST: i64 = 1 << 53;

/// Converts `quantity` of resource `id` to the unit of the resource, rounded up, for a single pod, node or
/// part of a node: at most [`MOST`].
#[must_use]
pub fn amount(id: ResourceId, quantity: &Quantity) -> i64 {
    amount_of_many(id, quantity).clamp(-MOST, MOST)
}

/// Like [`amount`], for the total of many pods or nodes, such as a quota's limit, which is not capped.
#[must_use]
pub fn amount_of_many(id: ResourceId, quantity: &Quantity) -> i64 {
    if id == CPU {
        quantity.milli_value()
    } else {
        quantity.value()
    }
}

/// Returns `part` of `of` in percent, rounded toward zero; `None` if it does not fit `i64`, or `of` is 0.
#[inline]
#[must_use]
pub fn percent(part: i64, of: i64) -> Option<i64> {
    match part.checked_mul(100) {
        Some(hundredfold) => hundredfold.checked_div(of),
        // Several times slower, needed for more than 80 PiB.
        None => {
            let share = (i128::from(part) * 100).checked_div(i128::from(of))?;
            i64::try_from(share).ok()
        }
    }
}

/// Formats `amount` of resource `id` as a quantity: `1500m`, `2Gi`, `3`.
#[must_use]
pub fn shown(id: ResourceId, amount: i64) -> String {
    match id {
        CPU => Quantity::from_milli(amount).to_string(),
        MEMORY | EPHEMERAL_STORAGE => Quantity::from_bytes(amount).to_string(),
        _ => amount.to_string(),
    }
}

/// Resources with their amounts, sorted by id. A missing resource counts as zero.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Amounts(Vec<(ResourceId, i64)>);

impl Amounts {
    /// Creates an empty list.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the amount of `id`, zero if it is missing.
    #[inline]
    #[must_use]
    pub fn get(&self, id: ResourceId) -> i64 {
        self.position(id).map_or(0, |at| self.0[at].1)
    }

    /// Returns true if `id` is listed, even with amount zero.
    #[must_use]
    pub fn contains(&self, id: ResourceId) -> bool {
        self.position(id).is_ok()
    }

    /// Sets the amount of `id`.
    pub fn set(&mut self, id: ResourceId, amount: i64) {
        match self.position(id) {
            Ok(at) => self.0[at].1 = amount,
            Err(at) => self.0.insert(at, (id, amount)),
        }
    }

    /// Adds to the amount of `id`, saturating.
    pub fn add(&mut self, id: ResourceId, amount: i64) {
        self.set(id, self.get(id).saturating_add(amount));
    }

    /// Limits every amount to [`MOST`], as for a single pod.
    pub fn bound(&mut self) {
        for (_, amount) in &mut self.0 {
            *amount = (*amount).clamp(-MOST, MOST);
        }
    }

    /// Releases spare memory.
    pub fn shrink_to_fit(&mut self) {
        self.0.shrink_to_fit();
    }

    /// Adds every amount of `other`.
    pub fn add_all(&mut self, other: &Self) {
        for (id, amount) in other.iter() {
            self.add(id, amount);
        }
    }

    /// Raises every amount to at least that of `other`.
    pub fn max_all(&mut self, other: &Self) {
        for (id, amount) in other.iter() {
            self.set(id, self.get(id).max(amount));
        }
    }

    /// Returns the listed resources in order of id.
    pub fn iter(&self) -> impl Iterator<Item = (ResourceId, i64)> + '_ {
        self.0.iter().copied()
    }

    /// Subtracts every amount of `other`; results may be negative.
    pub fn sub_all(&mut self, other: &Self) {
        for (id, amount) in other.iter() {
            self.add(id, amount.saturating_neg());
        }
    }

    /// Returns true if every amount of `self` is at most that of `other`.
    #[must_use]
    pub fn fits_in(&self, other: &Self) -> bool {
        self.iter().all(|(id, amount)| amount <= other.get(id))
    }

    /// Returns true if nothing is listed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[inline]
    fn position(&self, id: ResourceId) -> Result<usize, usize> {
        self.0.binary_search_by_key(&id, |(id, _)| *id)
    }
}

impl Total for Amounts {
    fn add(&mut self, other: &Self) {
        self.add_all(other);
    }

    fn raise(&mut self, other: &Self) {
        self.max_all(other);
    }
}

impl FromIterator<(ResourceId, i64)> for Amounts {
    fn from_iter<I: IntoIterator<Item = (ResourceId, i64)>>(items: I) -> Self {
        let mut amounts = Self::new();
        for (id, amount) in items {
            amounts.set(id, amount);
        }
        amounts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_numbers_match_their_names() {
        let table = ResourceTable::new();
        assert_eq!(table.get("cpu"), Some(CPU));
        assert_eq!(table.get("pods"), Some(PODS));
        assert_eq!(table.get("kubernetes.io/batch-cpu"), Some(BATCH_CPU));
        assert_eq!(&*table.name(MID_MEMORY), "kubernetes.io/mid-memory");
    }

    #[test]
    fn deprecated_names_share_the_number_of_their_successor() {
        let table = ResourceTable::new();
        assert_eq!(table.intern("koordinator.sh/batch-cpu"), BATCH_CPU);
        let gpu = table.intern("kubernetes.io/gpu");
        assert_eq!(&*table.name(gpu), "koordinator.sh/gpu");
    }

    #[test]
    fn amounts_stay_sorted_and_saturate() {
        let mut amounts = Amounts::new();
        amounts.set(MEMORY, 5);
        amounts.set(CPU, 1);
        amounts.add(MEMORY, i64::MAX);
        assert_eq!(
            amounts.iter().collect::<Vec<_>>(),
            [(CPU, 1), (MEMORY, i64::MAX)]
        );
        let mut peak = Amounts::from_iter([(CPU, 7)]);
        peak.max_all(&Amounts::from_iter([(CPU, 3), (PODS, 1)]));
        assert_eq!((peak.get(CPU), peak.get(PODS)), (7, 1));
    }

    #[test]
    fn percentages_round_towards_zero_and_do_not_overflow() {
        for (part, of, expected) in [
            (1, 3, Some(33)),
            (-1, 3, Some(-33)),
            (i64::MAX, i64::MAX, Some(100)),
            (i64::MAX, 1, None),
            (i64::MIN, i64::MAX, Some(-100)),
            (1, 0, None),
            (i64::MAX, 0, None),
        ] {
            assert_eq!(percent(part, of), expected, "{part} of {of}");
        }
    }

    #[test]
    fn cpu_counts_in_milli_everything_else_rounds_up() {
        let half: Quantity = "500m".parse().unwrap();
        assert_eq!(amount(CPU, &half), 500);
        assert_eq!(amount(MEMORY, &half), 1);
    }

    #[test]
    fn huge_quantity_is_capped_except_for_sums() {
        for (text, one, many) in [
            ("8Pi", MOST, MOST),
            ("9Pi", MOST, 9 << 50),
            ("8Ei", MOST, i64::MAX),
            ("-8Ei", -MOST, -i64::MAX),
        ] {
            let quantity: Quantity = text.parse().unwrap();
            assert_eq!(amount(MEMORY, &quantity), one, "{text}");
            assert_eq!(amount_of_many(MEMORY, &quantity), many, "{text}");
        }
        let mut sum = Amounts::from_iter([(CPU, i64::MAX), (MEMORY, 7), (PODS, i64::MIN)]);
        sum.bound();
        let expected = [(CPU, MOST), (MEMORY, 7), (PODS, -MOST)];
        assert_eq!(sum, Amounts::from_iter(expected));
    }
}
