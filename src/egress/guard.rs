//! Where calls may go: hosts by name, addresses by their class after resolution.
//!
//! Never decides on an address's text: `2130706433`, `0x7f.1` and `::ffff:127.0.0.1` are all the address they mean.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::policy::snapshot::{Addresses, HostRule};

/// What kind of place an address is (IANA special-purpose address registries, RFC 6890).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressClass {
    Public,
    Loopback,
    /// RFC 1918, unique local (RFC 4193), carrier-grade NAT (RFC 6598).
    Private,
    LinkLocal,
    /// Serves credentials to whoever asks from inside a cloud machine; needs its own /32 or /128.
    Metadata,
    /// `0.0.0.0/8`, `::`: the host itself. Never dialled.
    Unspecified,
    /// Never dialled.
    Multicast,
    /// Documentation, benchmarks, protocol assignments, class E.
    Reserved,
}

/// Why a way out was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blocked {
    /// The host is not among the allowed ones.
    Host,
    Address(AddressClass),
}

impl Blocked {
    /// Label `reason` of `checkrein_egress_blocked_total`: a closed set.
    pub fn reason(self) -> &'static str {
        match self {
            Blocked::Host => "host",
            Blocked::Address(class) => match class {
                AddressClass::Loopback | AddressClass::Unspecified => "loopback",
                AddressClass::LinkLocal | AddressClass::Metadata => "link_local",
                AddressClass::Private
                | AddressClass::Multicast
                | AddressClass::Reserved
                | AddressClass::Public => "private",
            },
        }
    }

    pub fn message(self) -> &'static str {
        match self {
            Blocked::Host => "the tool's host is not among the allowed hosts of the policy",
            Blocked::Address(class) => match class {
                AddressClass::Loopback => {
                    "the tool's host resolves to a loopback address, which its upstream does not allow"
                }
                AddressClass::Private => {
                    "the tool's host resolves to a private address, which its upstream does not allow"
                }
                AddressClass::LinkLocal => {
                    "the tool's host resolves to a link-local address, which its upstream does not allow"
                }
                AddressClass::Metadata => {
                    "the tool's host resolves to a cloud metadata address, which needs an entry of its own"
                }
                AddressClass::Unspecified | AddressClass::Multicast => {
                    "the tool's host resolves to an address that is no server's"
                }
                AddressClass::Reserved | AddressClass::Public => {
                    "the tool's host resolves to a reserved address, which its upstream does not allow"
                }
            },
        }
    }
}

/// True when a rule covers host and port. An empty list covers nothing.
pub fn host_allowed(rules: &[HostRule], host: &str, port: u16) -> bool {
    // A trailing dot names the same host (RFC 1034 §3.1).
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    rules.iter().filter(|rule| rule.port == port).any(|rule| {
        if rule.wildcard {
            // `.example.org` covers every name below it, not the name itself.
            host.len() > rule.host.len() && host.ends_with(rule.host.as_str())
        } else {
            // A policy may spell an IPv6 address as URLs do, and a name with the dot of its root.
            let named = rule.host.trim_start_matches('[').trim_end_matches(']');
            host == named.strip_suffix('.').unwrap_or(named)
        }
    })
}

/// May this upstream be dialled at this address?
pub fn vet(address: IpAddr, allowed: &Addresses) -> Result<(), Blocked> {
    let meant = unwrap(address);
    let class = classify(meant);
    let named = |least: u8| {
        allowed.nets.iter().any(|net| {
            (net.contains(&meant) || net.contains(&address)) && net.prefix_len() >= least
        })
    };
    let ok = match class {
        AddressClass::Public => true,
        AddressClass::Loopback => allowed.loopback || named(0),
        AddressClass::Private => allowed.private || named(0),
        AddressClass::LinkLocal => allowed.link_local || named(0),
        AddressClass::Reserved => named(0),
        AddressClass::Metadata => named(if meant.is_ipv4() { 32 } else { 128 }),
        AddressClass::Unspecified | AddressClass::Multicast => false,
    };
    if ok { Ok(()) } else { Err(Blocked::Address(class)) }
}

/// The class of the address that is really meant.
pub fn class_of(address: IpAddr) -> AddressClass {
    classify(unwrap(address))
}

