//! GPU partitions: sets of GPUs that are wired together, and their selection.

use super::Quirks;
use super::need::GpuNeed;
use super::units::bit;
use koord_api::extension;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// Set of GPUs that are wired together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// Minors, in the order of the table.
    pub minors: Vec<u8>,
    /// Minors as a bit set.
    pub set: u64,
    /// Bandwidth between the GPUs, if known.
    pub bandwidth: Option<i64>,
    /// Score; higher is better.
    pub score: i64,
}

/// Partitions of a node by number of GPUs, those with the best score first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PartitionTable(BTreeMap<usize, Vec<Partition>>);

static HOPPER: LazyLock<PartitionTable> = LazyLock::new(|| {
    let groups = [1_u8, 2, 4, 8].map(|size| {
        let starts = (0..8).step_by(usize::from(size));
        let all = starts.map(|start| Partition::new((start..start + size).collect(), None, 1));
        (usize::from(size), all.collect())
    });
    PartitionTable(groups.into())
});

impl Partition {
    fn new(minors: Vec<u8>, bandwidth: Option<i64>, score: i64) -> Self {
        Self {
            set: minors.iter().fold(0, |set, minor| set | bit(*minor)),
            minors,
            bandwidth,
            score,
        }
    }
}

impl PartitionTable {
    /// Parses the annotation of a Device object. Also returns descriptions of the partitions that were
    /// dropped because they do not have the number of GPUs under which they are listed.
    ///
    /// # Errors
    /// The reason why the annotation is invalid.
    pub fn parse(text: &str) -> Result<(Self, Vec<String>), String> {
        let table: extension::GpuPartitionTable =
            serde_json::from_str(text).map_err(|error| error.to_string())?;
        let mut out = BTreeMap::new();
        let mut left_out = Vec::new();
        for (count, partitions) in table {
            let count: usize = count
                .parse()
                .map_err(|_| format!("{count:?} is not a number of GPUs"))?;
            let mut list = Vec::new();
            for partition in partitions {
                let minor = |minor: &i32| {
                    let number = u8::try_from(*minor).ok().filter(|number| *number < 64);
                    number.ok_or_else(|| format!("minor {minor} is not within 0..=63"))
                };
                let minors = partition.minors.iter().map(minor);
                let bandwidth = partition
                    .ring_bus_bandwidth
                    .map(|quantity| quantity.value());
                let minors: Vec<u8> = minors.collect::<Result<_, _>>()?;
                let partition = Partition::new(minors, bandwidth, partition.allocation_score);
                let distinct = usize::try_from(partition.set.count_ones()).unwrap_or_default();
                if distinct == count && partition.minors.len() == count {
                    list.push(partition);
                } else {
                    left_out.push(format!("{:?} are not {count} GPUs", partition.minors));
                }
            }
            list.sort_by_key(|partition| std::cmp::Reverse(partition.score));
            out.insert(count, list);
        }
        Ok((Self(out), left_out))
    }

    /// Returns the table of a GPU model that is wired in only one way; `None` for other models.
    #[must_use]
    pub fn for_model(vendor: &str, model: &str) -> Option<&'static Self> {
        let nvidia = matches!(vendor, "" | "nvidia");
        (nvidia && matches!(model, "H100" | "H800" | "H20")).then(|| &*HOPPER)
    }

    /// Returns true if the table has partitions of `count` GPUs.
    pub(super) fn covers(&self, count: usize) -> bool {
        self.0.get(&count).is_some_and(|list| !list.is_empty())
    }

    /// Selects a partition whose GPUs are all in `fit` and none in `busy`.
    pub(super) fn choose(
        &self,
        need: &GpuNeed,
        fit: u64,
        busy: u64,
        quirks: Quirks,
    ) -> Option<&Partition> {
        let list = self.0.get(&need.count)?;
        let mut feasible = Vec::new();
        for bucket in buckets(list, quirks) {
            let fits = |partition: &&Partition| {
                let wide = need.bandwidth.is_none_or(|wanted| {
                    partition.bandwidth.is_some_and(|offered| wanted <= offered)
                });
                partition.set & busy == 0 && partition.set & !fit == 0 && wide
            };
            feasible.extend(bucket.iter().filter(fits));
            if !feasible.is_empty() || need.best_partition {
                break;
            }
        }
        // The first partition that preserves the most value for later requests.
        let mut best: Option<(i64, &Partition)> = None;
        for partition in feasible {
            let value = self.remaining_value(need.count, busy | partition.set, quirks);
            if best.is_none_or(|(most, _)| value > most) {
                best = Some((value, partition));
            }
        }
        best.map(|(_, partition)| partition)
    }

    /// Returns the value of the larger partitions that stay whole when `busy` is in use.
    fn remaining_value(&self, count: usize, busy: u64, quirks: Quirks) -> i64 {
        let sizes = [(8, 10_000), (4, 100), (2, 1)];
        let larger = sizes.into_iter().filter(|(size, _)| *size >= count);
        let worth = larger.filter_map(|(size, weight)| {
            let first = buckets(self.0.get(&size)?, quirks).next()?;
            let intact = first.iter().filter(|partition| partition.set & busy == 0);
            let scores = intact.map(|partition| partition.score.saturating_mul(weight));
            Some(scores.fold(0_i64, i64::saturating_add))
        });
        worth.fold(0, i64::saturating_add)
    }
}

/// Groups partitions of equal score, those with the preferred score first.
fn buckets(list: &[Partition], quirks: Quirks) -> impl Iterator<Item = &[Partition]> {
    let mut buckets: Vec<&[Partition]> = list.chunk_by(|a, b| a.score == b.score).collect();
    if quirks.worst_partition_first {
        buckets.reverse();
    }
    buckets.into_iter()
}
