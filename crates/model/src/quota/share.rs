//! How one amount is divided among siblings. One resource at a time, integers only.

/// What one quota may claim of one resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Claim {
    /// What it asks for, its maximum observed.
    pub request: i64,
    /// What it is guaranteed, scaled to what there is.
    pub min: i64,
    /// What it keeps because it is in use already; 0 unless use is guaranteed.
    pub guaranteed: i64,
    /// Its part of what nobody is guaranteed.
    pub weight: i64,
    /// Whether others may use what it is guaranteed and does not ask for.
    pub lendable: bool,
}

/// Divides `total` among `claims`, which are in order of name.
///
/// Everyone gets the guaranteed part: the smaller of it and the request when the quota lends, else
/// all of it. What is left goes to those who ask for more, by weight, rounded down, the units lost
/// by rounding to the largest remainders and among equals to the first name. What exceeds a request
/// is divided again. The guaranteed parts are given even when together they exceed `total`.
#[must_use]
pub fn divide(total: i64, claims: &[Claim]) -> Vec<i64> {
    let mut left = i128::from(total);
    let mut hungry = Vec::new();
    let mut out: Vec<i64> = Vec::with_capacity(claims.len());
    for (at, claim) in claims.iter().enumerate() {
        let floor = claim.min.max(claim.guaranteed);
        let share = if claim.request > floor {
            hungry.push(at);
            floor
        } else if claim.lendable {
            claim.request
        } else {
            floor
        };
        left -= i128::from(share);
        out.push(share);
    }
    let mut remainders: Vec<(i128, usize)> = Vec::new();
    while left > 0 {
        let weight: i128 = hungry.iter().map(|at| weight(&claims[*at])).sum();
        if weight == 0 {
            break;
        }
        let mut units = left;
        remainders.clear();
        for at in &hungry {
            // Both factors are below 2^63, unless a guaranteed amount is negative.
            let product = weight_of(&claims[*at], left);
            units -= grant(&mut out[*at], product / weight);
            if claims[*at].weight > 0 {
                remainders.push((product % weight, *at));
            }
        }
        if units > 0 {
            remainders.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
            let lost = usize::try_from(units).unwrap_or(usize::MAX);
            for (_, at) in remainders.iter().take(lost) {
                grant(&mut out[*at], 1);
            }
        }
        left = 0;
        hungry.retain(|at| {
            let (share, request) = (&mut out[*at], claims[*at].request);
            if *share < request {
                return true;
            }
            left += i128::from(*share) - i128::from(request);
            *share = request;
            false
        });
    }
    out
}

fn weight(claim: &Claim) -> i128 {
    i128::from(claim.weight.max(0))
}

fn weight_of(claim: &Claim, left: i128) -> i128 {
    weight(claim).saturating_mul(left)
}

/// Adds `amount`, which is at most the total that is divided.
fn grant(share: &mut i64, amount: i128) -> i128 {
    *share = share.saturating_add(i64::try_from(amount).unwrap_or(i64::MAX));
    amount
}

/// A guaranteed amount when `total` is below `sum`, the guaranteed amounts of all siblings: the
/// part of `total` that is in proportion, rounded down.
#[must_use]
pub fn scale_min(total: i64, min: i64, sum: i128) -> i64 {
    if total <= 0 || sum <= 0 || min <= 0 {
        return 0;
    }
    let scaled = i128::from(total) * i128::from(min) / sum;
    i64::try_from(scaled).unwrap_or(i64::MAX)
}