/// IPv6 forms that carry an IPv4 address to which the packets go in the end.
fn unwrap(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else { return address };
    let s = v6.segments();
    let low = |hi: u16, lo: u16| {
        let [a, b] = hi.to_be_bytes();
        let [c, d] = lo.to_be_bytes();
        IpAddr::V4(Ipv4Addr::new(a, b, c, d))
    };
    match s {
        // v4-mapped (RFC 4291 §2.5.5.2), v4-translated (RFC 7915), NAT64 (RFC 6052).
        [0, 0, 0, 0, 0, 0xffff, hi, lo]
        | [0, 0, 0, 0, 0xffff, 0, hi, lo]
        | [0x64, 0xff9b, 0, 0, 0, 0, hi, lo] => low(hi, lo),
        // v4-compatible, deprecated; `::` and `::1` are themselves.
        [0, 0, 0, 0, 0, 0, hi, lo] if hi != 0 => low(hi, lo),
        // 6to4 (RFC 3056).
        [0x2002, hi, lo, ..] => low(hi, lo),
        _ => address,
    }
}

fn classify(address: IpAddr) -> AddressClass {
    match address {
        IpAddr::V4(v4) => classify_v4(v4),
        IpAddr::V6(v6) => classify_v6(v6),
    }
}

fn classify_v4(v4: Ipv4Addr) -> AddressClass {
    /// Where the large clouds answer for a machine's identity; some lie in public or shared ranges.
    const METADATA: &[Ipv4Addr] = &[
        Ipv4Addr::new(169, 254, 169, 254),
        Ipv4Addr::new(169, 254, 170, 2),
        Ipv4Addr::new(169, 254, 170, 23),
        Ipv4Addr::new(100, 100, 100, 200),
        Ipv4Addr::new(168, 63, 129, 16),
        Ipv4Addr::new(192, 0, 0, 192),
    ];
    if METADATA.contains(&v4) {
        return AddressClass::Metadata;
    }
    match v4.octets() {
        [0, ..] => AddressClass::Unspecified,
        [127, ..] => AddressClass::Loopback,
        [10, ..] | [192, 168, ..] => AddressClass::Private,
        [172, b, ..] if (16..32).contains(&b) => AddressClass::Private,
        [100, b, ..] if (64..128).contains(&b) => AddressClass::Private,
        [169, 254, ..] => AddressClass::LinkLocal,
        [224..=239, ..] => AddressClass::Multicast,
        [192, 0, 0, _]
        | [192, 0, 2, _]
        | [192, 88, 99, _]
        | [198, 18..=19, ..]
        | [198, 51, 100, _]
        | [203, 0, 113, _]
        | [240..=255, ..] => AddressClass::Reserved,
        _ => AddressClass::Public,
    }
}

fn classify_v6(v6: Ipv6Addr) -> AddressClass {
    const METADATA: &[Ipv6Addr] = &[
        Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
        Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23),
        Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
    ];
    if METADATA.contains(&v6) {
        return AddressClass::Metadata;
    }
    match v6.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => AddressClass::Unspecified,
        [0, 0, 0, 0, 0, 0, 0, 1] => AddressClass::Loopback,
        // Unique local, site-local (deprecated), local NAT64 (RFC 8215).
        [0xfc00..=0xfdff | 0xfec0..=0xfeff, ..] | [0x64, 0xff9b, 1, ..] => AddressClass::Private,
        [0xfe80..=0xfebf, ..] => AddressClass::LinkLocal,
        [0xff00..=0xffff, ..] => AddressClass::Multicast,
        // Only 2000::/3 is given out; in it Teredo, benchmarks, ORCHID and documentation are not.
        [0x2001, 0..=0x1ff, ..] | [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => {
            AddressClass::Reserved
        }
        [0x2000..=0x3fff, ..] => AddressClass::Public,
        _ => AddressClass::Reserved,
    }
}

