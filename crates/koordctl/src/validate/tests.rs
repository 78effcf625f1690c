use super::*;
use std::path::Path;

/// Stands where a fault is expected in the text of a test.
const MARK: &str = "§";

/// Returns the findings of a text.
fn findings(text: &str) -> Vec<Finding> {
    let files = [("f".to_owned(), text.to_owned())];
    check(&files).findings
}

/// Returns a text without its mark, and the position of the mark.
fn unmark(text: &str) -> (String, (usize, usize)) {
    let (before, after) = text.split_once(MARK).unwrap();
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap().chars().count() + 1;
    (format!("{before}{after}"), (line, column))
}

const PROFILE: &str = "apiVersion: config.koordinator.sh/v1alpha1\nkind: ClusterColocationProfile\nmetadata: {name: a}\nspec:\n";
const QUOTA: &str =
    "apiVersion: scheduling.sigs.k8s.io/v1alpha1\nkind: ElasticQuota\nmetadata: {name: a}\nspec:\n";
const GROUP: &str =
    "apiVersion: scheduling.sigs.k8s.io/v1alpha1\nkind: PodGroup\nmetadata:\n  name: a\n";
const RESERVATION: &str = "apiVersion: scheduling.koordinator.sh/v1alpha1\nkind: Reservation\nmetadata: {name: a}\nspec:\n";
const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n";
const NODE: &str = "apiVersion: v1\nkind: Node\nmetadata:\n  name: a\n";
const SETTINGS: &str =
    "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: slo-controller-config}\ndata:\n";
const SCHEDULER: &str =
    "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";
const DESCHEDULER: &str = "apiVersion: descheduler/v1alpha2\nkind: DeschedulerConfiguration\n";

