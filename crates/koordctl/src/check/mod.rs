//! `koord check`: checks the cluster that kubectl is configured for, and reports what does not work with a hint.
//!
//! `collect` reads a snapshot with the caller's permissions; the rules are functions of it. Nothing is written:
//! access reviews are requests that store nothing.

mod access;
pub(crate) mod collect;
pub(crate) mod outcome;
pub(crate) mod rules;
pub(crate) mod snapshot;

use crate::cluster_args::ClusterArgs;
use crate::fetch::Fetcher;
use anyhow::Result;
use koord_app::console;
use koord_app::daemon::runtime;
use koord_kube::Client;
use koord_kube::tls::install_crypto_provider;
use outcome::{CheckResult, Outcome, Status};
use rules::CHECKS;
use serde_json::{Value, json};
use snapshot::Snapshot;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

/// Exit code if the cluster could not be reached, or the arguments are wrong.
const UNREACHABLE: u8 = 2;
const REACHABLE: &str = "API server";
const MAX_KUBELETS: usize = 20;

/// Arguments of `koord check`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Namespace of the components.
    #[arg(short, long, value_name = "NAME", default_value = koord_api::configmap::NAMESPACE)]
    pub namespace: String,
    /// Output format: a table, JSON, or only what is not ok.
    #[arg(short, long, default_value = "table", value_parser = ["table", "json", "short"])]
    pub output: String,
    /// Make only these checks.
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Leave out these checks.
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    pub skip: Vec<String>,
    /// Number of kubelets whose configuration is read.
    #[arg(long, value_name = "N", default_value_t = MAX_KUBELETS)]
    pub max_kubelets: usize,
    /// Seconds within which each request has to be answered.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    pub request_timeout: u64,
}

/// Checks the cluster and prints the results. Exit code 0 if nothing failed, 1 if a check failed, 2 if the cluster
/// could not be reached or an argument names no check.
///
/// # Errors
/// The results cannot be written as JSON; never happens.
pub fn main(args: &Args) -> Result<ExitCode> {
    for id in args.only.iter().chain(&args.skip) {
        if id != "A-01" && CHECKS.iter().all(|check| check.id != id) {
            console::warn(format_args!(
                "koord: invalid value {id:?} for --only or --skip: expected the id of a check, such as C-01"
            ));
            return Ok(ExitCode::from(UNREACHABLE));
        }
    }
    let results = runtime()?.block_on(run(args));
    let output = match args.output.as_str() {
        "json" => serde_json::to_string_pretty(&to_json(&results))?,
        output => render(&results, output == "short"),
    };
    if !output.is_empty() {
        console::print_line(output.trim_end());
    }
    Ok(exit_code(&results))
}

/// Connects, collects and applies the rules.
async fn run(args: &Args) -> Vec<CheckResult> {
    install_crypto_provider();
    let client = match args.cluster.connect().await {
        Ok(client) => client,
        Err(error) => return vec![unreachable(&format!("{error:#}"))],
    };
    let fetcher = Fetcher::new(client, Duration::from_secs(args.request_timeout));
    run_with(&fetcher, args).await
}

/// Checks the cluster of `client`, and returns the results as `koord check --output json` prints them.
/// `args` chooses the checks; its cluster is not used.
pub async fn check(client: Client, args: &Args) -> Value {
    let fetcher = Fetcher::new(client, Duration::from_secs(args.request_timeout));
    to_json(&run_with(&fetcher, args).await)
}

/// Makes all checks of a cluster whose components are in `namespace`, and returns the results as text and as JSON.
pub(crate) async fn report(fetcher: &Fetcher, namespace: &str) -> (String, Value) {
    let args = Args {
        cluster: ClusterArgs::default(),
        namespace: namespace.to_owned(),
        output: "table".to_owned(),
        only: Vec::new(),
        skip: Vec::new(),
        max_kubelets: MAX_KUBELETS,
        request_timeout: 0,
    };
    let results = run_with(fetcher, &args).await;
    (render(&results, false), to_json(&results))
}

