//! Directory and pod cgroups of a cluster on this machine. One process at a time holds a directory, and no
//! two clusters share cgroups.
//!
//! Both are claimed by locked files, before anything else is written: a failed start changes nothing of a
//! running cluster. The kernel releases a lock when its process ends.

use anyhow::{Context as _, Result, bail};
use koord_host::CgroupPath;
use koordctl::cluster_files::{
    GROUP_CLAIMS, Holder, MAX_CLUSTERS, claim_of, failed, lock_of, open, read,
};
use std::fs::{File, TryLockError};
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::Duration;

/// A lock that this process holds.
#[derive(Debug)]
pub(crate) struct Claim {
    /// Open as long as the claim: closing it releases the lock.
    _file: File,
}

/// Claims `dir`, which is made when missing, for this process.
///
/// A process that was forked by an earlier owner holds the lock until it executes its program, so
/// it gets a moment to go away.
///
/// # Errors
/// When another process has it, or it cannot be used.
pub(crate) async fn claim_directory(dir: &Path) -> Result<Claim> {
    const TRIES: u32 = 10;
    let shown = dir.display();
    make_private(dir)?;
    let mut tries = 0;
    loop {
        tries += 1;
        match claim(&lock_of(dir), dir)? {
            Ok(claim) => return Ok(claim),
            Err(_) if tries < TRIES => tokio::time::sleep(Duration::from_millis(50)).await,
            Err(holder) => bail!(
                "a cluster runs in {shown} already, as process {}: stop it, or name another \
                 --data-dir and --port",
                holder.pid
            ),
        }
    }
}

/// Makes `dir` when it is missing, and makes it private to its owner: it holds keys, logs and objects of all
/// users.
///
/// # Errors
/// It cannot be made or changed, or others may write in it, as in `/tmp`.
pub(crate) fn make_private(dir: &Path) -> Result<()> {
    let shown = dir.display();
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .with_context(|| format!("cannot create {shown}"))?;
    let cannot = || format!("cannot make {shown} private");
    let mode = std::fs::metadata(dir)
        .with_context(cannot)?
        .permissions()
        .mode();
    if mode & 0o002 != 0 {
        bail!(
            "invalid value {shown} for --data-dir: expected a directory that only its owner writes"
        );
    }
    if mode & 0o077 != 0 {
        let private = std::fs::Permissions::from_mode(mode & 0o700);
        std::fs::set_permissions(dir, private).with_context(cannot)?;
    }
    Ok(())
}

/// Makes all files that this process creates from now on private to its user. Child processes for others set
/// their own mask.
pub(crate) fn keep_files_private() {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
}

/// The usual port of an API server.
const PORT: u16 = 6443;
/// Time to wait for a taken port: an earlier owner that was killed holds it until its memory is freed.
const PORT_PATIENCE: Duration = Duration::from_secs(5);

/// Returns the address for the API server, and a note if the usual port is taken and any free one is used
/// instead.
///
/// # Errors
/// When the requested port stays taken.
pub(crate) async fn find_port(requested: Option<u16>) -> Result<(SocketAddr, Option<String>)> {
    find_port_like(requested, PORT, PORT_PATIENCE).await
}

