//! The command of a container: program, arguments, environment, directory, user.

use crate::container_request::{ProcessSpec, Unstartable};
use crate::security::{Rights, Security};
use k8s_openapi::api::core::v1::{Container, EnvVar, Pod, SecurityContext};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A container, ready to be started as a host process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invocation {
    /// Program and arguments; never empty.
    pub argv: Vec<String>,
    /// The whole environment.
    pub env: Vec<(String, String)>,
    /// Working directory.
    pub dir: Option<PathBuf>,
    /// Security context of the process.
    pub security: Security,
}

/// Facts about the node for the downward API and the container's rights.
#[derive(Debug, Clone, Default)]
pub struct HostFacts {
    /// Address of the node; the pod's address as well, since every pod uses the host's network.
    pub ip: String,
    /// Search path for programs.
    pub path: String,
    /// Rights that the node can grant a container or withhold from it.
    pub rights: Rights,
}

/// Returns the request of `container` of `pod`. `env` holds the variables that precede its own.
pub(crate) fn process_spec(
    pod: &Pod,
    container: &Container,
    host: &HostFacts,
    env: Vec<(String, String)>,
) -> Result<ProcessSpec, Unstartable> {
    let env = environment(pod, container, host, env)?;
    let lookup: BTreeMap<&str, &str> = env
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    let expand_all = |words: &Option<Vec<String>>| -> Vec<String> {
        words
            .iter()
            .flatten()
            .map(|word| expand(word, &lookup))
            .collect()
    };
    let (command, args) = (expand_all(&container.command), expand_all(&container.args));
    let pod_context = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.security_context.as_ref());
    let own = container.security_context.as_ref();
    let id = |field: &str, own: Option<i64>, of_pod: Option<i64>| match own.or(of_pod) {
        None => Ok(None),
        Some(id) => u32::try_from(id)
            .map(Some)
            .map_err(|_| Unstartable::Unsupported {
                container: container.name.clone(),
                field: format!("securityContext.{field}"),
                reason: format!("{id} is not a valid id"),
            }),
    };
    let from = |get: fn(&SecurityContext) -> Option<i64>| own.and_then(get);
    let uid = id(
        "runAsUser",
        from(|c| c.run_as_user),
        pod_context.and_then(|c| c.run_as_user),
    )?;
    let gid = id(
        "runAsGroup",
        from(|c| c.run_as_group),
        pod_context.and_then(|c| c.run_as_group),
    )?;
    let not_root = own
        .and_then(|context| context.run_as_non_root)
        .or(pod_context.and_then(|context| context.run_as_non_root));
    let dir = container
        .working_dir
        .as_ref()
        .filter(|dir| !dir.is_empty())
        .map(PathBuf::from);
    Ok(ProcessSpec {
        command,
        args,
        env,
        dir,
        uid,
        gid,
        not_root: not_root == Some(true),
    })
}

impl ProcessSpec {
    /// Rejects root if the container must not run as root; `root` is true if its default user is root.
    pub(crate) fn check_user(&self, container: &str, root: bool) -> Result<(), Unstartable> {
        if self.not_root && self.uid.map_or(root, |uid| uid == 0) {
            return Err(Unstartable::Unsupported {
                container: container.to_owned(),
                field: "securityContext.runAsNonRoot".to_owned(),
                reason: "the container would run as root; set runAsUser".to_owned(),
            });
        }
        Ok(())
    }
}

/// Returns everything needed to start `container` of `pod` as a process.
///
/// # Errors
/// When it has no command or needs something that this node does not have.
pub fn invocation(
    pod: &Pod,
    container: &Container,
    host: &HostFacts,
) -> Result<Invocation, Unstartable> {
    let env = vec![
        ("PATH".to_owned(), host.path.clone()),
        (
            "HOSTNAME".to_owned(),
            pod.metadata.name.clone().unwrap_or_default(),
        ),
        ("HOME".to_owned(), "/".to_owned()),
    ];
    let process = process_spec(pod, container, host, env)?;
    let mut argv = process.command.clone();
    if argv.first().is_none_or(String::is_empty) {
        return Err(Unstartable::NoCommand {
            container: container.name.clone(),
            image: container.image.clone().unwrap_or_default(),
        });
    }
    process.check_user(&container.name, host.rights.uid == 0)?;
    let security = host.rights.resolve(pod, container, &process)?;
    argv.extend(process.args);
    Ok(Invocation {
        argv,
        env: process.env,
        dir: process.dir.or_else(|| Some(PathBuf::from("/"))),
        security,
    })
}

