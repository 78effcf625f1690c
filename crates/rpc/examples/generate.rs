//! Regenerates `src/generated` from `proto`: `cargo run -p koord-rpc --example generate`.
//!
//! The output is committed, so that building koord needs neither protoc nor the compiler used here; a test
//! compares both.

use std::error::Error;
use std::path::Path;

/// File names in `proto` without their extension. The messages of `nri` and `ttrpc` are sent over ttrpc, the
/// others over gRPC.
pub(crate) const DEFINITIONS: [&str; 6] = [
    "cri",
    "deviceplugin",
    "hooks",
    "nri",
    "podresources",
    "ttrpc",
];

/// Returns the generated Rust code of one definition; `root` is the crate's directory.
///
/// # Errors
///
/// Returns an error if the definition cannot be read or is invalid.
pub(crate) fn render(root: &Path, name: &str) -> Result<String, Box<dyn Error>> {
    let definitions = root.join("proto");
    let set = protox::compile([format!("{name}.proto")], [&definitions])?;
    let out = tempfile::tempdir()?;
    let mut config = prost_build::Config::new();
    // Maps ordered by key: equal messages have equal bytes.
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
