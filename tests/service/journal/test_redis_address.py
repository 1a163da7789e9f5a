"""What the URL of a Redis store says."""

import pytest
from redis.asyncio import SSLConnection

from dualstream.service.journal import open_journal
from dualstream.service.journal.protocol import JournalUnavailable
from dualstream.service.journal.redis.address import Address, parse_address
from dualstream.service.journal.redis.servers import FixedServer, SentinelPrimary


def got(address: Address) -> tuple[object, ...]:
    return address.kind, address.hosts, address.service, address.options["db"]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://localhost", ("standalone", (("localhost", 6379),), "", 0)),
        ("redis://h:1/3", ("standalone", (("h", 1),), "", 3)),
        ("redis://[::1]:7/", ("standalone", (("::1", 7),), "", 0)),
        ("redis+sentinel://a,b:2/main", ("sentinel", (("a", 26379), ("b", 2)), "main", 0)),
        (
            "redis+sentinel://a:1,[::1],c:3/main/4",
            ("sentinel", (("a", 1), ("::1", 26379), ("c", 3)), "main", 4),
        ),
        ("redis+cluster://a:1,b", ("cluster", (("a", 1), ("b", 6379)), "", 0)),
        ("redis+cluster://a:1,b:2/", ("cluster", (("a", 1), ("b", 2)), "", 0)),
    ],
)
def test_an_address_names_its_hosts(url: str, expected: tuple[object, ...]):
    assert got(parse_address(url)) == expected
    assert not parse_address(url).is_tls
    secure = parse_address(url.replace("redis", "rediss", 1))
    assert got(secure) == expected and secure.is_tls


def test_user_and_password_are_of_the_servers_and_options_of_whom_they_name():
    address = parse_address(
        "rediss+sentinel://us%40er:p%2Fw@a:1,b:2/main"
        "?ssl_ca_certs=/ca.pem&sentinel_username=s&sentinel_password=t&client_name=me"
    )
    assert address.hosts == (("a", 1), ("b", 2))
    assert address.options == {
        "username": "us@er",
        "password": "p/w",
        "ssl_ca_certs": "/ca.pem",
        "client_name": "me",
        "db": 0,
    }
    assert address.of_sentinels == {"username": "s", "password": "t", "ssl_ca_certs": "/ca.pem"}


@pytest.mark.parametrize(
    ("url", "wrong"),
    [
        ("redis+x://h", "unknown scheme redis\\+x://"),
        ("redis://", "'' is not HOST:PORT; write redis://HOST:PORT/DB"),
        ("redis://h:x", "'h:x' is not HOST:PORT"),
        ("redis://h:0", "'h:0' is not HOST:PORT"),
        ("redis://a,b", "has one server; use redis\\+sentinel://"),
        ("redis://h/x", "'x' does not end in a database number"),
        ("redis://h/1/2", "'1/2' does not end in a database number"),
        ("redis://h?colour=red", "unknown option in the store's URL.*colour"),
        ("redis://h?sentinel_username=x", "'username' needs redis\\+sentinel://"),
        ("redis+sentinel://a:1,b:2", "name of the Sentinels' service is missing"),
        ("redis+sentinel://a:1,b:2/", "name of the Sentinels' service is missing"),
        ("redis+sentinel://a:1,,b:2/main", "'' is not HOST:PORT"),
        ("redis+sentinel://a/main/x", "'main/x' does not end in a database number"),
        ("redis+cluster://a:1/1", "a Cluster has no database numbers"),
    ],
)
def test_what_is_wrong_with_an_address_is_said_without_its_password(url: str, wrong: str):
    with pytest.raises(ValueError, match=wrong):
        parse_address(url)
    with_password = url.replace("://", "://u:geheim@")
    with pytest.raises(ValueError) as refused:
        parse_address(with_password)
    assert "geheim" not in str(refused.value)


@pytest.mark.parametrize("kind", ["", "+sentinel", "+cluster"])
@pytest.mark.parametrize("tls", ["", "s"])
@pytest.mark.anyio
async def test_where_nobody_answers_the_store_is_away(kind: str, tls: str):
    path = "/main" if kind == "+sentinel" else ""
    options = "?ssl_cert_reqs=none" if tls else ""
    with pytest.raises(JournalUnavailable):
        await open_journal(f"redis{tls}{kind}://u:p@127.0.0.1:1{path}{options}")


def test_with_tls_every_connection_uses_it():
    address = parse_address("rediss+sentinel://u:p@a:1/main?ssl_ca_certs=/ca.pem")
    for server in (SentinelPrimary(address, 1.0), FixedServer(address, ("a", 1), 1.0)):
        connection = server.make_connection()
        assert isinstance(connection, SSLConnection)
        assert connection.ssl_context.ca_certs == "/ca.pem"
        assert (connection.username, connection.password) == ("u", "p")
        assert connection.retry.get_retries() == 0
