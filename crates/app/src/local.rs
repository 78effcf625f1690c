//! Protection of servers for this machine only against requests from a browser.

use axum::Router;
use axum::extract::Request;
use axum::http::header::{HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use std::net::IpAddr;
use std::sync::Arc;

/// Rejects requests with a `Host` or `Origin` that is not this machine.
///
/// A page of any site can make a browser on this machine send requests to a loopback port: under the site's
/// own name (DNS rebinding), or as a form. Clients other than browsers pass: their `Host` is the loopback
/// address, and they send no `Origin`.
pub fn refuse_foreign(routes: Router) -> Router {
    routes.layer(from_fn(check))
}

async fn check(request: Request, next: Next) -> Response {
    let target = request.uri().authority().map(Authority::as_str);
    match foreign_header(request.headers(), target) {
        None => next.run(request).await,
        Some((header, value)) => {
            let text = format!("invalid value {value:?} for {header}: expected this machine\n");
            (StatusCode::MISDIRECTED_REQUEST, text).into_response()
        }
    }
}

/// Returns the first `Host` or `Origin` header that names another machine or origin, and its value. `target` is the
/// authority of the request's URI, which counts as a `Host`.
fn foreign_header(headers: &HeaderMap, target: Option<&str>) -> Option<(&'static str, String)> {
    // HTTP/1.0 has no Host, and no browser uses it.
    let mut hosts: Vec<String> = target.map(str::to_owned).into_iter().collect();
    for host in headers.get_all(HOST) {
        hosts.push(String::from_utf8_lossy(host.as_bytes()).into_owned());
    }
    if let Some(host) = hosts.iter().find(|host| !is_local(host)) {
        return Some(("Host", host.clone()));
    }
    for origin in headers.get_all(ORIGIN) {
        let origin = String::from_utf8_lossy(origin.as_bytes()).into_owned();
        let authority = origin.split_once("://").map(|(_, authority)| authority);
        // Another server of this machine is another origin, too.
        if authority.is_none_or(|authority| !hosts.iter().any(|host| host == authority)) {
            return Some(("Origin", origin));
        }
    }
    None
}

/// Returns true if `authority`, the value of a Host header, is `localhost` or a loopback address.
fn is_local(authority: &str) -> bool {
    let Ok(authority) = authority.parse::<Authority>() else {
        return false;
    };
    // A user part before an @ is not valid in a Host.
    if authority.as_str().contains('@') {
        return false;
    }
    let host = authority.host();
    let address = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    host.eq_ignore_ascii_case("localhost")
        || address
            .unwrap_or(host)
            .parse()
            .is_ok_and(|ip: IpAddr| ip.is_loopback())
}

/// Serves the routes that a component hands over once it runs.
#[derive(Clone)]
pub struct RouteServer(Arc<dyn Fn(Router) + Send + Sync>);

impl RouteServer {
    /// Wraps `serve`, which must return at once.
    pub fn new(serve: impl Fn(Router) + Send + Sync + 'static) -> Self {
        Self(Arc::new(serve))
    }

    /// Starts to serve `routes`.
    pub fn serve(&self, routes: Router) {
        (self.0)(routes);
    }
}

impl std::fmt::Debug for RouteServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RouteServer")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn foreign_hosts_and_origins_are_refused() {
        for (host, origin, refused) in [
            ("127.0.0.1:80", "", ""),
            ("localhost", "", ""),
            ("LocalHost:1", "", ""),
            ("[::1]:9", "", ""),
            ("127.9.9.9", "", ""),
            ("127.0.0.1:80", "http://127.0.0.1:80", ""),
            ("127.0.0.1:80", "http://127.0.0.1:81", "Origin"),
            ("127.0.0.1:80", "https://example.com", "Origin"),
            ("127.0.0.1:80", "null", "Origin"),
            ("example.com:80", "", "Host"),
            ("127.0.0.1.example.com", "", "Host"),
            ("localhost.example.com", "", "Host"),
            ("10.0.0.1:80", "", "Host"),
            ("a@127.0.0.1", "", "Host"),
            ("", "", "Host"),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, HeaderValue::from_static(host));
            if !origin.is_empty() {
                headers.insert(ORIGIN, HeaderValue::from_static(origin));
            }
            let header_name = foreign_header(&headers, None).map_or("", |(header, _)| header);
            assert_eq!(header_name, refused, "{host} {origin}");
        }
        assert_eq!(foreign_header(&HeaderMap::new(), None), None);
        let absolute = foreign_header(&HeaderMap::new(), Some("example.com"));
        assert_eq!(absolute.unwrap().0, "Host");
    }
}
