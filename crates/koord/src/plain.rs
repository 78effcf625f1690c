//! One GET over plain HTTP, to a server on this machine: spoken by hand, as nothing more is needed.

use anyhow::{Context as _, Result, anyhow};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Status code and body of a GET for JSON. `who` is asked, as errors name it; `server` is
/// `HOST:PORT`, with or without `http://`.
///
/// # Errors
/// The server cannot be reached, or does not speak HTTP.
pub async fn get(server: &str, who: &str, path: &str) -> Result<(u16, String)> {
    let authority = server.strip_prefix("http://").unwrap_or(server);
    let authority = authority.trim_end_matches('/');
    let unreachable = || format!("{who} at {server} cannot be reached");
    let mut stream = TcpStream::connect(authority)
        .await
        .with_context(unreachable)?;
    let request =
        format!("GET {path} HTTP/1.0\r\nHost: {authority}\r\nAccept: application/json\r\n\r\n");
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
        .ok_or_else(|| anyhow!("{server} does not speak HTTP"))?;
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    let code = code.ok_or_else(|| anyhow!("{server} does not speak HTTP"))?;
    Ok((code, body.to_owned()))
}