/// Collects and applies the rules.
async fn run_with(fetcher: &Fetcher, args: &Args) -> Vec<CheckResult> {
    let version = match fetcher.version().await {
        Ok(version) => version,
        Err(error) => return vec![unreachable(&error)],
    };
    let snapshot = collect::collect(fetcher, &args.namespace, args.max_kubelets, version).await;
    apply(&snapshot, |id| {
        let is_chosen = args.only.is_empty() || args.only.iter().any(|it| it == id);
        is_chosen && args.skip.iter().all(|it| it != id)
    })
}

/// Returns the result of a cluster that cannot be reached.
fn unreachable(error: &str) -> CheckResult {
    CheckResult {
        id: "A-01",
        title: REACHABLE,
        result: Status::Failed,
        findings: vec![error.to_owned()],
        hint: Some("set --kubeconfig and --context; check proxy and network"),
    }
}

/// Applies the rules that `is_chosen` selects by id.
fn apply(snapshot: &Snapshot, is_chosen: impl Fn(&str) -> bool) -> Vec<CheckResult> {
    let reached = CheckResult {
        id: "A-01",
        title: REACHABLE,
        result: Status::Ok,
        findings: vec![format!("version {}", snapshot.server_version)],
        hint: None,
    };
    let others = CHECKS
        .iter()
        .filter(|check| is_chosen(check.id))
        .map(|check| {
            let Outcome { status, findings } = (check.rule)(snapshot);
            CheckResult {
                id: check.id,
                title: check.title,
                result: status,
                findings,
                hint: (status >= Status::Warning).then_some(check.hint),
            }
        });
    let reached = is_chosen("A-01").then_some(reached);
    reached.into_iter().chain(others).collect()
}

fn exit_code(results: &[CheckResult]) -> ExitCode {
    let failed = |it: &&CheckResult| it.result == Status::Failed;
    match results.iter().find(failed).map(|it| it.id) {
        None => ExitCode::SUCCESS,
        Some("A-01") => ExitCode::from(UNREACHABLE),
        Some(_) => ExitCode::FAILURE,
    }
}

/// Returns the number of results with `status`.
fn count(results: &[CheckResult], status: Status) -> usize {
    results.iter().filter(|it| it.result == status).count()
}

fn to_json(results: &[CheckResult]) -> Value {
    json!({
        "success": count(results, Status::Failed) == 0,
        "checks": results,
    })
}

/// Formats the results; `short` leaves out what is ok or skipped.
fn render(results: &[CheckResult], short: bool) -> String {
    let mut text = String::new();
    for result in results {
        if short && result.result < Status::Warning {
            continue;
        }
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{:<8} {}  {}",
            result.result.as_str(),
            result.id,
            result.title
        );
        for finding in &result.findings {
            let _ = writeln!(text, "           {finding}");
        }
        if let Some(hint) = result.hint {
            let _ = writeln!(text, "           hint: {hint}");
        }
    }
    if !short {
        let _ = writeln!(
            text,
            "{} ok, {} warnings, {} failed, {} skipped",
            count(results, Status::Ok),
            count(results, Status::Warning),
            count(results, Status::Failed),
            count(results, Status::Skipped)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_has_hint_only_with_a_problem() {
        let result = |id, result, hint| CheckResult {
            id,
            title: "t",
            result,
            findings: vec!["f".to_owned()],
            hint,
        };
        let results = [
            result("A-01", Status::Ok, None),
            result("C-01", Status::Warning, Some("h")),
        ];
        assert_eq!(
            render(&results, false),
            "ok       A-01  t\n           f\nwarning  C-01  t\n           f\n           hint: h\n\
         1 ok, 1 warnings, 0 failed, 0 skipped\n"
        );
        assert!(!render(&results, true).contains("A-01"));
        let json = to_json(&results);
        assert_eq!(json["success"], true);
        assert_eq!(
            json["checks"][1],
            json!({"id": "C-01", "title": "t", "result": "warning", "findings": ["f"], "hint": "h"})
        );
    }
}
