//! Checks which packages of the workspace depend on which, and the packages that each program is built of.
//!
//! Product is the software that a cluster's operator installs, with its programs below `bins`. Lab shows that
//! the product works: the embedded API server, simulated nodes, demos, benchmarks. Lab uses product; product
//! never uses lab, except in integration tests.

use crate::{dependencies, features};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A part of the workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PackageGroup {
    /// A library of the product.
    Product,
    /// A package with one program only.
    Bin,
    /// A package for development, demonstration and measurement.
    Lab,
}

/// The group of each package and what it may depend on. Tests may also use [`TESTS`].
const PACKAGES: &[(&str, PackageGroup, &[&str])] = &[
    ("koord-cpuset", PackageGroup::Product, &[]),
    ("koord-api", PackageGroup::Product, &["koord-cpuset"]),
    (
        "koord-model",
        PackageGroup::Product,
        &["koord-api", "koord-cpuset"],
    ),
    ("koord-host", PackageGroup::Product, &["koord-cpuset"]),
    ("koord-app", PackageGroup::Product, &[]),
    ("koord-rpc", PackageGroup::Product, &[]),
    (
        "koord-kube",
        PackageGroup::Product,
        &["koord-api", "koord-app"],
    ),
    ("koord-object", PackageGroup::Product, &["koord-api"]),
    (
        "koord-scheduler",
        PackageGroup::Product,
        &["koord-api", "koord-model", "koord-app", "koord-kube"],
    ),
    (
        "koord-plugins",
        PackageGroup::Product,
        &[
            "koord-api",
            "koord-model",
            "koord-app",
            "koord-kube",
            "koord-scheduler",
        ],
    ),
    (
        "koord-manager",
        PackageGroup::Product,
        &[
            "koord-api",
            "koord-model",
            "koord-app",
            "koord-object",
            "koord-kube",
        ],
    ),
    (
        "koord-descheduler",
        PackageGroup::Product,
        &[
            "koord-api",
            "koord-model",
            "koord-app",
            "koord-object",
            "koord-kube",
        ],
    ),
    (
        "koord-placement",
        PackageGroup::Product,
        &[
            "koord-api",
            "koord-app",
            "koord-kube",
            "koord-scheduler",
            "koord-plugins",
            "koord-descheduler",
        ],
    ),
    (
        "koordlet",
        PackageGroup::Product,
        &[
            "koord-api",
            "koord-model",
            "koord-app",
            "koord-kube",
            "koord-host",
            "koord-rpc",
        ],
    ),
    (
        "koord-runtime-proxy",
        PackageGroup::Product,
        &["koord-api", "koord-app", "koord-rpc"],
    ),
    (
        "koordctl",
        PackageGroup::Product,
        &[
            "koord-api",
            "koord-model",
            "koord-host",
            "koord-app",
            "koord-object",
            "koord-kube",
            "koord-scheduler",
            "koord-plugins",
            "koord-manager",
            "koord-descheduler",
            "koordlet",
        ],
    ),
    (
        "koord-scheduler-bin",
        PackageGroup::Bin,
        &["koord-scheduler", "koord-plugins"],
    ),
    (
        "koord-descheduler-bin",
        PackageGroup::Bin,
        &["koord-descheduler", "koord-placement"],
    ),
    ("koord-manager-bin", PackageGroup::Bin, &["koord-manager"]),
    ("koordlet-bin", PackageGroup::Bin, &["koordlet"]),
    (
        "koord-runtime-proxy-bin",
        PackageGroup::Bin,
        &["koord-runtime-proxy"],
    ),
    (
        "koord-kinds",
        PackageGroup::Lab,
        &["koord-api", "koord-object"],
    ),
    (
        "koord-apiserver",
        PackageGroup::Lab,
        &["koord-api", "koord-app", "koord-kinds"],
    ),
    (
        "koord-bench",
        PackageGroup::Lab,
        &[
            "koord-api",
            "koord-model",
            "koord-app",
            "koord-kube",
            "koord-scheduler",
            "koord-kinds",
            "koord-apiserver",
            "koord-sim",
            "koord-host",
            "koord-cluster",
            "koord-plugins",
            "koord-placement",
            "koord-manager",
            "koord-descheduler",
            "koordlet",
            "koord-runtime-proxy",
            "koord-rpc",
            "koordctl",
            "koord-workload",
            "koord-testkit",
        ],
    ),
    (
        "koord-node",
        PackageGroup::Lab,
        &[
            "koord-api",
            "koord-app",
            "koord-kube",
            "koord-host",
            "koord-rpc",
        ],
    ),
    (
        "koord-sim",
        PackageGroup::Lab,
        &[
            "koord-api",
            "koord-model",
            "koord-app",
            "koord-kube",
            "koord-rpc",
        ],
    ),
    (
        "koord-cluster",
        PackageGroup::Lab,
        &[
            "koord-api",
            "koord-app",
            "koord-kube",
            "koord-apiserver",
            "koord-manager",
            "koord-descheduler",
        ],
    ),
    (
        "koord-workload",
        PackageGroup::Lab,
        &["koord-api", "koord-host"],
    ),
    ("koord-testkit", PackageGroup::Lab, &["koord-host"]),
    (
        "koord",
        PackageGroup::Lab,
        &[
            "koord-api",
            "koord-model",
            "koord-host",
            "koord-app",
            "koord-kube",
            "koord-apiserver",
            "koord-scheduler",
            "koord-plugins",
            "koord-placement",
            "koord-bench",
            "koord-manager",
            "koord-descheduler",
            "koordlet",
            "koord-runtime-proxy",
            "koord-node",
            "koord-sim",
            "koord-cluster",
            "koord-workload",
            "koordctl",
        ],
    ),
    ("xtask", PackageGroup::Lab, &[]),
];

