"""Table 3 and Figure 6: time."""

from anchorlm.reproduce import claims, costs
from small import tiny_llama


def test_time_is_that_of_reading_and_writing():
    found = {"teacher": {10: 100.0, 20: 300.0}, "anchor-f": {10: 90.0, 20: 120.0}, "anchor": {10: 50.0, 20: 60.0}}
    first, second, third = costs._time_claims(found)
    assert first["ours"].startswith("20.00 against 1.00 s") and second["ours"] == "5.00 times at 20"
    assert third["ours"] == "2.00 times at 20" and {c["verdict"] for c in (first, second, third)} == {claims.AGREES}
    read = []
    model = tiny_llama()
    model.register_forward_pre_hook(
        lambda module, args, kwargs: read.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    assert costs.end_to_end(model, 20, 3, 4) > 0 and read == [(3, 20), (3, 1), (3, 1), (3, 1)]
