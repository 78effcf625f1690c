//! The memory of this process.

/// Limits the C library's allocator to one heap. By default each allocating thread gets one of its own, whose
/// free parts other threads cannot use: this costs memory in an agent that allocates little and from few
/// threads. Call it before other threads start. Returns whether it took effect; with another C library than
/// glibc it does not.
#[allow(unsafe_code, reason = "libc call that rustix lacks")]
pub fn one_heap() -> bool {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: mallopt takes two integers and changes a parameter of the allocator.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) == 1 }
    }
    #[cfg(not(target_env = "gnu"))]
    {
        false
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn glibc_takes_the_parameter() {
        assert_eq!(super::one_heap(), cfg!(target_env = "gnu"));
    }
}