/// Mistakes of documents: the head, the rest with a mark at the position of the fault, part of the message.
const PLANTED: &[(&str, &str, &str)] = &[
    // YAML.
    ("", "a: 1\nb: [1, 2\nc§: 3\n", "not YAML"),
    ("", "a: 1\n§a: 2\n", "given twice"),
    ("", "a:\n\t§b: 1\n", "not YAML"),
    (POD, "spec:\n  nodeName: {§{ .Values.node }}\n", "not YAML"),
    (
        "",
        "{\"apiVersion\": \"v1\" §\"kind\": \"Pod\"}",
        "not JSON",
    ),
    ("", "§apiVersion: v1\n", "kind is missing"),
    ("", "§spec:\n  a: 1\n", "apiVersion is missing"),
    (POD, "spec:\n  nodeName: a\n  §...\n", "not YAML"),
    (
        "",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n  a: |\n    kind: KubeSchedulerConfiguration\n    profiles:\n    - a: 1\n     §b: 2\n",
        "not YAML",
    ),
    // Kinds.
    (
        "",
        "apiVersion: v1\nkind: §pod\nmetadata: {name: a}\n",
        "no kind",
    ),
    (
        "",
        "apiVersion: §apps/v1\nkind: Pod\nmetadata: {name: a}\n",
        "expected \"v1\"",
    ),
    (
        "",
        "apiVersion: §scheduling.koordinator.sh/v1alpha1\nkind: PodGroup\nmetadata: {name: a}\n",
        "expected \"scheduling.sigs.k8s.io/v1alpha1\"",
    ),
    (
        "",
        "apiVersion: scheduling.koordinator.sh/v1alpha1\nkind: §Reservations\nmetadata: {name: a}\n",
        "no kind",
    ),
    (
        "",
        "apiVersion: v1\nkind: Pod\n§metadata: {namespace: a}\n",
        "metadata.name is missing",
    ),
    // Profiles.
    (PROFILE, "  qosClass: §BEE\n", "spec.qosClass"),
    (PROFILE, "  §qosClas: BE\n", "no such field"),
    (PROFILE, "  probability: §150%\n", "expected 0 to 100"),
    (
        PROFILE,
        "  koordinatorPriority: §high\n",
        "expected integer",
    ),
    (PROFILE, "  labels:\n    a: §true\n", "expected string"),
    (
        PROFILE,
        "  labels: {koordinator.sh/qosClass: §be}\n",
        "expected one of LSE",
    ),
    (
        PROFILE,
        "  qosClass: §LSR\n  priorityClassName: koord-batch\n",
        "does not go with",
    ),
    (
        PROFILE,
        "  selector:\n    §matchExpressions: [{key: a, operator: Within, values: [b]}]\n",
        "spec.selector",
    ),
    // Settings.
    (
        SETTINGS,
        "  system-config: |\n    {\"clusterStrategy\": {\n      \"minFreeKbytesFactor\": 100\n      §\"watermarkScaleFactor\": 150}}\n",
        "not JSON",
    ),
    (
        SETTINGS,
        "  colocation-config: |\n    {\n      §\"enabel\": true\n    }\n",
        "no such field",
    ),
    (
        SETTINGS,
        "  colocation-config: '{§\"enabel\": true}'\n",
        "no such field",
    ),
    (
        SETTINGS,
        "  colocation-config: |\n    {\"enable\": §\"true\"}\n",
        "expected a boolean",
    ),
    (
        SETTINGS,
        "  colocation-config: |\n    {\"cpuReclaimThresholdPercent\": §-1}\n",
        "cpuReclaimThresholdPercent",
    ),
    (
        SETTINGS,
        "  resource-threshold-config: |\n    {\"clusterStrategy\": {\"cpuSuppressPolicy\": §\"sets\"}}\n",
        "cpuSuppressPolicy",
    ),
    (
        SETTINGS,
        "  resource-threshold-config: |\n    {\"clusterStrategy\": {\"enable\": true},\n     \"nodeStrategies\": [§{\"enable\": false}]}\n",
        "nodeSelector is missing",
    ),
    (
        SETTINGS,
        "  resource-qos-config: |\n    {\"clusterStrategy\": {\"beClass\": {\"cpuQOS\": {\"groupIdentity\": §5}}}}\n",
        "groupIdentity",
    ),
    (
        SETTINGS,
        "  colocation-config: |\n    {\"nodeConfigs\": [\n      §{\"name\": \"a\", \"nodeSelector\": {\"matchLabels\": {\"x\": \"y\"}}},\n      {\"name\": \"b\", \"nodeSelector\": {\"matchLabels\": {\"x\": \"y\"}}}]}\n",
        "select the same nodes",
    ),
    (
        SETTINGS,
        "  cpu-burst-config: |\n    {\"clusterStrategy\": {\"policy\": \"auto\", §}}\n",
        "not JSON",
    ),
    (
        SETTINGS,
        "  cpu-burst-config: |\n    {§// on\n    \"clusterStrategy\": {\"policy\": \"auto\"}}\n",
        "not JSON",
    ),
    (
        SETTINGS,
        "  §colocation-confg: |\n    {\"enable\": true}\n",
        "no such key",
    ),
    // Quotas.
    (
        "",
        "apiVersion: scheduling.sigs.k8s.io/v1alpha1\nkind: ElasticQuota\nmetadata:\n  name: a\n  labels:\n    quota.scheduling.koordinator.sh/is-parent: §true\nspec: {max: {cpu: 1}}\n",
        "expected a text",
    ),
    (
        QUOTA,
        "  max: {cpu: 1}\n  min:\n    cpu: §2\n",
        "at most spec.max.cpu",
    ),
    (
        QUOTA,
        "  max: {cpu: 1}\n  min: {memory: §2}\n",
        "that spec.max limits",
    ),
    (QUOTA, "  max: {cpu: §-1}\n", "expected at least 0"),
    (QUOTA, "  §maximum: {cpu: 1}\n", "no such field"),
    (QUOTA, "  max: {cpu: §10 cores}\n", "spec.max"),
    (
        "",
        "apiVersion: scheduling.sigs.k8s.io/v1alpha1\nkind: ElasticQuota\nmetadata:\n  name: a\n  annotations:\n    quota.scheduling.koordinator.sh/shared-weight: '{\"cpu\": §}'\nspec: {max: {cpu: 1}}\n",
        "not JSON",
    ),
    // Pods.
    (
        POD,
        "  labels:\n    koordinator.sh/qosClass: §BEST\n",
        "expected one of LSE",
    ),
    (
        POD,
        "  labels:\n    §koordinator.sh/qosClas: BE\n",
        "no label",
    ),
    (
        POD,
        "  annotations:\n    §koordinator.sh/qosClass: BE\n",
        "as an annotation",
    ),
    (POD, "  labels:\n    a: §\"x y\"\n", "metadata.labels.a"),
    (
        POD,
        "  labels: {koordinator.sh/qosClass: BE}\nspec: {priorityClassName: §koord-prod}\n",
        "does not go with",
    ),
    (
        POD,
        "  labels: {koordinator.sh/qosClass: BE}\nspec:\n  §priorityClass: koord-batch\n",
        "no such field",
    ),
    (
        POD,
        "  annotations:\n    koordinator.sh/cpuBurst: '{\"policy\": §auto}'\n",
        "not JSON",
    ),
    (
        POD,
        "  annotations:\n    koordinator.sh/cpuBurst: '{\"policy\": §\"autom\"}'\n",
        "expected one of none",
    ),
    (
        POD,
        "  annotations:\n    koordinator.sh/memoryQOS: '{§\"polcy\": \"auto\"}'\n",
        "no such field",
    ),
    (
        POD,
        "  annotations:\n    scheduling.koordinator.sh/resource-spec: |\n      {\"requiredCPUBindPolicy\": §\"FullPCPU\"}\n",
        "expected one of Default",
    ),
    (
        POD,
        "  annotations: {koordinator.sh/eviction-priority: §\"high\"}\n",
        "expected a 32-bit integer",
    ),
    (
        POD,
        "  annotations: {koordinator.sh/oom-score-adj: §\"2000\"}\n",
        "expected an integer from -1000",
    ),
    (
        POD,
        "  annotations:\n    gang.scheduling.koordinator.sh/name: g\n    gang.scheduling.koordinator.sh/min-available: §\"two\"\n",
        "whole number",
    ),
    (
        POD,
        "  annotations: {gang.scheduling.koordinator.sh/mode: §strict}\n",
        "expected one of Strict",
    ),
    (
        POD,
        "  annotations: {scheduling.koordinator.sh/reserve-pod: §\"true\"}\n",
        "scheduler's own",
    ),
    (
        POD,
        "spec:\n  containers:\n  - name: a\n    §resource: {}\n",
        "no such field",
    ),
    (
        POD,
        "spec:\n  containers:\n  - name: a\n    resources: {requests: {memory: §1 Gi}}\n",
        "expected an amount",
    ),
    (
        POD,
        "spec:\n  containers:\n  - name: a\n    env: [{name: A, value: §1}]\n",
        "expected a text",
    ),
    (
        POD,
        "  labels: {koordinator.sh/qosClass: LSR}\nspec:\n  priorityClassName: koord-prod\n  containers:\n  - name: a\n    resources:\n      requests: §{cpu: 500m}\n",
        "whole CPUs",
    ),
    (
        POD,
        "  labels: {koordinator.sh/qosClass: BE}\nspec:\n  priorityClassName: koord-batch\n  containers:\n  - name: a\n    resources:\n      requests: {koordinator.sh/rdma: §100}\n",
        "needs a limit",
    ),
    (
        POD,
        "spec:\n  containers:\n  - name: a\n    resources:\n      requests: {koordinator.sh/rdma: §100}\n      limits: {koordinator.sh/rdma: 200}\n",
        "must be equal",
    ),
    (
        POD,
        "  labels: {koordinator.sh/qosClass: BE}\nspec:\n  priorityClassName: koord-batch\n  containers:\n  - name: a\n    resources:\n      requests: {kubernetes.io/batch-cpu: §2k}\n      limits: {kubernetes.io/batch-cpu: 1k}\n",
        "above the limit",
    ),
    (
        POD,
        "  labels: {koordinator.sh/qosClass: §LS}\nspec:\n  containers:\n  - name: a\n    resources:\n      requests: {kubernetes.io/batch-cpu: 1k}\n      limits: {kubernetes.io/batch-cpu: 1k}\n",
        "must be BE",
    ),
    (
        POD,
        "spec:\n  containers:\n  - name: a\n    resources:\n      limits: {koordinator.sh/gpu: 100, koordinator.sh/gpu.shared: 1}\n      requests: §{koordinator.sh/gpu: 100, koordinator.sh/gpu.shared: 1}\n",
        "exclude each other",
    ),
    (
        "",
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec:\n  template:\n    metadata:\n      labels:\n        koordinator.sh/qosClass: §be\n",
        "expected one of LSE",
    ),
    // Gangs.
    (GROUP, "spec:\n  minMember: §\"3\"\n", "expected integer"),
    (GROUP, "spec:\n  §minMembers: 3\n", "no such field"),
    (
        GROUP,
        "  annotations:\n    gang.scheduling.koordinator.sh/network-topology-spec: |\n      {\"gatherStrategy\": [{\"layer\": \"a\", \"strategy\": §\"MustGathr\"}]}\nspec: {minMember: 1}\n",
        "expected one of MustGather",
    ),
    (
        GROUP,
        "  annotations: {gang.scheduling.koordinator.sh/groups: §\"a,b\"}\nspec: {minMember: 1}\n",
        "JSON list",
    ),
    // Reservations.
    (
        "",
        "apiVersion: scheduling.koordinator.sh/v1alpha1\nkind: Reservation\nmetadata: {name: a}\n§spec: {template: {}, ttl: 1h}\n",
        "spec.owners",
    ),
    (
        RESERVATION,
        "  owners: [{labelSelector: {matchLabels: {a: b}}}]\n  template: {}\n  ttl: §1day\n",
        "spec.ttl",
    ),
    (
        RESERVATION,
        "  owners: [{labelSelector: {matchLabels: {a: b}}}]\n  template:\n    spec:\n      containers: [{name: a, §imag: b}]\n",
        "spec.template.spec.containers[0].imag",
    ),
    (
        RESERVATION,
        "  owners: [{labelSelector: {matchLabels: {a: b}}}]\n  template: {}\n  allocatePolicy: §Alignd\n",
        "allocatePolicy",
    ),
    // Nodes.
    (
        NODE,
        "  annotations:\n    scheduling.koordinator.sh/usage-thresholds: '{\"usageThresholds\": {\"cpu\": §\"65\"}}'\n",
        "usageThresholds",
    ),
    (
        NODE,
        "  labels: {node.koordinator.sh/cpu-reclaim-ratio: §\"-1\"}\n",
        "number of at least 0",
    ),
    (
        NODE,
        "  annotations: {node.koordinator.sh/colocation-strategy: §\"on\"}\n",
        "colocation-strategy",
    ),
    // Configurations.
    (
        "",
        "apiVersion: §kubescheduler.config.k8s.io/v1beta2\nkind: KubeSchedulerConfiguration\n",
        "not supported",
    ),
    (SCHEDULER, "parallelism: §0\n", "must be above 0"),
    (SCHEDULER, "§leaderElect: true\n", "no such field"),
    (
        SCHEDULER,
        "leaderElection: {leaseDuration: §fast}\n",
        "leaseDuration",
    ),
    (
        SCHEDULER,
        "profiles:\n- plugins:\n    score:\n      enabled: [{name: §LoadAware}]\n",
        "no plugin",
    ),
    (
        SCHEDULER,
        "profiles:\n- plugins:\n    filter:\n      enabled:\n      - name: §PrioritySort\n",
        "does not extend",
    ),
    (
        SCHEDULER,
        "profiles:\n- plugins:\n    score:\n      enabled:\n      - name: LoadAwareScheduling\n        weight: §-1\n",
        "weight -1",
    ),
    (
        SCHEDULER,
        "profiles:\n- pluginConfig:\n  - name: LoadAwareScheduling\n    args:\n      §usageThreshold: {cpu: 65}\n",
        "no such field",
    ),
    (
        SCHEDULER,
        "profiles:\n- pluginConfig:\n  - name: LoadAwareScheduling\n    args:\n      usageThresholds: {cpu: §165}\n",
        "usageThresholds",
    ),
    (
        SCHEDULER,
        "profiles:\n- pluginConfig:\n  - name: Coscheduling\n    args:\n      kind: §LoadAwareSchedulingArgs\n",
        "is not",
    ),
    (
        "",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: koord-scheduler-config}\ndata:\n  koord-scheduler.config: |\n    apiVersion: kubescheduler.config.k8s.io/v1\n    kind: KubeSchedulerConfiguration\n    podMaxBackoffSeconds: §0\n",
        "podMaxBackoffSeconds",
    ),
    (DESCHEDULER, "dryRun: §3\n", "dryRun"),
    (
        DESCHEDULER,
        "deschedulingInterval: §soon\n",
        "deschedulingInterval",
    ),
    (
        DESCHEDULER,
        "profiles:\n- plugins:\n    balance:\n      enabled: [{name: §LowNodeLoads}]\n",
        "no plugin",
    ),
    (
        DESCHEDULER,
        "profiles:\n- pluginConfig:\n  - name: LowNodeLoad\n    args:\n      §highThreshold: {cpu: 75}\n",
        "no such field",
    ),
    (
        DESCHEDULER,
        "profiles:\n- plugins:\n    evict:\n      §enabled: [{name: MigrationController}, {name: DefaultEvictor}]\n",
        "only one can",
    ),
    // Values of the chart.
    ("", "koordlet:\n  §lgo: {level: 4}\n", "no such value"),
    ("", "descheduler:\n  port: §70000\n", "maximum"),
    (
        "",
        "webhookConfiguration:\n  failurePolicy: {pods: §Refuse}\n",
        "webhookConfiguration",
    ),
];

