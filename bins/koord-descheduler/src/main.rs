//! koord-descheduler as a daemon of its own.

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    koord_descheduler::program::run(
        std::env::args_os().collect(),
        koord_placement::for_descheduler,
    )
}
