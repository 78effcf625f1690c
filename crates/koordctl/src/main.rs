//! The `koordctl` command.

fn main() -> std::process::ExitCode {
    koordctl::cli::main()
}
