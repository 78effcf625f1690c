//! Shell completions and man pages, made from the flags of `koord` and of the daemons.

use anyhow::{Context as _, Result};
use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;
use koord_app::console;
use std::path::{Path, PathBuf};

/// Arguments of `koord completion`.
#[derive(Debug, clap::Args)]
pub(crate) struct CompletionArgs {
    /// The shell.
    shell: Shell,
    /// Program whose command line is completed.
    #[arg(long, default_value = "koord", value_parser = PROGRAMS)]
    program: String,
}

/// Arguments of `koord man`.
#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// Directory to which the pages are written, such as /usr/local/share/man; created if it is missing.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

const PROGRAMS: [&str; 7] = [
    "koord",
    "koord-scheduler",
    "koord-descheduler",
    "koord-manager",
    "koordlet",
    "koord-topology-exporter",
    "koord-runtime-proxy",
];

/// Prints the completion script.
///
/// # Errors
/// The program of the arguments does not exist.
pub(crate) fn print_completion(args: &CompletionArgs, koord: Command) -> Result<()> {
    let mut command = match &*args.program {
        "koord" => with_daemon_flags(koord),
        name => {
            let mut daemons = daemons().into_iter().map(|(_, daemon)| daemon);
            let found = daemons.find(|daemon| daemon.get_name() == name);
            found.with_context(|| format!("program {name}: there is none"))?
        }
    };
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, &args.program, &mut script);
    console::print_line(String::from_utf8_lossy(&script).trim_end());
    Ok(())
}

/// Writes a page for `koord` and each of its subcommands to `man1`, and one for each daemon to `man8`.
///
/// # Errors
/// A directory or a file cannot be written.
pub(crate) fn write_man_pages(args: &ManArgs, koord: Command) -> Result<()> {
    let directory = |section: &str| {
        let path = args.dir.join(section);
        std::fs::create_dir_all(&path).with_context(|| format!("create {}", path.display()))?;
        anyhow::Ok(path)
    };
    let (commands, daemon_pages) = (directory("man1")?, directory("man8")?);
    clap_mangen::generate_to(koord, &commands)
        .with_context(|| format!("write man pages to {}", commands.display()))?;
    for (_, daemon) in daemons() {
        write_daemon_page(&daemon_pages, daemon)?;
    }
    Ok(())
}

fn write_daemon_page(dir: &Path, daemon: Command) -> Result<()> {
    let path = dir.join(format!("{}.8", daemon.get_name()));
    let mut page = Vec::new();
    // Writing to a Vec cannot fail.
    Man::new(daemon).section("8").render(&mut page)?;
    std::fs::write(&path, page).with_context(|| format!("write {}", path.display()))
}

/// Returns the daemons' command lines by the names of `koord`'s subcommands.
fn daemons() -> [(&'static str, Command); 6] {
    [
        ("scheduler", koord_scheduler::program::command()),
        ("descheduler", koord_descheduler::program::command()),
        ("manager", koord_manager::program::command()),
        ("koordlet", koordlet::program::command()),
        ("topology-exporter", koordlet::program::exporter_command()),
        ("runtime-proxy", koord_runtime_proxy::program::command()),
    ]
}

/// Gives the subcommands that pass their arguments to a daemon that daemon's flags.
fn with_daemon_flags(koord: Command) -> Command {
    let add = |koord: Command, (name, daemon): (&'static str, Command)| {
        koord.mut_subcommand(name, |it| {
            let about = it.get_about().cloned().unwrap_or_default();
            daemon.name(name).about(about)
        })
    };
    daemons().into_iter().fold(koord, add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;
    use clap::CommandFactory as _;

    #[test]
    fn programs_are_koord_and_its_daemons() {
        let daemons = daemons();
        let names = daemons.iter().map(|(_, daemon)| daemon.get_name());
        assert!(std::iter::once("koord").chain(names).eq(PROGRAMS));
        with_daemon_flags(cli::Args::command()).debug_assert();
    }

    #[test]
    fn bash_completes_subcommands_and_daemon_flags() {
        let mut script = Vec::new();
        let mut command = with_daemon_flags(cli::Args::command());
        clap_complete::generate(Shell::Bash, &mut command, "koord", &mut script);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, script).unwrap();
        for (words, expected) in [
            (&["koord", "stat"][..], "status"),
            (&["koord", "koordlet", "--dry-run-r"], "--dry-run-report"),
            (&["koord", "check", "--kubeco"], "--kubeconfig"),
            (&["koord", "completion", "fi"], "fish"),
        ] {
            let (last, before) = words.split_last().unwrap();
            let line = format!(
                "source {}; COMP_WORDS=({}); COMP_CWORD={}\n_koord koord {last} {}; echo \"${{COMPREPLY[@]}}\"\n",
                file.path().display(),
                words.join(" "),
                before.len(),
                before.last().unwrap()
            );
            let answer = std::process::Command::new("bash")
                .args(["-c", &line])
                .output()
                .unwrap();
            let answer = String::from_utf8(answer.stdout).unwrap();
            assert_eq!(answer.trim(), expected, "{words:?}");
        }
    }

    #[test]
    fn man_pages_have_every_command_and_daemon() {
        let dir = tempfile::tempdir().unwrap();
        let args = ManArgs {
            dir: dir.path().join("man"),
        };
        write_man_pages(&args, cli::Args::command()).unwrap();
        let page = |name: &str| std::fs::read_to_string(args.dir.join(name)).unwrap();
        for name in ["koord", "koord-up", "koord-validate", "koord-demo-topology"] {
            assert!(page(&format!("man1/{name}.1")).contains(".TH"), "{name}");
        }
        for name in &PROGRAMS[1..] {
            assert!(
                page(&format!("man8/{name}.8")).contains("\\-\\-version"),
                "{name}"
            );
        }
        let hidden = args.dir.join("man1/koord-workload.1");
        assert!(!hidden.exists(), "{hidden:?}");
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = write_man_pages(&ManArgs { dir: file.clone() }, cli::Args::command());
        let error = console::chain(&error.unwrap_err());
        assert!(
            error.contains(&format!("create {}", file.display())),
            "{error}"
        );
    }
}
