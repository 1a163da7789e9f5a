"""Requests as bytes."""


def request(path: str, body: bytes, is_chunked: bool = False) -> bytes:
    if not is_chunked:
        return b"POST %b HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n%b" % (
            path.encode(),
            len(body),
            body,
        )
    head = b"POST %b HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n" % path.encode()
    return head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
