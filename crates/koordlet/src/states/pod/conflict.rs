//! Conflicts of runtime plugins: a container is not created because two plugins set the same field.

use k8s_openapi::api::core::v1::Pod;

/// Maximum length of a field's name, in characters. Runtimes' names are shorter.
const FIELD: usize = 100;

/// A field of a container that two plugins both set. The runtime refuses the creation without notifying
/// either; its message is in the pod's status, as the reason why the container waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdjustmentConflict {
    /// Name of the container.
    pub container: String,
    /// Index and name of both plugins, such as `00-koordlet_nri`.
    pub plugins: [String; 2],
    /// The field, as named by the runtime.
    pub field: String,
}

impl AdjustmentConflict {
    /// Returns the conflict of the first such container of a pod.
    pub(super) fn find(pod: &Pod) -> Option<Box<Self>> {
        let status = pod.status.as_ref()?;
        let main = status.container_statuses.iter().flatten();
        let mut all = main.chain(status.init_container_statuses.iter().flatten());
        all.find_map(|status| {
            let waiting = status.state.as_ref()?.waiting.as_ref()?;
            let message = waiting.message.as_deref()?;
            let (plugins, field) = read(message)?;
            Some(Box::new(Self {
                container: status.name.clone(),
                plugins,
                field,
            }))
        })
    }
}

/// Parses `... plugins "00-a" and "10-b" both tried to set CPU shares`. Source: containerd/nri,
/// `pkg/adaptation/result.go`.
fn read(message: &str) -> Option<([String; 2], String)> {
    let (plugins, field) = message.split_once(" both tried to set ")?;
    let (_, plugins) = plugins.rsplit_once("plugins ")?;
    let (one, other) = plugins.split_once(" and ")?;
    let name = |quoted: &str| {
        // The text is quoted again if it was embedded in another one.
        let name = quoted.trim_matches(['"', '\\']);
        (!name.is_empty()).then(|| name.to_owned())
    };
    let field = field.lines().next().unwrap_or_default();
    let field = field.trim_end_matches(['"', '\\']).chars().take(FIELD);
    Some(([name(one)?, name(other)?], field.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runtimes_text_is_found_in_others() {
        let conflict_text = |one: &str, other: &str, field: &str| {
            Some(([one.to_owned(), other.to_owned()], field.to_owned()))
        };
        let plain = r#"rpc error: code = Unknown desc = failed to create containerd container: NRI failed: plugins "00-koordlet_nri" and "10-other" both tried to set CPU shares"#;
        let quoted = r#"failed: \"plugins \"00-a\" and \"00-a\" both tried to set mount /x\""#;
        let long = format!(
            "plugins \"a\" and \"b\" both tried to set {}",
            "é".repeat(200)
        );
        let with_prefix =
            "the plugins said: plugins \"00-a\" and \"10-b\" both tried to set env A\ntrace";
        for (text, want) in [
            (with_prefix, conflict_text("00-a", "10-b", "env A")),
            (
                plain,
                conflict_text("00-koordlet_nri", "10-other", "CPU shares"),
            ),
            (quoted, conflict_text("00-a", "00-a", "mount /x")),
            (&long, conflict_text("a", "b", &"é".repeat(100))),
            ("", None),
            ("back-off pulling image \"x\"", None),
            ("two both tried to set x", None),
            ("plugins \"a\" both tried to set x", None),
            ("plugins \"\" and \"b\" both tried to set x", None),
        ] {
            assert_eq!(read(text), want, "{text}");
        }
    }
    #[test]
    fn init_containers_are_checked() {
        let message = "plugins \"00-a\" and \"10-b\" both tried to set CPU shares";
        let waits = |name: &str, message: &str| {
            serde_json::json!({"name": name, "image": "", "imageID": "", "ready": false,
                "restartCount": 0, "state": {"waiting": {"message": message}}})
        };
        let pod_with = |main: &str, init: &str| {
            let pod = serde_json::json!({"status": {
                "containerStatuses": [waits("main", main)],
                "initContainerStatuses": [waits("init", init)]}});
            let pod: Pod = serde_json::from_value(pod).unwrap();
            AdjustmentConflict::find(&pod).map(|conflict| conflict.container)
        };
        assert_eq!(pod_with("", message).as_deref(), Some("init"));
        assert_eq!(pod_with(message, "").as_deref(), Some("main"));
        assert_eq!(pod_with("", ""), None);
    }
}
