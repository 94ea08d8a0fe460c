//! TLS towards tools: the system's roots or the upstream's own, TLS 1.2 or 1.3 at least, the version of HTTP by ALPN.

use std::fmt;
use std::sync::{Arc, OnceLock};

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{AlertDescription, ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::SendError;
use crate::policy::snapshot::HttpVersion;

pub(super) type TlsStream = tokio_rustls::client::TlsStream<TcpStream>;

/// How one upstream is spoken to.
#[derive(Clone)]
pub(super) struct Tls {
    /// For exchanges that share a connection, where they may.
    shared: TlsConnector,
    /// For those that need one of their own.
    own: TlsConnector,
    name: ServerName<'static>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tls({:?})", self.name)
    }
}

impl Tls {
    /// `Err`: why no handshake can succeed; told at call time as an untrusted upstream.
    pub(super) fn new(
        host: &str,
        ca: Option<&[u8]>,
        min_tls13: bool,
        version: HttpVersion,
    ) -> Result<Self, String> {
        let roots = match ca {
            Some(pem) => Arc::new(own_roots(pem)?),
            None => system_roots()?,
        };
        let name = ServerName::try_from(host.strip_suffix('.').unwrap_or(host).to_owned())
            .map_err(|_| "the host is no name a certificate could carry".to_owned())?;
        let versions: &[&rustls::SupportedProtocolVersion] = if min_tls13 {
            &[&rustls::version::TLS13]
        } else {
            &[&rustls::version::TLS13, &rustls::version::TLS12]
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut with = |protocols: &[&[u8]]| {
            config.alpn_protocols = protocols.iter().map(|one| one.to_vec()).collect();
            TlsConnector::from(Arc::new(config.clone()))
        };
        let (h1, h2): (&[u8], &[u8]) = (b"http/1.1", b"h2");
        let (shared, own) = match version {
            HttpVersion::Auto => (with(&[h2, h1]), with(&[h1])),
            HttpVersion::Http1 => (with(&[h1]), with(&[h1])),
            HttpVersion::Http2 => (with(&[h2]), with(&[h2])),
        };
        Ok(Self { shared, own, name })
    }

    /// `own`: for an exchange that shares its connection with no other.
    pub(super) async fn handshake(
        &self,
        stream: TcpStream,
        own: bool,
    ) -> Result<TlsStream, SendError> {
        let connector = if own { &self.own } else { &self.shared };
        connector.connect(self.name.clone(), stream).await.map_err(|error| {
            let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
            match tls {
                // What both sides are set to cannot do better by trying again.
                Some(tls) if !is_passing(tls) => SendError::Untrusted(tls.to_string()),
                Some(_) | None => SendError::TlsCut(error.to_string()),
            }
        })
    }
}

/// HTTP/2 was agreed on (RFC 7301).
pub(super) fn is_h2(stream: &TlsStream) -> bool {
    stream.get_ref().1.alpn_protocol() == Some(b"h2".as_slice())
}

/// A server's own trouble, told by an alert.
fn is_passing(error: &rustls::Error) -> bool {
    matches!(
        error,
        rustls::Error::AlertReceived(
            AlertDescription::InternalError
                | AlertDescription::UserCanceled
                | AlertDescription::CloseNotify
        )
    )
}

fn own_roots(pem: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate =
            certificate.map_err(|error| format!("the upstream's CA bundle: {error}"))?;
        roots.add(certificate).map_err(|error| format!("the upstream's CA bundle: {error}"))?;
    }
    if roots.is_empty() {
        return Err("the upstream's CA bundle holds no certificate".into());
    }
    Ok(roots)
}

/// The system's roots (`SSL_CERT_FILE` and `SSL_CERT_DIR` honoured), read once in the process's life.
fn system_roots() -> Result<Arc<RootCertStore>, String> {
    static ROOTS: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    let roots = ROOTS.get_or_init(|| {
        let found = rustls_native_certs::load_native_certs();
        for error in &found.errors {
            tracing::warn!(%error, "a trusted certificate of the system could not be read");
        }
        let mut roots = RootCertStore::empty();
        let (added, ignored) = roots.add_parsable_certificates(found.certs);
        tracing::debug!(added, ignored, "trusted certificates of the system");
        Arc::new(roots)
    });
    if roots.is_empty() {
        return Err("this system has no trusted certificates (mount a bundle, or set `ca`)".into());
    }
    Ok(roots.clone())
}
