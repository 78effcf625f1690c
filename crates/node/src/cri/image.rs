//! Image pulls, by the pod's pull policy.

use crate::context::Shared;
use crate::runner::Failure;
use crate::runtime::{CALL_TIMEOUT, Runtime, call_with_timeout, status_text};
use k8s_openapi::api::core::v1::{Container, Pod};
use koord_kube::events::{Severity, reference};
use koord_rpc::cri;
use tonic::Status;

/// Image pull policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Policy {
    Always,
    IfNotPresent,
    Never,
}

/// Returns the pull policy of a container. The default is `Always` for a tag that may move, else
/// `IfNotPresent`.
fn policy(container: &Container) -> Policy {
    match container.image_pull_policy.as_deref() {
        Some("Always") => Policy::Always,
        Some("IfNotPresent") => Policy::IfNotPresent,
        Some("Never") => Policy::Never,
        _ => {
            let image = container.image.as_deref().unwrap_or_default();
            let name = image.rsplit('/').next().unwrap_or_default();
            let fixed = name.contains('@') || name.contains(':') && !name.ends_with(":latest");
            match fixed {
                true => Policy::IfNotPresent,
                false => Policy::Always,
            }
        }
    }
}

impl Runtime {
    /// Returns the runtime's status of an image; `None` if the image is not present.
    pub(super) async fn image_status(&self, image: &str) -> Result<Option<cri::Image>, Status> {
        let request = cri::ImageStatusRequest {
            image: Some(spec(image)),
            verbose: false,
        };
        let answer = call_with_timeout(CALL_TIMEOUT, self.images().image_status(request)).await?;
        Ok(answer.image)
    }

    /// Ensures that the image of a container is present, by its pull policy, and returns the image id.
    pub(super) async fn ensure_image(
        &self,
        shared: &Shared,
        pod: &Pod,
        container: &Container,
    ) -> Result<String, Failure> {
        let later = |reason: &str, text| Failure::Later(reason.to_owned(), text);
        let image = container.image.as_deref().unwrap_or_default();
        if image.is_empty() {
            let text = format!("container {:?} has no image", container.name);
            return Err(Failure::Never("InvalidImageName".to_owned(), text));
        }
        let broken = |status: Status| {
            let text = format!("image {image:?}: {}", status_text(&status));
            later("ImageInspectError", text)
        };
        let present = self.image_status(image).await.map_err(broken)?;
        match (policy(container), present) {
            (Policy::Never, None) => {
                let text =
                    format!("Container image {image:?} is not present with pull policy of Never");
                return Err(later("ErrImageNeverPull", text));
            }
            (Policy::Never | Policy::IfNotPresent, Some(present)) => return Ok(present.id),
            (Policy::Always | Policy::IfNotPresent, _) => {}
        }
        let event = |reason: &str, text| {
            let of = reference(pod);
            shared.recorder.event(of, Severity::Normal, reason, text);
        };
        event("Pulling", format!("Pulling image {image:?}"));
        let request = cri::PullImageRequest {
            image: Some(spec(image)),
            ..cri::PullImageRequest::default()
        };
        // Without a timeout: deletion of the pod interrupts it.
        let pulled = self.images().pull_image(request).await;
        let pulled = pulled.map_err(|status| {
            let text = format!("Failed to pull image {image:?}: {}", status_text(&status));
            later("ErrImagePull", text)
        })?;
        event("Pulled", format!("Successfully pulled image {image:?}"));
        let pulled_image = self.image_status(image).await.map_err(broken)?;
        Ok(pulled_image.map_or(pulled.into_inner().image_ref, |image| image.id))
    }
}

fn spec(image: &str) -> cri::ImageSpec {
    cri::ImageSpec {
        image: image.to_owned(),
        ..cri::ImageSpec::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_policy_the_tag_decides() {
        let of = |image: &str, given: Option<&str>| {
            policy(&Container {
                image: Some(image.to_owned()),
                image_pull_policy: given.map(str::to_owned),
                ..Container::default()
            })
        };
        assert_eq!(of("a:1", None), Policy::IfNotPresent);
        assert_eq!(of("host:5000/a", None), Policy::Always);
        assert_eq!(of("a:latest", None), Policy::Always);
        assert_eq!(of("a@sha256:1", None), Policy::IfNotPresent);
        assert_eq!(of("a:latest", Some("Never")), Policy::Never);
    }
}
