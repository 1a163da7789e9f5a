"""Texts of users as terminals and logs get them: control characters are escaped.

A name or value with an escape sequence could clear the screen of an operator, and one with a line
break could forge a line of a log. Bidirectional overrides reorder what follows them.
"""

import codecs
import re

_CONTROLS = "\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
_IN_LINE = re.compile(f"[{_CONTROLS}]")
_IN_JSON = re.compile("[\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """The text as one line, with escapes as Python writes them: `\\x1b`, `\\n`."""
    return _IN_LINE.sub(lambda match: repr(match[0])[1:-1], text)


def printable_lines(text: str) -> str:
    """As `printable`, but line breaks stay: of a text that the program has composed."""
    return "\n".join(map(printable, text.split("\n")))


def printable_json(document: str) -> str:
    """The same JSON, with control characters in its texts as `\\u009b`."""
    return _IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", document)


def _escape_for(error: UnicodeError) -> tuple[str, int]:
    """Error handler of an output: `\\u20ac`, which is right in JSON, too."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    pairs = zip(units[::2], units[1::2], strict=True)
    return "".join(f"\\u{high:02x}{low:02x}" for high, low in pairs), error.end


ESCAPES = "dualstream-escapes"
"""Name of the error handler for streams: `stream.reconfigure(errors=ESCAPES)`."""
codecs.register_error(ESCAPES, _escape_for)
