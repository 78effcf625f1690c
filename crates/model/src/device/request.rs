//! Valid combinations of device resources in a pod's requests, and their conversion.

use super::units::{DeviceResource as R, Units};

/// Error for a request that no device can satisfy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The amount is more than one device but not a whole number of devices.
    #[error("invalid resource unit {resource}: {amount}")]
    Unit {
        /// The resource.
        resource: &'static str,
        /// Requested amount.
        amount: String,
    },
    /// The resources or their amounts cannot be combined.
    #[error("invalid resource device requests: [{}]", .0.join(" "))]
    Mixture(Vec<&'static str>),
}

#[derive(Clone, Copy)]
enum MixtureRule {
    Any,
    Percent,
    Shared,
    SharedNpu,
}

const MIXTURES: [(&[R], MixtureRule); 17] = [
    (&[R::NvidiaGpu], MixtureRule::Any),
    (&[R::AmdGpu], MixtureRule::Any),
    (&[R::Dcu], MixtureRule::Any),
    (&[R::Gpu], MixtureRule::Any),
    (&[R::GpuMemory], MixtureRule::Percent),
    (&[R::GpuMemoryRatio], MixtureRule::Percent),
    (&[R::GpuCore, R::GpuMemory], MixtureRule::Percent),
    (&[R::GpuCore, R::GpuMemoryRatio], MixtureRule::Percent),
    (&[R::NpuCore, R::GpuMemoryRatio], MixtureRule::Percent),
    (&[R::GpuShared, R::GpuMemory], MixtureRule::Shared),
    (&[R::GpuShared, R::GpuMemoryRatio], MixtureRule::Shared),
    (
        &[R::GpuShared, R::GpuCore, R::GpuMemory],
        MixtureRule::Shared,
    ),
    (
        &[R::GpuShared, R::GpuCore, R::GpuMemoryRatio],
        MixtureRule::Shared,
    ),
    (
        &[R::GpuShared, R::NpuCore, R::NpuCpu, R::GpuMemory],
        MixtureRule::SharedNpu,
    ),
    (
        &[
            R::GpuShared,
            R::NpuCore,
            R::NpuCpu,
            R::NpuDvpp,
            R::GpuMemory,
        ],
        MixtureRule::SharedNpu,
    ),
    (&[R::Fpga], MixtureRule::Any),
    (&[R::Rdma], MixtureRule::Any),
];

/// Checks the requests for one device type (without zero amounts) and converts them to the units of
/// allocations: whole cards become percent of core and memory.
///
/// # Errors
/// The combination or an amount is invalid.
pub fn convert(requests: &Units) -> Result<Units, RequestError> {
    for resource in [R::Gpu, R::Fpga, R::Rdma] {
        let amount = requests.get(resource);
        if !is_part_or_whole(amount) {
            return Err(RequestError::Unit {
                resource: resource.name(),
                amount: resource.quantity(amount).to_string(),
            });
        }
    }
    let mixture = MIXTURES.iter().find(|(resources, _)| {
        let set: Units = resources.iter().map(|resource| (*resource, 1)).collect();
        set.listed() == requests.listed()
    });
    let sound = requests.is_non_negative()
        && mixture.is_some_and(|(_, rule)| matches_rule(requests, *rule));
    if !sound {
        let mut names: Vec<&str> = requests
            .iter()
            .map(|(resource, _)| resource.name())
            .collect();
        names.sort_unstable();
        return Err(RequestError::Mixture(names));
    }
    let share = |amount: i64| Units::from_iter([(R::GpuCore, amount), (R::GpuMemoryRatio, amount)]);
    for cards in [R::NvidiaGpu, R::AmdGpu, R::Dcu] {
        if requests.lists(cards) {
            return Ok(share(requests.get(cards).saturating_mul(100)));
        }
    }
    if requests.lists(R::Gpu) {
        return Ok(share(requests.get(R::Gpu)));
    }
    Ok(*requests)
}

fn matches_rule(requests: &Units, rule: MixtureRule) -> bool {
    let shares = [R::GpuCore, R::GpuMemoryRatio].map(|resource| requests.get(resource));
    let shared = requests.get(R::GpuShared);
    match rule {
        MixtureRule::Any => true,
        MixtureRule::Percent => shares.into_iter().all(is_part_or_whole),
        MixtureRule::Shared => {
            let part = |amount: i64| amount % shared == 0 && amount / shared <= 100;
            shared > 0 && shares.into_iter().all(part)
        }
        MixtureRule::SharedNpu => shared <= 1 && requests.get(R::NpuDvpp) <= 100,
    }
}

/// Returns true for a part of one device (in percent) and for a number of whole ones.
fn is_part_or_whole(amount: i64) -> bool {
    amount <= 100 || amount % 100 == 0
}

/// Returns the number of GPUs of a converted request, the amounts of each, and true if GPUs are shared.
#[must_use]
pub(super) fn per_gpu(requests: &Units) -> (usize, Units, bool) {
    let ratio = requests.get(R::GpuMemoryRatio);
    let shared = requests.get(R::GpuShared);
    let count = if shared > 0 {
        shared
    } else if ratio > 100 && ratio % 100 == 0 {
        ratio / 100
    } else {
        1
    };
    let mut each = Units::NONE;
    for resource in [R::GpuCore, R::NpuCore, R::NpuCpu, R::NpuDvpp] {
        if requests.lists(resource) {
            each.set(resource, requests.get(resource) / count);
        }
    }
    let mut shares = false;
    if requests.lists(R::GpuMemoryRatio) {
        shares = ratio / count < 100;
        each.set(R::GpuMemoryRatio, ratio / count);
    } else if requests.lists(R::GpuMemory) {
        shares = true;
        each.set(R::GpuMemory, requests.get(R::GpuMemory) / count);
    }
    (usize::try_from(count).unwrap_or(usize::MAX), each, shares)
}
