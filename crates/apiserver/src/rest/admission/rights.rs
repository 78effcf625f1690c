//! Nobody gives rights that he does not have, and what creates needs the right to create.

use super::{Attributes, Operation};
use crate::authz::bootstrap::GROUP;
use crate::authz::{self, ResourceTarget, RoleKind, Rule, Target, User, uncovered};
use crate::rest::guard::Guard;
use crate::rest::meta;
use koord_kinds::status::{ApiError, quoted};
use serde_json::Value;

/// Checks a write as it would be stored.
///
/// # Errors
/// 403 for rights that the writer does not have, 404 for a binding that refers to no role.
pub(super) fn check(
    guard: &Guard,
    attributes: &Attributes<'_>,
    object: &Value,
    old: Option<&Value>,
) -> Result<(), ApiError> {
    if attributes.operation == Operation::Delete || !attributes.subresource.is_empty() {
        return Ok(());
    }
    // What the control plane itself writes was not asked for by anybody.
    let Some(user) = attributes.sender() else {
        return Ok(());
    };
    let resource = attributes.resource;
    if attributes.operation == Operation::Create {
        // A PUT or an apply that creates was allowed as such only.
        let target = Target::Resource(ResourceTarget {
            group: &resource.group,
            resource: &resource.plural,
            namespace: attributes.namespace,
            name: attributes.name,
            ..ResourceTarget::default()
        });
        let verb = "create";
        guard.authorize(user, &authz::Attributes { verb, target })?;
    }
    if &*resource.group != GROUP {
        return Ok(());
    }
    match &*resource.plural {
        "roles" | "clusterroles" => check_role(guard, user, attributes, object, old),
        "rolebindings" | "clusterrolebindings" => {
            check_binding(guard, user, attributes, object, old)
        }
        _ => Ok(()),
    }
}

/// Who writes a role has what it says, or may escalate.
fn check_role(
    guard: &Guard,
    user: &User,
    attributes: &Attributes<'_>,
    object: &Value,
    old: Option<&Value>,
) -> Result<(), ApiError> {
    let (plural, namespace) = (&attributes.resource.plural, attributes.namespace);
    if guard.unbounded(user)
        || may(guard, user, "escalate", plural, namespace, attributes.name)
        || old.is_some_and(|old| bookkeeping(object, old))
    {
        return Ok(());
    }
    let forbidden = |why: &str| ApiError::forbidden(GROUP, plural, meta::name(object), why);
    let wanted = Rule::all(object.get("rules"));
    confirm(guard, user, namespace, &wanted).map_err(|why| forbidden(&why))?;
    // What it is, or was, the sum of is up to others.
    if aggregates(object) || old.is_some_and(aggregates) {
        let all = [Rule::everything(), Rule::every_path()];
        confirm(guard, user, namespace, &all).map_err(|_| {
            forbidden("must have cluster-admin privileges to use the aggregationRule")
        })?;
    }
    Ok(())
}

/// Who binds a role has what it says, or may bind it.
fn check_binding(
    guard: &Guard,
    user: &User,
    attributes: &Attributes<'_>,
    object: &Value,
    old: Option<&Value>,
) -> Result<(), ApiError> {
    let (resource, namespace) = (attributes.resource, attributes.namespace);
    let name = meta::name(object);
    let role = meta::text(object, &["roleRef", "name"]);
    let (kind, plural) = match meta::text(object, &["roleRef", "kind"]) {
        "Role" => (RoleKind::Role, "roles"),
        _ => (RoleKind::ClusterRole, "clusterroles"),
    };
    if guard.unbounded(user)
        || old.is_some_and(|old| bookkeeping(object, old))
        || may(guard, user, "bind", plural, namespace, role)
    {
        return Ok(());
    }
    let wanted = guard
        .role_rules(kind, namespace, role)
        .ok_or_else(|| ApiError::not_found(GROUP, plural, role))?;
    confirm(guard, user, namespace, &wanted)
        .map_err(|why| ApiError::forbidden(GROUP, &resource.plural, name, &why))
}

fn aggregates(role: &Value) -> bool {
    let selectors = meta::at(role, &["aggregationRule", "clusterRoleSelectors"]);
    selectors
        .and_then(Value::as_array)
        .is_some_and(|selectors| !selectors.is_empty())
}

/// Only what deletion and garbage collection keep changes.
fn bookkeeping(object: &Value, old: &Value) -> bool {
    let rest = |object: &Value| {
        let mut object = object.clone();
        let metadata = meta::section(&mut object, "metadata");
        metadata.retain(|field, _| {
            !matches!(
                field.as_str(),
                "ownerReferences" | "finalizers" | "managedFields" | "resourceVersion"
            )
        });
        object
    };
    rest(object) == rest(old)
}

/// Whether `user` may do `verb` to a role.
fn may(
    guard: &Guard,
    user: &User,
    verb: &str,
    resource: &str,
    namespace: &str,
    name: &str,
) -> bool {
    let target = Target::Resource(ResourceTarget {
        group: GROUP,
        resource,
        namespace,
        name,
        ..ResourceTarget::default()
    });
    guard
        .authorize(user, &authz::Attributes { verb, target })
        .is_ok()
}

/// `user` has all that `wanted` allow.
fn confirm(guard: &Guard, user: &User, namespace: &str, wanted: &[Rule]) -> Result<(), String> {
    let (held, problem) = guard.rules_for(user, namespace);
    let missing = uncovered(&held, wanted);
    if missing.is_empty() {
        return Ok(());
    }
    let mut missing: Vec<String> = missing.iter().map(Rule::to_string).collect();
    missing.sort_unstable();
    let groups: Vec<String> = user.groups.iter().map(|group| quoted(group)).collect();
    let mut why = format!(
        "user {} (groups=[{}]) is attempting to grant RBAC permissions not currently held:\n{}",
        quoted(&user.name),
        groups.join(" "),
        missing.join("\n")
    );
    if !problem.is_empty() {
        why = format!("{why}; resolution errors: {problem}");
    }
    Err(why)
}
