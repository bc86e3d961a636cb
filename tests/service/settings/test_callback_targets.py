from __future__ import annotations

from ipaddress import ip_address

import pytest
from pydantic import TypeAdapter, ValidationError

from service.schemas.fields import CallbackUrl
from service.settings.callback_targets import NOT_ENCRYPTED, NOT_PUBLIC, AllowedTargets, is_public

URL = TypeAdapter(CallbackUrl)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "240.0.0.1",
        "192.0.2.1",
        "198.18.0.1",
        "::",
        "::1",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "fec0::1",
        "ff02::1",
        "2001:db8::1",
        "::ffff:127.0.0.1",
        "::ffff:8.8.8.8",
        "::10.0.0.1",
        "64:ff9b::10.0.0.1",
        "2002:0a00:0001::1",
        "2001:0:1::1",
    ],
)
def test_special_addresses_are_not_public(address: str) -> None:
    assert not is_public(ip_address(address))
    assert AllowedTargets().refusal("https", "hooks.example", [address]) == NOT_PUBLIC


@pytest.mark.parametrize("address", ["8.8.8.8", "93.184.216.34", "2606:2800:220:1::1"])
def test_public_addresses_are_called_over_https_only(address: str) -> None:
    assert AllowedTargets().refusal("https", "hooks.example", [address]) is None
    assert AllowedTargets().refusal("http", "hooks.example", [address]) == NOT_ENCRYPTED


def test_a_host_with_one_address_that_is_not_public_is_refused() -> None:
    assert AllowedTargets().refusal("https", "hooks.example", ["8.8.8.8", "10.0.0.1"]) == NOT_PUBLIC


def test_the_operator_can_allow_hosts_and_networks() -> None:
    allowed = AllowedTargets.parse(" 127.0.0.0/8, Hooks.Internal ,fd00::/8,10.0.0.7,")
    assert allowed.refusal("http", "any.example", ["127.0.0.9"]) is None
    assert allowed.refusal("http", "hooks.INTERNAL", ["10.9.9.9"]) is None
    assert allowed.refusal("https", "any.example", ["fd00::1", "10.0.0.7"]) is None
    assert allowed.refusal("https", "any.example", ["10.0.0.8"]) == NOT_PUBLIC
    assert allowed.refusal("https", "any.example", ["127.0.0.9", "10.0.0.8"]) == NOT_PUBLIC
    assert allowed.refusal("https", "any.example", ["127.0.0.9", "8.8.8.8"]) is None
    assert allowed.refusal("https", "evil-hooks.internal", ["10.9.9.9"]) == NOT_PUBLIC


@pytest.mark.parametrize("text", ["10.0.0.1/8", "https://hooks.internal", "a b", "hooks.internal:80", "10.0.0.0/33"])
def test_an_entry_that_is_neither_a_host_nor_a_network_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="host"):
        AllowedTargets.parse(text)


@pytest.mark.parametrize(
    "url",
    [
        "https://hooks.example",
        "https://hooks.example/a/b?c=d&e=%20",
        "http://127.0.0.1:8080/x",
        "https://xn--bcher-kva.example:65535?x",
        "https://hooks.example/" + "a" * 1978,
    ],
)
def test_well_formed_urls(url: str) -> None:
    assert URL.validate_python(url) == url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "hooks.example",
        "ftp://hooks.example/",
        "https://",
        "https:///path",
        "https://user@hooks.example/",
        "https://user:secret@hooks.example/",
        "https://hooks.example/#fragment",
        "https://hooks.example:0/",
        "https://hooks.example:65536/",
        "https://hooks.example\\@other.example/",
        "https://hooks.example/a b",
        "https://hooks.example/\r\nX: y",
        "https://hooks.example/\n",
        "https://bücher.example/",
        "https://-hooks.example/",
        "https://[::1]/",
        "https://hooks.example/" + "a" * 1979,
    ],
)
def test_malformed_urls(url: str) -> None:
    with pytest.raises(ValidationError):
        URL.validate_python(url)
