//! Writes `src/generated` anew from `proto`: `cargo run -p koord-rpc --example generate`.
//!
//! What it writes is committed, so that building koord needs neither protoc nor the compiler used
//! here; a test compares both.

use std::error::Error;
use std::path::Path;

/// What there is in `proto`, by file name without its end; the messages of `nri` and `ttrpc` travel
/// over ttrpc, the others over gRPC.
pub(crate) const DEFINITIONS: [&str; 6] = [
    "cri",
    "deviceplugin",
    "hooks",
    "nri",
    "podresources",
    "ttrpc",
];

/// The Rust code of one definition below the crate's root.
///
/// # Errors
///
/// When the definition cannot be read or has a fault.
pub(crate) fn render(root: &Path, name: &str) -> Result<String, Box<dyn Error>> {
    let definitions = root.join("proto");
    let set = protox::compile([format!("{name}.proto")], [&definitions])?;
    let out = tempfile::tempdir()?;
    let mut config = prost_build::Config::new();
    // Maps in order of keys: the same message has the same bytes each time.
    config
        .out_dir(out.path())
        .btree_map(["."])
        .disable_comments(["."]);
    if matches!(name, "nri" | "ttrpc") {
        config.compile_fds(set)?;
    } else {
        tonic_prost_build::configure()
            .build_transport(false)
            .out_dir(out.path())
            .compile_fds_with_config(set, config)?;
    }
    let mut files = std::fs::read_dir(out.path())?;
    let (Some(file), None) = (files.next(), files.next()) else {
        return Err(format!("{name}.proto is not one package").into());
    };
    Ok(std::fs::read_to_string(file?.path())?)
}

#[allow(dead_code, reason = "the test includes this file as a module")]
fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for name in DEFINITIONS {
        let to = root.join("src/generated").join(format!("{name}.rs"));
        std::fs::write(to, render(root, name)?)?;
    }
    Ok(())
}
