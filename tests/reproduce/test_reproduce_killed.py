"""Items that are killed with -9 in the middle of training and measuring, and taken up again."""

import pytest

from anchorlm.reproduce import load_scale, reproduce
from killed import kept, run_through
from reproduced import job, silent

ASKED = ("table1", "figure2", "figure5")  # trained, scored and taken apart, and one that needs none of these


@pytest.mark.slow
def test_a_run_killed_again_and_again_ends_with_the_same_files(home, done, tmp_path):
    scale = load_scale(home / "tiny.yaml")
    kills = run_through(lambda: reproduce(ASKED, scale, job(home, tmp_path), say=silent))
    straight, killed = kept(done[0]), kept(tmp_path)
    assert kills >= 5
    for name in ASKED:
        assert killed[f"{name}.json"] == straight[f"{name}.json"]
    rows = [path for path in killed if "/records/" in path]
    assert rows and all(killed[path] == straight[path] for path in rows)
    parts = [path for path in killed if "/parts/" in path]
    assert parts and all(killed[path] == straight[path] for path in parts)
