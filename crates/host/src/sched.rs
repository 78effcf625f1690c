//! Scheduling attributes of processes and threads.

use crate::cpuset::CpuSet;
use crate::error::{HostError, Result};
use rustix::process::Pid;
use std::io;
use std::time::Duration;

/// Thread that a call applies to; a process id names its main thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreadTarget {
    /// The calling thread.
    Current,
    /// The thread with this id.
    Thread(u32),
}

impl ThreadTarget {
    fn raw(self) -> i32 {
        match self {
            Self::Current => 0,
            // Ids above i32::MAX do not exist; the kernel rejects -1.
            Self::Thread(id) => i32::try_from(id).unwrap_or(-1),
        }
    }
}

/// Bits of an affinity mask: the kernel refuses to read the affinity into a mask that is shorter than its
/// own.
const MASK_BITS: usize = CpuSet::MAX as usize + 1;

/// Pins `target` to `cpus`.
///
/// # Errors
/// When no CPU of the set may be used, the thread is gone, or this process lacks the right.
#[allow(unsafe_code, reason = "libc call; rustix limits masks to 1024 CPUs")]
pub fn set_affinity(target: ThreadTarget, cpus: &CpuSet) -> Result<()> {
    let bits = libc::c_ulong::BITS as usize;
    let mut mask = vec![0 as libc::c_ulong; MASK_BITS / bits];
    for cpu in cpus.iter() {
        let cpu = cpu as usize;
        if let Some(word) = mask.get_mut(cpu / bits) {
            *word |= 1 << (cpu % bits);
        }
    }
    let size = std::mem::size_of_val(mask.as_slice());
    // SAFETY: the kernel reads `size` bytes from `mask`, which is exactly that long and lives
    // across the call; cpu_set_t is an array of unsigned longs.
    let code = unsafe { libc::sched_setaffinity(target.raw(), size, mask.as_ptr().cast()) };
    check(code, || format!("sched_setaffinity({target:?}, {cpus})"))
}

/// Returns the CPUs on which `target` may run.
///
/// # Errors
/// When the thread is gone.
#[allow(unsafe_code, reason = "libc call; rustix limits masks to 1024 CPUs")]
pub fn affinity(target: ThreadTarget) -> Result<CpuSet> {
    let bits = libc::c_ulong::BITS as usize;
    let mut mask = vec![0 as libc::c_ulong; MASK_BITS / bits];
    let size = std::mem::size_of_val(mask.as_slice());
    // SAFETY: the kernel writes at most `size` bytes into `mask`, which is exactly that long.
    let code = unsafe { libc::sched_getaffinity(target.raw(), size, mask.as_mut_ptr().cast()) };
    check(code, || format!("sched_getaffinity({target:?})"))?;
    let member = |cpu: &u32| {
        let cpu = *cpu as usize;
        mask.get(cpu / bits)
            .is_some_and(|word| word & (1 << (cpu % bits)) != 0)
    };
    Ok((0..=CpuSet::MAX).filter(member).collect())
}

/// Gives the calling thread real-time priority `priority` (1..=99) under SCHED_FIFO. Its children start with
/// the normal policy (SCHED_RESET_ON_FORK), so that they cannot starve the machine.
///
/// # Errors
/// When this process lacks CAP_SYS_NICE, or the v1 cpu group of the thread has no real-time budget.
pub fn set_fifo(priority: i32) -> Result<()> {
    set_fifo_of(ThreadTarget::Current, priority)
}

/// Sets the policy of [`set_fifo`] for another thread.
///
/// # Errors
/// As [`set_fifo`], or when the thread is gone.
pub fn set_fifo_of(target: ThreadTarget, priority: i32) -> Result<()> {
    set_scheduler(
        target,
        libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK,
        priority,
    )
}

/// Returns `target` to the normal policy.
///
/// # Errors
/// When the thread is gone or this process lacks the right.
pub fn set_normal(target: ThreadTarget) -> Result<()> {
    set_scheduler(target, libc::SCHED_OTHER, 0)
}

#[allow(unsafe_code, reason = "libc call that rustix lacks")]
fn set_scheduler(target: ThreadTarget, policy: i32, priority: i32) -> Result<()> {
    let param = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: `param` is a valid sched_param that lives across the call, which only reads it.
    let code = unsafe { libc::sched_setscheduler(target.raw(), policy, &raw const param) };
    check(code, || {
        format!("sched_setscheduler({target:?}, policy {policy}, {priority})")
    })
}

/// Returns the time slice of the fair scheduler for `target`, a thread of the normal policy; `None` where the
/// kernel does not report one (before 6.12).
///
/// # Errors
/// When the thread is gone.
pub fn slice(target: ThreadTarget) -> Result<Option<Duration>> {
    let runtime = attributes(target)?.sched_runtime;
    Ok((runtime > 0).then(|| Duration::from_nanos(runtime)))
}

