//! Paths that are not resources: discovery and OpenAPI. The server itself serves health and version.

use super::Api;
use super::accept::{Clause, Encoding, clauses};
use super::call::method_not_allowed;
use super::query::Query;
use super::respond::{self, ResponseFormat};
use crate::tokens::ISSUER;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, header};
use koord_kinds::status::ApiError;
use koord_kinds::{discovery, openapi};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde_json::{Value, json};

/// Cache of documents that are costly to build; valid until the registry changes.
#[derive(Debug, Default)]
pub(super) struct Documents {
    made: Mutex<(u64, FxHashMap<String, Bytes>)>,
}

impl Documents {
    /// Returns the JSON document `name` of registry `generation`, built by `make` if it is not cached.
    fn get(
        &self,
        generation: u64,
        name: &str,
        make: impl FnOnce() -> Option<Value>,
    ) -> Option<Bytes> {
        let bytes = || make().map(|document| document.to_string().into_bytes());
        self.get_bytes(generation, name, bytes)
    }

    /// Like [`Self::get`], for a document that is not JSON.
    fn get_bytes(
        &self,
        generation: u64,
        name: &str,
        make: impl FnOnce() -> Option<Vec<u8>>,
    ) -> Option<Bytes> {
        {
            let documents = self.made.lock();
            if documents.0 == generation
                && let Some(bytes) = documents.1.get(name)
            {
                return Some(bytes.clone());
            }
        }
        let bytes = Bytes::from(make()?);
        let mut documents = self.made.lock();
        if documents.0 != generation {
            documents.0 = generation;
            documents.1.clear();
        }
        documents.1.insert(name.to_owned(), bytes.clone());
        Some(bytes)
    }
}

/// Format of a discovery response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DiscoveryFormat {
    Legacy,
    V2,
    V2Beta1,
}

/// Returns the format that the `Accept` header prefers; [`DiscoveryFormat::Legacy`] if it names none.
fn discovery_format(headers: &HeaderMap) -> DiscoveryFormat {
    for clause in clauses(headers) {
        if !clause.json() {
            continue;
        }
        match (clause.param("as"), clause.param("g"), clause.param("v")) {
            (None, _, _) => return DiscoveryFormat::Legacy,
            (Some("APIGroupDiscoveryList"), Some("apidiscovery.k8s.io"), Some("v2")) => {
                return DiscoveryFormat::V2;
            }
            (Some("APIGroupDiscoveryList"), Some("apidiscovery.k8s.io"), Some("v2beta1")) => {
                return DiscoveryFormat::V2Beta1;
            }
            _ => {}
        }
    }
    DiscoveryFormat::Legacy
}

/// Serves a path outside the resources.
pub(super) fn serve(
    api: &Api,
    method: &Method,
    segments: &[String],
    query: &Query,
    headers: &HeaderMap,
) -> Result<Response, ApiError> {
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    let registry = api.registry();
    let generation = registry.generation();
    let docs = &api.inner.documents;
    let style = ResponseFormat {
        encoding: Encoding::Json,
        pretty: query.pretty(),
    };
    let document = match segments.as_slice() {
        ["api"] | ["apis"] => {
            get_only(method)?;
            let core = segments == ["api"];
            let format = discovery_format(headers);
            return Ok(groups(api, core, format, headers, style));
        }
        ["api", "v1"] => docs.get(generation, "api/v1", || {
            discovery::resource_list(registry, "", "v1")
        }),
        ["apis", group] => docs.get(generation, &format!("apis/{group}"), || {
            discovery::group(registry, group)
        }),
        ["apis", group, version] => {
            docs.get(generation, &format!("apis/{group}/{version}"), || {
                discovery::resource_list(registry, group, version)
            })
        }
        ["openapi", "v2"] => {
            get_only(method)?;
            return openapi_v2(api, headers, style);
        }
        ["openapi", "v3"] => docs.get(generation, "openapi/v3", || Some(openapi::index(registry))),
        ["openapi", "v3", "api", "v1"] => docs.get(generation, "openapi/v3/api/v1", || {
            openapi::document(registry, "", "v1")
        }),
        ["openapi", "v3", "apis", group, version] => docs.get(
            generation,
            &format!("openapi/v3/apis/{group}/{version}"),
            || openapi::document(registry, group, version),
        ),
        [".well-known", "openid-configuration"] => {
            get_only(method)?;
            return Ok(respond::value(200, &issuer(headers), style));
        }
        ["openid", "v1", "jwks"] => {
            get_only(method)?;
            let keys = api.tokens().keys().to_string();
            let body = Body::from(keys);
            return Ok(respond::with_body(200, "application/jwk-set+json", body));
        }
        [] => {
            get_only(method)?;
            return Ok(respond::value(200, &root(api), style));
        }
        _ => None,
    };
    let Some(bytes) = document else {
        return Err(ApiError::unknown_path());
    };
    get_only(method)?;
    Ok(cached(bytes, "application/json", headers, style))
}

/// Media types of OpenAPI v2 in protobuf: the older and the newer name. Responses have the newer one.
const OPENAPI_V2: [&str; 2] = [
    "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
    "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
];