/// Packages that any package's tests may use in addition to its edges: the embedded API server is the test
/// cluster, the runtime's proxy calls koordlet, and simulated nodes run pods.
const TESTS: &[&str] = &[
    "koord-apiserver",
    "koord-kube",
    "koord-app",
    "koord-plugins",
    "koord-api",
    "koord-host",
    "koord-runtime-proxy",
    "koord-sim",
];

/// The product's libraries whose unit tests, below `src`, still use lab crates. The list only shrinks: such tests are
/// integration tests.
const UNIT_TESTS_WITH_LAB: &[&str] = &[
    "koord-descheduler",
    "koord-manager",
    "koord-plugins",
    "koord-scheduler",
    "koordlet",
];

/// The folder of the committed lists of the packages that programs are built of.
const TREES: &str = "xtask/trees";

/// Target of the release builds.
const TARGET: &str = "x86_64-unknown-linux-gnu";

fn group_of(name: &str) -> Option<PackageGroup> {
    let row = PACKAGES.iter().find(|(package, ..)| *package == name);
    row.map(|(_, group, _)| *group)
}

/// Returns the faults of the manifests of the workspace at `root`, and of its lists of packages.
///
/// # Errors
/// When cargo cannot list packages or a file cannot be read.
pub(crate) fn faults(root: &Path) -> Result<Vec<String>> {
    let packages = workspace(root)?;
    let names: BTreeSet<&str> = packages.iter().filter_map(|p| p["name"].as_str()).collect();
    let mut faults = Vec::new();
    for package in &packages {
        let name = package["name"].as_str().unwrap_or_default();
        let manifest = Path::new(package["manifest_path"].as_str().unwrap_or_default());
        let directory = manifest.parent().context("no package directory")?;
        let mut sources = self::sources(directory)?;
        faults.extend(edges(package, &names));
        faults.extend(unit_tests_with_lab(name, &sources));
        if name == "koord-host" {
            // koord-host compiles the fake kernel of koord-testkit as a part of itself.
            sources.extend(self::sources(&root.join("crates/testkit"))?);
        }
        faults.extend(unused_dependencies(package, &sources));
        faults.extend(features::faults(package));
        let text = std::fs::read_to_string(manifest).unwrap_or_default();
        if !text.contains("[lints]\nworkspace = true") {
            faults.push(format!("{name} does not inherit the workspace's lints"));
        }
    }
    for (program, tree) in trees(root)? {
        let path = root.join(TREES).join(format!("{program}.txt"));
        let listed = std::fs::read_to_string(&path).unwrap_or_default();
        faults.extend(differences(&program, &listed, &tree));
    }
    Ok(faults)
}

