"""Case W07: a file that shows itself ten seconds after the job has ended, as on a network disk, is waited for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.e2e.suite import REPOSITORY, TIMEOUT

SNAKEFILE = """
rule late:
    output:
        "late.txt",
    shell:
        "echo made > other.txt; (sleep 10; mv other.txt {output}) > /dev/null 2>&1 &"
"""


def test_the_profile_waits_for_a_late_file(tmp_path: Path) -> None:
    """With the product's profile; only the executor is another, as Slurm ends what a job leaves in the background."""
    shutil.copytree(REPOSITORY / "slurm", tmp_path / "slurm")
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", "--profile", "slurm", "--executor", "local", "-c1"],
        cwd=tmp_path,
        env={key: value for key, value in os.environ.items() if not key.startswith("SLURM_")},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "late.txt").read_text() == "made\n"
