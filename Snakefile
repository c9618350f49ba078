# The DAG of the suite; rules only call verbs of the package `repro`. docs/decisions/002-workflow.md says why.
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.utils import min_version

min_version("9.19")
# This checkout's own package and interpreter, whatever else is installed. A prefix replaces Snakemake's own one.
sys.path.insert(0, str(Path(workflow.basedir)))
BIN = str(Path(sys.executable).parent)
shell.prefix("set -euo pipefail; export PATH={BIN:q}:$PATH; ")

from repro.dag import PAPERS, read_dag
from repro.spec.errors import ReproError

if unknown := set(config) - {"tier"}:
    raise WorkflowError(f"--config: unknown key {sorted(unknown)}; known: tier")
try:
    asked = workflow.resource_settings
    SUITE = read_dag(config.get("tier"), workflow.is_main_process, asked)
except ReproError as error:
    raise WorkflowError(f"refused before any job:\n{error}") from None

TIER = SUITE.plan.tier
TABLES = f"results/tables/{TIER}"
SITE = f"results/site/{TIER}/index.html"
# A leaderboard needs an experiment that takes all methods of its track.
BOARDS = [f"{TABLES}/leaderboard_lm.csv"] if SUITE.views["leaderboard"] else []
VIEWS = [*(f"{TABLES}/paper_{paper}.csv" for paper in PAPERS), *BOARDS, SITE]


wildcard_constraints:
    chunk="[0-9a-f]{12}",
    digest="[0-9a-f]{12}",
    paper="[abcd]",


rule all:
    default_target: True
    input:
        lambda wildcards: SUITE.keys(),
        VIEWS,


include: "workflow/rules/data.smk"
include: "workflow/rules/run.smk"
include: "workflow/rules/theory.smk"
include: "workflow/rules/tables.smk"
include: "workflow/rules/papers.smk"
include: "workflow/rules/site.smk"


# Whatever happened, tables and page exist afterwards; what is up to date is left alone.
onsuccess:
    shell("python -m repro report --tier {TIER:q} --log {log:q}")


onerror:
    shell("python -m repro report --tier {TIER:q} --log {log:q}")
