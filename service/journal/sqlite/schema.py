"""SQLite tables, and how a connection is opened.

A model created again under the same id gets another number, so the rows of the old one are
invisible. `garbage` lists the numbers whose rows are still to be deleted.
"""

import sqlite3
import time

from dualstream.service.journal.protocol import JournalUnavailable, StoreTooNew
from dualstream.service.journal.sqlite.wal import MAX_LOG_BYTES, MAX_PAGES

VERSION = 1
STAGED = "\1"
"""Prefix of the ids of staged models; no other id begins with it."""
AFTER_STAGED = "\2"

TABLES = """
CREATE TABLE store (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE models (
    model INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, incarnation TEXT NOT NULL,
    created_ms INTEGER NOT NULL, spec BLOB NOT NULL, given BLOB NOT NULL
);
-- keys numbered first_key .. next_key - 1 are kept; nonces counts all that came
CREATE TABLE heads (
    model INTEGER PRIMARY KEY, seq INTEGER NOT NULL, chain TEXT NOT NULL,
    trimmed INTEGER NOT NULL DEFAULT 0, first_key INTEGER NOT NULL DEFAULT 0,
    next_key INTEGER NOT NULL DEFAULT 0, nonces INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE entries (
    model INTEGER NOT NULL, seq INTEGER NOT NULL, first_seq INTEGER NOT NULL, nonce BLOB NOT NULL,
    chain TEXT NOT NULL, time_ms INTEGER NOT NULL, body BLOB NOT NULL, UNIQUE (model, seq)
);
CREATE TABLE keys (
    model INTEGER NOT NULL, number INTEGER NOT NULL, key BLOB NOT NULL, seq INTEGER NOT NULL,
    count INTEGER NOT NULL, fingerprint BLOB, time_ms INTEGER NOT NULL,
    PRIMARY KEY (model, number)
) WITHOUT ROWID;
CREATE UNIQUE INDEX keys_by_key ON keys (model, key);
-- number = how many came before it
CREATE TABLE nonces (
    model INTEGER NOT NULL, nonce BLOB NOT NULL, number INTEGER NOT NULL, result BLOB NOT NULL,
    PRIMARY KEY (model, nonce)
) WITHOUT ROWID;
CREATE TABLE cursors (
    model INTEGER NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (model, name)
) WITHOUT ROWID;
CREATE TABLE snapshots (
    snapshot INTEGER PRIMARY KEY AUTOINCREMENT, model INTEGER NOT NULL, seq INTEGER NOT NULL,
    chain TEXT NOT NULL, is_complete INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX snapshots_of_model ON snapshots (model, seq);
CREATE TABLE snapshot_parts (
    snapshot INTEGER NOT NULL, part INTEGER NOT NULL, bytes BLOB NOT NULL,
    UNIQUE (snapshot, part)
);
CREATE TABLE garbage (model INTEGER PRIMARY KEY);
CREATE TABLE copies (
    copy INTEGER PRIMARY KEY AUTOINCREMENT, model INTEGER NOT NULL, digest TEXT NOT NULL,
    bytes INTEGER NOT NULL, touched_ms INTEGER NOT NULL, is_complete INTEGER NOT NULL DEFAULT 0,
    UNIQUE (model, digest)
);
CREATE TABLE copy_parts (
    copy INTEGER NOT NULL, part INTEGER NOT NULL, bytes BLOB NOT NULL, UNIQUE (copy, part)
);
-- the kept entry that ends at seq names a copy
CREATE TABLE copy_uses (
    model INTEGER NOT NULL, seq INTEGER NOT NULL, digest TEXT NOT NULL, PRIMARY KEY (model, seq)
) WITHOUT ROWID;
CREATE TABLE versions (
    model INTEGER NOT NULL, name TEXT NOT NULL, seq INTEGER NOT NULL, chain TEXT NOT NULL,
    digest TEXT NOT NULL, bytes INTEGER NOT NULL, created_ms INTEGER NOT NULL, note TEXT NOT NULL,
    PRIMARY KEY (model, name)
) WITHOUT ROWID;
-- rows that wait for their labels; state: see pending_rows.State; label: the default label, or of a
-- labelled row its label, which is in the record seq
CREATE TABLE remembered (
    model INTEGER NOT NULL, key BLOB NOT NULL, body BLOB NOT NULL, label BLOB NOT NULL,
    time_ms INTEGER NOT NULL, due_ms INTEGER NOT NULL, seq INTEGER NOT NULL, state INTEGER NOT NULL,
    UNIQUE (model, key)
);
CREATE INDEX remembered_by_due ON remembered (model, state, due_ms);
-- how many with a body there are, and what they take
CREATE TABLE remembered_sums (
    model INTEGER PRIMARY KEY, rows INTEGER NOT NULL, bytes INTEGER NOT NULL
);
-- by the model's id, not its number: changes outlive the model
CREATE TABLE changes (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL, incarnation TEXT NOT NULL,
    seq INTEGER NOT NULL, time_ms INTEGER NOT NULL, change BLOB NOT NULL
);
CREATE INDEX changes_of_model ON changes (id, number);
"""


def connect(path: str, synchronous: str, busy_timeout_s: float) -> sqlite3.Connection:
    """Open a connection in WAL mode; create the tables in a new file.

    Raises JournalUnavailable, StoreTooNew.
    """
    try:
        connection = sqlite3.connect(path, timeout=busy_timeout_s, isolation_level=None)
    except sqlite3.Error as error:
        raise JournalUnavailable(f"cannot open {path}: {error}") from error
    try:
        _set_wal(connection, busy_timeout_s)
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        # Deleted data is overwritten, so that the file contains nothing of it.
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute(f"PRAGMA wal_autocheckpoint = {MAX_PAGES}")
        # A long reader lets the WAL grow. It shrinks to this size when it restarts.
        connection.execute(f"PRAGMA journal_size_limit = {MAX_LOG_BYTES}")
        _make_tables(connection, path)
    except sqlite3.Error as error:
        connection.close()
        raise JournalUnavailable(f"cannot use {path}: {error}") from error
    except BaseException:
        connection.close()
        raise
    return connection


def _set_wal(connection: sqlite3.Connection, patience_s: float) -> None:
    """Switch to WAL mode; retry, as SQLite does not wait while another process switches."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            break
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    if mode != "wal":
        raise JournalUnavailable(f"the file cannot be used in WAL mode (journal_mode is {mode})")


def _make_tables(connection: sqlite3.Connection, path: str) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version == 0:
        connection.execute("BEGIN IMMEDIATE")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:  # another process can have made them since
            for statement in TABLES.split(";\n"):
                connection.execute(statement)
            version = VERSION
            connection.execute(f"PRAGMA user_version = {version}")
        connection.execute("COMMIT")
    if version > VERSION:
        raise StoreTooNew(
            f"{path} has tables of version {version}; this program knows up to {VERSION}"
        )
