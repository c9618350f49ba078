"""Records that speak of one thing must have seen one thing: equal data, and as many items in each number.

A plan pins the bytes that its data are made of, so whatever differs was made of something else, on another machine
or by hand. What most records say stands; the others are in no number, as nothing tells how far off they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

from repro.spec.hashing import sha256_json, short

Sightings = Mapping[str, str]


class Sighted(Protocol):
    """Of a record, what it saw."""

    @property
    def saw(self) -> Sightings:
        """As `sightings` makes it."""
        ...


T = TypeVar("T", bound=Sighted)


def sightings(raw: dict[str, Any]) -> dict[str, str]:
    """{what other records speak of too: a short hash of what this one saw}; checks see no data."""
    saw, config = _hash(raw["data"]), raw["config"]
    if raw["kind"] == "train":
        named = config.get("data")
        return {f"data of run {raw['id']}": saw} | ({f"data with digest {short(named)}": saw} if named else {})
    if raw["kind"] == "eval":
        found = {f"data of run {raw['of']}": saw}
        if raw["metrics"]:
            what = {key: value for key, value in config.items() if key not in ("of", "weights")}
            counts = {metric["name"]: metric["n"] for metric in raw["metrics"]}
            found[f"n of {config.get('protocol')} on data {_hash([what, saw])}"] = _hash(counts)
        return found
    return {}


def _hash(value: Any) -> str:
    return short(sha256_json(value))


def disagreements(records: Iterable[T]) -> Iterator[tuple[T, str]]:
    """Each record that saw something else than most of those that speak of the same, and in words what."""
    held = list(records)
    first: dict[str, str] = {}
    told = ((about, saw) for record in held for about, saw in record.saw.items())
    unlike = {about for about, saw in told if first.setdefault(about, saw) != saw}  # most campaigns stop here
    counts = {about: Counter(one.saw[about] for one in held if about in one.saw) for about in sorted(unlike)}
    for record in held:
        for about in sorted(record.saw.keys() & unlike):
            (most, many), (_, second) = counts[about].most_common(2)
            if many == second:
                yield record, f"{about}: {counts[about].total()} records disagree, and no side has most"
            elif record.saw[about] != most:
                yield record, f"{about}: differs from what {many} other records say"
