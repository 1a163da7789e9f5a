"""Exceptions of the journal."""


class JournalError(Exception):
    """Base class of the journal's exceptions."""


class JournalUnavailable(JournalError):
    """The store cannot be used now; nothing was done."""


class DurabilityTooLow(JournalUnavailable):
    """The store's durability is below the requested one, or it may evict acknowledged writes."""


class OutcomeUnknown(JournalError):
    """The write may or may not have happened; repeat an append with the same nonce."""


class NonceForgotten(OutcomeUnknown):
    """A repeated append came too late to know whether the first one happened. It did nothing."""

    def __init__(self, model: str):
        super().__init__(
            f"the outcome of an append to {model!r} is unknown: too many others came before the "
            "repetition"
        )


class NotReplicated(JournalError):
    """The write happened, and fewer replicas than requested confirmed it in time.

    It is lost if this server fails before the replicas receive it.
    """


class UnknownModel(JournalError):
    """There is no model of that id."""

    def __init__(self, model: str):
        super().__init__(f"no model {model!r}")


class ModelChanged(JournalError):
    """The model was deleted, or deleted and created again: its incarnation differs."""

    def __init__(self, model: str):
        super().__init__(f"model {model!r} was deleted or created again")


class Conflict(JournalError):
    """The store's state differs from what the caller expected."""


class MissingPosition(Conflict):
    """The log neither continues from this seq and chain nor ends there."""

    def __init__(self, model: str, seq: int, chain: str):
        super().__init__(f"the log of {model!r} does not contain chain {chain[:8]} at seq {seq}")


class CursorMoved(JournalError):
    """The cursor has another value than the caller expected; `value` is the current one."""

    def __init__(self, name: str, value: str | None):
        super().__init__(f"cursor {name!r} has the value {value!r}")
        self.value = value


class Trimmed(JournalError):
    """The requested rows were trimmed; `kept_from` is the first seq still kept."""

    def __init__(self, kept_from: int):
        super().__init__(f"the journal is kept from seq {kept_from} on")
        self.kept_from = kept_from


class UnknownCopy(JournalError):
    """There is no copy with that digest; nothing was done."""

    def __init__(self, model: str, digest: str):
        super().__init__(f"model {model!r} has no copy {digest}")


class TooManyVersions(JournalError):
    """The model has the maximum number of versions; nothing was done."""

    def __init__(self, model: str, most: int):
        super().__init__(f"model {model!r} has {most} versions, the maximum; delete one first")


class TooManyPendingRows(JournalError):
    """The model has the maximum number of rows waiting for labels; nothing was done."""

    def __init__(self, model: str, rows: int, most: int, most_bytes: int):
        super().__init__(
            f"{rows} rows of model {model!r} wait for their labels; no more fit into the limit of "
            f"{most} rows and {most_bytes} bytes"
        )


class StoreTooNew(JournalError):
    """A newer version of this program wrote the store."""
