//! The writer of a NodeResourceTopology's zones. Two exporters of one node would overwrite each other
//! endlessly.

use koord_api::topology::v1alpha2::NodeResourceTopology;

/// Field manager of the exporter at the API server.
pub const FIELD_MANAGER: &str = "koord-topology-exporter";

/// Field managers that add resources to existing zones: koord-manager of this project and upstream.
const RESOURCE_WRITERS: [&str; 2] = ["koordinator-manager", "koord-manager"];

/// Fields that an exporter writes.
const FIELDS: [&str; 3] = ["f:zones", "f:attributes", "f:topologyPolicies"];

/// Condition under which the exporter overwrites content of another exporter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TakeOver {
    /// Content of another exporter is never overwritten.
    #[default]
    Never,
    /// Content is overwritten if its field manager has this name.
    From(&'static str),
    /// Always.
    Always,
}

/// Returns the name of another writer of `object`'s zones, attributes or policies. `None` if there is none,
/// if the object has no zones and attributes, or if `take_over` allows to overwrite it.
pub(super) fn other_writer(object: &NodeResourceTopology, take_over: TakeOver) -> Option<String> {
    if take_over == TakeOver::Always {
        return None;
    }
    let fields = &object.spec;
    if fields.zones.is_empty() && fields.attributes.is_empty() {
        return None;
    }
    let entries = object.metadata.managed_fields.iter().flatten();
    let mut writers = entries.filter(|entry| {
        let owned = entry.fields_v1.as_ref().map(|fields| &fields.0);
        owned.is_some_and(|owned| FIELDS.iter().any(|field| owned.get(field).is_some()))
    });
    let other = writers.find_map(|entry| {
        let name = entry.manager.as_deref().unwrap_or_default();
        let partner = matches!(take_over, TakeOver::From(partner) if partner == name);
        let is_accepted = partner || name == FIELD_MANAGER || RESOURCE_WRITERS.contains(&name);
        (!is_accepted).then(|| name.to_owned())
    });
    other.map(|name| match name.is_empty() {
        true => "somebody without a name".to_owned(),
        false => format!("{name:?}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn object(zones: Value, managers: &[(&str, Value)]) -> NodeResourceTopology {
        let entry = |(manager, fields): &(&str, Value)| {
            json!({"manager": manager, "operation": "Update", "fieldsType": "FieldsV1",
                "fieldsV1": fields})
        };
        serde_json::from_value(json!({
            "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology",
            "metadata": {"name": "n",
                "managedFields": managers.iter().map(entry).collect::<Vec<_>>()},
            "zones": zones}))
        .unwrap()
    }

    #[test]
    fn other_writer_finds_foreign_exporter() {
        let zones = json!([{"name": "node-0", "type": "Node"}]);
        let nfd = "node-feature-discovery-topology-updater";
        let annotations = json!({"f:metadata": {"f:annotations": {}}});
        for (managers, expected) in [
            (vec![], None),
            (vec![(FIELD_MANAGER, json!({"f:zones": {}}))], None),
            (vec![("koordlet", annotations.clone())], None),
            (vec![("koordinator-manager", json!({"f:zones": {}}))], None),
            (
                vec![(nfd, json!({"f:zones": {}}))],
                Some(format!("{nfd:?}")),
            ),
            // The manager wrote zones last, and NFD is there all the same.
            (
                vec![
                    ("koord-manager", json!({"f:zones": {}})),
                    (nfd, json!({"f:attributes": {}})),
                ],
                Some(format!("{nfd:?}")),
            ),
            (
                vec![("", json!({"f:topologyPolicies": {}}))],
                Some("somebody without a name".to_owned()),
            ),
        ] {
            let object = object(zones.clone(), &managers);
            assert_eq!(
                other_writer(&object, TakeOver::Never),
                expected,
                "{managers:?}"
            );
        }
        // The creator of an object without zones does not own any.
        let empty = object(json!([]), &[("koordlet", json!({"f:zones": {}}))]);
        assert_eq!(other_writer(&empty, TakeOver::Never), None);
    }

    #[test]
    fn other_writer_take_over_ignores_named_partner() {
        let zones = json!([{"name": "node-0", "type": "Node"}]);
        let fields = json!({"f:zones": {}});
        let koordlet = object(zones.clone(), &[("koordlet", fields.clone())]);
        let two_writers = object(zones, &[("koordlet", fields.clone()), ("nfd", fields)]);
        for (take_over, expected) in [
            (TakeOver::Never, [Some("koordlet"), Some("koordlet")]),
            (TakeOver::From("koordlet"), [None, Some("nfd")]),
            (TakeOver::Always, [None, None]),
        ] {
            let writers = [&koordlet, &two_writers].map(|object| other_writer(object, take_over));
            let expected = expected.map(|name| name.map(|name| format!("{name:?}")));
            assert_eq!(writers, expected, "{take_over:?}");
        }
    }
}
