"""Where a mean-field flow ended: its risk, the kernel there, and whether the risk still falls as the theorem says."""

from __future__ import annotations

from repro.evaluate.flow_evidence import FlowEvidence
from repro.records.measured import Measured

INFO = {
    "title": "end of a mean-field flow",
    "says": "risk at the end and as a share of the start; smallest kernel eigenvalue; fall rate over twice the latter",
    "rules": 1,
    "task": "flow",
    "values": {
        "flow_risk": {"unit": "1", "better": "lower", "low": 0},
        "flow_risk_share": {"unit": "1", "better": "lower", "low": 0},
        "flow_lambda_min": {"unit": "1", "better": "none"},
        "flow_rate_over_lambda": {"unit": "1", "better": "none"},
    },
}


def compute(evidence: FlowEvidence) -> Measured:
    """n counts numbers of the targets. The fall rate at the end is |grad R|^2 / R; the theorem wants a ratio >= 1."""
    first, _, _ = evidence.at(evidence.start)
    risk, slope, smallest = evidence.at(evidence.net.numpy())
    values = {
        "flow_risk": risk,
        "flow_risk_share": risk / first,
        "flow_lambda_min": smallest,
        "flow_rate_over_lambda": slope / (2 * smallest * risk),
    }
    return Measured(values, evidence.problem.targets.size, {"risk_at_start": first})
