//! Parsing and formatting of `host:port`, like Go's `net` package.

use super::DEFAULT_PORT;
use std::net::IpAddr;

/// Splits `address` into host and port; an IPv6 address is in brackets. Returns `None` if there is no port or
/// a colon too many.
pub(super) fn split(address: &str) -> Option<(&str, &str)> {
    if let Some(rest) = address.strip_prefix('[') {
        return rest.split_once("]:");
    }
    let (host, port) = address.rsplit_once(':')?;
    (!host.contains([':', ']'])).then_some((host, port))
}

fn joined(host: &str, port: &str) -> String {
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

/// Completes `address`: an absent host becomes 0.0.0.0, a bare IP address gets the default port. Anything
/// else is returned unchanged.
pub(super) fn completed(address: &str) -> String {
    match split(address) {
        Some(("", port)) => joined("0.0.0.0", port),
        Some((host, port)) => joined(host, port),
        None if address.parse::<IpAddr>().is_ok() => joined(address, &DEFAULT_PORT.to_string()),
        None => address.to_owned(),
    }
}
