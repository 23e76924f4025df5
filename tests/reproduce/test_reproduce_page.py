"""The page and the command that shows it."""

import json

import numpy as np
import yaml

from anchorlm.cli import __main__ as program
from anchorlm.reproduce import ITEMS, page
from anchorlm.reproduce.scale import packaged


def test_the_html_is_self_contained_and_holds_every_figure(done):
    text = (done[0] / "reproduce.html").read_text()
    drawn = sum(len(item["figures"]) for item in done[1]["items"])
    assert text.count("<svg") == drawn >= 16
    assert "held-out perplexity" in text and "change of the loss, nats a token" in text
    assert "http" not in text.replace("http-equiv", "")


def test_the_papers_numbers_are_there_for_every_item():
    paper = yaml.safe_load(packaged("paper.yaml"))
    assert set(paper["items"]) == set(ITEMS) and "2611.04327" in paper["source"]
    for item in page.result({})["items"]:
        assert item["paper"]["caption"] and all(
            len(row) == len(item["paper"]["heads"]) for row in item["paper"]["rows"]
        )
    numbers = [row["perplexity"] for row in paper["items"]["table1"]["rows"]]
    assert numbers == [7.36, 10.19, 487.56, 10.01] and np.isclose(numbers[2] / numbers[1], 48, rtol=0.01)


def test_the_command_shows_the_page(home, done, capsys):
    assert program.run(["reproduce", "all", "--page", "--scale", str(home / "tiny.yaml"), "-o", str(done[0])]) == 0
    assert capsys.readouterr().out.startswith(f"# {page.TITLE}")
    assert program.run(["reproduce", "--page", "--json", "-o", str(done[0])]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "reproduction"