/// Writes the lists of packages, and prints how long they are.
#[allow(clippy::print_stdout, reason = "this is a command-line tool")]
pub(crate) fn write_trees(root: &Path) -> Result<()> {
    let folder = root.join(TREES);
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    for (program, tree) in trees(root)? {
        let path = folder.join(format!("{program}.txt"));
        let text = tree.join("\n") + "\n";
        std::fs::write(&path, text).with_context(|| path.display().to_string())?;
        println!("{program}: {} packages", tree.len());
    }
    Ok(())
}

/// Returns the workspace's packages, as `cargo metadata` describes them.
fn workspace(root: &Path) -> Result<Vec<Value>> {
    let output = Command::new("cargo")
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(root)
        .output()
        .context("cargo metadata")?;
    let mut metadata: Value =
        serde_json::from_slice(&output.stdout).context("cargo metadata did not print JSON")?;
    match metadata["packages"].take() {
        Value::Array(packages) => Ok(packages),
        _ => bail!("metadata without packages"),
    }
}

/// Returns the Rust files of a package, as paths below `directory`, with their text.
fn sources(directory: &Path) -> Result<Vec<(PathBuf, String)>> {
    let mut paths = Vec::new();
    crate::collect(directory, "rs", &mut paths)?;
    crate::read(directory, paths)
}

/// Returns the dependencies of `package` on other packages of the workspace, `names`, that [`PACKAGES`] does not have.
fn edges(package: &Value, names: &BTreeSet<&str>) -> Vec<String> {
    let name = package["name"].as_str().unwrap_or_default();
    let row = PACKAGES.iter().find(|(known, ..)| *known == name);
    let Some((_, group, allowed)) = row else {
        return vec![format!("package {name} is not in the table of packages")];
    };
    let mut faults = Vec::new();
    for dependency in package["dependencies"].as_array().into_iter().flatten() {
        let on = dependency["name"].as_str().unwrap_or_default();
        if !names.contains(on) {
            continue;
        }
        let is_dev = dependency["kind"].as_str() == Some("dev");
        let is_allowed = allowed.contains(&on) || is_dev && TESTS.contains(&on);
        if !is_allowed {
            faults.push(format!("{name} must not depend on {on}"));
        }
        if *group != PackageGroup::Lab && !is_dev && group_of(on) == Some(PackageGroup::Lab) {
            faults.push(format!("{name} is product and {on} is lab"));
        }
    }
    faults
}

/// Compares the product's library `name` with [`UNIT_TESTS_WITH_LAB`].
fn unit_tests_with_lab(name: &str, sources: &[(PathBuf, String)]) -> Option<String> {
    if group_of(name) != Some(PackageGroup::Product) {
        return None;
    }
    let sources: Vec<(&Path, &str)> = sources
        .iter()
        .map(|(path, text)| (path.as_path(), text.as_str()))
        .collect();
    let lab = PACKAGES
        .iter()
        .filter(|(_, group, _)| *group == PackageGroup::Lab)
        .map(|(package, ..)| *package)
        .find(|lab| dependencies::is_used(lab, dependencies::DependencyKind::Normal, &sources));
    match (lab, UNIT_TESTS_WITH_LAB.contains(&name)) {
        (Some(lab), false) => Some(format!(
            "{name} is product and its unit tests use {lab}: make them integration tests"
        )),
        (None, true) => Some(format!(
            "unit tests of {name} use no lab crate: remove it from UNIT_TESTS_WITH_LAB"
        )),
        _ => None,
    }
}