/// Returns the address like [`find_port`], with `usual` as the default port. A taken port is waited for until
/// `patience` has passed.
async fn find_port_like(
    requested: Option<u16>,
    usual: u16,
    patience: Duration,
) -> Result<(SocketAddr, Option<String>)> {
    let port = requested.unwrap_or(usual);
    let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
    let begun = tokio::time::Instant::now();
    loop {
        match std::net::TcpListener::bind(at(port)) {
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {}
            // The server reports any other failure and retries.
            _ => return Ok((at(port), None)),
        }
        if begun.elapsed() >= patience {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    if requested.is_some() {
        bail!(
            "invalid value {port} for --port: expected a free port, another program uses this one; 0 takes any"
        );
    }
    let note = format!("port {port} is used by another program, so the API server has another one");
    Ok((at(0), Some(note)))
}

/// The control groups of one cluster's pods.
#[derive(Debug)]
pub(crate) struct Groups {
    /// Parent of `kubepods`: the root for the machine's first cluster, a separate cgroup for others.
    pub(crate) parent: CgroupPath,
    /// The other cluster that holds the root cgroup, if this one does not.
    pub(crate) other_cluster: Option<Holder>,
    /// Held for as long as the cluster runs; `None` where claims are not possible.
    _claim: Option<Claim>,
}

/// Claims the first cgroup root that no other cluster of this machine has, for the cluster in `dir`. Without
/// the right to store claims, the process may not write cgroups either, and the result is the root.
///
/// # Errors
/// When there are too many clusters.
pub(crate) fn claim_groups(dir: &Path) -> Result<Groups> {
    claim_groups_in(Path::new(GROUP_CLAIMS), dir)
}

/// Claims cgroups as [`claim_groups`] does, with the claims in another directory.
fn claim_groups_in(claims: &Path, dir: &Path) -> Result<Groups> {
    if let Err(error) = std::fs::create_dir_all(claims) {
        tracing::debug!(%error, "failed to store claims on cgroups");
        return Ok(Groups {
            parent: CgroupPath::root(),
            other_cluster: None,
            _claim: None,
        });
    }
    let mut first = None;
    for number in 1..=MAX_CLUSTERS {
        match claim(&claim_of(claims, number), dir) {
            Ok(Ok(claim)) => {
                let parent = match number {
                    1 => CgroupPath::root(),
                    n => CgroupPath::new(&format!("koord-{n}")).context("group of this cluster")?,
                };
                return Ok(Groups {
                    parent,
                    other_cluster: first,
                    _claim: Some(claim),
                });
            }
            Ok(Err(holder)) => {
                first.get_or_insert(holder);
            }
            Err(error) => {
                tracing::debug!(error = %format!("{error:#}"), "failed to store claims on cgroups");
                return Ok(Groups {
                    parent: CgroupPath::root(),
                    other_cluster: None,
                    _claim: None,
                });
            }
        }
    }
    bail!("{MAX_CLUSTERS} clusters run on this machine already")
}

/// Locks `path` for the cluster in `dir`, or returns the current holder.
fn claim(path: &Path, dir: &Path) -> Result<Result<Claim, Holder>> {
    let mut file = open(path)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(Err(read(&mut file))),
        Err(TryLockError::Error(error)) => return Err(failed(path, error)),
    }
    let holder = Holder {
        pid: std::process::id(),
        dir: std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned()),
    };
    let text = serde_json::to_string(&holder)?;
    // Only informative: a full disk does not keep the cluster from starting.
    if let Err(error) = file
        .set_len(0)
        .and_then(|()| file.write_all(text.as_bytes()))
    {
        tracing::debug!(path = %path.display(), %error, "failed to write the holder of the lock");
    }
    Ok(Ok(Claim { _file: file }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use koordctl::cluster_files::holder;

    #[tokio::test]
    async fn locked_data_dir_reports_its_holder() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(holder(dir.path()).unwrap(), None);
        let claim = claim_directory(dir.path()).await.unwrap();
        let error = claim_directory(dir.path()).await.unwrap_err().to_string();
        let pid = std::process::id();
        assert!(error.contains(&format!("process {pid}")), "{error}");
        assert_eq!(holder(dir.path()).unwrap().unwrap().pid, pid);
        drop(claim);
        assert_eq!(holder(dir.path()).unwrap(), None);
        claim_directory(dir.path()).await.unwrap();
    }

    #[test]
    fn directory_is_for_its_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let mode = |path: &Path| {
            let permissions = std::fs::metadata(path).unwrap().permissions();
            permissions.mode() & 0o7777
        };
        let set = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        let new = dir.path().join("a/b");
        make_private(&new).unwrap();
        assert_eq!((mode(&new), mode(&dir.path().join("a"))), (0o700, 0o700));
        set(&new, 0o755);
        make_private(&new).unwrap();
        assert_eq!(mode(&new), 0o700);
        set(&new, 0o1777);
        let error = make_private(&new).unwrap_err().to_string();
        assert!(error.contains("--data-dir"), "{error}");
        assert_eq!(mode(&new), 0o1777);
    }

    #[tokio::test(start_paused = true)]
    async fn taken_port_is_waited_for_or_replaced() {
        let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = holder.local_addr().unwrap().port();
        let patience = Duration::from_secs(5);
        let (other, note) = find_port_like(None, port, patience).await.unwrap();
        assert_eq!(other.port(), 0);
        assert!(note.unwrap().contains(&format!("port {port} is used")));
        let error = find_port_like(Some(port), 1, patience).await.unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains(&format!("invalid value {port} for --port")),
            "{text}"
        );
        // Its owner dies meanwhile.
        let waits = tokio::spawn(find_port_like(Some(port), 1, patience));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!waits.is_finished());
        drop(holder);
        let (found, note) = waits.await.unwrap().unwrap();
        assert_eq!((found.port(), note), (port, None));
    }

    #[test]
    fn every_cluster_has_groups_of_its_own() {
        let claims = tempfile::tempdir().unwrap();
        let take = |dir: &str| claim_groups_in(claims.path(), Path::new(dir)).unwrap();
        let first = take("/a");
        assert_eq!((first.parent.as_str(), &first.other_cluster), ("", &None));
        let second = take("/b");
        assert_eq!(second.parent.as_str(), "koord-2");
        assert_eq!(second.other_cluster.as_ref().unwrap().dir, Path::new("/a"));
        assert_eq!(take("/c").parent.as_str(), "koord-3");
        drop(first);
        assert_eq!(take("/d").parent.as_str(), "");
    }

    #[test]
    fn unwritable_claims_dir_selects_the_root_cgroup() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let groups = claim_groups_in(&file.path().join("claims"), Path::new("/a")).unwrap();
        assert!(groups.parent.is_root() && groups.other_cluster.is_none());
    }
}
