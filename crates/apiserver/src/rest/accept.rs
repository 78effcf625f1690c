//! Content negotiation: which representation of an object a client accepts.

use http::HeaderMap;

/// Media type of objects in protobuf.
pub(super) const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// Form in which objects are written into a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum ObjectForm {
    /// The object itself.
    Object,
    /// A `meta.k8s.io` Table of this version.
    Table(MetaVersion),
    /// The metadata alone: `PartialObjectMetadata` or its list.
    Metadata(MetaVersion),
}

/// Version of `meta.k8s.io`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum MetaVersion {
    V1,
    V1Beta1,
}

impl MetaVersion {
    /// Returns the `apiVersion` of the response.
    pub(super) fn api_version(self) -> &'static str {
        match self {
            Self::V1 => "meta.k8s.io/v1",
            Self::V1Beta1 => "meta.k8s.io/v1beta1",
        }
    }
}

/// One clause of an `Accept` header.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Clause {
    /// Media type without parameters, lower case.
    pub(super) media: String,
    /// Parameters without `q`.
    params: Vec<(String, String)>,
    q: f32,
}

impl Clause {
    /// Returns the value of a parameter.
    pub(super) fn param(&self, name: &str) -> Option<&str> {
        self.params
            .iter()
            .find(|(k, _)| k == name)
            .map(|(_, v)| v.as_str())
    }

    /// Returns true if the clause admits JSON.
    pub(super) fn json(&self) -> bool {
        matches!(
            self.media.as_str(),
            "application/json" | "*/*" | "application/*"
        )
    }

    /// Returns true if the clause admits YAML.
    fn yaml(&self) -> bool {
        self.media == "application/yaml"
    }

    fn protobuf(&self) -> bool {
        self.media == PROTOBUF
    }
}

/// Returns the clauses of the `Accept` headers, best first.
pub(super) fn clauses(headers: &HeaderMap) -> Vec<Clause> {
    let mut out: Vec<Clause> = headers
        .get_all(http::header::ACCEPT)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','))
        .filter_map(clause)
        .collect();
    out.sort_by(|a, b| b.q.total_cmp(&a.q));
    out
}

/// Returns true if the client accepts protobuf but neither JSON nor YAML. All other clients get JSON, which
/// is what is stored and needs no conversion.
pub(super) fn only_protobuf(headers: &HeaderMap) -> bool {
    let clauses = clauses(headers);
    clauses.iter().any(Clause::protobuf) && !clauses.iter().any(|c| c.json() || c.yaml())
}

fn clause(text: &str) -> Option<Clause> {
    let mut parts = text.split(';').map(str::trim);
    let media = parts.next().filter(|m| !m.is_empty())?.to_ascii_lowercase();
    let mut q = 1.0;
    let mut params = Vec::new();
    for part in parts {
        let Some((k, v)) = part.split_once('=') else {
            continue;
        };
        let (k, v) = (
            k.trim().to_ascii_lowercase(),
            v.trim().trim_matches('"').to_owned(),
        );
        if k == "q" {
            q = v.parse().unwrap_or(0.0);
        } else {
            params.push((k, v));
        }
    }
    (q > 0.0).then_some(Clause { media, params, q })
}

/// Encodings of a response body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    Json,
    Yaml,
}

/// Outcome of content negotiation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NegotiatedFormat {
    pub(super) form: ObjectForm,
    pub(super) encoding: Encoding,
}

impl Default for NegotiatedFormat {
    fn default() -> Self {
        Self {
            form: ObjectForm::Object,
            encoding: Encoding::Json,
        }
    }
}

/// Kind of request that a representation is chosen for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Endpoint {
    One,
    List,
    Watch,
    /// A review, whose answer is not a stored object and has one form.
    Review,
}

/// Chooses the representation of the response. `None` means 406.
pub(super) fn negotiate(headers: &HeaderMap, endpoint: Endpoint) -> Option<NegotiatedFormat> {
    let clauses = clauses(headers);
    if clauses.is_empty() {
        return Some(NegotiatedFormat::default());
    }
    let only_protobuf = only_protobuf(headers);
    for clause in &clauses {
        let encoding = if clause.json() {
            Encoding::Json
        } else if clause.yaml() {
            Encoding::Yaml
        } else if only_protobuf && clause.protobuf() {
            // The JSON response is converted to protobuf before it is sent.
            Encoding::Json
        } else {
            continue;
        };
        let Some(form) = form(clause, endpoint) else {
            continue;
        };
        if only_protobuf && matches!(form, ObjectForm::Table(_)) {
            continue;
        }
        return Some(NegotiatedFormat { form, encoding });
    }
    None
}

fn form(clause: &Clause, endpoint: Endpoint) -> Option<ObjectForm> {
    let Some(kind) = clause.param("as") else {
        return Some(ObjectForm::Object);
    };
    if endpoint == Endpoint::Review {
        return None;
    }
    if clause.param("g") != Some("meta.k8s.io") {
        return None;
    }
    let version = match clause.param("v") {
        Some("v1") => MetaVersion::V1,
        Some("v1beta1") => MetaVersion::V1Beta1,
        _ => return None,
    };
    match kind {
        "Table" => Some(ObjectForm::Table(version)),
        "PartialObjectMetadata" if endpoint != Endpoint::List => {
            Some(ObjectForm::Metadata(version))
        }
        "PartialObjectMetadataList" if endpoint != Endpoint::One => {
            Some(ObjectForm::Metadata(version))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(accept: &str) -> HeaderMap {
        let mut h = HeaderMap::new();
        h.insert(http::header::ACCEPT, accept.parse().unwrap());
        h
    }

    #[test]
    fn kubectl_gets_tables_and_typed_clients_json() {
        let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;\
                       v=v1beta1;g=meta.k8s.io,application/json";
        let got = negotiate(&headers(kubectl), Endpoint::List).unwrap();
        assert_eq!(got.form, ObjectForm::Table(MetaVersion::V1));
        let got = negotiate(
            &headers("application/vnd.kubernetes.protobuf,application/json"),
            Endpoint::List,
        );
        assert_eq!(got, Some(NegotiatedFormat::default()));
        let proto = "application/vnd.kubernetes.protobuf";
        assert!(only_protobuf(&headers(proto)));
        let got = negotiate(&headers(proto), Endpoint::List);
        assert_eq!(got, Some(NegotiatedFormat::default()));
        for more in [", */*", ",application/yaml"] {
            assert!(!only_protobuf(&headers(&format!("{proto}{more}"))));
        }
        let table = format!("{proto};as=Table;v=v1;g=meta.k8s.io");
        assert_eq!(negotiate(&headers(&table), Endpoint::List), None);
        assert_eq!(negotiate(&headers("text/html"), Endpoint::List), None);
        assert_eq!(
            negotiate(&headers("application/json;q=0, */*"), Endpoint::One)
                .unwrap()
                .form,
            ObjectForm::Object
        );
    }

    #[test]
    fn metadata_of_a_list_needs_the_list_kind() {
        let object_type = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
        let list_type = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
        assert_eq!(negotiate(&headers(object_type), Endpoint::List), None);
        assert_eq!(
            negotiate(&headers(list_type), Endpoint::List).unwrap().form,
            ObjectForm::Metadata(MetaVersion::V1)
        );
        assert_eq!(
            negotiate(&headers(object_type), Endpoint::One)
                .unwrap()
                .form,
            ObjectForm::Metadata(MetaVersion::V1)
        );
    }
}
