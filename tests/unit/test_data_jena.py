"""Reading measurements: stamps, numbers, columns, and files that mean harm."""

from __future__ import annotations

import csv
import gzip
import hashlib
import os
import zipfile
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro.data import rawlines
from repro.data.jena import TMY3_VARIABLES, read_jena, read_tmy3
from repro.data.rawlines import MAX_LINE_BYTES, RawLines, wheel_file
from repro.data.series import Series, ordered
from repro.spec.errors import BadDataError, MissingError
from repro.spec.sets import JENA_VARIABLES
from tests.shared import shared

HEAD = '"Date Time","T (degC)","wv (m/s)"\n'


def read(tmp_path: Path, text: str | bytes, variables: list[str] | None = None, name: str = "a.csv") -> Series:
    path = tmp_path / name
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return read_jena(RawLines(path, name), variables)


def problems(tmp_path: Path, text: str | bytes, variables: list[str] | None = None, name: str = "a.csv") -> list[str]:
    with pytest.raises(BadDataError) as caught:
        read(tmp_path, text, variables, name)
    assert caught.value.exit_code == 65
    return str(caught.value).split("\n")


def test_the_2020_file_has_all_jena_variables_one_sentinel_among_them_and_one_repeated_stamp() -> None:
    path = shared("data/jena_climate/jena_2020_10min21.csv.gz")
    lines = RawLines(path, path.name)
    series = read_jena(lines, JENA_VARIABLES)
    clean, counts = ordered(series)
    assert series.values.shape == (52_696, 14)
    assert lines.sha256 == "34ee981d07313e51da2a50bb600072c8ae4a69cb4b0651f4cb93a069d7a2ba63"
    assert counts == {"out_of_order": 0, "duplicates": 1}
    assert len(clean.times) == 52_695
    assert np.isnan(clean.values).sum(axis=0).tolist() == [0] * 11 + [1, 0, 0]
    assert np.nanmin(clean.values) > -100
    assert sorted(set(np.diff(clean.times).tolist())) == [600, 6000]
    ends = clean.times[[0, -1]].astype("datetime64[s]").astype(str).tolist()
    assert ends == ["2020-01-01T00:10:00", "2021-01-01T00:00:00"]


def test_all_21_columns_of_the_2020_file_can_be_had_and_80_rows_of_them_are_not_whole() -> None:
    path = shared("data/jena_climate/jena_2020_10min21.csv.gz")
    series = read_jena(RawLines(path, path.name))
    assert series.columns[:14] == JENA_VARIABLES
    missing = dict(zip(series.columns, np.isnan(series.values).sum(axis=0).tolist(), strict=True))
    assert {name: count for name, count in missing.items() if count} == {
        "wv (m/s)": 1, "max. PAR (\ufffdmol/m\ufffd/s)": 30, "OT": 50,
    }  # fmt: skip
    assert np.isnan(series.values).any(axis=1).sum() == 80


def test_the_first_canonical_rows_are_read_day_first() -> None:
    path = shared("data/jena_climate/jena_2009_jan_10min11.csv.gz")
    series = read_jena(RawLines(path, path.name))
    assert series.values.shape == (4000, 11)
    assert series.values[0].tolist()[:3] == [996.52, -8.02, 265.4]
    ends = series.times[[0, -1]].astype("datetime64[s]").astype(str).tolist()
    assert ends == ["2009-01-01T00:10:00", "2009-01-28T18:40:00"]
    with pytest.raises(BadDataError, match=r"no column max\. wv \(m/s\)") as caught:
        read_jena(RawLines(path, path.name), JENA_VARIABLES)
    assert len(caught.value.problems) == 3


def test_the_typical_year_that_ships_with_pvlib() -> None:
    path = wheel_file("pvlib", "pvlib/data/723170TYA.CSV")
    series = read_tmy3(RawLines(path, path.name))
    with open(path, encoding="ascii", newline="") as stream:
        next(stream)
        rows = list(csv.DictReader(stream))
    assert series.columns == tuple(TMY3_VARIABLES)
    assert series.values.shape == (8760, 14)
    assert series.values.tolist() == [[float(row[name]) for name in TMY3_VARIABLES.values()] for row in rows]
    begins = [datetime.strptime(f"{row['Date (MM/DD/YYYY)']} +0000", "%m/%d/%Y %z") for row in rows]
    hours = [timedelta(hours=int(row["Time (HH:MM)"][:2])) for row in rows]
    assert series.times.tolist() == [int((day + hour).timestamp()) for day, hour in zip(begins, hours, strict=True)]


