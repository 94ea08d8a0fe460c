//! `checkrein probe live|ready`: the probe of an image without a shell. Exit 0 = yes, 1 = no or nobody there.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

use clap::ValueEnum;

use super::{Exit, complain, say};
use crate::config;

/// A gateway that does not answer by then is not well.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest answer that is read.
const MAX_ANSWER: u64 = 64 * 1024;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[arg(value_enum)]
    what: What,
    /// Address of the gateway's health listener, as the gateway was given it
    #[arg(long, env = "CHECKREIN_HEALTH", value_name = "ADDRESS:PORT", default_value = "0.0.0.0:7412", value_parser = config::address)]
    health: SocketAddr,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum What {
    Live,
    Ready,
}

pub(super) fn run(args: &Args) -> Exit {
    let path = match args.what {
        What::Live => "/live",
        What::Ready => "/ready?verbose",
    };
    let address = reachable(args.health);
    match ask(address, path) {
        Ok((200, body)) => {
            say(&body);
            Exit::Ok
        }
        Ok((status, body)) => {
            complain(&format!("{address} answered {status}\n{body}"));
            Exit::Findings
        }
        Err(error) => {
            complain(&format!("no gateway answers on {address}: {error}"));
            Exit::Findings
        }
    }
}

/// A listener on every address is reached over loopback.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        IpAddr::V4(_) | IpAddr::V6(_) => {}
    }
    address
}

/// One exchange: status and body.
fn ask(address: SocketAddr, path: &str) -> io::Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    parse(&answer).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not an HTTP answer"))
}

fn parse(answer: &str) -> Option<(u16, String)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    Some((status, body.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_on_every_address_is_asked_over_loopback() {
        for (given, asked) in [
            ("0.0.0.0:7412", "127.0.0.1:7412"),
            ("[::]:7412", "[::1]:7412"),
            ("10.0.0.1:1", "10.0.0.1:1"),
        ] {
            let given: SocketAddr = given.parse().expect("address");
            assert_eq!(reachable(given).to_string(), asked);
        }
    }

    #[test]
    fn the_status_is_read_from_an_http_answer_only() {
        assert_eq!(parse("HTTP/1.1 503 X\r\na: b\r\n\r\nno"), Some((503, "no".into())));
        for other in ["", "HTTP/1.1 200 OK\r\n", "SSH-2.0\r\n\r\n", "HTTP/1.1 2\r\n\r\n"] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn nobody_there_is_told_at_once() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        drop(listener);
        assert!(ask(address, "/live").is_err());
    }
}
