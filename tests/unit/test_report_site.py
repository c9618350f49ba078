"""Figures and the page: readable without a screen, a script, a network, or trust in names."""

import os
import re
import subprocess
import sys
import threading
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_world import HASH, claims, index_of, plan_of, plan_only, plausible, recorded, train_record, with_seed, world

from repro.records.schema import sealed
from repro.report.figures import alt_text, draw, panels, render, write_figures
from repro.report.quality import quality_notes
from repro.report.site import render_page, write_site
from repro.spec.errors import CannotWriteError, Problem
from repro.spec.paths import Root

VOID = {"meta", "img", "br", "link", "hr", "input"}
HOSTILE = "<img src=x onerror=alert(1)>|x `rm`; $(id) javascript:alert(1) \u202ec"


class Page(HTMLParser):
    """Tags, attributes and visible text; unbalanced tags are an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] != "style":
            self.words.append(data)

    def all(self, tag):
        """Attributes of each element of one kind."""
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def page() -> Page:
    plan = plan_of("smoke")
    return Page(render_page(plan, world(plan, plausible), claims()))


def test_the_page_needs_no_script_and_no_network(page):
    assert page.all("script") == page.all("link") == page.all("iframe") == []
    text = render_page(plan_of("smoke"), world(plan_of("smoke"), lambda run: None), claims())
    assert text.startswith("<!DOCTYPE html>")
    assert not re.search(r"https?://|//[a-z]|@import|url\(", text)
    for attributes in (*page.all("a"), *page.all("img")):
        target = attributes.get("href") or attributes.get("src")
        assert target.startswith(("#", "figures/curves_", "figures/theory_")) or re.fullmatch(
            r"paper_[a-d]\.html", target
        )
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]


def test_links_inside_the_page_have_a_target(page):
    ids = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    assert {a["href"][1:] for a in page.all("a") if a["href"].startswith("#")} <= ids


def test_the_page_can_be_read_by_ear_and_on_a_phone(page):
    assert page.all("html") == [{"lang": "en"}]
    assert any(meta.get("name") == "viewport" for meta in page.all("meta"))
    assert len(page.all("caption")) == len(page.all("table"))
    assert all("scope" in attributes for attributes in page.all("th"))
    assert all(attributes["alt"] for attributes in page.all("img"))
    scrolling = [attributes for attributes in page.all("div") if attributes.get("class") == "scroll"]
    assert len(scrolling) == len(page.all("table"))
    assert all(attributes["tabindex"] == "0" and attributes["aria-label"] for attributes in scrolling)


def test_each_claim_has_its_badge_reason_and_counts(page):
    text = " ".join(" ".join(page.words).split())
    badges = [a["class"] for a in page.all("span") if (a.get("class") or "").startswith("badge")]
    for claim in claims():
        assert claim.id in text
        assert claim.says in text
    unknown = [claim for claim in claims() if claim.not_planned is None and not claim.reported.known]
    assert badges.count("badge not_reported") >= len(unknown) + 1  # and the list of words
    assert "2 of 10 runs per arm are finished, this plan has 2" in text
    assert "4 of 4 complete" in text
    assert "tier smoke" in text


def test_s10_names_from_records_and_files_are_text_only():
    plan = plan_only("p01", ["pre_ln"], 2)
    (cell,) = plan.cells["p01"]
    experiment = plan.configuration.experiments["p01"].model_copy(update={"title": HOSTILE, "assumptions": [HOSTILE]})
    known = replace(plan.configuration, experiments={"p01": experiment})
    runs = {key: replace(run, alias=HOSTILE, method=HOSTILE, data=HOSTILE) for key, run in plan.runs.items()}
    hostile = replace(
        plan, configuration=known, runs=runs, cells={"p01": [replace(cell, label=HOSTILE, method=HOSTILE)]}
    )
    (claim,) = [each for each in claims() if each.id == "C-C4"]
    run = next(iter(plan.runs.values()))
    index = index_of(plan.configuration.root, recorded(run, 3.3))
    index.train(run.id).raw["code"]["dirty"] = True
    index.problems.append(Problem(HOSTILE, 1, HOSTILE, HOSTILE))
    text = render_page(hostile, index, [claim.model_copy(update={"says": HOSTILE})])
    page = Page(text)
    assert [image["src"] for image in page.all("img")] == ["figures/curves_p01.svg"]
    assert all(a["href"].startswith(("#", "figures/", "paper_a.html")) for a in page.all("a"))
    assert "\u202e" not in text
    assert "<img src=x" in "".join(page.words)
    plain_rows = Page(render_page(plan, world(plan, lambda run: None), [claim])).all("tr")
    assert len(page.all("tr")) == len(plain_rows) + 4  # no row but those of the three quality notes and their head
    picture = render(draw(hostile, index, "p01"))["svg"].decode("utf-8")
    assert {node.tag.split("}")[1] for node in ElementTree.fromstring(picture).iter()} <= {
        *(
            "svg",
            "metadata",
            "RDF",
            "Work",
            "type",
            "format",
            "creator",
            "Agent",
            "title",
            "defs",
            "style",
            "g",
            "path",
        ),
        *("use", "clipPath", "rect"),
    }


def test_quality_notes_name_what_a_reader_should_know():
    plan = plan_only("p01", ["pre_ln"], 4)
    runs = list(plan.runs.values())
    dirty = {"git_commit": None, "dirty": True, "source_sha256": HASH}
    high = train_record(runs[1])["curve"] | {"train_loss": [9.9] + [2.0] * 8}
    raws = [
        train_record(runs[0], code=dirty),
        train_record(runs[1], curve=high),
        train_record(runs[2], "oom"),
        train_record(runs[3], learned=False),
        *recorded(with_seed(runs[0], 77), 2.0),
    ]
    index = index_of(plan.configuration.root, [sealed(raw) for raw in raws])
    index.problems.append(Problem("results/records/aa/x.json", None, "sha256", "does not match"))
    found = {note.rule: note for note in quality_notes(plan, index)}
    assert found["record refused, in no number"].severity == "error"
    assert "s77@smoke" in found["on record, not in the plan"].message
    assert "p01/pre_ln/s1@smoke" in found["made by code with uncommitted changes"].message
    assert "p01/pre_ln/s2@smoke" in found["loss at the start outside 0 to ln(vocabulary) + 1"].message
    assert "p01/pre_ln/s4@smoke" in found["ended above the entropy of single tokens: learned nothing"].message
    assert "oom on purpose" in found["runs that failed"].message
    short = found["fewer finished runs than planned"]
    assert (short.severity, short.value, short.message) == ("info", 1, "p01/pre_ln (3 of 4)")
    clean = plan_of("smoke")
    assert quality_notes(clean, world(clean, lambda run: 2.3)) == []


def test_runs_of_one_experiment_on_different_bytes_are_told():
    plan = plan_only("p01", ["pre_ln"], 3)
    parts = [{"name": "t", "split": "val", "sha256": c * 64, "tokens": 9, "tokenizer_sha256": None} for c in "aab"]
    raws = [train_record(run, data=[part]) for run, part in zip(plan.runs.values(), parts, strict=True)]
    notes = quality_notes(plan, index_of(plan.configuration.root, raws))
    (note,) = [note for note in notes if note.rule.startswith("data of one name")]
    assert (note.severity, note.value, note.message) == ("warning", 1, "p01 (t val)")
    alike = [train_record(run, data=parts[:1]) for run in plan.runs.values()]
    again = quality_notes(plan, index_of(plan.configuration.root, alike))
    assert not [note for note in again if "different content" in note.rule]


def test_panels_follow_the_grid_and_hold_every_planned_cell():
    plan = plan_of("desk")
    index = world(plan, plausible)
    assert [panel.title for panel in panels(plan, index, "a_stability")] == ["weight decay 0.1", "weight decay 0"]
    quality = panels(plan, index, "a_quality")
    assert [panel.title for panel in quality] == ["model gpt_d64_l4 for gpt2_124m", "model gpt_d96_l6 for gpt2_355m"]
    assert list(quality[0].cells) == ["pre_ln", "post_ln", "peri_ln", "peri_ln-dt0.1"]
    assert all(panel.planned == 40 for panel in quality)
    diverged = [line for panel in quality for line in panel.cells["post_ln"] if line.diverged]
    assert len(diverged) == 6
    assert "80 of 80 planned runs have a curve, 6 of them diverged" in alt_text(plan, index, "a_quality")


def test_figures_are_the_same_bytes_each_time_also_in_a_thread(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "TkAgg")
    monkeypatch.setenv("DISPLAY", ":99")
    plan = plan_of("smoke")
    index = world(plan, plausible)
    made: list[dict[str, bytes]] = []
    thread = threading.Thread(target=lambda: made.append(render(draw(plan, index, "c_lr_tolerance"))))
    thread.start()
    thread.join()
    made.append(render(draw(plan, index, "c_lr_tolerance")))
    assert made[0] == made[1]
    assert made[0]["png"].startswith(b"\x89PNG")
    assert b"<dc:date>" not in made[0]["svg"]


def test_an_experiment_without_records_still_has_its_figure():
    plan = plan_of("smoke")
    picture = draw(plan, world(plan, lambda run: None), "a_quality")
    texts = [text.get_text() for axes in picture.axes for text in axes.texts]
    assert texts == ["not run", "not run"]
    assert "0 of 16 runs" in picture.get_suptitle()


def test_all_diverged_and_one_point_curves_can_be_drawn():
    plan = plan_only("p01", ["pre_ln"], 2)
    first, second = plan.runs.values()
    point = {key: [1.0] for key in ("train_loss", "train_min", "train_max", "val_loss")} | {"tokens": [10]}
    index = index_of(
        plan.configuration.root, [train_record(first, "diverged"), train_record(second, "diverged", curve=point)]
    )
    assert render(draw(plan, index, "p01"))["png"]


DRAWER = """
import sys, threading, warnings
from report_world import plan_of, plausible, world
from repro.report.figures import draw, render
from repro.report.sweeps import sweep, sweep_rows

