//! Rights of a container that is a process of this machine: its security context, honored or refused.
//!
//! Unless it requests more, a container has no capabilities, gains none by the programs that it runs, and
//! sees the machine's files read-only except for temporary ones, without the node's data directory.

use crate::container_request::{ProcessSpec, Unstartable};
use k8s_openapi::api::core::v1::{Container, Pod, PodSecurityContext, SecurityContext};
use koord_host::process::Spawn;
use koord_host::{Capabilities, MountNamespace};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Settings of a process in addition to its command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Security {
    /// User id; the node's when `None`.
    pub uid: Option<u32>,
    /// Group id; the node's when `None`.
    pub gid: Option<u32>,
    /// Supplementary groups; the node's when `None`.
    pub groups: Option<Vec<u32>>,
    /// Capabilities; the node's when `None`.
    pub capabilities: Option<Capabilities>,
    /// True if programs that it runs cannot raise its rights (`no_new_privs`).
    pub no_new_privileges: bool,
    /// View of the machine's files.
    pub files: Files,
}

/// View of the machine's files in a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Files {
    /// All files, like the node.
    #[default]
    Host,
    /// All files except hidden ones; only temporary directories are writable.
    Guarded,
    /// All files except hidden ones; none is writable.
    ReadOnly,
}

impl Security {
    /// Returns what to start without a command.
    pub(crate) fn spawn(&self, views: &Views) -> Spawn {
        Spawn {
            uid: self.uid,
            gid: self.gid,
            groups: self.groups.clone(),
            capabilities: self.capabilities,
            no_new_privileges: self.no_new_privileges,
            namespace: match self.files {
                Files::Host => None,
                Files::Guarded => views.guarded.clone(),
                Files::ReadOnly => views.read_only.clone(),
            },
            ..Spawn::default()
        }
    }
}

/// Views of the machine's files for containers.
#[derive(Debug, Default)]
pub(crate) struct Views {
    guarded: Option<Arc<MountNamespace>>,
    read_only: Option<Arc<MountNamespace>>,
}

impl Views {
    /// Creates the guarded view, in which only directories for temporary files are writable, and the read-only
    /// view. Directories in `hidden` are empty in both. The error is the reason why there are no views.
    pub(crate) fn new(hidden: &[PathBuf]) -> Result<Self, String> {
        if !koord_host::is_root() {
            return Err("koord does not run as root".to_owned());
        }
        let mut temporary = ["/tmp", "/var/tmp"].map(PathBuf::from).to_vec();
        temporary.push(std::env::temp_dir());
        // If the directory of temporary files contained all others, nothing would be protected.
        temporary.retain(|dir| dir != Path::new("/"));
        let make = |writable: &[PathBuf]| {
            let namespace = MountNamespace::new(hidden, writable);
            let namespace = namespace.map_err(|error| error.to_string())?;
            Ok::<_, String>(Some(Arc::new(namespace)))
        };
        Ok(Self {
            guarded: make(&temporary)?,
            read_only: make(&[])?,
        })
    }
}

/// Rights that this node can restrict and grant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rights {
    /// The node's user id.
    pub uid: u32,
    /// Capabilities that the node may pass on.
    pub capabilities: Capabilities,
    /// Reason why the machine's files cannot be hidden from containers; `None` if they can.
    pub unguarded: Option<String>,
    /// True if containers have the node's rights unless they drop them.
    pub trusted: bool,
}

impl Rights {
    /// Describes the rights of pods in one line.
    #[must_use]
    pub fn describe(&self) -> String {
        if self.trusted {
            return "pods have all rights of koord, which was asked for (--trusted-pods)"
                .to_owned();
        }
        match (&self.unguarded, self.uid) {
            (None, _) => "pods run without capabilities, see the machine's files read-only except \
                          temporary ones, and not koord's own; privileged: true lifts that"
                .to_owned(),
            (Some(why), 0) => format!(
                "pods run without capabilities, and only as users other than root, because files \
                 cannot be kept from root here ({why})"
            ),
            (Some(_), uid) => format!(
                "koord is not root: pods run as user {uid} and may do all that this user may, such \
                 as reading koord's own files"
            ),
        }
    }

