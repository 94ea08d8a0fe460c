//! TLS towards a tool: whom it trusts, what it tells when it does not, and that phases mean the same through it.

use std::net::SocketAddr;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::support::*;
use crate::backends::Backend;
use crate::call::code::FailCode;
use crate::call::{Class, Delivery, Effect, ErrorClass, Evidence, Failed, Phase};
use crate::egress::{Egress, Names, Resolver};
use crate::policy::snapshot::{HttpVersion, Tool, Upstream};
use crate::telemetry::metrics::Metrics;

const AUTHORITY: &[u8] = include_bytes!("pki/authority.pem");
const OTHER_AUTHORITY: &[u8] = include_bytes!("pki/other_authority.pem");
const ORDER: &str = r#"{"order_id":"1"}"#;

fn acceptor(versions: &[&'static rustls::SupportedProtocolVersion]) -> TlsAcceptor {
    let chain = CertificateDer::pem_slice_iter(include_bytes!("pki/server.pem"))
        .collect::<Result<Vec<_>, _>>()
        .expect("certificates");
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("pki/server_key.pem")).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .expect("a pair");
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

/// Answers every request over TLS with `{}`, over HTTP/2 with `{"h2":1}`; its port.
async fn tls_server(versions: &[&'static rustls::SupportedProtocolVersion]) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let acceptor = acceptor(versions);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                if stream.get_ref().1.alpn_protocol() == Some(&b"h2"[..]) {
                    let answer = hyper::service::service_fn(|_| async {
                        let answer = http::Response::builder()
                            .header("content-type", "application/json")
                            .body(http_body_util::Full::<bytes::Bytes>::from(&b"{\"h2\":1}"[..]));
                        Ok::<_, std::convert::Infallible>(answer.expect("an answer"))
                    });
                    let executor = hyper_util::rt::TokioExecutor::new();
                    let io = hyper_util::rt::TokioIo::new(stream);
                    drop(
                        hyper::server::conn::http2::Builder::new(executor)
                            .serve_connection(io, answer)
                            .await,
                    );
                    return;
                }
                assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
                let mut seen = Vec::new();
                let mut buffer = [0; 4096];
                while let Ok(count) = stream.read(&mut buffer).await {
                    seen.extend_from_slice(&buffer[..count]);
                    if count == 0 {
                        return;
                    }
                    if seen.windows(4).any(|four| four == b"\r\n\r\n") {
                        seen.clear();
                        stream.write_all(ok_json("{}").as_bytes()).await.expect("open");
                    }
                }
            });
        }
    });
    port
}

fn over_tls(host: &str, port: u16, ca: &[u8]) -> Tool {
    let upstream = Upstream { tls: true, ca: Some(Arc::from(ca)), ..upstream(host, port) };
    tool(Effect::Read, upstream)
}

async fn refused(tool: Tool) -> Failed {
    let port = tool.upstream.port;
    let names = Names::default();
    for host in ["localhost", "127.0.0.1", "elsewhere.example"] {
        names.set(host, vec![SocketAddr::from(([127, 0, 0, 1], port))]);
    }
    let tool = Arc::new(tool);
    let egress = egress_with(&tool, Resolver::Table(names));
    let backend = Backend::http(&tool, &egress, RESPONSE_BYTES);
    let failed = ask(&backend, ORDER).await.expect_err("no handshake");
    assert_eq!(failed.delivery, Delivery::NotSent);
    assert_eq!(failed.evidence, Some(Evidence::ConnectFailed));
    assert_eq!(failed.error_class, ErrorClass::Tls);
    failed
}

#[tokio::test]
async fn an_upstream_with_its_own_authority_is_spoken_to_by_name_and_by_address() {
    let port = tls_server(rustls::ALL_VERSIONS).await;
    for host in ["localhost", "127.0.0.1"] {
        let backend = backend(over_tls(host, port, AUTHORITY));
        for _ in 0..3 {
            let call = call(ORDER);
            let progress = call.progress.clone().expect("there");
            send(&backend, call).await.expect("an answer");
            assert!(progress.reached(Phase::Written).is_some());
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn a_read_takes_what_alpn_offers_and_a_write_http_1_1_unless_the_policy_says_otherwise() {
    let port = tls_server(rustls::ALL_VERSIONS).await;
    for (version, read_by_h2, write_by_h2) in [
        (HttpVersion::Auto, true, false),
        (HttpVersion::Http1, false, false),
        (HttpVersion::Http2, true, true),
    ] {
        for (effect, by_h2) in [(Effect::Read, read_by_h2), (Effect::Write, write_by_h2)] {
            let upstream = Upstream {
                tls: true,
                ca: Some(Arc::from(AUTHORITY)),
                http_version: version,
                ..upstream("localhost", port)
            };
            let backend = backend(tool(effect, upstream));
            let result = ask(&backend, ORDER).await.expect("an answer");
            let told = String::from_utf8_lossy(&result.content.bytes).into_owned();
            assert_eq!(told.contains("h2"), by_h2, "{version:?} {effect:?}: {told}");
        }
    }
}

#[tokio::test]
async fn a_certificate_that_is_not_trusted_is_a_matter_for_a_person() {
    let port = tls_server(rustls::ALL_VERSIONS).await;
    let unknown = refused(over_tls("localhost", port, OTHER_AUTHORITY)).await;
    let elsewhere = refused(over_tls("elsewhere.example", port, AUTHORITY)).await;
    for failed in [unknown, elsewhere] {
        assert_eq!(failed.code, FailCode::UpstreamUntrusted, "{failed:?}");
        assert_eq!(failed.class, Class::Permanent);
        assert!(failed.message.contains("certificate"), "{}", failed.message);
    }
    let empty = refused(over_tls("localhost", port, b"no certificate here")).await;
    assert_eq!(empty.code, FailCode::UpstreamUntrusted);
    assert!(empty.message.contains("CA bundle"), "{}", empty.message);
}

#[tokio::test]
async fn a_server_that_speaks_no_tls_is_a_matter_of_configuration() {
    let server = Server::start(|mut peer| async move {
        peer.say("HTTP/1.1 400 Bad Request\r\n\r\n").await;
        assert!(peer.request().await.is_none());
    })
    .await;
    let failed = refused(over_tls("127.0.0.1", server.address.port(), AUTHORITY)).await;
    assert_eq!((failed.code, failed.class), (FailCode::UpstreamUntrusted, Class::Permanent));
}

#[tokio::test]
async fn a_handshake_that_is_cut_may_do_better_later() {
    let server = Server::start(|peer| async move { drop(peer) }).await;
    let failed = refused(over_tls("127.0.0.1", server.address.port(), AUTHORITY)).await;
    assert_eq!((failed.code, failed.class), (FailCode::UpstreamUnreachable, Class::Transient));
}

#[tokio::test]
async fn the_least_version_is_the_policys() {
    let port = tls_server(&[&rustls::version::TLS12]).await;
    let tool = Arc::new(over_tls("localhost", port, AUTHORITY));
    ask(&Backend::http(&tool, &egress(&tool), RESPONSE_BYTES), ORDER).await.expect("TLS 1.2");
    let mut snapshot = snapshot(&tool);
    snapshot.egress.min_tls13 = true;
    let egress = Egress::new(&snapshot, None, Metrics::new());
    let backend = Backend::http(&tool, &egress, RESPONSE_BYTES);
    let failed = ask(&backend, ORDER).await.expect_err("TLS 1.3 at least");
    assert_eq!(failed.code, FailCode::UpstreamUntrusted);
}
