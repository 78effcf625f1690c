//! A minimal HTTP GET client for servers on this machine.

use crate::running;
use anyhow::{Context as _, Result, anyhow};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Sends a GET for JSON; returns status code and body. `who` names the server in errors; `server` is
/// `HOST:PORT`, with or without `http://`.
///
/// # Errors
/// The server cannot be reached, or its response is not HTTP.
pub async fn get(server: &str, who: &str, path: &str) -> Result<(u16, String)> {
    get_as(None, server, who, path).await
}

/// Sends a GET like [`get`], with a bearer token. Without one, uses the token of the cluster on this machine
/// that owns the port, if this user may read it.
///
/// # Errors
/// Those of [`get`].
pub async fn get_as(
    token: Option<&str>,
    server: &str,
    who: &str,
    path: &str,
) -> Result<(u16, String)> {
    let authority = server.strip_prefix("http://").unwrap_or(server);
    let authority = authority.trim_end_matches('/');
    let unreachable = || format!("failed to reach {who} at {server}");
    let mut stream = TcpStream::connect(authority)
        .await
        .with_context(unreachable)?;
    let bearer = match token {
        Some(token) => Some(token.trim().to_owned()),
        None => running::token_of(authority),
    };
    let authorization = bearer.map_or_else(String::new, |token| {
        format!("Authorization: Bearer {token}\r\n")
    });
    let request = format!(
        "GET {path} HTTP/1.0\r\nHost: {authority}\r\nAccept: application/json\r\n{authorization}\r\n"
    );
    stream
        .write_all(request.as_bytes())
        .await
        .with_context(unreachable)?;
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .await
        .with_context(unreachable)?;
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .ok_or_else(|| anyhow!("{server} returned an invalid HTTP response"))?;
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    let code = code.ok_or_else(|| anyhow!("{server} returned an invalid HTTP response"))?;
    Ok((code, body.to_owned()))
}
