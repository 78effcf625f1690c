//! koord-manager as a daemon of its own.

// The manager holds little memory, but sometimes reads much, such as lists. Freed memory has to return to the
// system; the allocator of the other programs returns it late, and only some of its pages.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[cfg(all(feature = "mimalloc", not(feature = "jemalloc")))]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    koord_manager::program::run(std::env::args_os().collect())
}
