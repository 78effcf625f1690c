//! Lists of CPUs (or NUMA nodes) in the kernel's files.

use crate::error::Malformed;
pub use koord_cpuset::{CpuListError, CpuSet};

impl From<CpuListError> for Malformed {
    fn from(error: CpuListError) -> Self {
        Self::new("a CPU list such as \"0-3,8\"", &error.text)
    }
}

/// Parses a list of the kernel, or one that can be written to it.
///
/// # Errors
/// The list is malformed.
pub(crate) fn parse(list: &str) -> Result<CpuSet, Malformed> {
    Ok(CpuSet::from_kernel_list(list)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::damage::survives;

    #[test]
    fn any_text_is_handled() {
        survives("0-3,8,10-11\n", |text| parse(text).is_ok());
    }

    #[test]
    fn malformed_list_is_named() {
        let error = parse("0,3-1").unwrap_err();
        assert_eq!(
            error.to_string(),
            "expected a CPU list such as \"0-3,8\", found \"0,3-1\""
        );
    }
}
