"""Bits per byte of text: comparable between tokenizers, where losses a token are not."""

from __future__ import annotations

from repro.evaluate.evidence import Evidence
from repro.evaluate.losses import bits_per_byte
from repro.records.measured import Measured

INFO = {
    "title": "bits per byte",
    "says": "sum of token losses in bits over the UTF-8 bytes of the target text",
    "rules": 1,
    "values": {"bits_per_byte": {"unit": "bits/byte", "better": "lower", "low": 0}},
}


def compute(evidence: Evidence) -> Measured:
    """n counts bytes."""
    losses = evidence.losses
    size = int(losses.text_bytes.sum())
    return Measured({"bits_per_byte": bits_per_byte(losses)}, size, {"tokens": losses.count})
