//! The `koord` command.
fn main() {}
