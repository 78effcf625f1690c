//! The arguments that select a cluster, and the client of it.

use crate::cluster_files;
use anyhow::Result;
use koord_kube::Client;
use koord_kube::client::{ClientOptions, from_kubeconfig};
use std::path::PathBuf;

/// Selects the cluster of a command.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args)]
pub struct ClusterArgs {
    /// Kubeconfig of the cluster [default: KUBECONFIG, else ~/.kube/config, else the `koord up`
    /// cluster].
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig [default: the current one].
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
}

impl ClusterArgs {
    /// Returns whether an argument names the cluster.
    pub(crate) const fn is_named(&self) -> bool {
        self.kubeconfig.is_some() || self.context.is_some()
    }

    /// Returns a client of the selected cluster: that of the kubeconfig, otherwise of KUBECONFIG or
    /// ~/.kube/config, otherwise the `koord up` cluster.
    ///
    /// # Errors
    /// There is no cluster, or its kubeconfig is invalid.
    pub(crate) async fn connect(&self) -> Result<Client> {
        let options = ClientOptions {
            context: self.context.clone(),
            ..ClientOptions::default()
        };
        let local;
        let mut path = self.kubeconfig.as_deref();
        let named = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let home = std::env::home_dir().is_some_and(|home| home.join(".kube/config").exists());
        if path.is_none() && !named("KUBECONFIG") && !named("KUBERNETES_SERVICE_HOST") && !home {
            local = [false, true]
                .map(cluster_files::default_data_dir)
                .into_iter()
                .find(|dir| cluster_files::holder(dir).is_ok_and(|holder| holder.is_some()))
                .map(|dir| dir.join("kubeconfig"));
            path = local.as_deref();
        }
        Ok(from_kubeconfig(path, &options).await?)
    }
}
