"""The classic metric names as local modules: `evaluate.load(str(module_path("rouge")))` needs no other machine.

Each file hands its numbers to the code of this package, so that both ways give the same ones.
"""

from __future__ import annotations

from pathlib import Path

from repro.spec.errors import ConfigError, problem_error, shown, suggest

NAMES = ("accuracy", "bertscore", "mae", "mse", "perplexity", "rouge")


def module_path(name: str) -> Path:
    """The file to give to `evaluate.load`; raises ConfigError for a name that is not in `NAMES`."""
    if name not in NAMES:
        message = f'no metric "{shown(name)}"{suggest(name, NAMES)}'
        raise problem_error(ConfigError, "evaluate", "metric", message)
    return Path(__file__).resolve().parent / f"{name}.py"


def private_cache(folder: Path) -> dict[str, str]:
    """Environment of a scoring job that shares no cache file with another job and writes nothing under HOME.

    It must be set before `evaluate` is imported, which reads it once; `folder` belongs to one job alone.
    """
    places = {
        "HF_HOME": "",
        "HF_HUB_CACHE": "hub",
        "HF_MODULES_CACHE": "modules",
        "HF_DATASETS_CACHE": "datasets",
        "HF_EVALUATE_CACHE": "evaluate",
        "HF_METRICS_CACHE": "metrics",
        "XDG_CACHE_HOME": "cache",
        "MPLCONFIGDIR": "matplotlib",  # bert-score imports it
    }
    offline = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_EVALUATE_OFFLINE", "TRANSFORMERS_OFFLINE")
    return {name: str(folder / place) for name, place in places.items()} | dict.fromkeys(offline, "1")
