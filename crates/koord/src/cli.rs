//! Command line of `koord`.

use crate::{cluster, console, demo, shell, up};
use anyhow::{Context, Result};
use clap::{CommandFactory as _, Parser, Subcommand};
use koord_bench as bench;
use koord_workload as workload;
use koordctl::running;
use std::ffi::OsString;
use std::process::ExitCode;

/// QoS-based co-location for Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "koord", version, about, propagate_version = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a whole cluster on this machine: API server, manager, scheduler, descheduler, koordlet,
    /// and this machine as a node.
    Up(up::Args),
    /// Stop the cluster that `koord up` started in the background.
    Down(running::Args),
    #[command(flatten)]
    Ctl(koordctl::cli::Command),
    /// Demonstrate on this machine what koord does for services next to batch work.
    #[command(after_help = demo::EXIT_CODES)]
    Demo {
        #[command(subcommand)]
        demo: Option<Demo>,
        #[command(flatten)]
        colocation: demo::Args,
    },
    /// Run a benchmark of one component.
    Bench(bench::Args),
    /// Run koord-scheduler against a cluster, with the flags of that program.
    #[command(disable_help_flag = true, disable_version_flag = true)]
    Scheduler(Flags),
    /// Run koord-descheduler against a cluster, with the flags of that program.
    #[command(disable_help_flag = true, disable_version_flag = true)]
    Descheduler(Flags),
    /// Run koord-manager against a cluster, with the flags of that program.
    #[command(disable_help_flag = true, disable_version_flag = true)]
    Manager(Flags),
    /// Run koordlet on this node, with the flags of that program.
    #[command(disable_help_flag = true, disable_version_flag = true)]
    Koordlet(Flags),
    /// Publish the free resources of each NUMA node of this machine in a NodeResourceTopology, with the flags
    /// of nfd-topology-updater.
    #[command(disable_help_flag = true, disable_version_flag = true)]
    TopologyExporter(Flags),
    /// Run koord-runtime-proxy on this node, with the flags of that program.
    #[command(disable_help_flag = true, disable_version_flag = true)]
    RuntimeProxy(Flags),
    /// Print a completion script for a shell: `source <(koord completion bash)`.
    Completion(shell::CompletionArgs),
    /// Write man pages of koord and of the daemons to a directory.
    Man(shell::ManArgs),
    /// The programs that the demo runs.
    #[command(subcommand, hide = true)]
    Workload(Workload),
}

/// A daemon's own command line, passed on unchanged: its flags have Go's syntax.
#[derive(Debug, clap::Args)]
struct Flags {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    flags: Vec<OsString>,
}

impl Flags {
    fn argv(self, program: &str) -> Vec<OsString> {
        std::iter::once(program.into()).chain(self.flags).collect()
    }
}

#[derive(Debug, Subcommand)]
enum Demo {
    /// Run a latency-sensitive service and batch work on one machine, in up to five phases.
    #[command(after_help = demo::EXIT_CODES)]
    Colocation(demo::Args),
    /// Show a Deployment whose pods are rejected with TopologyAffinityError again and again, and how
    /// topology-aware scheduling prevents that.
    Topology(demo::topology::Args),
    /// Move pods off hot nodes, each to capacity that is reserved before its eviction.
    Descheduler(demo::descheduler::Args),
}

#[derive(Debug, Subcommand)]
enum Workload {
    /// The latency-sensitive service.
    Serve(workload::serve::Args),
    /// A batch job that computes.
    Hog(workload::hog::Args),
    /// A batch job that starts processes.
    Spawn(workload::neighbour::SpawnArgs),
    /// A batch job that writes and syncs files.
    Sync(workload::neighbour::SyncArgs),
    /// A batch job that fills memory.
    Grow(workload::neighbour::GrowArgs),
    /// A batch job that streams through memory.
    Stream(workload::neighbour::StreamArgs),
    /// A container of a benchmark.
    Doze(workload::doze::Args),
    /// The load generator; prints its outcome as JSON.
    Load(workload::load::Args),
}

/// Parses the process's arguments and runs. Exit code 2 for bad arguments, 1 for a failure.
#[must_use]
pub fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(code) => code,
        Err(error) => {
            console::warn(format_args!("koord: {}", console::chain(&error)));
            ExitCode::FAILURE
        }
    }
}

/// Runs the selected subcommand, and returns its exit code.
fn run(args: Args) -> Result<ExitCode> {
    match args.command {
        Command::Scheduler(flags) => {
            let argv = flags.argv("koord-scheduler");
            return Ok(koord_scheduler::program::run(argv, koord_plugins::registry));
        }
        Command::Descheduler(flags) => {
            let argv = flags.argv("koord-descheduler");
            let place = koord_placement::for_descheduler;
            return Ok(koord_descheduler::program::run(argv, place));
        }
        Command::Manager(flags) => {
            return Ok(koord_manager::program::run(flags.argv("koord-manager")));
        }
        Command::Koordlet(flags) => return Ok(koordlet::program::run(flags.argv("koordlet"))),
        Command::TopologyExporter(flags) => {
            let argv = flags.argv("koord-topology-exporter");
            return Ok(koordlet::program::run_exporter(argv));
        }
        Command::RuntimeProxy(flags) => {
            let argv = flags.argv("koord-runtime-proxy");
            return Ok(koord_runtime_proxy::program::run(argv));
        }
        Command::Workload(Workload::Serve(args)) => workload::serve::run(&args)?,
        Command::Workload(Workload::Hog(args)) => workload::hog::run(&args)?,
        Command::Workload(Workload::Spawn(args)) => workload::neighbour::spawn(&args)?,
        Command::Workload(Workload::Sync(args)) => workload::neighbour::sync(&args)?,
        Command::Workload(Workload::Grow(args)) => workload::neighbour::grow(&args)?,
        Command::Workload(Workload::Stream(args)) => workload::neighbour::stream(&args)?,
        Command::Workload(Workload::Doze(args)) => workload::doze::run(&args),
        Command::Workload(Workload::Load(args)) => {
            let outcome = workload::load::run(&args)?;
            console::print_line(serde_json::to_string(&outcome).context("outcome as JSON")?);
        }
        Command::Up(args) => up::main(&args)?,
        Command::Down(args) => running::down(&args)?,
        Command::Completion(args) => shell::print_completion(&args, Args::command())?,
        Command::Man(args) => shell::write_man_pages(&args, Args::command())?,
        Command::Ctl(command) => return koordctl::cli::run(command),
        Command::Demo {
            demo: Some(Demo::Colocation(args)),
            ..
        } => return demo::main(&args),
        Command::Demo {
            demo: Some(Demo::Topology(args)),
            ..
        } => demo::topology::main(&args)?,
        Command::Demo {
            demo: Some(Demo::Descheduler(args)),
            ..
        } => demo::descheduler::main(&args)?,
        Command::Demo {
            demo: None,
            colocation,
        } => return demo::main(&colocation),
        Command::Bench(args) => {
            cluster::init_logging(bench::LOG);
            return bench::main(args);
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_argument_tree_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn demo_alone_is_demo_colocation() {
        for line in ["koord demo --repeat 3", "koord demo colocation --repeat 3"] {
            let parsed = Args::try_parse_from(line.split(' ')).unwrap();
            let Command::Demo { demo, colocation } = parsed.command else {
                panic!("not demo")
            };
            let args = match demo {
                Some(Demo::Colocation(args)) => args,
                Some(other) => panic!("{other:?}"),
                None => colocation,
            };
            assert_eq!(args.repeat, Some(3));
        }
    }
}
