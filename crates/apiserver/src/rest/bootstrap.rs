//! Objects that exist from the start: default namespaces, priority classes, service accounts and the like.

use super::options::WriteOptions;
use super::write::WriteInput;
use super::{Api, roles};
use koord_kinds::status::ApiError;
use serde_json::{Value, json};

/// Namespaces that every cluster has, and that of the Koordinator components.
const NAMESPACES: [&str; 5] = [
    "default",
    "kube-system",
    "kube-public",
    "kube-node-lease",
    "koordinator-system",
];

impl Api {
    /// Creates a ConfigMap or updates its data.
    pub(crate) async fn apply_config_map(
        &self,
        namespace: &str,
        name: &str,
        data: Value,
    ) -> Result<(), ApiError> {
        let maps = self.builtin("", "v1", "configmaps")?;
        let key = Self::key(&maps, namespace, name);
        let Some(entry) = self.store().get(&maps.table, &key) else {
            let map = json!({ "metadata": { "name": name }, "data": data });
            return self.ensure("", "v1", "configmaps", namespace, map).await;
        };
        if entry.value().get("data") == Some(&data) {
            return Ok(());
        }
        let options = WriteOptions::default();
        self.modify(&maps, None, &key, &options, |old| {
            let mut new = old.clone();
            super::meta::as_object(&mut new).insert("data".to_owned(), data.clone());
            Ok(WriteInput::from(new))
        })
        .await
        .map(drop)
    }

    /// Creates an object unless one with its name exists.
    ///
    /// # Errors
    /// Those of a create, except that the object exists.
    pub async fn ensure(
        &self,
        group: &str,
        version: &str,
        plural: &str,
        namespace: &str,
        object: Value,
    ) -> Result<(), ApiError> {
        let resource = self.builtin(group, version, plural)?;
        let key = Self::key(&resource, namespace, super::meta::name(&object));
        if self.store().get(&resource.table, &key).is_some() {
            return Ok(());
        }
        let result = self
            .create_object(
                &resource,
                namespace,
                WriteInput::from(object),
                &WriteOptions::default(),
            )
            .await;
        match result {
            Err(e) if e.reason != "AlreadyExists" => Err(e),
            _ => Ok(()),
        }
    }
}

/// Loads the stored custom resource definitions and webhook configurations.
pub(crate) fn load(api: &Api) {
    api.inner.definitions.load();
    api.admission().webhooks().load(api.store());
}

/// Returns true if an earlier start has created the default namespaces.
pub(crate) fn is_bootstrapped(api: &Api) -> bool {
    let Ok(namespaces) = api.builtin("", "v1", "namespaces") else {
        return false;
    };
    NAMESPACES.iter().all(|name| {
        let key = Api::key(&namespaces, "", name);
        api.store().get(&namespaces.table, &key).is_some()
    })
}

/// Creates the missing ones of the default namespaces, priority classes, roles, bindings and the `kubernetes`
/// service, and publishes `authority`, a certificate in PEM. Call it before serving.
///
/// # Errors
/// If the store refuses a write.
pub(crate) async fn ensure_built_ins(api: &Api, authority: &str) -> Result<(), ApiError> {
    ensure_defaults(api).await?;
    publish_authority(api, authority).await
}

/// Creates the missing built-in objects: namespaces, priority classes, service accounts, a service, roles.
async fn ensure_defaults(api: &Api) -> Result<(), ApiError> {
    for name in NAMESPACES {
        api.ensure(
            "",
            "v1",
            "namespaces",
            "",
            json!({ "metadata": { "name": name } }),
        )
        .await?;
    }
    for (name, value, description) in [
        (
            "system-cluster-critical",
            2_000_000_000_i64,
            "Used for system critical pods that must run in the cluster, but can be moved to \
             another node if necessary.",
        ),
        (
            "system-node-critical",
            2_000_001_000,
            "Used for system critical pods that must not be moved from their current node.",
        ),
    ] {
        let class = json!({
            "metadata": { "name": name },
            "value": value,
            "description": description,
        });
        api.ensure("scheduling.k8s.io", "v1", "priorityclasses", "", class)
            .await?;
    }
    for name in NAMESPACES {
        let account = json!({ "metadata": { "name": "default" } });
        api.ensure("", "v1", "serviceaccounts", name, account)
            .await?;
    }
    let service = json!({
        "metadata": {
            "name": "kubernetes",
            "labels": { "component": "apiserver", "provider": "kubernetes" },
        },
        "spec": {
            "type": "ClusterIP",
            "clusterIP": "10.96.0.1",
            "ports": [{ "name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443 }],
        },
    });
    api.ensure("", "v1", "services", "default", service).await?;
    roles::bootstrap(api).await
}

/// Publishes in `kube-system` the authority that signs client certificates, for servers that delegate
/// authentication.
///
/// # Errors
/// If the store refuses a write.
async fn publish_authority(api: &Api, pem: &str) -> Result<(), ApiError> {
    let data = json!({ "client-ca-file": pem });
    api.apply_config_map("kube-system", "extension-apiserver-authentication", data)
        .await
}
