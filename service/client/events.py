"""Server-sent events, read line by line."""

import msgspec

from service.client.answers import Event


class EventReader:
    """Lines of a stream into events; a comment, which says that the stream lives, is none."""

    def __init__(self) -> None:
        self._fields: dict[str, str] = {}

    def line(self, text: str) -> Event | None:
        """The event that ends with this line, without its end."""
        if text:
            name, _, value = text.partition(":")
            self._fields[name] = value.removeprefix(" ")
            return None
        fields, self._fields = self._fields, {}
        if "data" not in fields:
            return None
        told = msgspec.json.decode(fields["data"])
        return Event(kind=fields.get("event", ""), id=fields.get("id", ""), told=told)