/// Returns the dependencies of a package, as `cargo metadata` describes it, that its sources do not use.
fn unused_dependencies(package: &Value, sources: &[(PathBuf, String)]) -> Vec<String> {
    let name = package["name"].as_str().unwrap_or_default();
    let sources: Vec<(&Path, &str)> = sources
        .iter()
        .map(|(path, text)| (path.as_path(), text.as_str()))
        .collect();
    let mut faults = Vec::new();
    for dependency in package["dependencies"].as_array().into_iter().flatten() {
        let kind = match dependency["kind"].as_str() {
            Some("dev") => dependencies::DependencyKind::Dev,
            Some("build") => dependencies::DependencyKind::Build,
            _ => dependencies::DependencyKind::Normal,
        };
        let named = dependency["rename"]
            .as_str()
            .or(dependency["name"].as_str());
        let named = named.unwrap_or_default();
        if !dependencies::is_used(named, kind, &sources) {
            faults.push(format!(
                "{name} does not use its dependency {named} ({kind:?})"
            ));
        }
    }
    faults
}

/// Returns each program with the names of the packages that it is built of, sorted; a package that is there in two
/// versions is there twice.
fn trees(root: &Path) -> Result<Vec<(String, Vec<String>)>> {
    let has_program =
        |name: &str, group: PackageGroup| group == PackageGroup::Bin || name == "koordctl";
    let bins = PACKAGES
        .iter()
        .filter(|(name, group, _)| has_program(name, *group));
    bins.map(|(package, ..)| {
        let output = Command::new("cargo")
            .args(["tree", "--locked", "--edges", "normal", "--prefix", "none"])
            .args(["--format", "{p}", "--target", TARGET, "--package", package])
            .current_dir(root)
            // Features are those of this package alone, also where a developer unifies them.
            .env_remove("CARGO_RESOLVER_FEATURE_UNIFICATION")
            .output()
            .context("cargo tree")?;
        if !output.status.success() {
            let error = String::from_utf8_lossy(&output.stderr);
            bail!("cargo tree --package {package}: {error}");
        }
        let program = package.strip_suffix("-bin").unwrap_or(package);
        let text = String::from_utf8_lossy(&output.stdout);
        Ok((program.to_owned(), package_names(&text)))
    })
    .collect()
}

/// Returns the names in the output of `cargo tree`, one for each version of a package.
fn package_names(text: &str) -> Vec<String> {
    let packages: BTreeSet<(&str, &str)> = text
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            Some((words.next()?, words.next()?))
        })
        .collect();
    let names = packages.into_iter().map(|(name, _)| name.to_owned());
    names.collect()
}

