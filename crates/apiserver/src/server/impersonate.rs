//! User impersonation (`kubectl --as`): parsing of the headers and the check of permissions.

use crate::authz::{
    self, ANONYMOUS, AUTHENTICATED, Attributes, ResourceTarget, Target, UNAUTHENTICATED, User,
};
use crate::rest::{Api, percent_decode};
use http::HeaderMap;
use http::header::HeaderName;
use koord_kinds::status::ApiError;

/// Prefix of the headers of extra fields; the key follows.
const EXTRA: &str = "impersonate-extra-";

/// Parsed impersonation headers.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ImpersonationHeaders {
    user: String,
    groups: Vec<String>,
    uid: Option<String>,
    extra: Vec<(String, Vec<String>)>,
}

impl ImpersonationHeaders {
    /// Parses the headers. `None` if there are none.
    ///
    /// # Errors
    /// 400 if a value is not text, or if there are some without the user's.
    pub(super) fn read(headers: &HeaderMap) -> Result<Option<Self>, ApiError> {
        // Nearly every request has none.
        let is_one = |name: &&HeaderName| name.as_str().starts_with("impersonate-");
        let Some(first) = headers.keys().find(is_one) else {
            return Ok(None);
        };
        let texts = |name: &str| {
            let values = headers.get_all(name).iter();
            let texts = values.map(|value| value.to_str().map(str::to_owned));
            texts
                .collect::<Result<Vec<_>, _>>()
                .map_err(|_| ApiError::bad_request(format!("header {name}: not printable text")))
        };
        let single_header = |name: &str| -> Result<Option<String>, ApiError> {
            let text = texts(name)?.into_iter().next();
            Ok(text.filter(|text| !text.is_empty()))
        };
        let Some(user) = single_header("impersonate-user")? else {
            return Err(ApiError::bad_request(format!(
                "header {first}: Impersonate-User is missing"
            )));
        };
        let mut extra = Vec::new();
        for name in headers.keys() {
            if let Some(key) = name.as_str().strip_prefix(EXTRA) {
                // A key with invalid escapes stays as it is.
                let key = percent_decode(key).unwrap_or_else(|| key.to_owned());
                extra.push((key, texts(name.as_str())?));
            }
        }
        Ok(Some(Self {
            user,
            groups: texts("impersonate-group")?,
            uid: single_header("impersonate-uid")?,
            extra,
        }))
    }

    /// Checks that `user` may impersonate all of it: the user, each group, the uid, each extra value.
    ///
    /// # Errors
    /// 403 for the first one that is not allowed.
    pub(super) fn check(&self, api: &Api, user: &User) -> Result<(), ApiError> {
        let check = |target| {
            let attributes = Attributes {
                verb: "impersonate",
                target: Target::Resource(target),
            };
            api.guard().authorize(user, &attributes)
        };
        let named = |resource, name| ResourceTarget {
            resource,
            name,
            ..ResourceTarget::default()
        };
        check(match authz::account_of(&self.user) {
            Some((namespace, name)) => ResourceTarget {
                namespace,
                ..named("serviceaccounts", name)
            },
            None => named("users", &self.user),
        })?;
        for group in &self.groups {
            check(named("groups", group))?;
        }
        let group = "authentication.k8s.io";
        for (key, values) in &self.extra {
            for value in values {
                check(ResourceTarget {
                    group,
                    subresource: key,
                    ..named("userextras", value)
                })?;
            }
        }
        let uid = self.uid.as_deref().map(|uid| ResourceTarget {
            group,
            ..named("uids", uid)
        });
        uid.map_or(Ok(()), check)
    }

    /// Returns the impersonated user.
    pub(super) fn into_user(self) -> User {
        let mut groups = self.groups;
        if groups.is_empty()
            && let Some((namespace, _)) = authz::account_of(&self.user)
        {
            groups = authz::account_groups(namespace);
        }
        let has = |wanted: &str| groups.iter().any(|group| group == wanted);
        if self.user == ANONYMOUS {
            if !has(UNAUTHENTICATED) {
                groups.push(UNAUTHENTICATED.to_owned());
            }
        } else if !has(AUTHENTICATED) && !has(UNAUTHENTICATED) {
            groups.push(AUTHENTICATED.to_owned());
        }
        User {
            uid: self.uid.unwrap_or_default(),
            extra: self.extra,
            ..User::new(self.user, groups)
        }
    }
}