#[test]
fn planted_mistakes_are_found() {
    let mut missed = Vec::new();
    for (head, rest, part) in PLANTED {
        let (text, position) = unmark(&format!("{head}{rest}"));
        let found = findings(&text);
        let is_found = found
            .iter()
            .any(|it| (it.line, it.column) == position && it.message.contains(part));
        if !is_found {
            missed.push(format!("{text}\n{part} at {position:?}: {found:#?}"));
        }
    }
    assert!(
        missed.is_empty(),
        "{} missed:\n{}",
        missed.len(),
        missed.join("\n\n")
    );
    assert!(PLANTED.len() >= 50);
}

fn yaml_files(dir: &Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            yaml_files(&path, found);
        } else if path.extension().is_some_and(|it| it == "yaml") {
            found.push(path);
        }
    }
}

#[test]
fn own_manifests_have_no_faults() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut paths = Vec::new();
    for dir in ["docs/examples", "deploy"] {
        yaml_files(&root.join(dir), &mut paths);
    }
    paths.push(root.join("charts/koord/values.yaml"));
    assert!(paths.len() > 10);
    for path in paths {
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(findings(&text), [], "{}", path.display());
    }
}

/// Returns the documents that the manual's commands apply, with the page.
fn manual_documents() -> Vec<(String, String)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/manual/src");
    let mut documents = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        // It shows a mistake.
        if path.ends_with("validate.md") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            let Some((_, word)) = line.split_once("<<") else {
                continue;
            };
            let word = word.split_whitespace().next().unwrap_or_default();
            let word = word.trim_matches(['\'', '"', '-']);
            let body: Vec<&str> = lines.by_ref().take_while(|it| *it != word).collect();
            let body = body.join("\n");
            if body.contains("apiVersion:") {
                documents.push((path.display().to_string(), body));
            }
        }
    }
    documents
}