/// Returns the packages of a program that its list does not have, those that only the list has, and lab crates.
fn differences(program: &str, listed: &str, tree: &[String]) -> Vec<String> {
    let mut faults = Vec::new();
    for lab in tree
        .iter()
        .filter(|name| group_of(name) == Some(PackageGroup::Lab))
    {
        faults.push(format!("{program} is built of {lab}, which is lab"));
    }
    let listed: Vec<&str> = listed.lines().collect();
    let count = |names: &[&str], name: &str| names.iter().filter(|n| **n == name).count();
    let tree: Vec<&str> = tree.iter().map(String::as_str).collect();
    let all: BTreeSet<&str> = listed.iter().chain(&tree).copied().collect();
    for name in all {
        let (expected, found) = (count(&listed, name), count(&tree, name));
        if found > expected {
            faults.push(format!(
                "{program} has a new dependency {name}: if it is needed, `cargo xtask trees` lists it"
            ));
        } else if found < expected {
            faults.push(format!(
                "{program} has lost its dependency {name}: `cargo xtask trees` removes it from the list"
            ));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn edges_of(name: &str, on: &str, kind: Option<&str>) -> Vec<String> {
        let package = json!({"name": name, "dependencies": [
            {"name": on, "kind": kind}, {"name": "serde", "kind": null},
        ]});
        let names = PACKAGES.iter().map(|(name, ..)| *name).collect();
        edges(&package, &names)
    }

    #[test]
    fn product_depends_on_lab_in_tests_only() {
        assert_eq!(
            edges_of("koordlet", "koord-apiserver", None),
            [
                "koordlet must not depend on koord-apiserver",
                "koordlet is product and koord-apiserver is lab",
            ]
        );
        assert_eq!(
            edges_of("koordlet", "koord-apiserver", Some("dev")),
            [""; 0]
        );
        assert_eq!(
            edges_of("koordlet", "koord-bench", Some("dev")),
            ["koordlet must not depend on koord-bench"]
        );
        assert_eq!(edges_of("koord", "koord-apiserver", None), [""; 0]);
        assert_eq!(edges_of("koordlet", "koord-host", None), [""; 0]);
    }

    #[test]
    fn build_without_a_package_makes_all_programs() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let output = Command::new(env!("CARGO"))
            .args([
                "metadata",
                "--no-deps",
                "--offline",
                "--format-version",
                "1",
            ])
            .current_dir(root)
            .output()
            .unwrap();
        let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
        let default = metadata["workspace_default_members"].as_array().unwrap();
        let packages = metadata["packages"].as_array().unwrap().iter();
        let targets = packages
            .filter(|package| default.contains(&package["id"]))
            .flat_map(|package| package["targets"].as_array().unwrap());
        let programs: BTreeSet<&str> = targets
            .filter(|target| target["kind"] == json!(["bin"]))
            .filter_map(|target| target["name"].as_str())
            .collect();
        let expected = [
            "koord",
            "koord-descheduler",
            "koord-manager",
            "koord-runtime-proxy",
            "koord-scheduler",
            "koordctl",
            "koordlet",
        ];
        assert_eq!(programs, BTreeSet::from(expected));
    }

    #[test]
    fn table_has_no_edge_from_product_to_lab() {
        for (name, group, allowed) in PACKAGES {
            let lab = allowed
                .iter()
                .find(|on| group_of(on) == Some(PackageGroup::Lab));
            assert!(
                *group == PackageGroup::Lab || lab.is_none(),
                "{name}: {lab:?}"
            );
        }
    }

    #[test]
    fn package_that_is_not_in_the_table_is_a_fault() {
        assert_eq!(
            edges_of("koord-new", "koord-api", None),
            ["package koord-new is not in the table of packages"]
        );
    }

    #[test]
    fn unit_test_with_lab_is_a_fault() {
        let count_faults = |name: &str, path: &str| {
            let text = "use koord_apiserver::ApiServer;".to_owned();
            unit_tests_with_lab(name, &[(PathBuf::from(path), text)])
        };
        assert!(count_faults("koord-kube", "src/a/tests.rs").is_some());
        assert!(count_faults("koord-kube", "tests/it/a.rs").is_none());
        assert!(count_faults("koord-sim", "src/a.rs").is_none());
        assert!(count_faults("koordlet", "src/a.rs").is_none());
        assert!(count_faults("koordlet", "tests/it/a.rs").is_some());
    }

    #[test]
    fn tree_has_a_name_for_each_version() {
        let text = "koordlet-bin v0.1.0 (/w/bins/koordlet)\nsyn v2.0.1 (proc-macro)\nsyn v2.0.1 (*)\nsyn v1.0.0\n";
        assert_eq!(package_names(text), ["koordlet-bin", "syn", "syn"]);
    }

    #[test]
    fn difference_from_the_list_is_a_fault() {
        let tree = ["a", "b", "b"].map(str::to_owned);
        assert_eq!(differences("p", "a\nb\nb\n", &tree), [""; 0]);
        let faults = differences("p", "b\nc\n", &tree);
        let names: Vec<_> = faults
            .iter()
            .map(|fault| fault.split(':').next().unwrap_or_default())
            .collect();
        assert_eq!(
            names,
            [
                "p has a new dependency a",
                "p has a new dependency b",
                "p has lost its dependency c"
            ]
        );
        let lab = differences("p", "koord-sim\n", &["koord-sim".to_owned()]);
        assert_eq!(lab, ["p is built of koord-sim, which is lab"]);
    }
}
