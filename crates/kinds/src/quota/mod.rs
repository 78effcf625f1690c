//! ResourceQuota: usage of objects, matching of quotas, and enforcement.
//!
//! The rules are those of upstream's quota evaluators, with one addition: every resource with a slash that a
//! pod requests is counted as `requests.<name>`, including the batch and mid resources below
//! `kubernetes.io/`, which upstream treats as native and never counts.

mod pod;
#[cfg(test)]
mod tests;

use super::resource::Resource;
use super::{meta, quantity};
use jiff::Timestamp;
use koord_api::quantity::{Quantity, ResourceList};
use serde_json::Value;

pub(super) use pod::total;

/// Parses a list of amounts; invalid quantities are ignored.
pub(super) fn list(value: Option<&Value>) -> ResourceList {
    let map = value.and_then(Value::as_object).into_iter().flatten();
    map.filter_map(|(name, v)| Some((name.clone(), quantity::parse(v)?)))
        .collect()
}

/// A scope of a quota, which selects pods.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Scope {
    name: String,
    operator: String,
    values: Vec<String>,
}

/// A ResourceQuota with the limits to enforce or to compute.
#[derive(Debug, Clone)]
pub struct Quota {
    /// Name of the quota.
    pub name: String,
    /// Limits: `status.hard`, or `spec.hard` for [`Quota::from_spec`].
    pub hard: ResourceList,
    /// Usage: `status.used`.
    pub used: ResourceList,
    scopes: Vec<Scope>,
}

impl Quota {
    /// Parses the quota that admission enforces: the limits that its controller has processed.
    #[must_use]
    pub fn from_status(object: &Value) -> Self {
        Self::with(object, &["status", "hard"])
    }

    /// Parses the quota that its controller has to compute: the limits of the spec.
    #[must_use]
    pub fn from_spec(object: &Value) -> Self {
        Self::with(object, &["spec", "hard"])
    }

    fn with(object: &Value, hard: &[&str]) -> Self {
        let array = |value: Option<&Value>| {
            let list = value.and_then(Value::as_array);
            list.cloned().unwrap_or_default()
        };
        let strings = |value: Option<&Value>| -> Vec<String> {
            let items = array(value);
            items
                .iter()
                .filter_map(|v| v.as_str().map(str::to_owned))
                .collect()
        };
        let mut scopes: Vec<Scope> = strings(meta::at(object, &["spec", "scopes"]))
            .into_iter()
            .map(|name| Scope {
                name,
                operator: "Exists".to_owned(),
                values: Vec::new(),
            })
            .collect();
        let selector = meta::at(object, &["spec", "scopeSelector", "matchExpressions"]);
        scopes.extend(array(selector).iter().map(|e| Scope {
            name: meta::str_at(e, &["scopeName"]).to_owned(),
            operator: meta::str_at(e, &["operator"]).to_owned(),
            values: strings(e.get("values")),
        }));
        Self {
            name: meta::name(object).to_owned(),
            hard: list(meta::at(object, hard)),
            used: list(meta::at(object, &["status", "used"])),
            scopes,
        }
    }

    /// Returns the tracked resources that objects of `resource` use.
    pub fn tracked<'a>(&'a self, resource: &'a Resource) -> impl Iterator<Item = &'a str> {
        let names = self.hard.keys().map(String::as_str);
        names.filter(move |name| covers(resource, name))
    }

    /// Returns true if objects of `resource` can change the usage of this quota.
    #[must_use]
    pub fn concerns(&self, resource: &Resource) -> bool {
        self.tracked(resource).next().is_some()
    }

    /// Returns true if `object` counts in this quota.
    #[must_use]
    pub fn matches(&self, resource: &Resource, object: &Value) -> bool {
        let pods = resource.is("", "pods");
        self.concerns(resource)
            && self
                .scopes
                .iter()
                .all(|scope| pods && pod::is_in_scope(object, scope))
    }

    /// Returns the usage after a write; `old` is `None` for a new object. `None` if the usage does not
    /// change.
    ///
    /// # Errors
    /// Why the write is not allowed, with upstream's text.
    pub fn charge(
        &self,
        resource: &Resource,
        object: &Value,
        old: Option<&Value>,
        now: Timestamp,
    ) -> Result<Option<ResourceList>, String> {
        if !self.matches(resource, object) {
            return Ok(None);
        }
        if resource.is("", "pods") {
            pod::missing(object, self.tracked(resource))
                .map_err(|error| format!("failed quota: {}: {error}", self.name))?;
        }
        let tracked: Vec<&str> = self.tracked(resource).collect();
        if tracked.iter().any(|name| !self.used.contains_key(*name)) {
            let (name, tracked) = (&self.name, tracked.join(","));
            return Err(format!(
                "status unknown for quota: {name}, resources: {tracked}"
            ));
        }
        let mut requested = usage(resource, object, now);
        let negative: Vec<&str> = requested
            .iter()
            .filter(|(_, q)| **q < Quantity::ZERO)
            .map(|(name, _)| name.as_str())
            .collect();
        if !negative.is_empty() {
            let negative = negative.join(",");
            return Err(format!(
                "quota usage is negative for resource(s): {negative}"
            ));
        }
        if let Some(old) = old.filter(|old| self.matches(resource, old)) {
            for (name, before) in usage(resource, old, now) {
                if let Some(amount) = requested.get_mut(&name) {
                    *amount = (*amount - before).max(Quantity::ZERO);
                }
            }
        }
        requested.retain(|name, amount| !amount.is_zero() && self.hard.contains_key(name));
        if requested.is_empty() {
            return Ok(None);
        }
        let mut used = self.used.clone();
        for (name, amount) in &requested {
            *used.entry(name.clone()).or_insert(Quantity::ZERO) += *amount;
        }
        let over: Vec<&String> = requested
            .keys()
            .filter(|name| used.get(*name) > self.hard.get(*name))
            .collect();
        if over.is_empty() {
            return Ok(Some(used));
        }
        let show = |from: &ResourceList| -> String {
            let parts = over
                .iter()
                .filter_map(|name| from.get(*name).map(|q| format!("{name}={q}")));
            parts.collect::<Vec<_>>().join(",")
        };
        Err(format!(
            "exceeded quota: {}, requested: {}, used: {}, limited: {}",
            self.name,
            show(&requested),
            show(&self.used),
            show(&self.hard)
        ))
    }

