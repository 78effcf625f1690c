//! koord-scheduler as a daemon of its own.

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    koord_scheduler::program::run(std::env::args_os().collect(), koord_plugins::registry)
}