/// Serves `/openapi/v2` in the client's first supported format.
fn openapi_v2(api: &Api, headers: &HeaderMap, style: ResponseFormat) -> Result<Response, ApiError> {
    let registry = api.registry();
    let (generation, docs) = (registry.generation(), &api.inner.documents);
    let clauses = clauses(headers);
    let existing = |c: &&Clause| c.json() || OPENAPI_V2.contains(&c.media.as_str());
    let json = match clauses.iter().find(existing) {
        Some(clause) => clause.json(),
        None if clauses.is_empty() => true,
        None => {
            let [_, binary] = OPENAPI_V2;
            return Err(ApiError::not_acceptable(&["application/json", binary]));
        }
    };
    if json {
        let document = || Some(openapi::v2::document(registry));
        let document = docs.get(generation, "openapi/v2", document);
        let document = document.unwrap_or_default();
        return Ok(cached(document, "application/json", headers, style));
    }
    let document = || Some(openapi::v2::binary(registry));
    let document = docs.get_bytes(generation, "openapi/v2 binary", document);
    let document = document.unwrap_or_default();
    Ok(cached(
        document,
        OPENAPI_V2[1],
        headers,
        ResponseFormat::default(),
    ))
}

fn get_only(method: &Method) -> Result<(), ApiError> {
    if matches!(*method, Method::GET | Method::HEAD) {
        Ok(())
    } else {
        Err(method_not_allowed())
    }
}

/// Builds the response with a document and its ETag; 304 if the client has it.
fn cached(
    bytes: Bytes,
    content_type: &'static str,
    headers: &HeaderMap,
    style: ResponseFormat,
) -> Response {
    let etag = format!("\"{:08X}{:08X}\"", crc32fast::hash(&bytes), bytes.len());
    let existing = headers
        .get(header::IF_NONE_MATCH)
        .and_then(|v| v.to_str().ok())
        .is_some_and(|v| v.split(',').any(|t| t.trim() == etag));
    let mut response = if existing {
        respond::with_body(304, content_type, Body::empty())
    } else if style.pretty {
        respond::bytes(200, bytes, style)
    } else {
        respond::with_body(200, content_type, Body::from(bytes))
    };
    if let Ok(v) = HeaderValue::from_str(&etag) {
        response.headers_mut().insert(header::ETAG, v);
    }
    response
        .headers_mut()
        .insert(header::VARY, HeaderValue::from_static("Accept"));
    response
}

/// Serves `/api` and `/apis`.
fn groups(
    api: &Api,
    core: bool,
    format: DiscoveryFormat,
    headers: &HeaderMap,
    style: ResponseFormat,
) -> Response {
    let registry = api.registry();
    let generation = registry.generation();
    let docs = &api.inner.documents;
    let part = if core { "api" } else { "apis" };
    let (content_type, document) = match format {
        DiscoveryFormat::V2 => (
            discovery::AGGREGATED_V2,
            docs.get(generation, &format!("{part} v2"), || {
                Some(discovery::aggregated(registry, core, "v2"))
            }),
        ),
        DiscoveryFormat::V2Beta1 => (
            discovery::AGGREGATED_V2BETA1,
            docs.get(generation, &format!("{part} v2beta1"), || {
                Some(discovery::aggregated(registry, core, "v2beta1"))
            }),
        ),
        DiscoveryFormat::Legacy if core => {
            let host = headers
                .get(header::HOST)
                .and_then(|v| v.to_str().ok())
                .unwrap_or("");
            let document = discovery::core_versions(host).to_string();
            return cached(Bytes::from(document), "application/json", headers, style);
        }
        DiscoveryFormat::Legacy => (
            "application/json",
            docs.get(generation, part, || Some(discovery::group_list(registry))),
        ),
    };
    // Clients compare the parameters of this content type, so `pretty` is ignored.
    let style = if format == DiscoveryFormat::Legacy {
        style
    } else {
        ResponseFormat::default()
    };
    cached(document.unwrap_or_default(), content_type, headers, style)
}

/// Returns the OpenID Connect discovery document: token issuer and address of the verification keys.
fn issuer(headers: &HeaderMap) -> Value {
    let host = headers.get(header::HOST).and_then(|v| v.to_str().ok());
    let base = host.map_or_else(|| ISSUER.to_owned(), |host| format!("https://{host}"));
    json!({
        "issuer": ISSUER,
        "jwks_uri": format!("{base}/openid/v1/jwks"),
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["ES256"],
    })
}

/// Returns the list of served paths, the document at `/`.
fn root(api: &Api) -> Value {
    let mut paths = vec!["/api".to_owned(), "/api/v1".to_owned(), "/apis".to_owned()];
    for group in discovery::groups(api.registry()) {
        if group.name.is_empty() {
            continue;
        }
        paths.push(format!("/apis/{}", group.name));
        paths.extend(
            group
                .versions
                .iter()
                .map(|(v, _)| format!("/apis/{}/{v}", group.name)),
        );
    }
    for path in [
        "/.well-known/openid-configuration",
        "/healthz",
        "/livez",
        "/openapi/v2",
        "/openapi/v3",
        "/openid/v1/jwks",
        "/readyz",
        "/version",
    ] {
        paths.push(path.to_owned());
    }
    json!({ "paths": paths })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discovery_format_follows_accept() {
        let with = |accept: &str| {
            let mut h = HeaderMap::new();
            h.insert(header::ACCEPT, accept.parse().unwrap());
            discovery_format(&h)
        };
        let kubectl = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
            application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
        assert_eq!(with(kubectl), DiscoveryFormat::V2);
        let newer = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList;\
            profile=nopeer,application/json";
        assert_eq!(with(newer), DiscoveryFormat::V2);
        assert_eq!(with("application/json"), DiscoveryFormat::Legacy);
        assert_eq!(discovery_format(&HeaderMap::new()), DiscoveryFormat::Legacy);
    }
}
