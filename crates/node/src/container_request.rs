//! A container's request to its runner, and the errors for one that cannot be started.

use std::path::PathBuf;

/// An error that prevents a container from starting. The text is shown to the user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unstartable {
    /// The container has no command: images are not pulled here.
    #[error(
        "container {container:?} has no command: this node runs commands of the host and does not \
         pull images ({image:?}); set spec.containers[].command"
    )]
    NoCommand {
        /// The container.
        container: String,
        /// Image of the container.
        image: String,
    },
    /// The container uses a feature that needs a real runtime or a cluster service.
    #[error("container {container:?}: {field}: {reason}")]
    Unsupported {
        /// The container.
        container: String,
        /// The field of the container.
        field: String,
        /// The problem with the field.
        reason: String,
    },
}

impl Unstartable {
    /// Returns the reason of the container's waiting state.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoCommand { .. } => "ErrImageNeverPull",
            Self::Unsupported { .. } => "CreateContainerConfigError",
        }
    }
}

/// A container's request, independent of the runner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProcessSpec {
    /// Replaces the image's entry point, if not empty.
    pub(crate) command: Vec<String>,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) dir: Option<PathBuf>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    /// The container must not run as root.
    pub(crate) not_root: bool,
}
