//! The roles and bindings that every cluster has, as far as they mean something here.
//!
//! Names, rules and subjects are those of Kubernetes 1.35; resources of groups that are not served
//! and roles of parts that do not exist here (kube-dns, volume provisioners, the signers of
//! certificates, the cluster's own controllers, which write in process) are left out.

use super::{AUTHENTICATED, MASTERS, Rule, SERVICE_ACCOUNTS, UNAUTHENTICATED};
use serde_json::{Value, json};

/// Objects with this annotation are completed at every start, unless it says `false`.
pub const AUTO_UPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";
/// The group of what is here.
pub const GROUP: &str = "rbac.authorization.k8s.io";

const READ: &str = "get list watch";
const WRITE: &str = "create update patch delete deletecollection";
const READ_WRITE: &str = "get list watch create update patch delete deletecollection";
const READ_UPDATE: &str = "get list watch update patch";

/// A rule in words that are separated by spaces.
#[derive(Debug, Clone, Copy)]
enum Grant {
    /// Verbs, groups (`core`: the one without a name), resources.
    On(&'static str, &'static str, &'static str),
    /// The same for objects of these names.
    Named(&'static str, &'static str, &'static str, &'static str),
    /// GET of paths.
    Paths(&'static str),
}

use Grant::{Named, On, Paths};

impl Grant {
    fn rule(self) -> Rule {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let groups = |text: &str| {
            let groups = text
                .split(' ')
                .map(|group| group.trim_start_matches("core"));
            groups.map(str::to_owned).collect()
        };
        match self {
            On(verbs, of, resources) => Rule {
                verbs: words(verbs),
                groups: groups(of),
                resources: words(resources),
                ..Rule::default()
            },
            Named(verbs, of, resources, names) => Rule {
                names: words(names),
                ..On(verbs, of, resources).rule()
            },
            Paths(paths) => Rule {
                verbs: words("get"),
                paths: words(paths),
                ..Rule::default()
            },
        }
    }
}

const EVENTS: Grant = On("create patch update", "core events.k8s.io", "events");
const TOKEN_REVIEWS: Grant = On("create", "authentication.k8s.io", "tokenreviews");
const ACCESS_REVIEWS: Grant = On("create", "authorization.k8s.io", "subjectaccessreviews");

const VIEW: &[Grant] = &[
    On(
        READ,
        "core",
        "pods replicationcontrollers replicationcontrollers/scale serviceaccounts services \
         services/status endpoints persistentvolumeclaims persistentvolumeclaims/status configmaps",
    ),
    On(
        READ,
        "core",
        "limitranges resourcequotas bindings pods/status resourcequotas/status namespaces/status \
         replicationcontrollers/status pods/log",
    ),
    On(READ, "core", "namespaces"),
    On(READ, "core events.k8s.io", "events"),
    On(READ, "discovery.k8s.io", "endpointslices"),
    On(
        READ,
        "apps",
        "controllerrevisions statefulsets statefulsets/status statefulsets/scale daemonsets \
         daemonsets/status deployments deployments/status deployments/scale replicasets \
         replicasets/status replicasets/scale",
    ),
    On(
        READ,
        "autoscaling",
        "horizontalpodautoscalers horizontalpodautoscalers/status",
    ),
    On(READ, "batch", "jobs cronjobs cronjobs/status jobs/status"),
    On(
        READ,
        "policy",
        "poddisruptionbudgets poddisruptionbudgets/status",
    ),
    On(
        READ,
        "networking.k8s.io",
        "networkpolicies ingresses ingresses/status",
    ),
    On(
        READ,
        "resource.k8s.io",
        "resourceclaims resourceclaims/status resourceclaimtemplates",
    ),
];

const EDIT: &[Grant] = &[
    On(
        READ,
        "core",
        "pods/attach pods/proxy pods/exec pods/portforward secrets services/proxy",
    ),
    On("impersonate", "core", "serviceaccounts"),
    On(
        WRITE,
        "core",
        "pods pods/attach pods/proxy pods/exec pods/portforward",
    ),
    On("create", "core", "pods/eviction"),
    On(
        WRITE,
        "core",
        "replicationcontrollers replicationcontrollers/scale serviceaccounts services \
         services/proxy persistentvolumeclaims configmaps secrets",
    ),
    On("create", "core", "serviceaccounts/token"),
    On(WRITE, "core events.k8s.io", "events"),
    On(
        WRITE,
        "apps",
        "statefulsets statefulsets/scale daemonsets deployments deployments/scale \
         deployments/rollback replicasets replicasets/scale",
    ),
    On(WRITE, "autoscaling", "horizontalpodautoscalers"),
    On(WRITE, "batch", "jobs cronjobs"),
    On(WRITE, "policy", "poddisruptionbudgets"),
    On(WRITE, "networking.k8s.io", "networkpolicies ingresses"),
    On(READ_WRITE, "coordination.k8s.io", "leases"),
    On(
        WRITE,
        "resource.k8s.io",
        "resourceclaims resourceclaimtemplates",
    ),
];

const ADMIN: &[Grant] = &[
    On(
        "create",
        "authorization.k8s.io",
        "localsubjectaccessreviews",
    ),
    On(READ_WRITE, GROUP, "roles rolebindings"),
];

/// What nodes may do; which objects, the node authorizer says.
const NODE: &[Grant] = &[
    TOKEN_REVIEWS,
    On(
        "create",
        "authorization.k8s.io",
        "subjectaccessreviews localsubjectaccessreviews",
    ),
    On(READ, "core", "services"),
    On("create get list watch", "core", "nodes"),
    On("update patch", "core", "nodes/status"),
    On("update patch", "core", "nodes"),
    EVENTS,
    On(READ, "core", "pods"),
    On("create delete", "core", "pods"),
    On("update patch", "core", "pods/status"),
    On("create", "core", "pods/eviction"),
    On(READ, "core", "secrets configmaps"),
    On("get", "core", "persistentvolumeclaims persistentvolumes"),
    On("get", "core", "endpoints"),
    On(
        "create get list watch",
        "certificates.k8s.io",
        "certificatesigningrequests",
    ),
    On(
        "get create update patch delete",
        "coordination.k8s.io",
        "leases",
    ),
    On("get", "storage.k8s.io", "volumeattachments"),
    On("create", "core", "serviceaccounts/token"),
    On("get update patch", "core", "persistentvolumeclaims/status"),
    On(READ, "storage.k8s.io", "csidrivers"),
    On(
        "get create update patch delete",
        "storage.k8s.io",
        "csinodes",
    ),
    On(READ, "node.k8s.io", "runtimeclasses"),
    On("get", "resource.k8s.io", "resourceclaims"),
    On("get", "core", "serviceaccounts"),
];

const SCHEDULER: &[Grant] = &[
    EVENTS,
    On("create", "coordination.k8s.io", "leases"),
    Named(
        "get update list watch",
        "coordination.k8s.io",
        "leases",
        "kube-scheduler",
    ),
    On(READ, "core", "nodes"),
    On("get list watch delete", "core", "pods"),
    On("create", "core", "pods/binding bindings"),
    On("patch update", "core", "pods/status"),
    On(READ, "core", "services replicationcontrollers"),
    On(READ, "apps", "replicasets"),
    On(READ, "apps", "statefulsets"),
    On(READ, "policy", "poddisruptionbudgets"),
    On(READ, "core", "persistentvolumeclaims persistentvolumes"),
    TOKEN_REVIEWS,
    ACCESS_REVIEWS,
    On(READ, "storage.k8s.io", "csinodes"),
    On(READ, "storage.k8s.io", "volumeattachments"),
    On(READ, "core", "namespaces"),
    On(READ, "storage.k8s.io", "csidrivers"),
    On(READ, "storage.k8s.io", "csistoragecapacities"),
    On(READ, "resource.k8s.io", "deviceclasses"),
    On(READ_UPDATE, "resource.k8s.io", "resourceclaims"),
    On(READ_UPDATE, "resource.k8s.io", "resourceclaims/status"),
    On("update", "core", "pods/finalizers"),
    On(READ, "resource.k8s.io", "resourceslices"),
];

/// Cluster roles with their rules.
const CLUSTER_ROLES: &[(&str, &[Grant])] = &[
    ("cluster-admin", &[On("*", "*", "*")]),
    (
        "system:discovery",
        &[Paths(
            "/livez /readyz /healthz /version /version/ /openapi /openapi/* /api /api/* /apis \
             /apis/*",
        )],
    ),
    (
        "system:monitoring",
        &[
            Paths("/metrics /metrics/slis /livez /readyz /healthz /livez/* /readyz/* /healthz/*"),
            On("get", "core", "nodes/metrics"),
        ],
    ),
    (
        "system:basic-user",
        &[
            On(
                "create",
                "authorization.k8s.io",
                "selfsubjectaccessreviews selfsubjectrulesreviews",
            ),
            On("create", "authentication.k8s.io", "selfsubjectreviews"),
        ],
    ),
    (
        "system:public-info-viewer",
        &[Paths("/livez /readyz /healthz /version /version/")],
    ),
    ("system:aggregate-to-admin", ADMIN),
    ("system:aggregate-to-edit", EDIT),
    ("system:aggregate-to-view", VIEW),
    ("system:node", NODE),
    (
        "system:node-problem-detector",
        &[
            On("get", "core", "nodes"),
            On("patch", "core", "nodes/status"),
            EVENTS,
        ],
    ),
    ("system:auth-delegator", &[TOKEN_REVIEWS, ACCESS_REVIEWS]),
    (
        "system:kube-controller-manager",
        &[
            EVENTS,
            On("create", "coordination.k8s.io", "leases"),
            Named(
                "get update",
                "coordination.k8s.io",
                "leases",
                "kube-controller-manager",
            ),
            On("create", "core", "secrets serviceaccounts"),
            On("delete", "core", "secrets"),
            On(
                "get",
                "core",
                "namespaces secrets serviceaccounts configmaps",
            ),
            On("update", "core", "secrets serviceaccounts"),
            TOKEN_REVIEWS,
            ACCESS_REVIEWS,
            On("list watch", "*", "*"),
            On("create", "core", "serviceaccounts/token"),
        ],
    ),
    (
        "system:volume-scheduler",
        &[
            On(READ_UPDATE, "core", "persistentvolumes"),
            On(READ, "storage.k8s.io", "storageclasses"),
            On(READ_UPDATE, "core", "persistentvolumeclaims"),
        ],
    ),
    (
        "system:service-account-issuer-discovery",
        &[Paths(
            "/.well-known/openid-configuration /.well-known/openid-configuration/ \
             /openid/v1/jwks /openid/v1/jwks/",
        )],
    ),
    (
        "system:kubelet-api-admin",
        &[
            On(READ, "core", "nodes"),
            On("proxy", "core", "nodes"),
            On(
                "*",
                "core",
                "nodes/proxy nodes/metrics nodes/stats nodes/log nodes/pods nodes/healthz \
                 nodes/configz",
            ),
        ],
    ),
    ("system:kube-scheduler", SCHEDULER),
];

/// Roles that are the sum of those with their label, the innermost first, each with the one it is
/// a part of.
pub const AGGREGATED: [(&str, Option<&str>); 3] = [
    ("view", Some("edit")),
    ("edit", Some("admin")),
    ("admin", None),
];

/// Cluster roles bound everywhere, to a `Group` or a `User`.
const CLUSTER_BINDINGS: &[(&str, &str, &[&str])] = &[
    ("cluster-admin", "Group", &[MASTERS]),
    ("system:monitoring", "Group", &["system:monitoring"]),
    ("system:discovery", "Group", &[AUTHENTICATED]),
    ("system:basic-user", "Group", &[AUTHENTICATED]),
    (
        "system:public-info-viewer",
        "Group",
        &[AUTHENTICATED, UNAUTHENTICATED],
    ),
    (
        "system:kube-controller-manager",
        "User",
        &["system:kube-controller-manager"],
    ),
    ("system:kube-scheduler", "User", &["system:kube-scheduler"]),
    (
        "system:volume-scheduler",
        "User",
        &["system:kube-scheduler"],
    ),
    ("system:node", "Group", &[]),
    (
        "system:service-account-issuer-discovery",
        "Group",
        &[SERVICE_ACCOUNTS],
    ),
];

const LEADER: &[Grant] = &[On(
    "get watch list create update",
    "coordination.k8s.io",
    "leases leasecandidates",
)];

/// Roles of `kube-system`.
const ROLES: &[(&str, &[Grant])] = &[
    (
        "extension-apiserver-authentication-reader",
        &[Named(
            READ,
            "core",
            "configmaps",
            "extension-apiserver-authentication",
        )],
    ),
    ("system::leader-locking-kube-controller-manager", LEADER),
    ("system::leader-locking-kube-scheduler", LEADER),
];

/// Bindings of `kube-system`: name, role, users.
const BINDINGS: &[(&str, &str, &[&str])] = &[
    (
        "system::extension-apiserver-authentication-reader",
        "extension-apiserver-authentication-reader",
        &["system:kube-controller-manager", "system:kube-scheduler"],
    ),
    (
        "system::leader-locking-kube-controller-manager",
        "system::leader-locking-kube-controller-manager",
        &["system:kube-controller-manager"],
    ),
    (
        "system::leader-locking-kube-scheduler",
        "system::leader-locking-kube-scheduler",
        &["system:kube-scheduler"],
    ),
];

/// One object: plural, namespace (`""` for cluster-scoped ones), and itself.
pub type Object = (&'static str, &'static str, Value);

/// Roles and bindings; of the aggregated roles, their labels and rule of aggregation only.
#[must_use]
pub fn objects() -> Vec<Object> {
    let mut all = Vec::new();
    for (name, grants) in CLUSTER_ROLES {
        let mut rules = rules(grants);
        if *name == "cluster-admin" {
            rules.push(json!({"verbs": ["*"], "nonResourceURLs": ["*"]}));
        }
        let mut role = json!({"metadata": metadata(name), "rules": rules});
        if let Some(of) = name.strip_prefix("system:aggregate-to-") {
            role["metadata"]["labels"][label(of)] = "true".into();
        }
        all.push(("clusterroles", "", role));
    }
    for (name, part_of) in AGGREGATED {
        let selector = json!({"matchLabels": {label(name): "true"}});
        let mut role = json!({
            "metadata": metadata(name),
            "aggregationRule": {"clusterRoleSelectors": [selector]},
            "rules": [],
        });
        if let Some(of) = part_of {
            role["metadata"]["labels"][label(of)] = "true".into();
        }
        all.push(("clusterroles", "", role));
    }
    for (name, kind, subjects) in CLUSTER_BINDINGS {
        let binding = binding(name, ("ClusterRole", name), kind, subjects);
        all.push(("clusterrolebindings", "", binding));
    }
    for (name, grants) in ROLES {
        let role = json!({"metadata": metadata(name), "rules": rules(grants)});
        all.push(("roles", "kube-system", role));
    }
    for (name, role, users) in BINDINGS {
        let binding = binding(name, ("Role", role), "User", users);
        all.push(("rolebindings", "kube-system", binding));
    }
    all
}

/// What nodes may do at most.
#[must_use]
pub fn node_rules() -> Vec<Rule> {
    NODE.iter().map(|grant| grant.rule()).collect()
}

fn label(of: &str) -> String {
    format!("rbac.authorization.k8s.io/aggregate-to-{of}")
}

fn metadata(name: &str) -> Value {
    json!({
        "name": name,
        "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
        "annotations": {AUTO_UPDATE: "true"},
    })
}

fn rules(grants: &[Grant]) -> Vec<Value> {
    grants.iter().map(|grant| grant.rule().to_value()).collect()
}

fn binding(name: &str, (of, role): (&str, &str), kind: &str, subjects: &[&str]) -> Value {
    let subjects = subjects.iter();
    let subjects = subjects.map(|name| json!({"kind": kind, "apiGroup": GROUP, "name": name}));
    let mut binding = json!({
        "metadata": metadata(name),
        "roleRef": {"apiGroup": GROUP, "kind": of, "name": role},
    });
    let subjects: Vec<Value> = subjects.collect();
    if !subjects.is_empty() {
        binding["subjects"] = subjects.into();
    }
    binding
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authz::{
        ANONYMOUS, Attributes, Binding, Index, NODES, ResourceTarget, Role, Target, User,
    };

    /// The index over everything here, with the aggregated roles left empty.
    fn index() -> Index {
        let mut index = Index::default();
        for (plural, namespace, object) in objects() {
            let name = object["metadata"]["name"].as_str().unwrap();
            if plural.ends_with("roles") {
                index.put_role(namespace, name, Role::read(&object));
            } else {
                index.put_binding(Binding::read(namespace, name, &object).unwrap());
            }
        }
        index
    }

    /// The rows follow the table of default roles in Kubernetes' documentation.
    #[test]
    fn what_users_may_do_from_the_start() {
        let index = index();
        let someone = User::new("ann", [AUTHENTICATED]);
        let scheduler = User::new("system:kube-scheduler", [AUTHENTICATED]);
        let node = User::new("system:node:n1", [NODES, AUTHENTICATED]);
        let path = |path| Target::Path(path);
        let of = |group, resource, subresource, namespace| {
            Target::Resource(ResourceTarget {
                group,
                resource,
                subresource,
                namespace,
                name: "",
                node: "",
            })
        };
        let table = [
            (&someone, "get", path("/api/v1"), true),
            (&someone, "get", path("/metrics"), false),
            (&someone, "post", path("/api"), false),
            (&User::anonymous(), "get", path("/version"), true),
            (&User::anonymous(), "get", path("/api"), false),
            (
                &someone,
                "create",
                of("authorization.k8s.io", "selfsubjectaccessreviews", "", ""),
                true,
            ),
            (
                &someone,
                "create",
                of("authorization.k8s.io", "subjectaccessreviews", "", ""),
                false,
            ),
            (&someone, "list", of("", "pods", "", "default"), false),
            (&scheduler, "create", of("", "pods", "binding", "x"), true),
            (&scheduler, "update", of("", "nodes", "", ""), false),
            (
                &scheduler,
                "create",
                of("coordination.k8s.io", "leases", "", "kube-system"),
                true,
            ),
            (
                &scheduler,
                "update",
                of("coordination.k8s.io", "leases", "", "default"),
                false,
            ),
            // Nodes have their rights from the node authorizer, not from a binding.
            (&node, "list", of("", "secrets", "", ""), false),
        ];
        for (user, verb, target, allowed) in table {
            let attributes = Attributes { verb, target };
            let found = index.check(user, &attributes).is_ok();
            assert_eq!(found, allowed, "{}: {attributes:?}", user.name);
        }
    }

    #[test]
    fn every_binding_refers_to_a_role() {
        let all = objects();
        for (plural, namespace, object) in &all {
            if !plural.ends_with("bindings") {
                continue;
            }
            let of = &object["roleRef"];
            let (kind, namespace) = match of["kind"].as_str() {
                Some("Role") => ("roles", *namespace),
                _ => ("clusterroles", ""),
            };
            assert!(
                all.iter().any(|(plural, own, role)| {
                    (*plural, *own) == (kind, namespace) && role["metadata"]["name"] == of["name"]
                }),
                "{object}"
            );
        }
        // Nobody is bound who has not proven who he is, but to what is public.
        let public = all.iter().filter(|(_, _, object)| {
            let text = object.to_string();
            text.contains(UNAUTHENTICATED) || text.contains(ANONYMOUS)
        });
        let public: Vec<_> = public.map(|(_, _, o)| &o["metadata"]["name"]).collect();
        assert_eq!(public, ["system:public-info-viewer"]);
    }
}