def test_columns_are_chosen_by_name_in_the_order_asked_for(tmp_path: Path) -> None:
    series = read(tmp_path, HEAD + "01.02.2009 00:10:00,-1.5,2e-1\r\n", ["wv (m/s)", "T (degC)"])
    assert series.columns == ("wv (m/s)", "T (degC)")
    assert series.values.tolist() == [[0.2, -1.5]]
    assert str(series.times[0].astype("datetime64[s]")) == "2009-02-01T00:10:00"


@pytest.mark.parametrize("field", ["nan", "inf", "-inf", "", " 1", "1_000", "0x1", "1e999", "1,5", "--1", "NULL", "١"])
def test_what_is_no_plain_number_is_refused_with_its_line(tmp_path: Path, field: str) -> None:
    found = problems(tmp_path, HEAD + f"01.02.2009 00:10:00,1,2\n01.02.2009 00:20:00,{field},2\n")
    assert len(found) == 1
    assert found[0].startswith("a.csv:3:")


@pytest.mark.parametrize(
    "stamp",
    ["2009-02-01 00:10:00", "31.02.2009 00:10:00", "01.13.2009 00:10:00", "01.02.2009 24:00:00", "1.2.2009 00:10:00",
     "01.02.2009 00:60:00", "01.02.2009", "", "01.02.0000 00:10:00", "01/02/2009 00:10:00", "01.02.2009 00:10:00 "],
)  # fmt: skip
def test_a_stamp_of_another_form_is_refused_with_its_line(tmp_path: Path, stamp: str) -> None:
    found = problems(tmp_path, HEAD + f"01.02.2009 00:10:00,1,2\n{stamp},1,2\n")
    assert found == [f"a.csv:3: Date Time: {stamp} is no stamp dd.mm.yyyy HH:MM:SS"]


def test_all_bad_lines_are_named_at_once_up_to_a_hundred(tmp_path: Path) -> None:
    row = "01.02.2009 00:10:00,1,2\n"
    found = problems(tmp_path, HEAD + row + "x,1,2\n" + row + "01.02.2009 00:10:00,1\n01.02.2009 00:10:00,a,b\n")
    assert [line.split(":")[1] for line in found] == ["3", "5", "6", "6"]
    assert "2 fields, the header has 3" in found[1]
    many = problems(tmp_path, HEAD + "x,1,2\n" * 5000)
    assert len(many) == 101
    assert any("the rest was not read" in line for line in many)


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("", "has no header"),
        ("time,T\n", 'the first column is time, "Date Time" or "date" is expected'),
        ("Date Time\n", "2 to 1000 columns"),
        ("Date Time,T,T\n", "columns with names of their own"),
        ('"Date Time,T\n', "no header of a CSV file"),
        ("Date Time" + ",c" * 1200 + "\n", "2 to 1000 columns"),
        (HEAD, "has a header but no rows"),
    ],
)
def test_headers_that_are_none(tmp_path: Path, header: str, said: str) -> None:
    assert said in problems(tmp_path, header)[0]


def test_an_absent_column_is_refused_with_a_suggestion(tmp_path: Path) -> None:
    found = problems(tmp_path, HEAD + "01.02.2009 00:10:00,1,2\n", ["t (degc)"])
    assert found[0].startswith('a.csv:1: header: no column t (degc); did you mean "T (degC)"?')


def test_d10_other_marks_for_a_missing_wind_are_no_numbers(tmp_path: Path) -> None:
    marks = ["-999.0", "-99999", "-9999.9", "9999", "-0.5", "150.1"]
    rows = [f"01.01.2009 0{i}:00:00,-999.0,{mark}\n" for i, mark in enumerate(["0", "150", "-9999", "-9999.0", *marks])]
    said = problems(tmp_path, HEAD + "".join(rows))
    mend = "is no wind speed (0 to 150); a missing value is written -9999"
    assert said == [f"a.csv:{line}: wv (m/s): {float(mark)} {mend}" for line, mark in enumerate(marks, 6)]
    series = read(tmp_path, HEAD + "".join(rows[:4]))
    assert series.values[:2, 1].tolist() == [0.0, 150.0]
    assert np.isnan(series.values[2:, 1]).all()
    assert read(tmp_path, HEAD + rows[4], ["T (degC)"]).values.tolist() == [[-999.0]]  # a column that nobody asked for


