"""Items of one run: trained once, shared, kept, taken up again; what stops them is told before."""

import json

import pytest

from anchorlm.core import UserError
from anchorlm.reproduce import ITEMS, load_scale, page, reproduce
from anchorlm.results import Job, run
from reproduced import VERDICTS, by_name, job, silent


def test_every_item_is_measured_and_on_the_page(done):
    out, result, said = done
    found = by_name(result)
    assert list(found) == list(ITEMS) and all(found[name]["measured"] for name in found)
    for name in found:
        assert found[name]["claims"] and found[name]["tables"]
        assert {row["verdict"] for row in found[name]["claims"]} <= VERDICTS
        for table in found[name]["tables"]:
            assert all(len(row) == len(table["heads"]) for row in table["rows"])
    assert json.loads((out / "reproduce.json").read_text()) == json.loads(json.dumps(result))
    text = (out / "reproduce.md").read_text()
    assert "| anchors' update off | 487.56 | 163.6 |" in text
    checked = text.partition("## Peer check")[2].partition("## Table 1")[0]
    assert all(row["claim"] in checked and row["ours"] in checked for item in found.values() for row in item["claims"])
    assert "not measured" not in result["peers"]["line"] and f"Of {len(result['peers']['rows'])} claims" in checked
    trained = [line for line in said if line.endswith(": training")]
    assert len(trained) == len(set(trained)) == 4 + 9, "items share their rows"
    assert sum(page.verdicts(result).values()) == sum(len(item["claims"]) for item in found.values())


def test_what_was_measured_is_taken_and_a_changed_text_is_not(home, done, monkeypatch):
    out, result, _ = done
    scale, said = load_scale(home / "tiny.yaml"), []
    monkeypatch.setattr(run, "train", lambda *a, **k: pytest.fail("trained again"))
    again = reproduce(["table1", "figure3"], scale, job(home, out), say=said.append)
    assert again["items"] == result["items"] and said == ["table1: measured before", "figure3: measured before"]
    shown = reproduce([], scale, Job((), out, measure=False), say=silent)
    assert shown["items"] == result["items"]
    with pytest.raises(UserError, match=r"row '.*': .*data.texts"):
        reproduce("table1", scale, job(home, out, train=(str(home / "test.txt"),)), say=silent)


def test_a_damaged_item_is_measured_again(home, done, tmp_path):
    """Whatever is missing of what was kept, no page says that it was never measured; the item itself is measured."""
    whole = json.loads((done[0] / "figure5.json").read_text())
    (tmp_path / "figure5.json").write_text(json.dumps(whole))
    scale, shown = load_scale(home / "tiny.yaml"), job(home, tmp_path, measure=False)
    assert by_name(reproduce([], scale, shown, say=silent))["figure5"]["measured"]
    for part in ("kind", "tables", "claims", "figures", "notes"):
        for value in (None, 5, [5], [{}], ...):
            damaged = {name: one for name, one in whole.items() if name != part}
            damaged |= {} if value is ... else {part: value}
            (tmp_path / "figure5.json").write_text(json.dumps(damaged))
            for names, how in (([], shown), ("figure7", job(home, tmp_path))):
                with pytest.raises(UserError, match=r"figure5.json is (damaged|not the result of a run)"):
                    reproduce(names, scale, how, say=silent)
    page = (tmp_path / "reproduce.md").read_text()
    for text in ("", "{}", "[]", "null", json.dumps(whole)[:-40]):
        (tmp_path / "figure5.json").write_text(text)
        for names, how in (([], shown), ("figure7", job(home, tmp_path)), ("figure5", job(home, tmp_path))):
            with pytest.raises(UserError, match=r"figure5.json is not the result of a run"):
                reproduce(names, scale, how, say=silent)
    assert (tmp_path / "reproduce.md").read_text() == page and not (tmp_path / "figure7.json").exists()
    (tmp_path / "figure5.json").write_text(json.dumps(whole | {"notes": None}))
    said = []
    assert by_name(reproduce("figure5", scale, job(home, tmp_path), say=said.append))["figure5"]["measured"]
    assert said == ["figure5: State and coverage"]


def test_a_stopped_item_goes_on(home, tmp_path, monkeypatch):
    scale, real, said = load_scale(home / "tiny.yaml"), run.train, []

    def stopped(model, tokenizer, recipe, data, folder, **options):
        if folder.name == "ce":
            raise KeyboardInterrupt
        return real(model, tokenizer, recipe, data, folder, **options)

    monkeypatch.setattr(run, "train", stopped)
    with pytest.raises(KeyboardInterrupt):
        reproduce("figure3", scale, job(home, tmp_path / "out"), say=silent)
    monkeypatch.setattr(run, "train", real)
    part = by_name(reproduce("figure3", scale, job(home, tmp_path / "out", train_rows=False), say=silent))["figure3"]
    assert list(part["figures"][0]["curves"]) == ["mse", "mse-free"] and len(part["claims"]) == 3
    assert part["notes"][-1] == "Rows that are still to come: `ce` (not trained), `both` (not trained)."
    with pytest.raises(UserError, match="rows that are not trained: anchor-f; leave out --no-train"):
        reproduce("table1", scale, job(home, tmp_path / "out", train_rows=False), say=silent)
    left = reproduce(["table1", "table2", "figure3", "figure5"], scale, job(home, tmp_path / "out", train_rows=False),
                     say=said.append)  # fmt: skip
    assert [name for name, item in by_name(left).items() if item["measured"]] == ["figure3", "figure5"]
    reasons = {row[0]: row[-1] for row in left["peers"]["rows"] if row[4] == "not measured"}
    reason = "rows that are not trained: anchor-f; leave out --no-train"
    assert f"table1: left out; {reason}" in said and reasons["Table 1"] == reason
    assert reasons["Table 5"] == "not run yet" and "1 of" not in left["peers"]["line"]
    said.clear()
    found = reproduce("figure3", scale, job(home, tmp_path / "out"), say=said.append)
    assert by_name(found)["figure3"]["measured"] and not by_name(found)["table1"]["measured"]
    assert [line for line in said if line.endswith("training")] == ["ce: training", "both: training"]
