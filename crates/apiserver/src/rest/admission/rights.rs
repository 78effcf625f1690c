//! Escalation checks: a user may grant only permissions it holds, and a write that creates an object needs
//! the permission to create.

use super::{AdmissionAttributes, Operation};
use crate::authz::bootstrap::GROUP;
use crate::authz::{self, ResourceTarget, RoleKind, Rule, Target, User, uncovered};
use crate::rest::guard::Guard;
use crate::rest::meta;
use koord_kinds::status::{ApiError, quoted};
use serde_json::Value;

/// Checks a write in the form it will be stored in.
///
/// # Errors
/// 403 for permissions that the user does not hold, 404 for a binding to a missing role.
pub(super) fn check(
    guard: &Guard,
    attributes: &AdmissionAttributes<'_>,
    object: &Value,
    old: Option<&Value>,
) -> Result<(), ApiError> {
    if attributes.operation == Operation::Delete || !attributes.subresource.is_empty() {
        return Ok(());
    }
    // Writes by the control plane itself have no user to check.
    let Some(user) = attributes.sender() else {
        return Ok(());
    };
    let resource = attributes.resource;
    if attributes.operation == Operation::Create {
        // A PUT or an apply that creates was authorized only as such.
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

/// Privilege escalation check: a role may only grant permissions its author holds, unless the author has the
/// `escalate` verb.
fn check_role(
    guard: &Guard,
    user: &User,
    attributes: &AdmissionAttributes<'_>,
    object: &Value,
    old: Option<&Value>,
) -> Result<(), ApiError> {
    let (plural, namespace) = (&attributes.resource.plural, attributes.namespace);
    if guard.unbounded(user)
        || may_use_verb(guard, user, "escalate", plural, namespace, attributes.name)
        || old.is_some_and(|old| is_bookkeeping_only(object, old))
    {
        return Ok(());
    }
    let forbidden = |reason: &str| ApiError::forbidden(GROUP, plural, meta::name(object), reason);
    let granted = Rule::parse_list(object.get("rules"));
    check_permissions(guard, user, namespace, &granted).map_err(|reason| forbidden(&reason))?;
    // Its rules may come from other roles, which are checked as if they granted everything.
    if aggregates(object) || old.is_some_and(aggregates) {
        let all = [Rule::everything(), Rule::every_path()];
        check_permissions(guard, user, namespace, &all).map_err(|_| {
            forbidden("must have cluster-admin privileges to use the aggregationRule")
        })?;
    }
    Ok(())
}

/// Privilege escalation check: a binding may only grant permissions its author holds, unless the author has
/// the `bind` verb.
fn check_binding(
    guard: &Guard,
    user: &User,
    attributes: &AdmissionAttributes<'_>,
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
        || old.is_some_and(|old| is_bookkeeping_only(object, old))
        || may_use_verb(guard, user, "bind", plural, namespace, role)
    {
        return Ok(());
    }
    let granted = guard
        .role_rules(kind, namespace, role)
        .ok_or_else(|| ApiError::not_found(GROUP, plural, role))?;
    check_permissions(guard, user, namespace, &granted)
        .map_err(|reason| ApiError::forbidden(GROUP, &resource.plural, name, &reason))
}

fn aggregates(role: &Value) -> bool {
    let selectors = meta::at(role, &["aggregationRule", "clusterRoleSelectors"]);
    selectors
        .and_then(Value::as_array)
        .is_some_and(|selectors| !selectors.is_empty())
}

/// Returns true if only metadata changes that deletion and garbage collection maintain.
fn is_bookkeeping_only(object: &Value, old: &Value) -> bool {
    let tail = |object: &Value| {
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
    tail(object) == tail(old)
}

/// Returns true if `user` may use `verb` on a role.
fn may_use_verb(
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

/// Checks that `user` holds all permissions of `granted`.
fn check_permissions(
    guard: &Guard,
    user: &User,
    namespace: &str,
    granted: &[Rule],
) -> Result<(), String> {
    let (owned, problem) = guard.rules_for(user, namespace);
    let missing = uncovered(&owned, granted);
    if missing.is_empty() {
        return Ok(());
    }
    let mut missing: Vec<String> = missing.iter().map(Rule::to_string).collect();
    missing.sort_unstable();
    let groups: Vec<String> = user.groups.iter().map(|group| quoted(group)).collect();
    let mut reason = format!(
        "user {} (groups=[{}]) is attempting to grant RBAC permissions not currently held:\n{}",
        quoted(&user.name),
        groups.join(" "),
        missing.join("\n")
    );
    if !problem.is_empty() {
        reason = format!("{reason}; resolution errors: {problem}");
    }
    Err(reason)
}