#[test]
fn documents_of_the_manual_have_no_errors() {
    let documents = manual_documents();
    assert!(documents.len() > 20, "{}", documents.len());
    for (page, text) in documents {
        let mut found = findings(&text);
        found.retain(|it| it.severity == Severity::Error);
        assert_eq!(found, [], "{page}:\n{text}");
    }
}

#[test]
fn quotas_of_several_files_are_one_tree() {
    let quota = |name: &str, parent: &str, labels: &str, min: u32| {
        format!(
            "apiVersion: scheduling.sigs.k8s.io/v1alpha1\nkind: ElasticQuota\nmetadata:\n  name: {name}\n  \
             labels: {{quota.scheduling.koordinator.sh/parent: {parent}{labels}}}\n\
             spec: {{min: {{cpu: {min}}}, max: {{cpu: 9}}}}\n"
        )
    };
    let is_parent = ", quota.scheduling.koordinator.sh/is-parent: 'true'";
    let root = "koordinator-root-quota";
    let files = |parent_labels: &str| {
        [
            ("b".to_owned(), quota("b", "a", "", 3)),
            ("c".to_owned(), quota("c", "a", "", 3)),
            ("a".to_owned(), quota("a", root, parent_labels, 5)),
        ]
    };
    let report = check(&files(is_parent));
    let found: Vec<_> = report
        .findings
        .iter()
        .map(|it| (&*it.file, it.line))
        .collect();
    assert_eq!(found, [("c", 6)], "{report:?}");
    let report = check(&files(""));
    assert_eq!(report.findings.len(), 2, "{report:?}");
}