/// Sets the time slice of `target`, a thread of the normal policy: the shorter, the sooner it gets the CPU
/// when it wakes. `None` for the scheduler's default. Kernels from 6.12 on accept 0.1 to 100 ms; older ones
/// ignore it, as [`slice()`] shows.
///
/// # Errors
/// When the thread is gone or this process lacks the right.
#[allow(unsafe_code, reason = "system call that neither rustix nor libc wraps")]
pub fn set_slice(target: ThreadTarget, slice: Option<Duration>) -> Result<()> {
    let mut attributes = attributes(target)?;
    let nanos = slice.map_or(0, |slice| slice.as_nanos());
    attributes.sched_runtime = u64::try_from(nanos).unwrap_or(u64::MAX);
    // SAFETY: `attributes` is a valid sched_attr that lives across the call, which only reads it.
    let code = unsafe {
        libc::syscall(
            libc::SYS_sched_setattr,
            target.raw(),
            &raw const attributes,
            0,
        )
    };
    check(i32::try_from(code).unwrap_or(-1), || {
        format!("sched_setattr({target:?}, slice {slice:?})")
    })
}

/// Returns the scheduling attributes of a thread.
#[allow(unsafe_code, reason = "system call that neither rustix nor libc wraps")]
fn attributes(target: ThreadTarget) -> Result<libc::sched_attr> {
    let size = std::mem::size_of::<libc::sched_attr>();
    let size = u32::try_from(size).unwrap_or(0);
    let mut attributes = libc::sched_attr {
        size,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the kernel writes at most `size` bytes into `attributes`, which is exactly that long.
    let code = unsafe {
        libc::syscall(
            libc::SYS_sched_getattr,
            target.raw(),
            &raw mut attributes,
            size,
            0,
        )
    };
    check(i32::try_from(code).unwrap_or(-1), || {
        format!("sched_getattr({target:?})")
    })?;
    Ok(attributes)
}

/// Sets the nice value (-20..=19) of `target`.
///
/// # Errors
/// When the thread is gone or this process lacks the right.
pub fn set_nice(target: ThreadTarget, nice: i32) -> Result<()> {
    let pid = match target {
        ThreadTarget::Current => None,
        ThreadTarget::Thread(id) => Some(pid(id)?),
    };
    rustix::process::setpriority_process(pid, nice)
        .map_err(|error| HostError::call(format!("setpriority({target:?}, {nice})"), error))
}

/// Keeps all present and future memory of this process in RAM.
///
/// # Errors
/// When the limit RLIMIT_MEMLOCK does not allow it.
#[allow(
    unsafe_code,
    reason = "libc call; rustix has it behind a feature that we do not build"
)]
pub fn lock_memory() -> Result<()> {
    // SAFETY: mlockall takes flags only and touches no memory of ours that could be invalid.
    let code = unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) };
    check(code, || "mlockall".to_owned())
}

/// Makes this process the new parent of orphaned descendants. It must then reap them.
///
/// # Errors
/// Only on kernels without the call.
pub fn become_subreaper() -> Result<()> {
    let me = rustix::process::getpid();
    rustix::process::set_child_subreaper(Some(me))
        .map_err(|error| HostError::call("prctl(PR_SET_CHILD_SUBREAPER)", error))
}

pub(crate) fn pid(id: u32) -> Result<Pid> {
    i32::try_from(id)
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| {
            HostError::call(
                format!("process id {id}"),
                io::Error::from_raw_os_error(libc::ESRCH),
            )
        })
}

fn check(code: i32, call: impl FnOnce() -> String) -> Result<()> {
    if code == -1 {
        Err(HostError::call(call(), io::Error::last_os_error()))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn affinity_of_a_thread() {
        // In its own thread: the pin must not outlive the test.
        std::thread::spawn(|| {
            let all = affinity(ThreadTarget::Current).unwrap();
            let single_cpu: CpuSet = all.iter().take(1).collect();
            set_affinity(ThreadTarget::Current, &single_cpu).unwrap();
            assert_eq!(affinity(ThreadTarget::Current).unwrap(), single_cpu);
            assert!(set_affinity(ThreadTarget::Current, &CpuSet::new()).is_err());
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_slice_is_set_and_taken_back() {
        let requested = Duration::from_micros(200);
        std::thread::spawn(move || {
            let own = slice(ThreadTarget::Current).unwrap();
            set_slice(ThreadTarget::Current, Some(requested)).unwrap();
            // A kernel that reports no slice accepts none.
            let expected = own.map(|_| requested);
            assert_eq!(slice(ThreadTarget::Current).unwrap(), expected);
            set_slice(ThreadTarget::Current, None).unwrap();
            assert_eq!(slice(ThreadTarget::Current).unwrap(), own);
        })
        .join()
        .unwrap();
        let result = set_slice(ThreadTarget::Thread(i32::MAX as u32), Some(requested));
        assert!(result.unwrap_err().is_gone());
    }

    #[test]
    fn unknown_threads_are_gone() {
        let error = set_nice(ThreadTarget::Thread(u32::MAX), 0).unwrap_err();
        assert!(error.is_gone(), "{error}");
        assert!(
            set_normal(ThreadTarget::Thread(i32::MAX as u32))
                .unwrap_err()
                .is_gone()
        );
    }
}
