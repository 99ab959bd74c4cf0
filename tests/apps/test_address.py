"""No address is shown with its password, and no other program's text either."""

import socket
import threading

import pytest
from typer.testing import CliRunner

from paceline.apps.common.address import masked, without_secret

pytest.importorskip("sqlglot", reason="the extra apps is not installed")

from paceline.apps.text2sql.command import app
from tests.apps.scripted import scripted


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgres://ann:s3cretpw@h:5999/shop", "postgres://ann:***@h:5999/shop"),
        ("mysql+pymysql://ann:s3%40cretpw@h/shop?ssl=1", "mysql+pymysql://ann:***@h/shop?ssl=1"),
        ("postgres://ann@h/shop?sslmode=require&password=s3cretpw", "postgres://ann@h/shop?sslmode=require&password=***"),
        ("postgres://h:5432/shop?password=s3@cretpw", "postgres://h:***"),
        ("postgres://ann:s3/cr#e?t@pw@h/shop", "postgres://ann:***"),
        ("postgres://:s3/cr#et@pw@h/shop", "postgres://:***@h/shop"),
        ("ann:s3cretpw@h/shop", "ann:***@h/shop"),
        ("jdbc:postgresql:ann:s3cretpw@h/shop", "jdbc:postgresql:ann:***@h/shop"),
        ("host=h user=ann password='s3cret pw' dbname=shop", "host=h user=ann password=*** dbname=shop"),
        ("http://[::1]:8000/v1", "http://[::1]:8000/v1"),
        ("shops/2024.db", "shops/2024.db"),
    ],
)  # fmt: skip
def test_an_address_without_its_secret(address: str, shown: str) -> None:
    assert without_secret(address) == shown


@pytest.mark.parametrize(
    ("text", "secret", "left"),
    [
        ("login with p@ss/1 failed", "p@ss/1", "login with *** failed"),
        ("login with p%40ss%2f1 failed", "p@ss/1", "login with *** failed"),
        ("wrong p%40ss/1", "p@ss/1", "wrong ***"),
        ("no password a for anna", "a", "no password *** for anna"),
        ("nothing", None, "nothing"),
    ],
)
def test_another_programs_text_without_a_secret(text: str, secret: str | None, left: str) -> None:
    assert masked(text, secret) == left


@pytest.mark.parametrize(
    "address",
    [
        "postgres://ann:s3cretpw/x@127.0.0.1:5999/shop",  # the password would be read as a port
        "postgres://ann:12/s3cretpw@127.0.0.1/shop",  # or as a database's name
        "postgres://ann:12?s3cretpw=1@127.0.0.1/shop",
        "postgres://127.0.0.1/shop?password=s3cretpw",
        "ann:s3cretpw@127.0.0.1/shop",
        "host=127.0.0.1 password=s3cretpw",
    ],
)
def test_a_refused_address_keeps_its_password(address: str) -> None:
    said = asked(address)
    assert "s3cretpw" not in said and "Error: " in said


def test_an_applications_server_is_named_without_its_password() -> None:
    done = CliRunner().invoke(app, ["x", "--sample", "--url", "http://bob:s3cretpw@127.0.0.1:9"])
    assert done.exit_code == 2 and "http://bob:***@127.0.0.1:9 cannot be reached" in done.output


@pytest.mark.parametrize("dialect", ["postgres", "mysql"])
def test_what_a_servers_driver_says_of_a_password(dialect: str) -> None:
    """A server that quotes the password in its refusal, as it is and percent-encoded."""
    pytest.importorskip("pg8000", reason="the extra databases is not installed")
    text = b"no entry for s3cret@pw, s3cret%40pw"
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=refuse, args=(server, dialect, text), daemon=True)
        thread.start()
        said = asked(f"{dialect}://ann:s3cret%40pw@127.0.0.1:{server.getsockname()[1]}/shop")
        thread.join()
    assert f"Error: {dialect}://ann:***@127.0.0.1:" in said and "no entry for ***, ***" in said


def asked(address: str) -> str:
    with scripted(lambda body: "SELECT 1") as (url, _):
        done = CliRunner().invoke(app, ["x", "--db", address, "--url", url])
    assert done.exit_code == 2
    return done.output


def refuse(server: socket.socket, dialect: str, text: bytes) -> None:
    connection, _ = server.accept()
    with connection:
        if dialect == "postgres":
            if connection.recv(8) == b"\0\0\0\x08\x04\xd2\x16\x2f":  # may it be encrypted?
                connection.sendall(b"N")
            connection.recv(1000)
            fields = b"SFATAL\0C28000\0M" + text + b"\0\0"
            connection.sendall(b"E" + (len(fields) + 4).to_bytes(4, "big") + fields)
        else:
            packet = b"\xff\x15\x04" + text
            connection.sendall(len(packet).to_bytes(3, "little") + b"\0" + packet)
