//! koord-manager as a daemon of its own.

// It keeps little and now and then reads much, such as lists: what it frees has to go back, which the
// allocator of the other programs does late and of few pages.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[cfg(all(feature = "mimalloc", not(feature = "jemalloc")))]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    koord_manager::program::run(std::env::args_os().collect())
}
