//! The Helm chart, as it is in the program.

use std::collections::BTreeMap;

/// Lists files of the chart with their texts.
macro_rules! chart_files {
    ($($path:literal),* $(,)?) => {
        &[$(($path, include_str!(concat!("../../../../charts/koord/", $path)))),*]
    };
}

const FILES: &[(&str, &str)] = chart_files![
    "Chart.yaml",
    "dashboards/colocation.json",
    "dashboards/components.json",
    "dashboards/pods.json",
    "files/crds/analysis.koordinator.sh_recommendationcheckpoints.json",
    "files/crds/analysis.koordinator.sh_recommendations.json",
    "files/crds/config.koordinator.sh_clustercolocationprofiles.json",
    "files/crds/quota.koordinator.sh_elasticquotaprofiles.json",
    "files/crds/scheduling.koordinator.sh_clusternetworktopologies.json",
    "files/crds/scheduling.koordinator.sh_devices.json",
    "files/crds/scheduling.koordinator.sh_podmigrationjobs.json",
    "files/crds/scheduling.koordinator.sh_reservations.json",
    "files/crds/scheduling.koordinator.sh_scheduleexplanations.json",
    "files/crds/scheduling.sigs.k8s.io_elasticquotas.json",
    "files/crds/scheduling.sigs.k8s.io_podgroups.json",
    "files/crds/slo.koordinator.sh_nodemetrics.json",
    "files/crds/slo.koordinator.sh_nodeslos.json",
    "files/crds/topology.node.k8s.io_noderesourcetopologies.json",
    "files/descheduler/config.yaml",
    "files/descheduler/rbac.yaml",
    "files/descheduler/targets.yaml",
    "files/gates.yaml",
    "files/koordlet/node-policy.yaml",
    "files/koordlet/rbac.yaml",
    "files/manager/rbac.yaml",
    "files/manager/webhooks.yaml",
    "files/rules.yaml",
    "files/scheduler/rbac.yaml",
    "files/topology-exporter/node-policy.yaml",
    "files/topology-exporter/rbac.yaml",
    "templates/NOTES.txt",
    "templates/_gates.tpl",
    "templates/_helpers.tpl",
    "templates/_notes.tpl",
    "templates/crds.yaml",
    "templates/dashboards.yaml",
    "templates/descheduler-config.yaml",
    "templates/descheduler-rbac.yaml",
    "templates/descheduler.yaml",
    "templates/koordlet-rbac.yaml",
    "templates/koordlet.yaml",
    "templates/manager-rbac.yaml",
    "templates/manager.yaml",
    "templates/monitors.yaml",
    "templates/namespace.yaml",
    "templates/networkpolicies.yaml",
    "templates/poddisruptionbudgets.yaml",
    "templates/priorityclasses.yaml",
    "templates/rules.yaml",
    "templates/scheduler-config.yaml",
    "templates/scheduler-rbac.yaml",
    "templates/scheduler.yaml",
    "templates/slo-controller-config.yaml",
    "templates/topology-exporter.yaml",
    "templates/webhooks.yaml",
    "values.schema.json",
    "values.yaml",
];

/// Returns the files of the chart by path.
pub(super) fn files() -> BTreeMap<String, String> {
    let files = FILES.iter();
    files
        .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn list(dir: &Path, base: &Path, paths: &mut Vec<String>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                list(&path, base, paths);
            } else {
                let path = path.strip_prefix(base).unwrap();
                paths.push(path.to_str().unwrap().to_owned());
            }
        }
    }

    #[test]
    fn program_has_all_files_of_the_chart() {
        let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/koord");
        let mut paths = Vec::new();
        list(&base, &base, &mut paths);
        paths.sort();
        let embedded: Vec<String> = files().into_keys().collect();
        assert_eq!(embedded, paths, "add new files to FILES");
    }
}
