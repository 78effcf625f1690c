//! What a container asks for, and why it is refused.

use std::path::PathBuf;

/// Why a container cannot be started. The text is for the user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unstartable {
    /// There is nothing to run: images are not pulled here.
    #[error(
        "container {container:?} has no command: this node runs commands of the host and does not \
         pull images ({image:?}); set spec.containers[].command"
    )]
    NoCommand {
        /// The container.
        container: String,
        /// Its image.
        image: String,
    },
    /// A part of the container that needs a real runtime or cluster service.
    #[error("container {container:?}: {field}: {reason}")]
    Unsupported {
        /// The container.
        container: String,
        /// The field of the container.
        field: String,
        /// What is wrong with it.
        reason: String,
    },
}

impl Unstartable {
    /// The reason of the container's waiting state.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoCommand { .. } => "ErrImageNeverPull",
            Self::Unsupported { .. } => "CreateContainerConfigError",
        }
    }
}

/// What a container asks for, whoever runs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Asked {
    /// In place of the image's entry point, if it is not empty.
    pub(crate) command: Vec<String>,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) dir: Option<PathBuf>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    /// It must not run as root.
    pub(crate) not_root: bool,
}
