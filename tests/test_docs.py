"""The documentation runs: Python snippets are executed, command lines exist with the flags they use."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.main import get_command

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^(?:<!-- (?P<mark>slow|skip)[^>]*-->\n)?```(?P<kind>\w+)[^\n]*\n(?P<body>.*?)^```", re.M | re.S)


@dataclass(frozen=True)
class Snippet:
    page: Path
    line: int
    kind: str
    body: str
    mark: str


def snippets(page, *kinds):
    text = page.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        if found["kind"] in kinds:
            line = text[: found.start("body")].count("\n") + 1
            yield Snippet(page, line, found["kind"], found["body"], found["mark"] or "")


def python_pages():
    for page in PAGES:
        marks = {snippet.mark for snippet in snippets(page, "python")}
        if marks:
            slow = [pytest.mark.slow] if "slow" in marks else []
            yield pytest.param(page, id=str(page.relative_to(ROOT)), marks=slow)


@pytest.mark.parametrize("page", python_pages())
def test_python_snippets_run_in_order(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    scope = {"__name__": "snippet"}
    for snippet in snippets(page, "python"):
        if snippet.mark == "skip":
            continue
        code = "\n" * (snippet.line - 1) + snippet.body
        exec(compile(code, str(page), "exec"), scope)


def command_lines(page):
    for snippet in snippets(page, "bash", "console", "sh"):
        for line in snippet.body.replace("\\\n", " ").splitlines():
            line = line.strip().removeprefix("$ ")
            if line.startswith(("anchorlm ", "make ")):
                yield line


LINES = [(str(page.relative_to(ROOT)), line) for page in PAGES for line in command_lines(page)]


@pytest.mark.parametrize("page, line", LINES)
def test_command_lines_exist(page, line):
    words = shlex.split(line, comments=True)
    problem = make_problem(words) if words[0] == "make" else verb_problem(words)
    assert problem is None, f"{page}: {line}: {problem}"


def make_problem(words):
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    return next((f"no target {word}" for word in words[1:] if "=" not in word and word not in targets), None)


def verb_problem(words):
    """Why click would refuse the line, or None; values such as files and models need not exist."""
    from anchorlm.cli.__main__ import app

    group = get_command(app)
    if words[1] not in group.commands:
        return f"no verb {words[1]}"
    command = group.commands[words[1]]
    try:
        command.make_context(words[1], words[2:], resilient_parsing=False)
    except Exception as error:
        return getattr(error, "message", None) or str(error)
    return None


def test_the_check_sees_a_wrong_line():
    assert "no verb" in verb_problem(shlex.split("anchorlm fly"))
    assert "--wings" in verb_problem(shlex.split("anchorlm convert x --wings -o y"))
    assert make_problem(["make", "gold"]) == "no target gold"


def test_every_verb_is_documented():
    from anchorlm.cli.__main__ import app

    headings = re.findall(r"^## (\S+)$", (ROOT / "docs" / "cli.md").read_text(), re.M)
    assert sorted(headings) == sorted(get_command(app).commands)


def test_local_links_lead_somewhere():
    for page in [*PAGES, ROOT / "CHANGELOG.md"]:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
            if not target.startswith(("http:", "https:")):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_yaml_plan_in_the_docs_is_valid():
    import yaml

    from anchorlm.plan import ModelShape, Plan

    shape = ModelShape(32, 32, 8, 128, 4096, 128256, 131072)
    for page in PAGES:
        for snippet in snippets(page, "yaml"):
            Plan.from_dict(yaml.safe_load(snippet.body), shape.layers).check(shape)


def test_no_machine_path_in_the_repository():
    """Documents and code name no folder of somebody's machine."""
    home = re.compile(r"/(?:home|root|Users)/\w")
    for page in [*PAGES, *(ROOT / "src").rglob("*.py"), ROOT / "Makefile", ROOT / "pyproject.toml"]:
        assert not home.search(page.read_text(encoding="utf-8")), page