    /// Resolves the security context; rejects fields that a container that is a process cannot have.
    pub(crate) fn resolve(
        &self,
        pod: &Pod,
        container: &Container,
        process: &ProcessSpec,
    ) -> Result<Security, Unstartable> {
        let refuse = |field: &str, reason: String| Unstartable::Unsupported {
            container: container.name.clone(),
            field: format!("securityContext.{field}"),
            reason,
        };
        let none = SecurityContext::default();
        let own = container.security_context.as_ref().unwrap_or(&none);
        let of_pod = PodSecurityContext::default();
        let of_pod = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.security_context.as_ref())
            .unwrap_or(&of_pod);
        if pod.spec.as_ref().and_then(|spec| spec.host_users) == Some(false) {
            return Err(Unstartable::Unsupported {
                container: container.name.clone(),
                field: "hostUsers".to_owned(),
                reason: "pods have no user namespace on this node".to_owned(),
            });
        }
        if let Some((field, reason)) = unsupported(own, of_pod) {
            return Err(refuse(field, reason));
        }
        let is_root = self.uid == 0;
        let needs_root = |field: &str| refuse(field, "this node does not run as root".to_owned());
        if !is_root && process.uid.is_some_and(|uid| uid != self.uid) {
            return Err(needs_root("runAsUser"));
        }
        if !is_root && process.gid.is_some() {
            return Err(needs_root("runAsGroup"));
        }
        let mut groups = Vec::new();
        for (field, ids) in [
            ("supplementalGroups", of_pod.supplemental_groups.as_deref()),
            (
                "fsGroup",
                of_pod.fs_group.as_ref().map(std::slice::from_ref),
            ),
        ] {
            for id in ids.unwrap_or_default() {
                if !is_root {
                    return Err(needs_root(field));
                }
                let valid = u32::try_from(*id).ok().filter(|id| *id <= MOST_ID);
                groups.push(valid.ok_or_else(|| {
                    refuse(
                        field,
                        format!("invalid value {id}: expected 0 to {MOST_ID}"),
                    )
                })?);
            }
        }
        let privileged = own.privileged == Some(true);
        if privileged && !is_root {
            return Err(needs_root("privileged"));
        }
        let mighty = privileged || self.trusted;
        let capabilities = self.capabilities(own, mighty, is_root, &refuse)?;
        let uid = process.uid.unwrap_or(self.uid);
        let files = match (own.read_only_root_filesystem, &self.unguarded) {
            (Some(true), Some(why)) => {
                let reason = format!("files cannot be made read-only here: {why}");
                return Err(refuse("readOnlyRootFilesystem", reason));
            }
            (Some(true), None) => Files::ReadOnly,
            _ if mighty => Files::Host,
            (_, None) => Files::Guarded,
            // File permissions protect the node's files from other users.
            (_, Some(why)) if uid == 0 && is_root => {
                let reason = format!(
                    "files cannot be kept from root here ({why}): expected another user, \
                     privileged: true, or koord started with --trusted-pods"
                );
                return Err(refuse("runAsUser", reason));
            }
            _ => Files::Host,
        };
        // Like the kubelet: full rights include privilege escalation.
        let escalates = own.allow_privilege_escalation.unwrap_or(mighty);
        Ok(Security {
            uid: process.uid,
            // Group 0 has rights on the machine's files.
            gid: process
                .gid
                .or(process.uid.filter(|uid| *uid != 0 && is_root)),
            groups: is_root.then_some(groups),
            capabilities,
            no_new_privileges: !escalates,
            files,
        })
    }

    /// Computes the capabilities in the order of container runtimes: `ALL` first, then additions, then drops.
    fn capabilities(
        &self,
        own: &SecurityContext,
        mighty: bool,
        is_root: bool,
        refuse: &dyn Fn(&str, String) -> Unstartable,
    ) -> Result<Option<Capabilities>, Unstartable> {
        let requested = own.capabilities.as_ref();
        let list = |names: Option<&Vec<String>>| names.cloned().unwrap_or_default();
        let add = list(requested.and_then(|requested| requested.add.as_ref()));
        let drop = list(requested.and_then(|requested| requested.drop.as_ref()));
        // In Kubernetes these fields have no effect on a privileged container.
        if own.privileged == Some(true) || mighty && add.is_empty() && drop.is_empty() {
            return Ok(None);
        }
        let is_all = |name: &String| name.eq_ignore_ascii_case("ALL");
        let mut set = match mighty || add.iter().any(is_all) {
            true => self.capabilities,
            false => Capabilities::default(),
        };
        if drop.iter().any(is_all) {
            set = Capabilities::default();
        }
        if !is_root && !add.is_empty() {
            let reason = "this node does not run as root".to_owned();
            return Err(refuse("capabilities.add", reason));
        }
        for (field, names) in [("capabilities.add", &add), ("capabilities.drop", &drop)] {
            for name in names.iter().filter(|name| !is_all(name)) {
                let capability = Capabilities::from_name(name).ok_or_else(|| {
                    let reason = format!("invalid value {name:?}: expected a capability");
                    refuse(field, reason)
                })?;
                set = match field {
                    "capabilities.drop" => set.without(capability),
                    _ if self.capabilities.contains(capability) => set.with(capability),
                    _ => {
                        let reason = format!("koord itself lacks {name}");
                        return Err(refuse(field, reason));
                    }
                };
            }
        }
        Ok(Some(set))
    }
}

