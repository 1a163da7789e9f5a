"""Times of flat rows: ISO 8601 and numbers, as features of their parts."""

import math

from dualstream.solvers.jit import RO_U1, kernel
from dualstream.solvers.rows.text.flat import features, layout
from dualstream.solvers.rows.text.tokens import digit, json_number

HOUR, WEEKDAY, MONTH_DAY, YEAR_DAY, AGE = 1, 2, 3, 4, 5
"""Parts: digits to base 8 of a node's OPTION, the first part last."""
DAY_S, YEAR_DAYS, MONTH_DAYS = 86_400, 366.0, 31.0
DATES_BELOW, SECONDS_BELOW, MILLIS_BELOW, MICROS_BELOW = 1e8, 1e11, 1e14, 1e17
FIRST_DATE = 10_000_101
"""Numbers from here to DATES_BELOW are dates by their digits, if they are any time."""
MIN_YEAR, MAX_YEAR = 2, 9998
"""Years for which no zone leads out of what Python's datetime holds."""
MAX_NANOS = 1e20
BAD = -(1 << 62)
"""Days or microseconds of what is not certain to be a time."""


@kernel(inner=True)
def before_year(year: int) -> int:
    """Days from 1970 to the begin of a year."""
    past = year - 1
    return past * 365 + past // 4 - past // 100 + past // 400 - 719_162


@kernel(inner=True)
def before_month(month: int, is_leap: bool) -> int:
    """Days of a year before a month."""
    if month <= 2:
        return 31 * (month - 1)
    return 59 + is_leap + (153 * (month - 3) + 2) // 5


@kernel(inner=True)
def days_of(year: int, month: int, day: int) -> int:
    """Days since 1970 of a date in the Gregorian calendar, or BAD."""
    if not (MIN_YEAR <= year <= MAX_YEAR and 1 <= month <= 12 and 1 <= day <= 31):
        return BAD
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    most = 31 - (month == 4 or month == 6 or month == 9 or month == 11)
    if month == 2:
        most = 29 if is_leap else 28
    if day > most:
        return BAD
    return before_year(year) + before_month(month, is_leap) + day - 1


@kernel(inner=True)
def digits_at(text: RO_U1, p: int, count: int) -> int:
    """The number of `count` digits at p, or -1."""
    number = 0
    for k in range(count):
        d = digit(text[p + k])
        if not 0 <= d <= 9:
            return -1
        number = number * 10 + d
    return number


@kernel(inner=True)
def zone_of(text: RO_U1, p: int, end: int) -> int:
    """Seconds of the zone text[p:end] east of UTC: Z, ` UTC`, +HH, +HHMM, +HH:MM or nothing; or
    BAD."""
    if p == end or (text[p] == 90 and p + 1 == end):
        return 0
    size = end - p
    if size == 4 and text[p] == 32 and text[p + 1] == 85 and text[p + 2] == 84:
        return 0 if text[p + 3] == 67 else BAD
    if (text[p] != 43 and text[p] != 45) or (size != 3 and size != 5 and size != 6):
        return BAD
    hours = digits_at(text, p + 1, 2)
    minutes = 0 if size == 3 else digits_at(text, end - 2, 2)
    if size == 6 and text[p + 3] != 58:
        return BAD
    if not 0 <= hours <= 23 or not 0 <= minutes <= 59:
        return BAD
    seconds = hours * 3600 + minutes * 60
    return -seconds if text[p] == 45 else seconds


@kernel(inner=True)
def iso_time(text: RO_U1, start: int, end: int) -> tuple[int, int]:
    """Seconds since 1970 and microseconds of YYYY-MM-DD[(T| )HH:MM[:SS[.ffffff]][zone]], or BAD."""
    if end - start < 10 or text[start + 4] != 45 or text[start + 7] != 45:
        return BAD, 0
    year, month = digits_at(text, start, 4), digits_at(text, start + 5, 2)
    days = days_of(year, month, digits_at(text, start + 8, 2))
    if days == BAD or end - start == 10:
        return (days if days == BAD else days * DAY_S), 0
    p = start + 10
    if (text[p] != 84 and text[p] != 32) or end - p < 6 or text[p + 3] != 58:
        return BAD, 0
    hour, minute = digits_at(text, p + 1, 2), digits_at(text, p + 4, 2)
    second = micros = 0
    p += 6
    if end - p >= 3 and text[p] == 58:
        second = digits_at(text, p + 1, 2)
        p += 3
        if p < end and text[p] == 46:
            p += 1
            size = 0
            while p < end and size < 7 and 0 <= digit(text[p]) <= 9:
                micros = micros * 10 + digit(text[p])
                p += 1
                size += 1
            if not 1 <= size <= 6:
                return BAD, 0
            for _ in range(size, 6):
                micros *= 10
    if not (0 <= hour <= 23 and 0 <= minute <= 59 and 0 <= second <= 59):
        return BAD, 0
    zone = zone_of(text, p, end)
    if zone == BAD:
        return BAD, 0
    return days * DAY_S + hour * 3600 + minute * 60 + second - zone, micros


