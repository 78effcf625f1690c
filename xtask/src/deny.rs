//! Checks dependencies against deny.toml: their licenses, their sources, and that each has one version only.

use anyhow::{Context, Result};
use serde::Deserialize;
use spdx::{Expression, ParseMode};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// The parts of deny.toml that this checks.
#[derive(Deserialize)]
struct Rules {
    licenses: Licenses,
    bans: Bans,
}

#[derive(Deserialize)]
struct Licenses {
    allow: Vec<String>,
}

#[derive(Deserialize)]
struct Bans {
    skip: Vec<Skip>,
}

#[derive(Deserialize)]
struct Skip {
    /// `name@version`.
    #[serde(rename = "crate")]
    package: String,
}

/// The output of `cargo metadata`.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<LockedPackage>,
}

#[derive(Deserialize)]
struct LockedPackage {
    name: String,
    version: String,
    license: Option<String>,
    /// `None` for the workspace's own packages.
    source: Option<String>,
}

impl LockedPackage {
    fn id(&self) -> String {
        format!("{}@{}", self.name, self.version)
    }
}

/// Returns the dependencies of the workspace at `root` that its deny.toml forbids.
///
/// # Errors
/// When cargo cannot list them, or deny.toml cannot be read.
pub(crate) fn faults(root: &Path) -> Result<Vec<String>> {
    let output = Command::new("cargo")
        .args(["metadata", "--locked", "--format-version", "1"])
        .current_dir(root)
        .output()
        .context("cargo metadata")?;
    let metadata: Metadata =
        serde_json::from_slice(&output.stdout).context("cargo metadata did not print JSON")?;
    let rules = std::fs::read_to_string(root.join("deny.toml")).context("cannot read deny.toml")?;
    let rules: Rules = toml::from_str(&rules).context("deny.toml")?;
    Ok(violations(&rules, &metadata.packages))
}

/// Returns the packages that break the rules of deny.toml.
fn violations(rules: &Rules, packages: &[LockedPackage]) -> Vec<String> {
    let mut faults = Vec::new();
    let mut registries = BTreeSet::new();
    let mut versions: BTreeMap<&str, Vec<&LockedPackage>> = BTreeMap::new();
    for package in packages {
        let id = package.id();
        if let Err(why) = check_license(package, &rules.licenses.allow) {
            faults.push(format!("{id}: {why}"));
        }
        match package.source.as_deref() {
            Some(source) if source.starts_with("registry+") => {
                registries.insert(source);
            }
            Some(source) => faults.push(format!("{id} comes from {source}, not from a registry")),
            None => {}
        }
        versions.entry(&package.name).or_default().push(package);
    }
    if registries.len() > 1 {
        faults.push(format!(
            "dependencies come from several registries: {registries:?}"
        ));
    }
    let mut skipped: BTreeSet<&str> = rules.bans.skip.iter().map(|skip| &*skip.package).collect();
    for packages in versions.values().filter(|packages| packages.len() > 1) {
        let ids: Vec<String> = packages.iter().map(|package| package.id()).collect();
        let new: Vec<&String> = ids
            .iter()
            .filter(|id| !skipped.remove(id.as_str()))
            .collect();
        if new.len() > 1 {
            faults.push(format!(
                "there are {new:?}; deny.toml may skip all but one of them"
            ));
        }
    }
    for id in skipped {
        faults.push(format!(
            "deny.toml skips {id}, which is there no more or alone"
        ));
    }
    faults
}

/// Checks the license of `package`, and returns the reason if it is not allowed.
fn check_license(package: &LockedPackage, allow: &[String]) -> Result<(), String> {
    let license = package.license.as_deref().ok_or("has no license")?;
    let expression = Expression::parse_mode(license, ParseMode::LAX)
        .map_err(|error| format!("license {license:?} is no expression: {error}"))?;
    let allowed = |of: &spdx::LicenseReq| allow.contains(&of.to_string());
    if expression.evaluate(allowed) {
        return Ok(());
    }
    Err(format!(
        "license {license:?} is not among those that deny.toml allows"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, version: &str, license: &str) -> LockedPackage {
        LockedPackage {
            name: name.to_owned(),
            version: version.to_owned(),
            license: Some(license.to_owned()),
            source: Some("registry+one".to_owned()),
        }
    }

    fn rules() -> Rules {
        toml::from_str(
            r#"
            [licenses]
            allow = ["MIT", "Apache-2.0 WITH LLVM-exception"]
            [bans]
            skip = [{ crate = "a@1.0.0", reason = "b" }]
            "#,
        )
        .unwrap()
    }

    #[test]
    fn allowed_licenses_and_skipped_duplicates_pass() {
        let packages = [
            package("a", "1.0.0", "MIT/Apache-2.0"),
            package("a", "2.0.0", "GPL-3.0-only OR MIT"),
            package("b", "1.0.0", "Apache-2.0 WITH LLVM-exception"),
        ];
        assert_eq!(violations(&rules(), &packages), Vec::<String>::new());
    }

    #[test]
    fn everything_else_is_named() {
        let mut of_git = package("c", "1.0.0", "MIT");
        of_git.source = Some("git+somewhere".to_owned());
        let mut elsewhere = package("d", "1.0.0", "MIT");
        elsewhere.source = Some("registry+two".to_owned());
        let mut without = package("e", "1.0.0", "");
        without.license = None;
        let packages = [
            package("b", "1.0.0", "MIT AND GPL-3.0-only"),
            package("b", "2.0.0", "Apache-2.0"),
            of_git,
            elsewhere,
            without,
        ];
        let faults = violations(&rules(), &packages);
        for (fault, part) in faults.iter().zip([
            "b@1.0.0: license \"MIT AND GPL-3.0-only\"",
            "b@2.0.0: license \"Apache-2.0\"",
            "c@1.0.0 comes from git+somewhere",
            "e@1.0.0: has no license",
            "several registries",
            "[\"b@1.0.0\", \"b@2.0.0\"]",
            "skips a@1.0.0",
        ]) {
            assert!(fault.contains(part), "{part}: {faults:#?}");
        }
        assert_eq!(faults.len(), 7, "{faults:#?}");
    }
}