def test_d11_blank_lines_at_the_end_are_none_and_others_are_named(tmp_path: Path) -> None:
    row = "01.01.2009 00:00:00,1,2\n"
    assert read(tmp_path, HEAD + row + "\n\r\n\n").values.tolist() == [[1.0, 2.0]]
    assert problems(tmp_path, HEAD + row + "\n\n" + row + "\n") == [
        f"a.csv:{line}: 1 fields, the header has 3" for line in (3, 4)
    ]


def test_a_line_without_end_is_not_taken_into_memory(tmp_path: Path) -> None:
    assert problems(tmp_path, HEAD.encode() + b"1" * (50 << 20), name="a.csv.gz") == [
        f"a.csv.gz:2: longer than {MAX_LINE_BYTES} bytes"
    ]


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    assert problems(tmp_path, HEAD + "01.02.2009 00:10:00,1,\0\n") == ["a.csv:2: holds byte 0: this is no text"]
    found = problems(tmp_path, HEAD.encode() + b"01.02.2009 00:10:00,\xff\x1b[2J,2\n")
    assert found == ["a.csv:2: T (degC): \ufffd?[2J is no number; a missing value is written -9999"]


def test_a_file_with_too_many_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rawlines, "MAX_LINES", 3)
    assert problems(tmp_path, HEAD + "01.02.2009 00:10:00,1,2\n" * 3) == ["a.csv: more than 3 lines"]


def test_packed_files_that_are_damaged(tmp_path: Path) -> None:
    whole = gzip.compress((HEAD + "01.02.2009 00:10:00,1,2\n" * 9000).encode())
    for data in (whole[:-200], b"no gzip", whole[:40] + bytes(8) + whole[48:]):
        path = tmp_path / "a.csv.gz"
        path.write_bytes(data)
        with pytest.raises(BadDataError, match="cannot be read to its end"):
            read_jena(RawLines(path, path.name))
    for name in ("a.zip", "missing.csv"):
        if name.endswith("zip"):
            (tmp_path / name).write_bytes(b"PK no archive")
        with pytest.raises(BadDataError, match=f"{name}: cannot be read to its end"):
            read_jena(RawLines(tmp_path / name, name))


def test_the_one_member_of_a_zip_is_read_in_place(tmp_path: Path) -> None:
    text = HEAD + "01.02.2009 00:10:00,1,2\n"
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../../out.csv", text)
        archive.writestr("__MACOSX/._out.csv", "x")
    lines = RawLines(path, path.name, "*.csv")
    assert read_jena(lines).values.tolist() == [[1.0, 2.0]]
    assert lines.sha256 == hashlib.sha256(text.encode()).hexdigest()
    assert os.listdir(tmp_path) == ["a.zip"]
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("two.csv", text)
    with pytest.raises(BadDataError, match=r"holds 2 files for \*\.csv, one is expected"):
        read_jena(RawLines(path, path.name, "*.csv"))


def test_a_package_that_is_not_there() -> None:
    with pytest.raises(MissingError, match=r"package no-such-dist: is not installed; it carries b\.csv"):
        wheel_file("no-such-dist", "a/b.csv")
    with pytest.raises(MissingError, match="does not carry a/b"):
        wheel_file("pvlib", "a/b.csv")


def test_a_typical_year_of_another_form_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("")
    with pytest.raises(BadDataError, match="is empty"):
        read_tmy3(RawLines(path, "t.csv"))
    path.write_text("station\nDate (MM/DD/YYYY),Time (HH:MM),Pwat (cm)\n01/31/1988,24:00,1.5\n01/01/1988,25:00,2\n")
    with pytest.raises(BadDataError, match=r"t\.csv:4: .*01/01/1988 25:00:00 is no stamp mm/dd/yyyy HH:MM"):
        read_tmy3(RawLines(path, "t.csv"), ["precipitable_water"])


@given(
    st.lists(st.floats(-9998, 1e6, allow_nan=False).map(lambda value: round(value, 3) + 0.0), min_size=1, max_size=20)
)
def test_numbers_come_back_as_they_were_written(tmp_path_factory: pytest.TempPathFactory, values: list[float]) -> None:
    rows = "".join(f"01.02.2009 00:{minute:02}:00,{value!r},-9999.00\n" for minute, value in enumerate(values))
    series = read(tmp_path_factory.mktemp("h"), HEAD + rows)
    assert series.values[:, 0].tolist() == values
    assert np.isnan(series.values[:, 1]).all()
