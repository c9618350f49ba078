"""Measurements as CSV: the Jena station in its two published forms, and the typical year that ships with pvlib.

A stamp is read in the one format that its file's header stands for, never guessed from its value: `Date Time` in
the header means day first (01.02.2009 is 1 February), `date` means year first. -9999 in any column means that
nothing was measured; it becomes NaN here and is never a number after that. A wind speed that there cannot be is some
other mark for the same, and refused: only its writer knows what else it marks.
"""

from __future__ import annotations

import csv
import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from repro.data.rawlines import RawLines
from repro.data.series import Series
from repro.spec.errors import shown, suggest

SENTINEL = -9999.0
WIND_SPEEDS = ("wv (m/s)", "max. wv (m/s)", "Wspd (m/s)")
FASTEST_WIND = 150.0  # m/s; the fastest gust measured was 113, in a tornado some 135 by radar
MAX_COLUMNS = 1000
_CLOCK = rb"(\d\d):(\d\d):(\d\d)"
_DAY_FIRST = re.compile(rb"(?P<d>\d\d)\.(?P<m>\d\d)\.(?P<y>\d{4}) (?P<clock>\d\d:\d\d:\d\d)")
_YEAR_FIRST = re.compile(rb"(?P<y>\d{4})-(?P<m>\d\d)-(?P<d>\d\d) (?P<clock>\d\d:\d\d:\d\d)")
_TYPICAL = re.compile(rb"(?P<m>\d\d)/(?P<d>\d\d)/(?P<y>\d{4}) (?P<clock>\d\d:\d\d:\d\d)")
_STAMPS = {
    "Date Time": (_DAY_FIRST, "dd.mm.yyyy HH:MM:SS"),
    "date": (_YEAR_FIRST, "yyyy-mm-dd HH:MM:SS"),
}
_NUMBER = rb"-?\d{1,12}(?:\.\d{1,12})?(?:[eE][-+]?\d{1,2})?"
# pvlib's names of the 14 columns of its file that are numbers in every row, and the file's own.
TMY3_VARIABLES = {
    "temp_air": "Dry-bulb (C)",
    "temp_dew": "Dew-point (C)",
    "relative_humidity": "RHum (%)",
    "pressure": "Pressure (mbar)",
    "wind_speed": "Wspd (m/s)",
    "wind_direction": "Wdir (degrees)",
    "ghi": "GHI (W/m^2)",
    "dni": "DNI (W/m^2)",
    "dhi": "DHI (W/m^2)",
    "ghi_extra": "ETR (W/m^2)",
    "dni_extra": "ETRN (W/m^2)",
    "TotCld": "TotCld (tenths)",
    "OpqCld": "OpqCld (tenths)",
    "precipitable_water": "Pwat (cm)",
}

Stamp = Callable[[list[bytes]], int]


def read_jena(lines: RawLines, variables: Sequence[str] | None = None) -> Series:
    """Rows in the file's order with the columns named in `variables`, or with all; -9999 is NaN.

    Raises BadDataError, with every line that is wrong (the first 100): no such column, another number of fields,
    a stamp or value that is none (NaN and infinities too), an empty field, and whatever `RawLines` refuses.
    """
    numbered = iter(lines)
    header = _header(lines, numbered)
    if header[0] not in _STAMPS:
        known = " or ".join(f'"{name}"' for name in _STAMPS)
        lines.faults.stop(1, f"the first column is {shown(header[0])}, {known} is expected", "header")
    form, said = _STAMPS[header[0]]
    return _table(lines, numbered, header, variables or header[1:], lambda fields: _seconds(form, said, fields[0]))


def read_tmy3(lines: RawLines, variables: Sequence[str] | None = None) -> Series:
    """The typical year of pvlib's file, months from years of their own and stamped so; names as pvlib's.

    One line about the station, the header, then hourly rows stamped by the hour's end, 01:00 ... 24:00. Raises as
    `read_jena`.
    """
    numbered = iter(lines)
    if next(numbered, None) is None:
        lines.faults.stop(None, "is empty")
    header = _header(lines, numbered)
    names = list(variables or TMY3_VARIABLES)
    columns = [TMY3_VARIABLES.get(name, name) for name in names]
    series = _table(lines, numbered, header, columns, _typical_hour)
    return Series(series.times, series.values, tuple(names))


