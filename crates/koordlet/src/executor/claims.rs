//! Who may write what: two strategies that want the same file are an error at start.

use super::Level;
use koord_host::Resource;

/// A strategy's claim to a file at a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// The strategy.
    pub strategy: &'static str,
    /// The level.
    pub level: Level,
    /// The file.
    pub resource: Resource,
}

/// Two strategies claim one file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("strategies {first} and {second} both write {file} at level {level:?}", file = resource.name())]
pub struct ClaimError {
    /// The first claimant.
    pub first: &'static str,
    /// The second.
    pub second: &'static str,
    /// The level.
    pub level: Level,
    /// The file.
    pub resource: Resource,
}

/// Checks that every file has one writer.
///
/// # Errors
/// The first conflict.
pub fn check_claims(claims: &[Claim]) -> Result<(), ClaimError> {
    for (i, first) in claims.iter().enumerate() {
        for second in &claims[i + 1..] {
            if (first.level, first.resource) == (second.level, second.resource)
                && first.strategy != second.strategy
            {
                return Err(ClaimError {
                    first: first.strategy,
                    second: second.strategy,
                    level: first.level,
                    resource: first.resource,
                });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_writer_per_file() {
        let claim = |strategy, level| Claim {
            strategy,
            level,
            resource: Resource::CpuShares,
        };
        assert!(check_claims(&[claim("a", Level::Pod), claim("b", Level::Qos)]).is_ok());
        let error = check_claims(&[claim("a", Level::Pod), claim("b", Level::Pod)]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "strategies a and b both write cpu.shares at level Pod"
        );
    }
}
