//! The command line, with upstream's names and defaults.

use crate::{Mode, Options, OptionsError, SkipLabel};
use clap::Parser;
use koord_api::GoDuration;
use koord_app::flags;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Arguments of the runtime proxy.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "koord-runtime-proxy",
    version,
    about = "CRI proxy between kubelet and container runtime that calls the hooks of koordlet"
)]
pub struct Args {
    /// Socket that the kubelet connects to
    #[arg(long, default_value = "/var/run/koord-runtimeproxy/runtimeproxy.sock")]
    pub koord_runtimeproxy_endpoint: String,
    /// Socket of the container runtime
    #[arg(long, default_value = "/var/run/containerd/containerd.sock")]
    pub remote_runtime_service_endpoint: String,
    /// Accepted for compatibility; the runtime's socket serves images, too
    #[arg(long, default_value = "")]
    pub remote_image_service_endpoint: String,
    /// Protocol of the runtime: Containerd (CRI) or Docker (API of the Docker engine)
    #[arg(long, default_value = "Containerd")]
    pub backend_runtime_mode: String,
    /// Key of the label that exempts a pod from hooks
    #[arg(long, default_value = "runtimeproxy.koordinator.sh/skip-hookserver")]
    pub runtime_hook_server_key: String,
    /// Value of the label that exempts a pod from hooks
    #[arg(long, default_value = "true")]
    pub runtime_hook_server_val: String,
    /// Directory where hook servers register
    #[arg(long, default_value = koord_api::hookserver::DIRECTORY, hide = true)]
    pub runtime_hook_server_config_dir: PathBuf,
    /// Timeout of a hook call, as a Go duration
    #[arg(long, default_value = "5s")]
    pub runtime_hook_timeout: GoDuration,
    /// Address to serve metrics and health on, such as 127.0.0.1:9317; 0 disables it
    #[arg(long, default_value = "0")]
    pub metrics_addr: String,
    /// Maximum time for which a shutdown waits for calls in progress, as a Go duration
    #[arg(long, default_value = "30s")]
    pub drain_timeout: GoDuration,
}

impl Args {
    /// Validates all flags and converts them to [`Options`].
    ///
    /// # Errors
    ///
    /// Names the flag and its value.
    pub fn options(&self) -> Result<Options, OptionsError> {
        let mode = match self.backend_runtime_mode.as_str() {
            "Containerd" => Mode::Containerd,
            "Docker" => Mode::Docker,
            mode => {
                let problem = format!("{mode:?} is neither Containerd nor Docker");
                return Err(OptionsError::flag("backend-runtime-mode", problem));
            }
        };
        if !self.remote_image_service_endpoint.is_empty() {
            tracing::warn!(
                endpoint = self.remote_image_service_endpoint,
                "ignoring --remote-image-service-endpoint, the runtime's socket serves images, too"
            );
        }
        let listen = socket(
            "koord-runtimeproxy-endpoint",
            &self.koord_runtimeproxy_endpoint,
        )?;
        let runtime = socket(
            "remote-runtime-service-endpoint",
            &self.remote_runtime_service_endpoint,
        )?;
        if listen == runtime {
            let problem = format!(
                "{:?} is the runtime's own",
                self.koord_runtimeproxy_endpoint
            );
            return Err(OptionsError::flag("koord-runtimeproxy-endpoint", problem));
        }
        Ok(Options {
            listen,
            runtime,
            mode,
            hooks: self.runtime_hook_server_config_dir.clone(),
            hook_timeout: positive("runtime-hook-timeout", &self.runtime_hook_timeout)?,
            drain_timeout: self.drain_timeout.to_std().unwrap_or_default(),
            skip: SkipLabel {
                key: self.runtime_hook_server_key.clone(),
                value: self.runtime_hook_server_val.clone(),
            },
            metrics_address: flags::bind_address(&self.metrics_addr)
                .map_err(|error| OptionsError::flag("metrics-addr", error.to_string()))?,
        })
    }
}

/// Parses the path of a socket from a flag's value, which may have the scheme `unix://` that kubelets require.
fn socket(flag: &str, value: &str) -> Result<PathBuf, OptionsError> {
    let path = Path::new(value.strip_prefix("unix://").unwrap_or(value));
    if !path.is_absolute() {
        let problem = format!("{value:?} is not an absolute path");
        return Err(OptionsError::flag(flag, problem));
    }
    Ok(path.to_owned())
}

fn positive(flag: &str, value: &GoDuration) -> Result<Duration, OptionsError> {
    value
        .to_std()
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| OptionsError::flag(flag, format!("{value} is not positive")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(line: &[&str]) -> Result<Options, String> {
        let argv = std::iter::once("koord-runtime-proxy").chain(line.iter().copied());
        let parsed = koord_app::flags::parse::<Args>(argv.map(Into::into));
        let parsed = parsed.map_err(|error| error.to_string())?;
        parsed.args.options().map_err(|error| error.to_string())
    }

    #[test]
    fn defaults_are_upstreams() {
        let options = options(&[]).unwrap();
        assert_eq!(
            options.listen,
            Path::new("/var/run/koord-runtimeproxy/runtimeproxy.sock")
        );
        assert_eq!(
            options.runtime,
            Path::new("/var/run/containerd/containerd.sock")
        );
        assert_eq!(options.hooks, Path::new("/etc/runtime/hookserver.d"));
        assert_eq!(
            options.skip,
            SkipLabel {
                key: "runtimeproxy.koordinator.sh/skip-hookserver".to_owned(),
                value: "true".to_owned(),
            }
        );
        assert_eq!(options.hook_timeout, Duration::from_secs(5));
        assert_eq!(options.metrics_address, None);
    }

    #[test]
    fn old_unit_files_keep_starting() {
        let options = options(&[
            "-remote-runtime-service-endpoint=unix:///run/containerd/containerd.sock",
            "-remote-image-service-endpoint=/run/containerd/containerd.sock",
            "--backend-runtime-mode=Containerd",
            "--v=4",
        ]);
        let runtime = options.unwrap().runtime;
        assert_eq!(runtime, Path::new("/run/containerd/containerd.sock"));
    }

    #[test]
    fn invalid_flags_are_named() {
        for (line, says) in [
            (
                "--backend-runtime-mode=containerd",
                "\"containerd\" is neither",
            ),
            ("--koord-runtimeproxy-endpoint=proxy.sock", "\"proxy.sock\""),
            (
                "--remote-runtime-service-endpoint=",
                "\"\" is not an absolute",
            ),
            ("--runtime-hook-timeout=0s", "runtime-hook-timeout"),
            ("--runtime-hook-timeout=5", "\"5\""),
            ("--metrics-addr=nowhere", "metrics-addr"),
            (
                "--koord-runtimeproxy-endpoint=/var/run/containerd/containerd.sock",
                "the runtime's own",
            ),
        ] {
            let error = options(&[line]).unwrap_err();
            assert!(error.contains(says), "{line}: {error}");
        }
    }
}