@kernel(inner=True)
def time_of_number(x: float) -> tuple[int, int]:
    """Seconds since 1970 and microseconds of a number, or BAD.

    Microseconds are rounded half to even, as by `datetime.fromtimestamp`.
    """
    if x < DATES_BELOW:
        if x < FIRST_DATE or x != math.floor(x):
            return BAD, 0
        date = int(x)
        days = days_of(date // 10_000, date // 100 % 100, date % 100)
        return (days if days == BAD else days * DAY_S), 0
    if not x < MAX_NANOS:
        return BAD, 0
    if x >= SECONDS_BELOW:
        x /= 1e3 if x < MILLIS_BELOW else 1e6 if x < MICROS_BELOW else 1e9
    whole = math.floor(x)
    scaled = (x - whole) * 1e6
    micros = math.floor(scaled)
    rest = scaled - micros
    if rest > 0.5 or (rest == 0.5 and micros % 2 == 1):
        micros += 1
    if micros >= 1_000_000:
        return whole + 1, 0
    return whole, micros


@kernel(inner=True)
def day_in_year(days: int) -> tuple[int, int]:
    """Day in its year and in its month, both from 0, of a day since 1970."""
    year = 1970 + days * 400 // 146_097
    while before_year(year + 1) <= days:
        year += 1
    while before_year(year) > days:
        year -= 1
    day = days - before_year(year)
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    month = day // 31 + 1
    if month < 12 and before_month(month + 1, is_leap) <= day:
        month += 1
    return day, day - before_month(month, is_leap)


@kernel(inner=True)
def note_count(node: int, count: int, out: layout.OUT) -> int:
    """Note a number of at most three digits as a part's category; False if there is no room."""
    at = features.JOINED_AT
    if count >= 100:
        out.scratch[at] = 48 + count // 100
        at += 1
    if count >= 10:
        out.scratch[at] = 48 + count // 10 % 10
        at += 1
    out.scratch[at] = 48 + count % 10
    return features.note(node, out.scratch, features.JOINED_AT, at + 1, out)


@kernel(inner=True)
def put_time(node: int, seconds: int, micros: int, nnz: int, out: layout.OUT) -> int:
    """Add the parts of a time, in seconds since 1970 and microseconds; see `seconds_of`, too."""
    at = layout.NODES_AT + node * layout.FIELDS
    part, parts = out.plan[at + layout.FIRST], out.plan[at + layout.OPTION]
    days = seconds // DAY_S
    of_day = seconds - days * DAY_S
    hour = of_day // 3600
    day = hour * 3600.0 + of_day // 60 % 60 * 60.0 + of_day % 60 + micros * 1e-6
    day /= 86_400.0
    year_day, month_day = day_in_year(days)
    since = seconds + micros * 1e-6
    since = since if since != 0.0 else 1e-6
    if out.plan[at + layout.INPUT]:
        if since > out.notes[layout.LATEST]:
            return layout.NOT_MINE
        nnz = features.put_input(out.plan[at + layout.INPUT], since, nnz, out)
        if nnz < 0:
            return nnz
    while parts > 0:
        kind = parts % 8
        parts //= 8
        if kind == WEEKDAY:
            first = layout.WEEKDAYS_AT + 3 * ((days + 3) % 7)
            if not features.note(part, out.texts, first, first + 3, out):
                return layout.NOT_MINE
            nnz = features.put_made(part, out.texts, first, first + 3, nnz, out)
            part += 1
            if nnz < 0:
                return nnz
            continue
        if kind == AGE:
            nnz = features.put_named(part, since, nnz, out)
            part += 1
            if nnz < 0:
                return nnz
            continue
        if kind == HOUR:
            turn, count = day, hour
        elif kind == MONTH_DAY:
            turn, count = (month_day + day) / MONTH_DAYS, month_day + 1
        else:
            turn, count = (year_day + day) / YEAR_DAYS, year_day + 1
        angle = 2.0 * math.pi * turn
        if not note_count(part, count, out):
            return layout.NOT_MINE
        nnz = features.put_named(part, math.sin(angle), nnz, out)
        if nnz >= 0:
            nnz = features.put_named(part + 1, math.cos(angle), nnz, out)
        if nnz < 0:
            return nnz
        part += 2
    return nnz


@kernel(inner=True)
def put_number_as_time(node: int, x: float, nnz: int, out: layout.OUT) -> int:
    """Add a number to a column of times."""
    seconds, micros = time_of_number(x)
    return layout.NOT_MINE if seconds == BAD else put_time(node, seconds, micros, nnz, out)


@kernel(inner=True)
def put_text_as_time(
    node: int, text: RO_U1, start: int, end: int, nnz: int, out: layout.OUT
) -> int:
    """Add a text to a column of times."""
    seconds, micros = iso_time(text, start, end)
    if seconds == BAD:
        x, q = json_number(text, start)
        if q != end:
            return layout.NOT_MINE
        seconds, micros = time_of_number(x)
    return layout.NOT_MINE if seconds == BAD else put_time(node, seconds, micros, nnz, out)