/// Returns `env` extended by the container's own variables.
fn environment(
    pod: &Pod,
    container: &Container,
    host: &HostFacts,
    mut env: Vec<(String, String)>,
) -> Result<Vec<(String, String)>, Unstartable> {
    if container
        .env_from
        .as_ref()
        .is_some_and(|sources| !sources.is_empty())
    {
        return Err(Unstartable::Unsupported {
            container: container.name.clone(),
            field: "envFrom".to_owned(),
            reason: "ConfigMaps and Secrets are not mounted by this node".to_owned(),
        });
    }
    for variable in container.env.iter().flatten() {
        let value = {
            let lookup: BTreeMap<&str, &str> = env
                .iter()
                .map(|(name, value)| (name.as_str(), value.as_str()))
                .collect();
            value_of(pod, container, variable, host, &lookup)?
        };
        env.retain(|(name, _)| *name != variable.name);
        env.push((variable.name.clone(), value));
    }
    Ok(env)
}

/// Returns the value of a variable, with references to earlier variables replaced.
fn value_of(
    pod: &Pod,
    container: &Container,
    variable: &EnvVar,
    host: &HostFacts,
    lookup: &BTreeMap<&str, &str>,
) -> Result<String, Unstartable> {
    let Some(source) = &variable.value_from else {
        return Ok(expand(variable.value.as_deref().unwrap_or(""), lookup));
    };
    let refuse = |reason: String| Unstartable::Unsupported {
        container: container.name.clone(),
        field: format!("env[{}].valueFrom", variable.name),
        reason,
    };
    if let Some(field) = &source.field_ref {
        return field_of(pod, &field.field_path, host)
            .ok_or_else(|| refuse(format!("field {:?} is not available", field.field_path)));
    }
    if let Some(resource) = &source.resource_field_ref {
        return resource_of(container, &resource.resource)
            .ok_or_else(|| refuse(format!("resource {:?} is not available", resource.resource)));
    }
    let optional = source
        .config_map_key_ref
        .as_ref()
        .and_then(|key| key.optional)
        .or(source.secret_key_ref.as_ref().and_then(|key| key.optional));
    if optional == Some(true) {
        return Ok(String::new());
    }
    Err(refuse(
        "only fieldRef and resourceFieldRef are available on this node".to_owned(),
    ))
}

/// Returns the value of a downward API field.
fn field_of(pod: &Pod, path: &str, host: &HostFacts) -> Option<String> {
    let meta = &pod.metadata;
    let spec = pod.spec.as_ref();
    let entry = |map: &Option<BTreeMap<String, String>>, key: &str| {
        let key = key.strip_suffix("']")?;
        Some(
            map.as_ref()
                .and_then(|map| map.get(key))
                .cloned()
                .unwrap_or_default(),
        )
    };
    Some(match path {
        "metadata.name" => meta.name.clone().unwrap_or_default(),
        "metadata.namespace" => meta.namespace.clone().unwrap_or_default(),
        "metadata.uid" => meta.uid.clone().unwrap_or_default(),
        "spec.nodeName" => spec
            .and_then(|spec| spec.node_name.clone())
            .unwrap_or_default(),
        "spec.serviceAccountName" => spec
            .and_then(|spec| spec.service_account_name.clone())
            .unwrap_or_default(),
        "status.hostIP" | "status.podIP" | "status.hostIPs" | "status.podIPs" => host.ip.clone(),
        _ => {
            if let Some(key) = path.strip_prefix("metadata.labels['") {
                return entry(&meta.labels, key);
            }
            return entry(
                &meta.annotations,
                path.strip_prefix("metadata.annotations['")?,
            );
        }
    })
}

/// Returns a resource field: `limits.cpu` in whole CPUs, memory in bytes (the default divisor 1).
fn resource_of(container: &Container, path: &str) -> Option<String> {
    let (kind, name) = path.split_once('.')?;
    let resources = container.resources.as_ref()?;
    let list = match kind {
        "limits" => resources.limits.as_ref(),
        "requests" => resources.requests.as_ref(),
        _ => None,
    }?;
    let amount = koord_api::quantity::parse(list.get(name)?).ok()?;
    Some(amount.value().to_string())
}

