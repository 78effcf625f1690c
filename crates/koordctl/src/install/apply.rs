//! Server-side apply of the rendered objects, after a look at what is in the cluster.

use super::render::Document;
use anyhow::{Context as _, Result, bail};
use koord_kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use koord_kube::kube_core::GroupVersionKind;
use koord_kube::{Api, Client};
use serde_json::Value;
use std::fmt::Write as _;
use std::time::Duration;

/// Field manager of `koord install`: objects with it belong to this installation.
pub(super) const FIELD_MANAGER: &str = "koord-install";
/// Kinds that other parties may have made before, without harm: their fields are added to.
const SHARED_KINDS: [&str; 5] = [
    "CustomResourceDefinition",
    "Namespace",
    "PriorityClass",
    "ConfigMap",
    "Secret",
];
const RELEASE_NAME: &str = "meta.helm.sh/release-name";
const RELEASE_NAMESPACE: &str = "meta.helm.sh/release-namespace";
const RESOURCE_POLICY: &str = "helm.sh/resource-policy";
/// Interval and number of looks at a new CRD until it is served.
const CRD_INTERVAL: Duration = Duration::from_millis(200);
const CRD_TRIES: u32 = 300;

/// An object of the cluster by its name, with the API that serves its kind.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) api: Api<DynamicObject>,
    pub(super) name: String,
    /// `KIND NAME`.
    pub(super) title: String,
}

impl Target {
    /// Creates the target for an object with kind and name.
    ///
    /// # Errors
    /// One of them is missing.
    pub(super) fn new(client: &Client, object: &Value) -> Result<Self> {
        let object: DynamicObject =
            serde_json::from_value(object.clone()).context("invalid object")?;
        let types = object.types.unwrap_or_default();
        let name = object.metadata.name.context("an object without a name")?;
        let kind = ApiResource::from_gvk(&GroupVersionKind::try_from(&types)?);
        let api = match object.metadata.namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &kind),
            None => Api::all_with(client.clone(), &kind),
        };
        Ok(Self {
            api,
            title: format!("{} {name}", types.kind),
            name,
        })
    }
}

/// Returns true if `koord install` applied the object.
pub(super) fn is_own(object: &DynamicObject) -> bool {
    let mut fields = object.metadata.managed_fields.iter().flatten();
    fields.any(|it| it.manager.as_deref() == Some(FIELD_MANAGER))
}

/// Returns which other installation an object belongs to; `None` if it may be applied.
fn other_owner(object: &DynamicObject) -> Option<String> {
    let annotation = |name: &str| {
        let annotations = object.metadata.annotations.as_ref()?;
        annotations.get(name).map(String::as_str)
    };
    let kind = object.types.as_ref().map_or("", |it| it.kind.as_str());
    let shared = SHARED_KINDS.contains(&kind);
    if let Some(release) = annotation(RELEASE_NAME) {
        // Helm leaves these behind, with the name of a release that is gone.
        if shared && annotation(RESOURCE_POLICY) == Some("keep") {
            return None;
        }
        let namespace = annotation(RELEASE_NAMESPACE).unwrap_or("default");
        return Some(format!("Helm release {release} in namespace {namespace}"));
    }
    (!shared && !is_own(object)).then(|| "an installation without koord install or Helm".to_owned())
}

/// Applies objects in their order, and returns a line for each that changed.
///
/// # Errors
/// An object belongs to another installation and `force` is not set, or the server refuses one. All before it are
/// applied then, and the next run goes on from there.
pub(super) async fn apply(client: &Client, documents: &[Document], force: bool) -> Result<String> {
    let mut targets = Vec::new();
    let mut foreign = Vec::new();
    for document in documents {
        let target = Target::new(client, &document.object)?;
        let live = target.api.get_opt(&target.name).await;
        let live = live.with_context(|| format!("failed to get {}", target.title))?;
        if let Some(owner) = live.as_ref().and_then(other_owner) {
            foreign.push(format!("{}: {owner}", target.title));
        }
        targets.push((target, live.and_then(|it| it.metadata.resource_version)));
    }
    if !foreign.is_empty() && !force {
        bail!(
            "objects of another installation exist; nothing is applied. docs/install.md has the way from Helm, \
             --force overwrites them:\n- {}",
            foreign.join("\n- ")
        );
    }
    let mut lines = String::new();
    let mut unchanged = 0_usize;
    let mut definitions = Vec::new();
    for (document, (target, version)) in documents.iter().zip(&targets) {
        let is_definition = document.object["kind"] == "CustomResourceDefinition";
        if !is_definition {
            await_definitions(&mut definitions).await?;
        }
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let patch = Patch::Apply(&document.object);
        let applied = target.api.patch(&target.name, &params, &patch).await;
        let applied = applied.with_context(|| format!("failed to apply {}", target.title))?;
        // Writing to a String cannot fail.
        match version {
            Some(_) if *version == applied.metadata.resource_version => unchanged += 1,
            _ => {
                let verb = if version.is_some() {
                    "changed"
                } else {
                    "created"
                };
                let _ = writeln!(lines, "{verb} {}", target.title);
            }
        }
        if is_definition {
            definitions.push(target);
        }
    }
    await_definitions(&mut definitions).await?;
    let _ = writeln!(lines, "unchanged: {unchanged} objects");
    Ok(lines)
}

/// Waits until all definitions are served, and removes them from the list.
async fn await_definitions(definitions: &mut Vec<&Target>) -> Result<()> {
    for target in definitions.drain(..) {
        let mut tries = 0;
        while !is_established(&target.api.get(&target.name).await?) {
            tries += 1;
            if tries > CRD_TRIES {
                bail!(
                    "{} is not served after {:?}",
                    target.title,
                    CRD_INTERVAL * CRD_TRIES
                );
            }
            tokio::time::sleep(CRD_INTERVAL).await;
        }
    }
    Ok(())
}

fn is_established(definition: &DynamicObject) -> bool {
    let conditions = definition.data["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|it| it["type"] == "Established" && it["status"] == "True")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn other_installations_are_named() {
        let own = json!([{"manager": FIELD_MANAGER, "operation": "Apply"}]);
        let helm = json!({RELEASE_NAME: "koordinator", RELEASE_NAMESPACE: "ops"});
        let mut kept = helm.clone();
        kept[RESOURCE_POLICY] = json!("keep");
        let release = Some("Helm release koordinator in namespace ops");
        let unknown = Some("an installation without koord install or Helm");
        for (kind, annotations, managed, expected) in [
            ("Deployment", json!({}), json!([]), unknown),
            ("Deployment", json!({}), own.clone(), None),
            ("Deployment", helm.clone(), json!([]), release),
            ("Namespace", helm, json!([]), release),
            ("Namespace", kept, json!([]), None),
            ("Namespace", json!({}), json!([]), None),
        ] {
            let object = serde_json::from_value(json!({
                "apiVersion": "v1", "kind": kind,
                "metadata": {"name": "a", "annotations": annotations, "managedFields": managed},
            }));
            let owner = other_owner(&object.unwrap());
            assert_eq!(owner.as_deref(), expected, "{kind}");
        }
    }
}
