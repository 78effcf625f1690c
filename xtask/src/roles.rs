//! Checks roles of the scheduler's plugins: a plugin lists the roles that it implements, and a role has few
//! methods.

use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Declares the roles.
const LIST: &str = "crates/scheduler/src/framework/plugin.rs";
/// Lists how many methods a role may have.
const TABLE: &str = "xtask/methods.txt";
/// The most methods that a role may have.
const MOST: usize = 6;

/// The roles that a type implements, and those that it lists.
#[derive(Default)]
struct RolesOfType {
    implemented: BTreeSet<String>,
    /// The accessors in its `ROLES`; none if it is no plugin.
    listed: Option<Vec<String>>,
}

/// Returns a sentence for each role that a plugin implements and does not list, and so is never called, and for each
/// role without a budget of at most six methods.
///
/// # Errors
/// A file that cannot be read, or a source that is no Rust.
pub(crate) fn faults(root: &Path, sources: &[(PathBuf, String)]) -> Result<Vec<String>> {
    let read = |file| std::fs::read_to_string(root.join(file)).context(file);
    compare(&read(LIST)?, &read(TABLE)?, sources)
}

/// Compares the roles of plugins in the sources with the list and the table.
fn compare(list: &str, table: &str, sources: &[(PathBuf, String)]) -> Result<Vec<String>> {
    let roles = roles(list)?;
    let mut faults = Vec::new();
    for role in roles.keys() {
        let row = format!("scheduler {role} ");
        let row = table.lines().find_map(|line| line.strip_prefix(&row));
        let max = row.and_then(|max| max.trim().parse::<usize>().ok());
        if max.is_none_or(|max| max > MOST) {
            faults.push(format!(
                "{TABLE}: expected a row for role {role} of at most {MOST} methods"
            ));
        }
    }
    let mut types: BTreeMap<String, RolesOfType> = BTreeMap::new();
    let plugins = sources
        .iter()
        .filter(|(path, text)| path.starts_with("crates/plugins/src") && text.contains("impl "));
    for (path, text) in plugins {
        let file = syn::parse_file(text).with_context(|| format!("{}", path.display()))?;
        for item in &file.items {
            record_roles(item, &roles, &mut types);
        }
    }
    for (ty, roles_of) in &types {
        let Some(listed) = &roles_of.listed else {
            continue;
        };
        let missing = roles_of
            .implemented
            .iter()
            .filter(|role| !listed.contains(&roles[*role]));
        faults.extend(
            missing.map(|role| {
                format!("plugins: {ty} implements {role}, and its ROLES do not list it")
            }),
        );
    }
    Ok(faults)
}

/// Returns the traits in the list of roles, with the accessor of each.
fn roles(list: &str) -> Result<BTreeMap<String, String>> {
    let rows = list.split_once("\nroles! {").map(|(_, rows)| rows);
    let rows = rows.with_context(|| format!("{LIST} has no list of roles"))?;
    let rows = rows.lines().take_while(|line| *line != "}");
    let rows = rows.filter_map(|row| row.trim().strip_suffix(',')?.split_once(": "));
    Ok(rows
        .map(|(accessor, role)| (role.to_owned(), accessor.to_owned()))
        .collect())
}

/// Records the roles that an item of a source file implements or lists.
fn record_roles(
    item: &syn::Item,
    roles: &BTreeMap<String, String>,
    types: &mut BTreeMap<String, RolesOfType>,
) {
    let syn::Item::Impl(block) = item else { return };
    let (Some((_, role, _)), syn::Type::Path(ty)) = (&block.trait_, &*block.self_ty) else {
        return;
    };
    let (Some(role), Some(ty)) = (role.segments.last(), ty.path.segments.last()) else {
        return;
    };
    let (role, ty) = (role.ident.to_string(), ty.ident.to_string());
    if role == "Plugin" {
        let mut listed = Vec::new();
        for item in &block.items {
            if let syn::ImplItem::Const(constant) = item {
                let mut expression = &constant.expr;
                while let syn::Expr::MethodCall(call) = expression {
                    listed.push(call.method.to_string());
                    expression = &call.receiver;
                }
            }
        }
        types.entry(ty).or_default().listed = Some(listed);
    } else if roles.contains_key(&role) {
        types.entry(ty).or_default().implemented.insert(role);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROLES: &str = "macro_rules! roles {}\n\nroles! {\n    shared {\n        filter: Filter,\n    }\n    \
                         exclusive {\n        tick: Tick,\n    }\n}\n\nother: Other,\n";

    fn check(table: &str, plugin: &str) -> Vec<String> {
        let sources = [("crates/plugins/src/fit.rs".into(), plugin.to_owned())];
        compare(ROLES, table, &sources).unwrap()
    }

    #[test]
    fn implemented_role_that_is_not_listed_fails() {
        let table = "scheduler Filter 2\nscheduler Tick 6\n";
        let plugin = |roles: &str| {
            format!(
                "impl Plugin for Fit {{ const ROLES: Roles<Self> = Roles::none(){roles}; }}\n\
                 impl Filter for Fit {{}}\nimpl Tick for Fit {{}}\nimpl Other for Fit {{}}\n\
                 impl Filter for NoPlugin {{}}"
            )
        };
        assert_eq!(check(table, &plugin(".filter().tick()")), [""; 0]);
        assert_eq!(
            check(table, &plugin(".filter()")),
            ["plugins: Fit implements Tick, and its ROLES do not list it"]
        );
    }

    #[test]
    fn role_without_a_small_budget_fails() {
        let fault = |role| {
            format!("xtask/methods.txt: expected a row for role {role} of at most 6 methods")
        };
        assert_eq!(
            check("scheduler Filter 7", ""),
            ["Filter", "Tick"].map(fault)
        );
    }
}