#[test]
fn report_counts_and_shows_hints() {
    let text =
        format!("{PROFILE}  qosClas: BE\n---\napiVersion: a/v1\nkind: B\nmetadata: {{name: c}}\n");
    let report = check(&[("f.yaml".to_owned(), text)]);
    assert_eq!(
        render(&report),
        "f.yaml:5:3: error: spec.qosClas: there is no such field\n    hint: did you mean qosClass?\n\
         1 document checked, 1 of other kinds: 1 error, 0 warnings\n"
    );
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["findings"][0]["line"], 5);
    assert_eq!(json["findings"][0]["severity"], "error");
    assert_eq!(json["skipped"], 1);
}

#[test]
fn exit_code_has_three_values() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let good = write("good", &format!("{PROFILE}  qosClass: BE\n"));
    let bad = write("bad", &format!("{PROFILE}  qosClass: BEE\n"));
    let odd = write(
        "odd",
        &format!("{POD}  labels: {{koordinator.sh/qosClass: BE}}\nspec: {{}}\n"),
    );
    let code = |files: &[&Path], strict| {
        let files = files.iter().map(|it| it.to_path_buf()).collect();
        let output = "text".to_owned();
        main(&Args {
            files,
            output,
            strict,
        })
        .unwrap()
    };
    assert_eq!(code(&[&good], true), ExitCode::SUCCESS);
    assert_eq!(code(&[&good, &bad], false), ExitCode::FAILURE);
    assert_eq!(code(&[&odd], false), ExitCode::SUCCESS);
    assert_eq!(code(&[&odd], true), ExitCode::FAILURE);
    assert_eq!(
        code(&[&bad, &dir.path().join("none")], false),
        ExitCode::from(2)
    );
    assert_eq!(code(&[dir.path()], false), ExitCode::from(2));
}