def _header(lines: RawLines, numbered: Iterator[tuple[int, bytes]]) -> list[str]:
    """Names of the columns; signs that are no UTF-8 become U+FFFD, as in one published file they already are."""
    number, line = next(numbered, (0, b""))
    if not line:
        lines.faults.stop(None, "has no header")
    try:
        header = next(csv.reader([line.decode("utf-8-sig", "replace")], strict=True))
    except csv.Error as error:
        lines.faults.stop(number, f"is no header of a CSV file ({error})", "header")
    if not 2 <= len(header) <= MAX_COLUMNS or len(set(header)) < len(header):
        lines.faults.stop(number, f"2 to {MAX_COLUMNS} columns with names of their own are expected", "header")
    return header


def _table(
    lines: RawLines, numbered: Iterator[tuple[int, bytes]], header: list[str], wanted: Sequence[str], stamp: Stamp
) -> Series:
    """Stamps and chosen columns of all rows that follow, held as 8 bytes a number."""
    faults = lines.faults
    for name in dict.fromkeys(wanted):
        if name not in header:
            faults.add(1, "header", f"no column {shown(name)}{suggest(name, header)}")
    faults.check()
    places = [header.index(name) for name in wanted]
    numbers = re.compile(b",".join([_NUMBER] * len(places)))
    times, cells, row_lines = array("q"), array("d"), array("q")
    for number, line in numbered:
        fields = line.split(b",")
        if len(fields) != len(header):
            faults.add(number, "", f"{len(fields)} fields, the header has {len(header)}")
            continue
        chosen = [fields[place] for place in places]
        if not numbers.fullmatch(b",".join(chosen)):
            _name_fields(lines, number, wanted, chosen)
            continue
        try:
            times.append(stamp(fields))
        except ValueError as error:
            faults.add(number, header[0], str(error))
        cells.extend(map(float, chosen))
        row_lines.append(number)
    faults.check()
    if not times:
        faults.stop(None, "has a header but no rows")
    values = np.frombuffer(cells, np.float64).reshape(len(times), len(places)).copy()
    values[values == SENTINEL] = np.nan
    _check_wind(lines, wanted, values, row_lines)
    return Series(np.frombuffer(times, np.int64).copy(), values, tuple(wanted))


def _name_fields(lines: RawLines, number: int, wanted: Sequence[str], chosen: list[bytes]) -> None:
    """Which of a line's fields are no numbers."""
    for name, field in zip(wanted, chosen, strict=True):
        if not re.fullmatch(_NUMBER, field):
            what = shown(field.decode("utf-8", "replace")) if field else "an empty field"
            lines.faults.add(number, name, f"{what} is no number; a missing value is written -9999")


def _check_wind(lines: RawLines, wanted: Sequence[str], values: NDArray[np.float64], numbers: Sequence[int]) -> None:
    """Refuses wind speeds that there cannot be, with their lines; `values` [n, d] stand in the lines `numbers` [n]."""
    for place, name in enumerate(wanted):
        column = values[:, place] if name in WIND_SPEEDS else np.empty(0)
        for row in np.flatnonzero((column < 0) | (column > FASTEST_WIND)).tolist():
            message = f"{column[row]} is no wind speed (0 to {FASTEST_WIND:.0f}); a missing value is written -9999"
            lines.faults.add(numbers[row], name, message)
    lines.faults.check()


@lru_cache(maxsize=4096)
def _day(year: bytes, month: bytes, day: bytes) -> int:
    """Seconds from 1970 to the start of a day; ValueError if there is no such day."""
    return (date(int(year), int(month), int(day)).toordinal() - date(1970, 1, 1).toordinal()) * 86400


@lru_cache(maxsize=4096)
def _clock(text: bytes) -> int:
    """Seconds since midnight; ValueError if there is no such time."""
    match = re.fullmatch(_CLOCK, text)
    hour, minute, second = (int(part) for part in match.groups()) if match else (24, 0, 0)
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError("no such time")
    return hour * 3600 + minute * 60 + second


def _seconds(form: re.Pattern[bytes], said: str, text: bytes) -> int:
    """Seconds since 1970 of a stamp in exactly this form."""
    try:
        if match := form.fullmatch(text):
            return _day(match["y"], match["m"], match["d"]) + _clock(match["clock"])
    except ValueError:  # the form of a stamp, but no day or time that there is
        pass
    raise ValueError(f"{shown(text.decode('utf-8', 'replace'))} is no stamp {said}")


def _typical_hour(fields: list[bytes]) -> int:
    """Hour 24 is the first of the next day."""
    last = fields[1].startswith(b"24:")
    text = fields[0] + b" " + (b"00:" + fields[1][3:] if last else fields[1]) + b":00"
    return _seconds(_TYPICAL, "mm/dd/yyyy HH:MM", text) + 86400 * last