/// Replaces `$(NAME)` where NAME is known; `$$` is a literal `$`. Unknown names stay as they are.
#[must_use]
pub fn expand(text: &str, lookup: &BTreeMap<&str, &str>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = rest
            .strip_prefix('(')
            .and_then(|inner| inner.split_once(')'))
        {
            match lookup.get(name) {
                Some(value) => out.push_str(value),
                None => {
                    out.push_str("$(");
                    out.push_str(name);
                    out.push(')');
                }
            }
            rest = after;
        } else {
            out.push('$');
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn build(container: Value) -> Result<Invocation, Unstartable> {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"app": "web"}},
            "spec": {"nodeName": "here", "containers": [container]}
        }))
        .unwrap();
        let container = pod.spec.as_ref().unwrap().containers[0].clone();
        let host = HostFacts {
            ip: "10.0.0.1".into(),
            path: "/bin".into(),
            rights: Rights::default(),
        };
        invocation(&pod, &container, &host)
    }

    #[test]
    fn expansion() {
        let lookup = BTreeMap::from([("A", "1"), ("B", "$(A)")]);
        for (text, expected) in [
            ("$(A)-$(B)", "1-$(A)"),
            ("$$(A)", "$(A)"),
            ("$(C) $A $", "$(C) $A $"),
            ("$(A", "$(A"),
            ("é$(A)é", "é1é"),
        ] {
            assert_eq!(expand(text, &lookup), expected, "{text}");
        }
    }

    #[test]
    fn environment_and_arguments() {
        let built = build(json!({
            "name": "c", "image": "x", "command": ["/bin/echo", "$(WHO)"], "args": ["$(SUM)"],
            "workingDir": "/tmp",
            "env": [
                {"name": "WHO", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                {"name": "APP", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
                {"name": "CPUS", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
                {"name": "SUM", "value": "$(WHO)@$(IP)/$(LATER)"},
                {"name": "LATER", "value": "x"}
            ],
            "resources": {"limits": {"cpu": "1500m"}},
            "securityContext": {"runAsUser": 1000}
        }))
        .unwrap();
        assert_eq!(built.argv, ["/bin/echo", "p", "p@10.0.0.1/$(LATER)"]);
        let value = |name: &str| {
            built
                .env
                .iter()
                .find(|(known, _)| known == name)
                .unwrap()
                .1
                .clone()
        };
        assert_eq!(
            (value("APP"), value("CPUS"), value("PATH")),
            ("web".into(), "2".into(), "/bin".into())
        );
        assert_eq!(built.security.uid, Some(1000));
        assert_eq!(built.dir, Some("/tmp".into()));
    }

    #[test]
    fn nothing_runs_as_root_that_must_not() {
        let with = |context: Value| {
            build(json!({"name": "c", "command": ["/bin/true"], "securityContext": context}))
        };
        let error = with(json!({"runAsNonRoot": true})).unwrap_err();
        assert_eq!(error.reason(), "CreateContainerConfigError");
        assert!(
            error.to_string().contains("securityContext.runAsNonRoot"),
            "{error}"
        );
        assert!(with(json!({"runAsNonRoot": true, "runAsUser": 0})).is_err());
        assert!(with(json!({"runAsNonRoot": true, "runAsUser": 1000})).is_ok());
        assert!(with(json!({"runAsNonRoot": false})).is_ok());
    }

    #[test]
    fn invocation_unsupported_returns_field() {
        let error = build(json!({"name": "c", "image": "nginx:1"})).unwrap_err();
        assert_eq!(error.reason(), "ErrImageNeverPull");
        assert!(error.to_string().contains("nginx:1"));
        let secret = json!({"name": "c", "command": ["x"], "env": [
            {"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]});
        let error = build(secret).unwrap_err();
        assert_eq!(error.reason(), "CreateContainerConfigError");
        assert!(error.to_string().contains("env[S].valueFrom"), "{error}");
        let user = json!({"name": "c", "command": ["x"], "securityContext": {"runAsUser": -1}});
        assert!(
            build(user)
                .unwrap_err()
                .to_string()
                .contains("runAsUser: -1")
        );
    }
}
