//! Checks that plugins are independent: a module of crates/plugins imports `common` and its own parts, and no
//! other plugin.

use crate::circles;
use std::path::Path;

/// Module of the code that plugins share.
const COMMON: &str = "common";

/// Returns the imports from plugin to plugin, and from the shared module to a plugin, in the crate whose
/// files these are.
pub(crate) fn faults(files: &[(&Path, &str)]) -> Vec<String> {
    let mut faults = Vec::new();
    for (module, imported) in circles::graph("plugins", files) {
        let foreign = imported.iter().filter(|other| *other != COMMON);
        faults.extend(foreign.map(|other| {
            format!("plugins: {module} imports {other}; what both need belongs to {COMMON}")
        }));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugins_importing_plugins_are_faults() {
        let files = [
            (
                "lib.rs",
                "mod common; mod fit; mod numa; fn registry() { fit::build; }",
            ),
            ("common/mod.rs", "pub(crate) mod args;"),
            ("common/args.rs", "use crate::fit::NAME;"),
            (
                "fit.rs",
                "mod args;\nuse args::Args;\nuse crate::common::args;",
            ),
            (
                "fit/args.rs",
                "use super::NAME;\nuse super::super::numa::Plan;",
            ),
            (
                "numa.rs",
                "use crate::common::args;\n#[cfg(test)]\nmod tests {\nuse crate::fit;\n}",
            ),
        ];
        let files: Vec<_> = files.iter().map(|(p, t)| (Path::new(*p), *t)).collect();
        assert_eq!(
            faults(&files),
            [
                "plugins: common imports fit; what both need belongs to common",
                "plugins: fit imports numa; what both need belongs to common"
            ]
        );
    }
}
