//! Arguments and subcommands of `koordctl`.

use crate::{
    audit, check, crds, dashboard, explain, install, node, recommend, status, support_bundle, top,
    validate,
};
use anyhow::Result;
use clap::{Parser, Subcommand};
use koord_app::console;
use std::process::ExitCode;

/// Inspect QoS-based co-location in a Kubernetes cluster.
#[derive(Debug, Parser)]
#[command(name = "koordctl", version, about, propagate_version = true)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

/// A subcommand.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the `koord up` cluster of this machine and its address; if none runs, a summary of the cluster that
    /// kubectl is configured for.
    Status(status::Args),
    /// Show what nodes and pods request and use, by class. Usage is that of NodeMetric.
    Top(top::Args),
    /// Check the cluster that kubectl is configured for: components, webhooks, permissions, definitions, nodes,
    /// settings, quotas and gangs. Exit code 1 if a check failed, 2 if the cluster could not be reached.
    Check(check::Args),
    /// Explain why a pod is pending or runs on its node, how a node's batch resources are computed, what
    /// the descheduler moved, or the state of a quota, gang, reservation, device or profile.
    Explain(explain::Args),
    /// Collect what is needed to find a fault into one archive, without secrets: versions, koord's objects,
    /// settings, logs and checks. Exit code 1 if a part could not be read, 2 if the cluster could not be
    /// reached.
    SupportBundle(support_bundle::Args),
    /// Serve the dashboard on this machine, and print its address.
    Dashboard(dashboard::Args),
    /// Print the resource requests of containers next to the recommended ones.
    Recommend(recommend::Args),
    /// Show what the node agent measures and enforces on this machine.
    #[command(subcommand)]
    Node(node::NodeCommand),
    /// Show the actions of the node agent, and their reasons.
    Audit(audit::Args),
    /// Check settings, custom resources and configurations in files, without a cluster.
    Validate(validate::Args),
    /// Print the CRDs and PriorityClasses as YAML.
    Crds,
    /// Install or upgrade koord in a cluster: the Helm chart, without Helm.
    Install(Box<install::Args>),
    /// Remove an installation of `koord install`, and what the programs wrote to nodes.
    Uninstall(install::UninstallArgs),
}

/// Parses the process's arguments and runs. Exit code 2 for bad arguments, 1 for a failure.
#[must_use]
pub fn main() -> ExitCode {
    match run(Args::parse().command) {
        Ok(code) => code,
        Err(error) => {
            console::warn(format_args!("koordctl: {}", console::chain(&error)));
            ExitCode::FAILURE
        }
    }
}

/// Runs `command`, and returns its exit code.
///
/// # Errors
/// Those of the subcommand.
pub fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Status(args) => status::main(&args)?,
        Command::Top(args) => top::main(&args)?,
        Command::Check(args) => return check::main(&args),
        Command::SupportBundle(args) => return support_bundle::main(&args),
        Command::Explain(args) => explain::main(&args)?,
        Command::Dashboard(args) => dashboard::main(&args)?,
        Command::Recommend(args) => recommend::main(&args)?,
        Command::Node(command) => node::main(&command)?,
        Command::Audit(args) => audit::main(&args)?,
        Command::Validate(args) => return validate::main(&args),
        Command::Install(args) => install::main(&args)?,
        Command::Uninstall(args) => install::uninstall(&args)?,
        Command::Crds => console::print_line(crds::yaml()?.trim_end()),
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn argument_tree_is_consistent() {
        Args::command().debug_assert();
    }
}
