//! ResourceQuota: what an object counts for, whether a quota concerns it, and whether it still fits.
//!
//! The rules are those of upstream's quota evaluators, with one resource more: whatever a pod
//! requests under a name with a slash is counted as `requests.<name>`, also the batch and mid
//! resources below `kubernetes.io/`, which upstream takes for native ones and never counts.

mod pod;
#[cfg(test)]
mod tests;

use super::resource::Resource;
use super::{meta, quantity};
use jiff::Timestamp;
use koord_api::quantity::{Quantity, ResourceList};
use serde_json::Value;

pub(super) use pod::total;

/// A list of amounts; what is not a quantity is left out.
pub(super) fn list(value: Option<&Value>) -> ResourceList {
    let map = value.and_then(Value::as_object).into_iter().flatten();
    map.filter_map(|(name, v)| Some((name.clone(), quantity::parse(v)?)))
        .collect()
}

/// A condition on pods.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Scope {
    name: String,
    operator: String,
    values: Vec<String>,
}

/// A ResourceQuota as its controller last wrote it.
#[derive(Debug, Clone)]
pub struct Quota {
    /// Its name.
    pub name: String,
    /// `status.hard`, or `spec.hard` of [`Quota::wanted`].
    pub hard: ResourceList,
    /// `status.used`.
    pub used: ResourceList,
    scopes: Vec<Scope>,
}

impl Quota {
    /// The quota that admission enforces: what its controller has seen.
    #[must_use]
    pub fn enforced(object: &Value) -> Self {
        Self::with(object, &["status", "hard"])
    }

    /// The quota that its controller is to bring about.
    #[must_use]
    pub fn wanted(object: &Value) -> Self {
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

    /// The tracked resources that objects of `resource` use.
    pub fn tracked<'a>(&'a self, resource: &'a Resource) -> impl Iterator<Item = &'a str> {
        let names = self.hard.keys().map(String::as_str);
        names.filter(move |name| covers(resource, name))
    }

    /// Whether objects of `resource` can change what is used of this quota.
    #[must_use]
    pub fn concerns(&self, resource: &Resource) -> bool {
        self.tracked(resource).next().is_some()
    }

    /// Whether `object` counts.
    #[must_use]
    pub fn matches(&self, resource: &Resource, object: &Value) -> bool {
        let pods = resource.is("", "pods");
        self.concerns(resource)
            && self
                .scopes
                .iter()
                .all(|scope| pods && pod::in_scope(object, scope))
    }

    /// What is used after a write: `old` is `None` for a new object. `None` when nothing changes.
    ///
    /// # Errors
    /// Why the write is not allowed, as upstream says it.
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
                .map_err(|why| format!("failed quota: {}: {why}", self.name))?;
        }
        let tracked: Vec<&str> = self.tracked(resource).collect();
        if tracked.iter().any(|name| !self.used.contains_key(*name)) {
            let (name, tracked) = (&self.name, tracked.join(","));
            return Err(format!(
                "status unknown for quota: {name}, resources: {tracked}"
            ));
        }
        let mut asked = usage(resource, object, now);
        let negative: Vec<&str> = asked
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
                if let Some(amount) = asked.get_mut(&name) {
                    *amount = (*amount - before).max(Quantity::ZERO);
                }
            }
        }
        asked.retain(|name, amount| !amount.is_zero() && self.hard.contains_key(name));
        if asked.is_empty() {
            return Ok(None);
        }
        let mut used = self.used.clone();
        for (name, amount) in &asked {
            *used.entry(name.clone()).or_insert(Quantity::ZERO) += *amount;
        }
        let over: Vec<&String> = asked
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
            show(&asked),
            show(&self.used),
            show(&self.hard)
        ))
    }

    /// Adds what `object` uses to `sum`, whose keys are the tracked resources.
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

/// `count/pods`, `count/deployments.apps`.
fn count_name(resource: &Resource) -> String {
    format!("count/{}", resource.qualified())
}

/// The name under which some kinds of the core group were counted before there was `count/`.
fn alias(resource: &Resource) -> Option<&str> {
    let name = &*resource.plural;
    let counted = matches!(
        name,
        "configmaps" | "resourcequotas" | "replicationcontrollers" | "secrets"
    );
    (resource.group.is_empty() && counted).then_some(name)
}

/// Whether a quota of `name` concerns objects of `resource`.
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

/// Whether an update of objects of `resource`, from `old` to `new`, can change what they use.
#[must_use]
pub fn update_counts(resource: &Resource, new: &Value, old: &Value) -> bool {
    match (&*resource.group, &*resource.plural) {
        ("", "pods") => pod::terminating(new) != pod::terminating(old),
        ("", "services" | "persistentvolumeclaims") => true,
        _ => false,
    }
}

/// What an object uses at `now`.
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
            let given = |p: &&Value| p.get("nodePort").and_then(Value::as_i64).unwrap_or(0) != 0;
            ports.iter().filter(given).count()
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