/// Convenience for rules and tests: a net, or the one address as a net.
pub fn net(text: &str) -> Option<IpNet> {
    text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn every_special_range_has_its_class() {
        use AddressClass as C;
        let table = [
            ("8.8.8.8", C::Public),
            ("2606:4700::1111", C::Public),
            ("127.0.0.1", C::Loopback),
            ("127.255.255.254", C::Loopback),
            ("::1", C::Loopback),
            ("10.1.2.3", C::Private),
            ("172.15.0.1", C::Public),
            ("172.16.0.1", C::Private),
            ("172.31.255.255", C::Private),
            ("172.32.0.1", C::Public),
            ("192.168.0.1", C::Private),
            ("100.64.0.1", C::Private),
            ("100.127.255.255", C::Private),
            ("100.128.0.1", C::Public),
            ("fc00::1", C::Private),
            ("fd12::1", C::Private),
            ("169.254.1.1", C::LinkLocal),
            ("fe80::1", C::LinkLocal),
            ("169.254.169.254", C::Metadata),
            ("fd00:ec2::254", C::Metadata),
            ("0.0.0.0", C::Unspecified),
            ("0.1.2.3", C::Unspecified),
            ("::", C::Unspecified),
            ("224.0.0.1", C::Multicast),
            ("ff02::1", C::Multicast),
            ("255.255.255.255", C::Reserved),
            ("198.18.0.1", C::Reserved),
            ("2001:db8::1", C::Reserved),
            ("2001::1", C::Reserved),
        ];
        for (text, class) in table {
            assert_eq!(class_of(ip(text)), class, "{text}");
        }
    }

    #[test]
    fn an_ipv4_address_inside_an_ipv6_one_is_what_it_means() {
        for text in [
            "::ffff:127.0.0.1",
            "::ffff:7f00:1",
            "64:ff9b::127.0.0.1",
            "::127.0.0.1",
            "2002:7f00:1::",
        ] {
            assert_eq!(class_of(ip(text)), AddressClass::Loopback, "{text}");
        }
        assert_eq!(class_of(ip("::ffff:169.254.169.254")), AddressClass::Metadata);
        assert_eq!(class_of(ip("::ffff:8.8.8.8")), AddressClass::Public);
    }

    #[test]
    fn a_metadata_address_needs_its_own_entry() {
        let wide = Addresses {
            loopback: true,
            private: true,
            link_local: true,
            nets: vec![net("169.254.0.0/16").expect("net"), net("fd00::/8").expect("net")],
        };
        let blocked = Err(Blocked::Address(AddressClass::Metadata));
        assert_eq!(vet(ip("169.254.169.254"), &wide), blocked);
        assert_eq!(vet(ip("::ffff:169.254.169.254"), &wide), blocked);
        assert_eq!(vet(ip("fd00:ec2::254"), &wide), blocked);
        assert_eq!(vet(ip("169.254.1.1"), &wide), Ok(()));
        let named = Addresses {
            nets: vec![net("169.254.169.254").expect("net"), net("fd00:ec2::254").expect("net")],
            ..Addresses::default()
        };
        assert_eq!(vet(ip("169.254.169.254"), &named), Ok(()));
        assert_eq!(vet(ip("fd00:ec2::254"), &named), Ok(()));
        assert!(vet(ip("169.254.1.1"), &named).is_err());
    }

    #[test]
    fn only_what_the_upstream_names_is_let_through() {
        let none = Addresses::default();
        assert_eq!(vet(ip("1.1.1.1"), &none), Ok(()));
        for text in ["127.0.0.1", "::1", "10.0.0.1", "169.254.0.1", "0.0.0.0", "224.0.0.1"] {
            assert!(vet(ip(text), &none).is_err(), "{text}");
        }
        let ten = Addresses { nets: vec![net("10.0.0.0/8").expect("net")], ..none };
        assert_eq!(vet(ip("10.9.9.9"), &ten), Ok(()));
        assert_eq!(vet(ip("::ffff:10.9.9.9"), &ten), Ok(()));
        assert!(vet(ip("192.168.0.1"), &ten).is_err());
        let everything = Addresses {
            loopback: true,
            private: true,
            link_local: true,
            nets: vec![net("0.0.0.0/0").expect("net"), net("::/0").expect("net")],
        };
        for text in ["0.0.0.0", "::", "224.0.0.1", "ff02::1", "169.254.169.254"] {
            assert!(vet(ip(text), &everything).is_err(), "{text}");
        }
    }

    #[test]
    fn hosts_match_exactly_or_below_a_star_and_only_on_their_port() {
        let rule = |host: &str, wildcard, port| HostRule { host: host.into(), wildcard, port };
        let rules = [rule("api.example.org", false, 443), rule(".example.net", true, 8443)];
        assert!(host_allowed(&rules, "api.example.org", 443));
        assert!(host_allowed(&rules, "API.example.org.", 443));
        assert!(host_allowed(&rules, "a.b.example.net", 8443));
        assert!(host_allowed(&[rule("[::1]", false, 80)], "::1", 80));
        assert!(host_allowed(&[rule("api.example.org.", false, 443)], "api.example.org.", 443));
        assert!(host_allowed(&[rule("api.example.org.", false, 443)], "api.example.org", 443));
        for (host, port) in [
            ("api.example.org", 80),
            ("x.api.example.org", 443),
            ("example.net", 8443),
            ("notexample.net", 8443),
            ("a.example.net", 443),
        ] {
            assert!(!host_allowed(&rules, host, port), "{host}:{port}");
        }
        assert!(!host_allowed(&[], "api.example.org", 443));
    }
}
