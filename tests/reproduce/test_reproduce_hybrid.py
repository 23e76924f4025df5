"""Table 5 and Figure 10: a hybrid beside its teacher."""

from types import SimpleNamespace

from anchorlm.reproduce import claims, hybrid


def measured(*values):
    return {"value": sum(values) / len(values), "samples": [
        {"id": str(n), "cell": "vt/512", "score": value} for n, value in enumerate(values)]}  # fmt: skip


def test_a_hybrid_beside_its_teacher():
    """Ten questions each: near the teacher, clearly below it, and a teacher that has nothing to lose."""
    lab = SimpleNamespace(scale=SimpleNamespace(seed=0))
    rows = {"teacher": measured(*[1] * 10), "swa-lora": measured(*[0] * 10)}

    def verdict(other, *values):
        found = rows | {"anchor-hybrid": measured(*values)}
        return hybrid._claim(lab, "ruler", found, other, "")["verdict"]

    assert verdict("teacher", *[1] * 10) == claims.AGREES and verdict("swa-lora", *[1] * 10) == claims.AGREES
    assert verdict("teacher", *[0] * 10) == claims.NOT and verdict("swa-lora", *[0] * 10) == claims.UNCLEAR
    assert verdict("teacher", *[1] * 9, 0) == claims.UNCLEAR
    rows["teacher"] = measured(*[0] * 10)
    assert verdict("teacher", *[0] * 10) == claims.NOT_COMPARABLE
