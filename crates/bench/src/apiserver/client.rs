//! A lean HTTP/2 client over TLS: one connection, many streams.

use super::BenchError;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// A connection; clones share it.
#[derive(Clone)]
pub(super) struct Connection {
    sender: SendRequest<Full<Bytes>>,
}

impl Connection {
    /// Connects to `address` over TLS.
    pub(super) async fn open(
        tls: &Arc<ClientConfig>,
        address: SocketAddr,
    ) -> Result<Self, BenchError> {
        let failed = |error: &dyn std::fmt::Display| {
            BenchError::request(format!("connect to {address}"), error)
        };
        let stream = TcpStream::connect(address).await.map_err(|e| failed(&e))?;
        stream.set_nodelay(true).map_err(|e| failed(&e))?;
        let name = ServerName::IpAddress(address.ip().into());
        let connector = TlsConnector::from(Arc::clone(tls));
        let stream = connector
            .connect(name, stream)
            .await
            .map_err(|e| failed(&e))?;
        let (sender, connection) = Builder::new(TokioExecutor::new())
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(4 << 20)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|e| failed(&e))?;
        // Ends when the sender is dropped or the server goes away.
        tokio::spawn(connection);
        Ok(Self { sender })
    }

    /// Sends a request and returns the answer with its body still to come.
    pub(super) async fn send(
        &mut self,
        method: Method,
        path: &str,
        body: Bytes,
        expected: StatusCode,
    ) -> Result<Response<Incoming>, BenchError> {
        let request_line = || format!("{method} {path}");
        let request = Request::builder()
            .method(&method)
            .uri(format!("https://127.0.0.1{path}"))
            .header(HOST, "127.0.0.1")
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|error| BenchError::request(request_line(), error))?;
        let response = self
            .sender
            .send_request(request)
            .await
            .map_err(|error| BenchError::request(request_line(), error))?;
        if response.status() != expected {
            let status = response.status();
            let body = response
                .into_body()
                .collect()
                .await
                .map(|body| body.to_bytes());
            let text = String::from_utf8_lossy(&body.unwrap_or_default()).into_owned();
            return Err(BenchError::request(
                request_line(),
                format!("{status}: {text}"),
            ));
        }
        Ok(response)
    }

    /// Sends a request and reads the whole answer.
    pub(super) async fn call(
        &mut self,
        method: Method,
        path: &str,
        body: Bytes,
        expected: StatusCode,
    ) -> Result<Bytes, BenchError> {
        let response = self.send(method, path, body, expected).await?;
        let body = response.into_body().collect().await;
        Ok(body
            .map_err(|error| BenchError::request(path, error))?
            .to_bytes())
    }
}
