"""Answers that leave whole: uvicorn writes the head of one and then its body.

Each write is a system call and a packet, which wakes the client and takes longer than the answer.
"""

from collections.abc import Sequence

from starlette.types import Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle


def answered_whole(
    send: Send, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes
) -> bool:
    """Whether the answer is written; else it is to be sent, as to any server.

    `headers` are good ones, with the length of the body among them.
    """
    cycle = getattr(send, "__self__", None)  # what stands between may add to the answer
    if type(cycle) is not RequestResponseCycle or cycle.scope["method"] == "HEAD":
        return False
    if cycle.response_started or cycle.disconnected or cycle.flow.write_paused or cycle.access_log:
        return False
    pieces = [STATUS_LINE[status]]
    pieces += [b"%b: %b\r\n" % header for header in cycle.default_headers]
    pieces += [b"%b: %b\r\n" % header for header in headers]
    pieces += (b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n", body)
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    cycle.transport.write(b"".join(pieces))
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()
    return True