warnings.simplefilter("error")
plan = plan_of("desk")
index = world(plan, plausible)
made = []

def work():
    for _ in range(25):
        made.append(len(render(draw(plan, index, "a_dt"))["png"]))
        made.append(len(render(sweep(list(sweep_rows(plan, index, "a_lr"))))["png"]))

thread = threading.Thread(target=work)
thread.start()
thread.join()
print(len(made), min(made) > 1000, "matplotlib.pyplot" in sys.modules)
"""


@pytest.mark.parametrize("screen", [{}, {"MPLBACKEND": "TkAgg", "DISPLAY": ":99"}])
def test_case_p03_fifty_figures_in_a_thread_without_a_screen(screen):
    """Whatever backend and screen the environment names: figures are made without pyplot, and no warning is given."""
    kept = {key: value for key, value in os.environ.items() if key not in ("MPLBACKEND", "DISPLAY")}
    path = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[2])])}
    command = [sys.executable, "-c", DRAWER]
    done = subprocess.run(command, env=kept | screen | path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["50", "True", "False"]
    assert done.stderr == ""


def test_the_site_lies_beside_its_figures(tmp_path):
    plan = plan_only("p01", ["pre_ln"], 2)
    root = Root(tmp_path)
    path, *_ = write_site(root, plan, world(plan, lambda run: 3.3), claims())
    assert path == root.site("smoke") / "index.html"
    for attributes in Page(path.read_text("utf-8")).all("img"):
        assert (path.parent / attributes["src"]).is_file()
    assert sorted(p.name for p in root.figures("smoke").iterdir()) == ["curves_p01.png", "curves_p01.svg"]
    (tmp_path / "file").write_text("in the way", "utf-8")
    with pytest.raises(CannotWriteError):
        write_figures(Root(tmp_path / "file"), plan, world(plan, lambda run: 3.3))


def test_a_papers_page_holds_its_claims_and_experiments_and_leads_to_every_record():
    plan = plan_of("smoke")
    recorded_world = world(plan, plausible)
    page = Page(render_page(plan, recorded_world, claims(), "a"))
    text = " ".join(page.words)
    assert "Paper A: Stability of Transformers under Layer Normalization" in text
    assert all((claim.says in text) == (claim.paper == "a") for claim in claims())
    mine = {run for name, cells in plan.cells.items() if name.startswith("a_") for c in cells for run in c.run_ids}
    assert f"{len(mine)} of {len(mine)} planned runs are recorded" in " ".join(text.split())
    links = [a["href"] for a in page.all("a") if "/records/" in a["href"]]
    assert sorted(set(links)) == sorted(f"../../../{recorded_world.train(run).entry.path}" for run in mine)
    others = {a["href"] for a in page.all("a") if a["href"].endswith(".html")}
    assert others == {"index.html", "paper_b.html", "paper_c.html", "paper_d.html"}


def test_no_page_is_made_for_a_paper_that_plans_nothing(tmp_path):
    plan = plan_only("p01", ["pre_ln"], 2)
    folder = Root(tmp_path).site("smoke")
    folder.mkdir(parents=True)
    (folder / "paper_d.html").write_text("of a plan that is gone", "utf-8")
    pages = write_site(Root(tmp_path), plan, world(plan, lambda run: 3.3), claims())
    assert sorted(page.name for page in pages) == ["index.html", "paper_a.html"]
    assert sorted(folder.glob("*.html")) == sorted(pages)


def test_case_c05_seeds_made_with_different_versions_are_flagged():
    plan = plan_only("p01", ["pre_ln"], 2)
    first, second = plan.runs.values()
    environment = train_record(first)["environment"]
    stacks = ({"torch": "2.14.1"}, {"torch": "2.15.0"})
    raws = [
        train_record(run, environment=environment | {"packages": packages})
        for run, packages in zip((first, second), stacks, strict=True)
    ]
    root = plan.configuration.root
    (note,) = [n for n in quality_notes(plan, index_of(root, raws)) if "different versions" in n.rule]
    assert (note.severity, note.message) == ("warning", "p01/pre_ln (torch)")
    alike = [train_record(run, environment=environment | {"packages": stacks[0]}) for run in (first, second)]
    assert not [n for n in quality_notes(plan, index_of(root, alike)) if "different versions" in n.rule]
