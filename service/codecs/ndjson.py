"""application/x-ndjson: one sample a line, each as it stands in application/json."""

from msgspec import UNSET

from service.codecs.door import BadRow, Door
from service.codecs.intake import Intake, IntakeBuilder
from service.codecs.json_rows import read_sample

_SPACE = b" \t\r"  # JSON's white space within a line


def parse_ndjson(door: Door, body: bytes, labelled: bool) -> Intake:
    """Rows of NDJSON. A line that does not parse is a bad row; blank lines are none."""
    build = IntakeBuilder(door, labelled)
    place = 0
    for number, line in enumerate(body.split(b"\n"), 1):
        if not line.strip(_SPACE):
            continue
        try:
            take_line(build, place, line, door.is_hashed, labelled)
        except BadRow as bad:
            build.refuse(place, bad.pointer, bad.reason, number)
        place += 1
    return build.intake()


def take_line(
    build: IntakeBuilder, place: int, line: bytes, is_hashed: bool, labelled: bool
) -> None:
    """Add the sample of one line; raises BadRow and adds nothing."""
    sample = read_sample(line, is_hashed)
    y = None if sample.y is UNSET else sample.y
    if labelled and sample.y is UNSET:
        raise BadRow("/y", "the label is missing")
    weight = 1.0 if sample.weight is UNSET else sample.weight
    build.take(place, sample.x, y, weight, None if sample.id is UNSET else sample.id)
