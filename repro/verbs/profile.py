"""What is wrong with resources that a profile or a rule asks for: Snakemake takes any key, Slurm's executor a few."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from repro.spec.errors import shown

# Read by Snakemake itself or by its Slurm executor; any other key is legal, and ignored.
KNOWN = frozenset(
    (
        *("cluster", "clusters", "constraint", "cpus_per_gpu", "cpus_per_task", "disk", "disk_mb", "disk_mib", "gpu"),
        *("gpu_model", "gres", "mem", "mem_mb", "mem_mb_per_cpu", "mem_mib", "mpi", "nodes", "qos", "runtime"),
        *("slurm_account", "slurm_cluster", "slurm_extra", "slurm_partition", "tasks", "tasks_per_gpu"),
        *("tasks_per_node", "tmpdir"),
    )
)
_GRES = re.compile(r"[A-Za-z0-9_]+(:[A-Za-z0-9_.]+)?(:\d+[TGM]?)?")
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([dhms])")
_MINUTES = {"d": 1440.0, "h": 60.0, "m": 1.0, "s": 1 / 60}


def minutes(value: Any) -> float | None:
    """Minutes that a walltime stands for; a bare number is one of minutes; None if it is no walltime."""
    text = str(value).strip()
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    parts = _PART.findall(text)
    if not parts or _PART.sub("", text).strip():
        return None
    return sum(float(number) * _MINUTES[unit] for number, unit in parts)


def resource_problems(asked: Mapping[str, Any], gpu_needed: bool = False) -> list[str]:
    """Problems of one request; `gpu_needed` for a training that is planned for a GPU."""
    problems = []
    for key in sorted(set(asked) - KNOWN):
        end = "would run without a GPU" if "gpu" in key else "is ignored"
        problems.append(f"{shown(key)}: key not known to the executor, {end}")
    gres = asked.get("gres")
    if gres is not None and not _GRES.fullmatch(str(gres)):
        word = "nested quotes" if str(gres)[:1] in "'\"" else "is no NAME[:TYPE][:COUNT]"
        problems.append(f"gres: {shown(gres)}: {word}")
    gpu = asked.get("gpu") or asked.get("gpu_model")
    if gpu and "gpu" in str(gres or ""):
        problems.append("gpu and gres: two GPU requests")
    if gpu_needed and not gpu and "gpu" not in str(gres or ""):
        problems.append("no GPU request")
    if "runtime" in asked:
        value = asked["runtime"]
        if minutes(value) is None:
            problems.append(f"runtime: {shown(value)} is no walltime")
        elif re.fullmatch(r"[\d.]+", str(value).strip()):
            problems.append(f"runtime: {shown(value)}: a bare number; write a unit, as in '{value}m'")
    return problems


def _pairs(value: Any) -> dict[str, Any]:
    """A request as a mapping; Snakemake also takes a list of KEY=VALUE."""
    if isinstance(value, Mapping):
        return {str(key): part for key, part in value.items()}
    return dict(str(part).split("=", 1) for part in value or [] if "=" in str(part))


def requests(profile: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name of a rule or `default`, what is asked for) of a profile."""
    yield "default", _pairs(profile.get("default-resources"))
    rules = profile.get("set-resources") or {}
    if isinstance(rules, Mapping):
        yield from ((str(rule), _pairs(asked)) for rule, asked in rules.items())
        return
    for item in rules:
        rule, _, pair = str(item).partition(":")
        yield rule, _pairs([pair])


def profile_problems(profile: Mapping[str, Any]) -> list[str]:
    """All problems of a profile's requests, with the rule that they are for."""
    return [f"{rule}: {problem}" for rule, asked in requests(profile) for problem in resource_problems(asked)]


def rule_problems(text: str) -> list[str]:
    """GPU requests of a rule file's text under a key that the executor does not know."""
    keys = re.findall(r"^\s+(\w*gpu\w*)\s*=", text, re.MULTILINE)
    return [problem for key in dict.fromkeys(keys) for problem in resource_problems({key: 1})]
