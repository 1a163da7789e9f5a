"""What the journal refuses or cannot do.

JournalError
|- JournalUnavailable     the store cannot be used now; nothing was done
|  `- DurabilityTooLow    the store keeps less than was asked for, or evicts
|- OutcomeUnknown         the store may or may not have done it: repeat with the same nonce
|  `- NonceForgotten      nobody can tell any more whether it has
|- NotReplicated          the store did it, and fewer replicas than asked for have it
|- UnknownModel           no model of that id
|- ModelChanged           the model is gone or was made again: another incarnation
|- Conflict               what the caller saw is not what the store holds
|  `- NotHeld             the log holds no such place: it was lost, or trimmed
|- CursorMoved            the cursor does not stand where the caller expected it
|- Trimmed                the rows asked for are no longer in the journal
|- UnknownCopy            the copy that was named is not there
|- TooManyVersions        the model has as many versions as it may have
|- TooManyPendingRows      the model has as many rows waiting for labels as it may have
`- StoreTooNew            the store was written by a newer version
"""


class JournalError(Exception):
    """Anything the journal refuses or cannot do."""


class JournalUnavailable(JournalError):
    """The store cannot be used now; nothing was done."""


class DurabilityTooLow(JournalUnavailable):
    """The store keeps less than was asked for, or may evict what it acknowledged."""


class OutcomeUnknown(JournalError):
    """The store may or may not have done it; an append is repeated with the same nonce."""


class NonceForgotten(OutcomeUnknown):
    """An append was repeated too late to tell whether it was done: it was not done now."""

    def __init__(self, model: str):
        super().__init__(
            f"an append to {model!r} was repeated after so many others that nobody can tell "
            "whether it was done"
        )


class NotReplicated(JournalError):
    """The store did it, and fewer replicas than were asked for said in time that they have it.

    It is lost if the server that did it is lost before they have it.
    """


class UnknownModel(JournalError):
    """No model of that id."""

    def __init__(self, model: str):
        super().__init__(f"no model {model!r}")
        self.model = model


class ModelChanged(JournalError):
    """The model is gone, or was deleted and made again: its incarnation is another one."""

    def __init__(self, model: str):
        super().__init__(f"model {model!r} was deleted or made again")
        self.model = model


class Conflict(JournalError):
    """What the caller saw is not what the store holds."""


class NotHeld(Conflict):
    """The log neither leads on from this seq with this chain nor ends there."""

    def __init__(self, model: str, seq: int, chain: str):
        super().__init__(f"the log of {model!r} does not hold chain {chain[:8]} at seq {seq}")


class CursorMoved(JournalError):
    """The cursor does not stand where the caller expected it; `value` is where it stands."""

    def __init__(self, name: str, value: str | None):
        super().__init__(f"cursor {name!r} stands at {value!r}")
        self.name = name
        self.value = value


class Trimmed(JournalError):
    """Rows that were asked for are gone; the first one still kept has seq `kept_from`."""

    def __init__(self, kept_from: int):
        super().__init__(f"the journal is kept from seq {kept_from} on")
        self.kept_from = kept_from


class UnknownCopy(JournalError):
    """No copy of that digest is there; nothing was done."""

    def __init__(self, model: str, digest: str):
        super().__init__(f"model {model!r} has no copy {digest}")
        self.model = model
        self.digest = digest


class TooManyVersions(JournalError):
    """The model has as many versions as it may have; nothing was done."""

    def __init__(self, model: str, most: int):
        super().__init__(f"model {model!r} has {most} versions already, and may have no more")
        self.most = most


class TooManyPendingRows(JournalError):
    """As many rows of the model wait for their labels as may; nothing was done."""

    def __init__(self, model: str, rows: int, most: int, most_bytes: int):
        super().__init__(
            f"{rows} rows of model {model!r} wait for their labels, and no more fit into the "
            f"{most} rows and {most_bytes} bytes that may wait"
        )
        self.model = model


class StoreTooNew(JournalError):
    """The store was written by a newer version of this program."""
