"""The documents: generated parts are fresh, commands exist, links lead somewhere, nothing in them of a machine."""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer.main
import yaml

from repro.cli import app
from repro.plan import TIERS

ROOT = Path(__file__).resolve().parents[2]
DOCS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", ".github/pull_request_template.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
# Programs beside our own that a block may call; what they are given is not looked at.
OTHER_PROGRAMS = {"source", "echo", "git", "tmux"}
WORDS_OF_VERDICTS = {
    "reproduced",
    "not_reproduced",
    "supported",
    "contradicted",
    "inconclusive",
    "not_run",
    "not_comparable",
    "not_reported",
}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(path: Path, *languages: str) -> Iterator[str]:
    """Contents of fenced blocks in one of `languages`, indented ones too."""
    text = path.read_text("utf-8")
    for match in re.finditer(r"^( *)```(\w+)\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL):
        if match.group(2) in languages:
            yield match.group(3)


def commands() -> Iterator[tuple[str, str]]:
    """(file, command line) of every line in a shell block."""
    for path in DOCS:
        for block in blocks(path, "sh", "bash", "console"):
            for line in block.splitlines():
                if line.strip():
                    yield name_of(path), line.strip()


COMMANDS = list(commands())


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_tool", ROOT / "tools" / "docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_parts_are_fresh(tool: ModuleType) -> None:
    assert tool.stale(whole=False) == [], "run python tools/docs.py"


def test_a_method_that_is_only_dropped_in_needs_no_second_file(tool: ModuleType) -> None:
    page = "| `pre_ln` | Pre-LN |\n| `gone` | - |\n"
    needed = tool.needed_methods(page)
    assert {"pre_ln", "gone", "simplenorm"} <= needed
    assert "no_norm" not in needed
    assert "`no_norm`" in tool.methods()
    assert "`no_norm`" not in tool.methods(needed)


def test_the_tool_tells_a_stale_part_and_mends_it(tool: ModuleType, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    page = tmp_path / "docs" / "cli.md"
    good = page.read_text("utf-8")
    assert tool.main(["--check"], tmp_path) == 0
    page.write_text(good.replace("**`repro plan`**", "**`repro paln`**"), "utf-8")
    assert tool.main(["--check"], tmp_path) == 1
    assert page.read_text("utf-8") != good
    assert tool.main([], tmp_path) == 0
    assert page.read_text("utf-8") == good


def test_the_tool_refuses_a_page_that_lost_its_marks(tool: ModuleType) -> None:
    with pytest.raises(ValueError, match="no single part 'verbs'"):
        tool.filled("# The command line\n", "verbs", "")


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 150


def _check_repro(words: list[str]) -> None:
    """Parses a call of our own down to the verb's options, without running it."""
    command: Any = typer.main.get_command(app)
    context, name = None, "repro"
    while hasattr(command, "commands"):
        context = command.make_context(name, words, parent=context)
        left = [*context._protected_args, *context.args]
        name, command, words = command.resolve_command(context, left)
    command.make_context(name, words, parent=context)


def _rules() -> set[str]:
    files = [ROOT / "Snakefile", *sorted((ROOT / "workflow" / "rules").glob("*.smk"))]
    return {rule for file in files for rule in re.findall(r"^\s*rule (\w+):", file.read_text("utf-8"), re.MULTILINE)}


def _check_snakemake(words: list[str]) -> None:
    from snakemake.cli import get_argument_parser

    given = get_argument_parser().parse_args(words)
    assert set(given.targets) <= _rules()
    assert all(setting in {f"tier={tier}" for tier in TIERS} for setting in given.config or [])
    for profile in given.profile or []:
        assert (ROOT / profile / "config.yaml").is_file()


def _check_make(words: list[str]) -> None:
    declared = re.search(r"^\.PHONY:(.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert declared is not None
    assert set(words) <= set(declared.group(1).split())


def _check_file(words: list[str]) -> None:
    """A script of ours, or a module with the files that it is given."""
    paths = [word for word in words if "/" in word]
    assert paths
    assert all((ROOT / path).is_file() for path in paths)


def test_blocks_are_found() -> None:
    assert {"make demo", "make test"} <= {line.split("#")[0].strip() for file, line in COMMANDS if file == "README.md"}
    assert len(COMMANDS) > 30


@pytest.mark.parametrize(("file", "line"), COMMANDS, ids=[f"{file}: {line}" for file, line in COMMANDS])
def test_every_command_that_is_printed_exists(file: str, line: str) -> None:
    words = shlex.split(line, comments=True)
    program = words[0].removeprefix(".venv/bin/")
    checks = {"repro": _check_repro, "snakemake": _check_snakemake, "make": _check_make, "python": _check_file}
    if program in checks:
        checks[program](words[1:])
    elif words[0].startswith(".venv/bin/"):
        assert (Path(sys.executable).parent / program).is_file()
    else:
        assert program in OTHER_PROGRAMS, f"{file}: nobody knows {program}"


@pytest.mark.parametrize("line", ["repro paln", "repro plan --teir smoke", "repro method", "repro diff 1"])
def test_a_command_that_does_not_exist_would_be_noticed(line: str) -> None:
    with pytest.raises(Exception, match=r"(?i)no such|missing|command"):
        _check_repro(line.split()[1:] or ["--nothing"])


def test_yaml_blocks_read_as_the_suite_reads_them(tmp_path: Path) -> None:
    """What is to be copied is accepted: same reader, same models."""
    from repro.plan import TIERS
    from repro.spec.catalogue import Models, SlurmSite, Tiers
    from repro.spec.claims import Claim
    from repro.spec.data import Sources
    from repro.spec.experiment import KINDS
    from repro.spec.reading import read_yaml

    made: list[str] = []
    for path in [ROOT / "docs" / "adding.md", ROOT / "docs" / "cluster.md"]:
        for block in blocks(path, "yaml"):
            file = tmp_path / "block.yaml"
            file.write_text(block, "utf-8")
            value = read_yaml(file).value
            if isinstance(value, list):
                made += [type(Claim.model_validate(item)).__name__ for item in value]
            elif "slurm" in value:
                made.append(type(SlurmSite.model_validate(value["slurm"])).__name__)
            elif set(value) <= set(TIERS):
                made.append(type(Tiers.model_validate(value)).__name__)
            elif "name" in value:
                made.append(type(KINDS[value["task"]].model_validate(value)).__name__)
            else:
                kind = Sources if "kind" in next(iter(value.values())) else Models
                made.append(type(kind.model_validate(value)).__name__)
    assert set(made) == {
        "Claim",
        "Models",
        "SlurmSite",
        "Sources",
        "Tiers",
        *(kind.__name__ for kind in KINDS.values()),
    }


def _anchors(path: Path) -> set[str]:
    """Anchors of a page's headings, as code forges make them."""
    found = set()
    for heading in re.findall(r"^#+ (.+)$", path.read_text("utf-8"), re.MULTILINE):
        kept = re.sub(r"[^\w\- ]", "", heading.lower())
        found.add(kept.replace(" ", "-"))
    return found


def _prose(path: Path) -> str:
    """The text without fenced blocks."""
    return re.sub(r"^( *)```.*?^\1```$", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("path", DOCS, ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", _prose(path)):
        if "://" in target:
            continue
        place, _, anchor = target.partition("#")
        file = (path.parent / place).resolve() if place else path
        if not file.exists() or (anchor and anchor not in _anchors(file)):
            wrong.append(target)
    assert wrong == []


@pytest.mark.parametrize("path", DOCS, ids=name_of)
def test_files_that_a_page_names_are_there(path: Path) -> None:
    """Paths in code marks below folders that are committed; capital letters and stars stand for something else."""
    folders = ("repro/", "config/", "docs/", "tests/", "tools/", "workflow/", "slurm/")
    named = re.findall(r"`([^`\s]+)`", _prose(path))
    wanted = [name for name in named if name.startswith(folders) and not re.search(r"[A-Z*<]", name)]
    made_by_the_reader = {"config/local.yaml", "repro/methods/my_method.py"}
    assert [name for name in wanted if name not in made_by_the_reader and not (ROOT / name).exists()] == []


@pytest.mark.parametrize("path", DOCS, ids=name_of)
def test_no_page_names_a_machine_or_a_registry(path: Path) -> None:
    text = path.read_text("utf-8")
    assert re.findall(r"""(?<![\w.})*\]-])/(?:home|Users|root|mnt|work|tmp|var)/\w""", text) == []
    assert re.findall(r"p[y]pi\.org|python[h]osted|anaconda\.org|download\.pytorch|localhost", text) == []


def test_every_decision_has_its_parts_and_a_number_of_its_own() -> None:
    pages = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert [page.name[:3] for page in pages] == [f"{number:03d}" for number in range(len(pages))]
    for page in pages:
        text = page.read_text("utf-8")
        assert text.startswith(f"# {page.name[:3]}: "), page.name
        for part in ("Context", "Decision", "Why not otherwise", "Consequences"):
            assert f"**{part}.**" in text, (page.name, part)


def test_decisions_that_the_code_points_to_are_there() -> None:
    files = [ROOT / "Snakefile", *(ROOT / "repro").rglob("*.py"), *(ROOT / "workflow").rglob("*.smk")]
    named = {name for file in files for name in re.findall(r"docs/decisions/[\w-]+\.md", file.read_text("utf-8"))}
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_the_readme_explains_every_word_of_a_verdict() -> None:
    rows = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE))
    assert rows == WORDS_OF_VERDICTS


def test_the_claims_that_pages_speak_of_are_there_and_counted_right() -> None:
    from repro.spec.reading import read_yaml

    files = sorted((ROOT / "config" / "claims").glob("paper_*.yaml"))
    known = {claim["id"] for file in files for claim in read_yaml(file).value}
    readme = (ROOT / "README.md").read_text("utf-8")
    shown = set(re.findall(r"\b[A-D]-[CTE]\d\w*", readme))
    assert shown
    assert shown <= known
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    counts = [re.findall(r"(\d+) of (\d+) claims", readme), re.findall(r"on (\d+) claims", changes)]
    rows = re.findall(r"^[A-D]-[CTE]\w+ ", readme, re.MULTILINE)
    assert counts == [[(str(len(rows)), str(len(known)))], [str(len(known))]]


VERBS = (
    "plan show check-config run diff records claims power tables leaderboard site method data bench status retry doctor"
)


def test_every_verb_that_others_rely_on_exists() -> None:
    command: Any = typer.main.get_command(app)
    assert set(VERBS.split()) - set(command.commands) == set()


def test_the_change_log_names_every_protocol() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    protocols = [path.stem for path in (ROOT / "repro" / "evaluate" / "protocols").glob("[a-z]*.py")]
    assert [name for name in protocols if f"`{name}`" not in changes] == []


def test_the_licence_is_whole_and_names_nobody_else() -> None:
    text = (ROOT / "LICENSE").read_text("utf-8")
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert re.findall(r"^ *Copyright (?!\[yyyy\])\S.*$", text, re.MULTILINE) == []


def test_citation_and_hooks_are_what_their_readers_expect() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    assert f'version = "{citation["version"]}"' in project
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))
    assert [repository["repo"] for repository in hooks["repos"]] == ["local"]
    for hook in hooks["repos"][0]["hooks"]:
        assert hook["language"] == "system"
        assert hook["entry"].startswith(".venv/bin/")
