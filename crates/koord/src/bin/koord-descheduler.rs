//! koord-descheduler as a daemon of its own.

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    koord::daemon::descheduler(std::env::args_os().collect())
}
