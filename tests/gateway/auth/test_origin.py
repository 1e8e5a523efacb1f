"""Where a request comes from."""

import pytest
from multidict import CIMultiDict

from openclaw.gateway.auth.origin import (
    PeerAddress,
    caller_key,
    host_refusal,
    origin_refusal,
    parse_host,
    peer_of,
    site_refusal,
)
from openclaw.net import plain_ip


def peer(ip: str = "127.0.0.1", proxies: tuple[str, ...] = (), **headers: str) -> PeerAddress:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return peer_of(ip, CIMultiDict({"Host": "127.0.0.1:18789", **named}), proxies)


@pytest.mark.parametrize(
    ("ip", "host", "local"),
    [
        ("127.0.0.1", "127.0.0.1:18789", True),
        ("127.0.0.1", "localhost", True),
        ("::1", "[::1]:18789", True),
        ("::ffff:127.0.0.1", "localhost:18789", True),
        ("127.0.0.1", "box.tail1.ts.net", True),
        ("127.0.0.1", "gw.example.com", False),
        ("127.0.0.1", "localhost.evil.example", False),
        ("127.0.0.1", "", False),
        ("192.168.1.7", "127.0.0.1", False),
        ("203.0.113.1", "box.tail1.ts.net", False),
        ("", "localhost", False),
    ],
)
def test_local_means_a_loopback_peer_that_names_a_loopback_host(ip: str, host: str, local: bool) -> None:
    assert peer(ip, Host=host).is_local is local


@pytest.mark.parametrize(
    "header",
    [
        *("X_Forwarded_For", "X_Forwarded_Proto", "X_Forwarded_Host", "X_Forwarded_Port", "x_forwarded", "X_Real_IP"),
        *("Forwarded", "Via", "CF_Connecting_IP", "True_Client_IP", "Tailscale_User_Login"),
    ],
)
def test_forwarding_headers_of_an_untrusted_peer_make_it_remote_without_being_believed(header: str) -> None:
    found = peer(**{header: "127.0.0.1"})
    assert not found.is_local
    assert found.ip == "127.0.0.1"


def test_a_trusted_proxy_is_believed() -> None:
    assert peer("10.0.0.1", ("10.0.0.1",), X_Forwarded_For="203.0.113.9, 10.0.0.1").ip == "203.0.113.9"
    assert peer("10.0.0.1", ("10.0.0.1",), X_Real_IP="203.0.113.9").ip == "203.0.113.9"
    assert peer("10.0.0.2", ("10.0.0.1",), X_Forwarded_For="203.0.113.9").ip == "10.0.0.2"