    /// Adds the usage of `object` to `sum`, whose keys are the tracked resources.
    pub fn count(
        &self,
        sum: &mut ResourceList,
        resource: &Resource,
        object: &Value,
        now: Timestamp,
    ) {
        if !self.matches(resource, object) {
            return;
        }
        for (name, amount) in usage(resource, object, now) {
            if let Some(total) = sum.get_mut(&name) {
                *total += amount;
            }
        }
    }
}

/// Returns the name of the object count, such as `count/pods` or `count/deployments.apps`.
fn count_name(resource: &Resource) -> String {
    format!("count/{}", resource.qualified())
}

/// Returns the older name of the object count of some core kinds, without `count/`.
fn alias(resource: &Resource) -> Option<&str> {
    let name = &*resource.plural;
    let counted = matches!(
        name,
        "configmaps" | "resourcequotas" | "replicationcontrollers" | "secrets"
    );
    (resource.group.is_empty() && counted).then_some(name)
}

/// Returns true if the quota resource `name` applies to objects of `resource`.
fn covers(resource: &Resource, name: &str) -> bool {
    if let Some(counted) = name.strip_prefix("count/") {
        return counted == resource.qualified();
    }
    if !resource.group.is_empty() {
        return false;
    }
    match &*resource.plural {
        "pods" => pod::covers(name),
        "services" => matches!(
            name,
            "services" | "services.nodeports" | "services.loadbalancers"
        ),
        "persistentvolumeclaims" => {
            matches!(name, "persistentvolumeclaims" | "requests.storage")
                || name.ends_with(".storageclass.storage.k8s.io/requests.storage")
                || name.ends_with(".storageclass.storage.k8s.io/persistentvolumeclaims")
        }
        _ => alias(resource) == Some(name),
    }
}

/// Returns true if an update of `resource` from `old` to `new` can change the usage.
#[must_use]
pub fn update_changes_usage(resource: &Resource, new: &Value, old: &Value) -> bool {
    match (&*resource.group, &*resource.plural) {
        ("", "pods") => pod::terminating(new) != pod::terminating(old),
        ("", "services" | "persistentvolumeclaims") => true,
        _ => false,
    }
}

/// Returns the usage of an object at `now`.
fn usage(resource: &Resource, object: &Value, now: Timestamp) -> ResourceList {
    let one = Quantity::from_value(1);
    let mut out = match (&*resource.group, &*resource.plural) {
        ("", "pods") => pod::usage(object, now),
        ("", "services") => service(object),
        ("", "persistentvolumeclaims") => claim(object),
        _ => ResourceList::new(),
    };
    if let Some(alias) = alias(resource) {
        out.insert(alias.to_owned(), one);
    }
    out.insert(count_name(resource), one);
    out
}

fn service(service: &Value) -> ResourceList {
    let kind = meta::str_at(service, &["spec", "type"]);
    let ports = meta::at(service, &["spec", "ports"]).and_then(Value::as_array);
    let ports = ports.map_or(&[][..], Vec::as_slice);
    let balanced = kind == "LoadBalancer";
    let allocates = meta::at(service, &["spec", "allocateLoadBalancerNodePorts"])
        .and_then(Value::as_bool)
        .unwrap_or(true);
    let node_ports = match kind {
        "LoadBalancer" if !allocates => {
            let provided = |p: &&Value| p.get("nodePort").and_then(Value::as_i64).unwrap_or(0) != 0;
            ports.iter().filter(provided).count()
        }
        "NodePort" | "LoadBalancer" => ports.len(),
        _ => 0,
    };
    let count = |n: usize| Quantity::from_value(i64::try_from(n).unwrap_or(i64::MAX));
    ResourceList::from([
        ("services".to_owned(), count(1)),
        ("services.nodeports".to_owned(), count(node_ports)),
        (
            "services.loadbalancers".to_owned(),
            count(usize::from(balanced)),
        ),
    ])
}

fn claim(claim: &Value) -> ResourceList {
    let one = Quantity::from_value(1);
    let storage = pod::amount(claim, &["spec", "resources", "requests", "storage"]);
    let mut out = ResourceList::from([
        ("persistentvolumeclaims".to_owned(), one),
        ("requests.storage".to_owned(), storage),
    ]);
    let class = meta::str_at(claim, &["spec", "storageClassName"]);
    if !class.is_empty() {
        let of = |what: &str| format!("{class}.storageclass.storage.k8s.io/{what}");
        out.insert(of("requests.storage"), storage);
        out.insert(of("persistentvolumeclaims"), one);
    }
    out
}