/// The largest id of a user or group in Kubernetes.
const MOST_ID: u32 = i32::MAX as u32;

/// Returns the first field that needs a feature which processes of this machine do not have.
fn unsupported(
    own: &SecurityContext,
    of_pod: &PodSecurityContext,
) -> Option<(&'static str, String)> {
    let seccomp = own
        .seccomp_profile
        .as_ref()
        .or(of_pod.seccomp_profile.as_ref())
        .map(|profile| profile.type_.as_str());
    let app_armor = own
        .app_armor_profile
        .as_ref()
        .or(of_pod.app_armor_profile.as_ref())
        .map(|profile| profile.type_.as_str());
    for (field, kind) in [("seccompProfile", seccomp), ("appArmorProfile", app_armor)] {
        if let Some(kind) = kind.filter(|kind| *kind != "Unconfined") {
            let reason =
                format!("{kind} needs a container runtime: expected Unconfined or nothing");
            return Some((field, reason));
        }
    }
    let selinux = own.se_linux_options.as_ref();
    if selinux.or(of_pod.se_linux_options.as_ref()).is_some() {
        let reason = "labels of SELinux need a container runtime".to_owned();
        return Some(("seLinuxOptions", reason));
    }
    if own
        .proc_mount
        .as_deref()
        .is_some_and(|kind| kind != "Default")
    {
        let reason = "expected Default: this node mounts no /proc for a container".to_owned();
        return Some(("procMount", reason));
    }
    let sysctls = of_pod.sysctls.as_ref();
    if sysctls.is_some_and(|sysctls| !sysctls.is_empty()) {
        let reason = "they would be those of the machine".to_owned();
        return Some(("sysctls", reason));
    }
    let windows = own.windows_options.as_ref();
    if windows.or(of_pod.windows_options.as_ref()).is_some() {
        return Some(("windowsOptions", "this node runs Linux".to_owned()));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{self, HostFacts};
    use serde_json::{Value, json};

    fn root() -> Rights {
        let set = |name| Capabilities::from_name(name).unwrap();
        Rights {
            capabilities: set("KILL").with(set("CHOWN")).with(set("SYS_ADMIN")),
            ..Rights::default()
        }
    }

    fn resolve(rights: &Rights, own: Value, of_pod: Value) -> Result<Security, Unstartable> {
        let pod: Pod = serde_json::from_value(json!({"spec": {"securityContext": of_pod,
            "containers": [{"name": "c", "command": ["x"], "securityContext": own}]}}))
        .unwrap();
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let host = HostFacts {
            rights: rights.clone(),
            ..HostFacts::default()
        };
        command::invocation(&pod, container, &host).map(|invocation| invocation.security)
    }

    #[test]
    fn container_without_settings_has_no_rights() {
        let security = resolve(&root(), json!({}), json!({})).unwrap();
        let expected = Security {
            groups: Some(Vec::new()),
            capabilities: Some(Capabilities::default()),
            no_new_privileges: true,
            files: Files::Guarded,
            ..Security::default()
        };
        assert_eq!(security, expected);
        let own = json!({"runAsUser": 7, "readOnlyRootFilesystem": true,
            "allowPrivilegeEscalation": true});
        let of_pod = json!({"supplementalGroups": [3, 4], "fsGroup": 5});
        let security = resolve(&root(), own, of_pod).unwrap();
        assert_eq!((security.uid, security.gid), (Some(7), Some(7)));
        assert_eq!(security.groups, Some(vec![3, 4, 5]));
        assert!(!security.no_new_privileges);
        assert_eq!(security.files, Files::ReadOnly);
    }

    #[test]
    fn capabilities_are_added_and_dropped_in_order() {
        let set = |names: &[&str]| {
            let names = names
                .iter()
                .map(|name| Capabilities::from_name(name).unwrap());
            names.fold(Capabilities::default(), Capabilities::with)
        };
        for (add, drop, expected) in [
            (json!(["KILL"]), json!([]), set(&["KILL"])),
            (json!(["kill"]), json!(["ALL"]), set(&["KILL"])),
            (
                json!(["ALL"]),
                json!(["KILL"]),
                set(&["CHOWN", "SYS_ADMIN"]),
            ),
            (json!(["ALL"]), json!(["all"]), set(&[])),
            (json!(["KILL"]), json!(["KILL"]), set(&[])),
        ] {
            let own = json!({"capabilities": {"add": add, "drop": drop}});
            let security = resolve(&root(), own.clone(), json!({})).unwrap();
            assert_eq!(security.capabilities, Some(expected), "{own}");
        }
        let trusted = Rights {
            trusted: true,
            ..root()
        };
        let security = resolve(&trusted, json!({}), json!({})).unwrap();
        assert_eq!((security.capabilities, security.files), (None, Files::Host));
        let own = json!({"capabilities": {"drop": ["KILL"]}, "allowPrivilegeEscalation": false});
        let security = resolve(&trusted, own, json!({})).unwrap();
        assert_eq!(security.capabilities, Some(set(&["CHOWN", "SYS_ADMIN"])));
        assert!(security.no_new_privileges);
        let security = resolve(&root(), json!({"privileged": true}), json!({})).unwrap();
        assert_eq!((security.capabilities, security.files), (None, Files::Host));
        assert!(!security.no_new_privileges);
    }

    #[test]
    fn unsupported_fields_are_refused_by_name() {
        let user = Rights {
            uid: 1000,
            unguarded: Some("koord is not root".to_owned()),
            ..Rights::default()
        };
        let blind = Rights {
            unguarded: Some("no namespaces".to_owned()),
            ..root()
        };
        let nothing = json!({});
        for (rights, own, of_pod, field) in [
            (
                &root(),
                json!({"seccompProfile": {"type": "RuntimeDefault"}}),
                &nothing,
                "seccompProfile",
            ),
            (
                &root(),
                json!({"appArmorProfile": {"type": "RuntimeDefault"}}),
                &nothing,
                "appArmorProfile",
            ),
            (
                &root(),
                json!({"seLinuxOptions": {"level": "s0"}}),
                &nothing,
                "seLinuxOptions",
            ),
            (
                &root(),
                json!({"procMount": "Unmasked"}),
                &nothing,
                "procMount",
            ),
            (
                &root(),
                json!({"capabilities": {"add": ["CAP_KILL"]}}),
                &nothing,
                "capabilities.add",
            ),
            (
                &root(),
                json!({"capabilities": {"add": ["BPF"]}}),
                &nothing,
                "capabilities.add",
            ),
            (
                &root(),
                json!({"capabilities": {"drop": ["x"]}}),
                &nothing,
                "capabilities.drop",
            ),
            (
                &root(),
                json!({}),
                &json!({"sysctls": [{"name": "a", "value": "b"}]}),
                "sysctls",
            ),
            (&root(), json!({}), &json!({"fsGroup": -1}), "fsGroup"),
            (
                &root(),
                json!({}),
                &json!({"supplementalGroups": [1, 4294967296_i64]}),
                "supplementalGroups",
            ),
            (&blind, json!({}), &nothing, "runAsUser"),
            (
                &blind,
                json!({"readOnlyRootFilesystem": true, "runAsUser": 5}),
                &nothing,
                "readOnlyRootFilesystem",
            ),
            (&user, json!({"runAsUser": 5}), &nothing, "runAsUser"),
            (&user, json!({"privileged": true}), &nothing, "privileged"),
            (
                &user,
                json!({"capabilities": {"add": ["KILL"]}}),
                &nothing,
                "capabilities.add",
            ),
            (
                &user,
                json!({"readOnlyRootFilesystem": true}),
                &nothing,
                "readOnlyRootFilesystem",
            ),
            (&user, json!({}), &json!({"fsGroup": 5}), "fsGroup"),
        ] {
            let error = resolve(rights, own.clone(), of_pod.clone()).unwrap_err();
            assert_eq!(error.reason(), "CreateContainerConfigError");
            let text = error.to_string();
            assert!(
                text.contains(&format!("securityContext.{field}: ")),
                "{own}: {text}"
            );
        }
        assert!(resolve(&blind, json!({"runAsUser": 5}), nothing.clone()).is_ok());
        let security = resolve(&user, json!({"runAsUser": 1000}), nothing).unwrap();
        assert_eq!((security.groups, security.files), (None, Files::Host));
    }
}