#[test]
fn findings_beyond_the_maximum_are_mentioned() {
    let fields: String = (0..150).map(|at| format!("  f{at}: 1\n")).collect();
    let report = check(&[("f".to_owned(), format!("{PROFILE}{fields}"))]);
    assert_eq!(report.findings.len(), MAX_FINDINGS);
    let rest = "more findings of this document are not listed";
    let rest: Vec<_> = report
        .findings
        .iter()
        .filter(|it| it.message == rest)
        .map(|it| it.severity)
        .collect();
    assert_eq!(rest, [Severity::Error]);
}

#[test]
fn any_text_is_answered() {
    let deep = "[".repeat(100_000);
    let wide = format!("a: {}", "{b: ".repeat(2_000));
    let many = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\nspec:\n{}",
        (0..20_000)
            .map(|at| format!("  f{at}: 1\n"))
            .collect::<String>()
    );
    let bomb = "a: &a [1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c]\ne: [*d,*d,*d,*d,*d,*d,*d,*d]\n";
    for text in [
        "",
        "---\n---\n",
        "# a\n",
        "1",
        "- a\n",
        "a: b: c",
        "\u{feff}a: 1\n",
        "%YAML 1.2\n---\na: 1\n",
        &deep,
        &wide,
        &many,
        bomb,
        "{\"a\":\t1}",
    ] {
        assert!(findings(text).len() <= MAX_FINDINGS, "{}", text.len());
    }
}