@pytest.mark.parametrize(
    ("forwarded", "ip"),
    [
        ("203.0.113.9", "203.0.113.9"),
        ("127.0.0.1, 203.0.113.9", "203.0.113.9"),
        ("127.0.0.1, 203.0.113.9, 10.0.0.1", "203.0.113.9"),
        ("127.0.0.1, 203.0.113.9, 192.168.9.9, 10.0.0.1", "203.0.113.9"),
        ("203.0.113.9:4711", "203.0.113.9"),
        ('"[2001:db8::7]:4711"', "2001:db8::7"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("127.0.0.1, unknown", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.1"),
        ("", "10.0.0.1"),
        (",,,", "10.0.0.1"),
    ],
)
def test_hops_are_read_from_the_right_and_past_trusted_proxies_only(forwarded: str, ip: str) -> None:
    found = peer("10.0.0.1", ("10.0.0.1", "192.168.0.0/16", "nonsense"), X_Forwarded_For=forwarded)
    assert found.ip == ip
    assert not found.is_local


def test_a_second_header_line_is_not_overlooked() -> None:
    headers = CIMultiDict([("Host", "127.0.0.1"), ("X-Forwarded-For", "127.0.0.1"), ("X-Forwarded-For", "203.0.113.9")])
    assert peer_of("10.0.0.1", headers, ["10.0.0.1"]).ip == "203.0.113.9"
    twice = CIMultiDict([("Host", "127.0.0.1"), ("Host", "evil.example"), ("Origin", "http://127.0.0.1")])
    assert site_refusal(peer_of("127.0.0.1", twice, []), [])
    twice = CIMultiDict([("Host", "127.0.0.1"), ("Origin", "http://127.0.0.1"), ("Origin", "https://evil.example")])
    assert site_refusal(peer_of("127.0.0.1", twice, []), [])


@pytest.mark.parametrize("forwarded", ["127.0.0.1", "::1", "localhost", ""])
def test_nothing_that_came_through_a_proxy_is_local(forwarded: str) -> None:
    assert not peer("127.0.0.1", ("127.0.0.1",), X_Forwarded_For=forwarded).is_local
    assert not peer("127.0.0.1", ("127.0.0.0/8",)).is_local, "a proxy that says nothing is a proxy all the same"


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("203.0.113.9", "::ffff:203.0.113.9", True),
        ("203.0.113.9", "203.0.113.10", False),
        ("2001:db8:0:1::1", "2001:db8:0:1:ffff::2", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("127.0.0.1", "127.9.9.9", True),
        ("127.0.0.1", "::1", True),
    ],
)
def test_who_counts_as_one_caller(first: str, second: str, same: bool) -> None:
    assert (caller_key(peer(first)) == caller_key(peer(second))) is same


def test_what_is_proxied_does_not_slow_this_machine_down() -> None:
    assert caller_key(peer("127.0.0.1", X_Forwarded_For="203.0.113.9")) != caller_key(peer("127.0.0.1"))


@pytest.mark.parametrize(
    ("origin", "host", "allowed"),
    [
        (None, "127.0.0.1:18789", False),
        ("null", "127.0.0.1:18789", False),
        ("", "127.0.0.1:18789", False),
        ("https://evil.example", "127.0.0.1:18789", False),
        ("http://127.0.0.1.evil.example", "127.0.0.1:18789", False),
        ("http://127.0.0.1:18789@evil.example", "127.0.0.1:18789", False),
        ("file://", "127.0.0.1:18789", False),
        ("http://127.0.0.1:18789", "127.0.0.1:18789", True),
        ("http://localhost:5173", "127.0.0.1:18789", True),
        ("http://[::1]:5173", "localhost:18789", True),
        ("https://gw.example.com", "gw.example.com", True),
        ("https://gw.example.com:444", "gw.example.com", False),
        ("https://gw.example.com:443", "gw.example.com:443", True),
        ("https://UI.example.com", "127.0.0.1:18789", True),
        ("http://ui.example.com", "127.0.0.1:18789", False),
        ("http://127.0.0.1:99999999", "127.0.0.1:18789", False),
    ],
)
def test_origin_table(origin: str | None, host: str, allowed: bool) -> None:
    found = PeerAddress(ip="127.0.0.1", is_local=True, host=host, origin=origin)
    assert (origin_refusal(found, ["https://ui.example.com"]) is None) is allowed


@pytest.mark.parametrize(
    ("host", "served"),
    [
        ("localhost:1", True),
        ("[::1]:1", True),
        ("192.168.1.7", True),
        ("box.ts.net", True),
        ("ui.example.com", True),
        ("evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("", False),
        ("a b", False),
    ],
)
def test_host_table(host: str, served: bool) -> None:
    found = PeerAddress(ip="127.0.0.1", is_local=False, host=host)
    assert (host_refusal(found, ["https://ui.example.com"]) is None) is served


@pytest.mark.parametrize("host", ["/x", "user@host", "host:port", "h?x", "[::1", " "])
def test_what_is_no_host_is_none(host: str) -> None:
    assert parse_host(host) is None


def test_addresses_are_normalised() -> None:
    assert plain_ip("::ffff:10.0.0.1") == "10.0.0.1"
    assert plain_ip("fe80::1%eth0") == "fe80::1"
    assert plain_ip("nonsense") == ""


@pytest.mark.parametrize(
    ("origin", "host", "served"),
    [
        (None, "evil.example", True),
        (None, "127.0.0.1", True),
        ("http://evil.example", "evil.example", False),
        ("http://evil.example:18789", "evil.example:18789", False),
        ("http://127.0.0.1:18789", "evil.example", False),
        ("https://ui.example.com", "ui.example.com", True),
        ("https://ui.example.com", "127.0.0.1", True),
        ("https://ui.example.com", "evil.example", False),
        ("http://localhost:5173", "127.0.0.1", True),
        ("http://localhost.:18789", "localhost.:18789", True),
        ("app://desk", "127.0.0.1", True),
        ("app://other", "127.0.0.1", False),
        ("null", "127.0.0.1", False),
        ("*", "127.0.0.1", False),
        ("", "127.0.0.1", False),
        ("http://127.0.0.1", "", False),
    ],
)
def test_a_page_needs_an_allowed_origin_and_one_of_our_names(origin: str | None, host: str, served: bool) -> None:
    found = PeerAddress(ip="127.0.0.1", is_local=True, host=host, origin=origin)
    assert (site_refusal(found, ["https://ui.example.com", "app://desk", "null", "*", ""]) is None) is served


def test_a_client_that_says_it_is_a_page_has_an_origin() -> None:
    assert site_refusal(PeerAddress(ip="127.0.0.1", is_local=True, host="127.0.0.1"), [], is_page=True)
