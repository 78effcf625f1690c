//! Division of one amount among siblings. One resource at a time, integers only.

/// Claim of one quota on one resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ShareClaim {
    /// Request, at most the quota's maximum.
    pub request: i64,
    /// Minimum, scaled to the available amount.
    pub min: i64,
    /// Guaranteed usage; 0 unless usage is guaranteed.
    pub guaranteed: i64,
    /// Weight in the division of amounts that are not guaranteed to any quota.
    pub weight: i64,
    /// True if other quotas may use the part of the minimum that is not requested.
    pub lendable: bool,
}

/// Divides `total` among `claims`, which are in order of name.
///
/// Each claim gets its guaranteed part: the smaller of it and the request if the quota lends, otherwise all
/// of it. The rest is divided among claims with larger requests, by weight, rounded down; units lost by
/// rounding go to the largest remainders and, among equals, to the first name. Amounts above a request are
/// divided again. The guaranteed parts are granted even if together they exceed `total`.
#[must_use]
pub fn divide(total: i64, claims: &[ShareClaim]) -> Vec<i64> {
    let mut remaining = i128::from(total);
    let mut hungry = Vec::new();
    let mut out: Vec<i64> = Vec::with_capacity(claims.len());
    for (index, claim) in claims.iter().enumerate() {
        let floor = claim.min.max(claim.guaranteed);
        let share = if claim.request > floor {
            hungry.push(index);
            floor
        } else if claim.lendable {
            claim.request
        } else {
            floor
        };
        remaining -= i128::from(share);
        out.push(share);
    }
    let mut remainders: Vec<(i128, usize)> = Vec::new();
    while remaining > 0 {
        let weight: i128 = hungry.iter().map(|index| weight(&claims[*index])).sum();
        if weight == 0 {
            break;
        }
        let mut units = remaining;
        remainders.clear();
        for index in &hungry {
            // Both factors are below 2^63, unless a guaranteed amount is negative.
            let product = weight_of(&claims[*index], remaining);
            units -= grant(&mut out[*index], product / weight);
            if claims[*index].weight > 0 {
                remainders.push((product % weight, *index));
            }
        }
        if units > 0 {
            remainders.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
            let lost = usize::try_from(units).unwrap_or(usize::MAX);
            for (_, index) in remainders.iter().take(lost) {
                grant(&mut out[*index], 1);
            }
        }
        remaining = 0;
        hungry.retain(|index| {
            let (share, request) = (&mut out[*index], claims[*index].request);
            if *share < request {
                return true;
            }
            remaining += i128::from(*share) - i128::from(request);
            *share = request;
            false
        });
    }
    out
}

fn weight(claim: &ShareClaim) -> i128 {
    i128::from(claim.weight.max(0))
}

fn weight_of(claim: &ShareClaim, left: i128) -> i128 {
    weight(claim).saturating_mul(left)
}

/// Adds `amount`, which is at most the divided total.
fn grant(share: &mut i64, amount: i128) -> i128 {
    *share = share.saturating_add(i64::try_from(amount).unwrap_or(i64::MAX));
    amount
}

/// Returns a minimum scaled down for a `total` below `sum`, the minimums of all siblings: the proportional
/// part of `total`, rounded down.
#[must_use]
pub fn scale_min(total: i64, min: i64, sum: i128) -> i64 {
    if total <= 0 || sum <= 0 || min <= 0 {
        return 0;
    }
    let scaled = i128::from(total) * i128::from(min) / sum;
    i64::try_from(scaled).unwrap_or(i64::MAX)
}
