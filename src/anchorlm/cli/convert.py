"""`anchorlm convert`: a base and a plan become a hybrid folder."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from . import options, show


def convert(
    base: options.BaseName,
    out: options.Out,
    plan: options.PlanName = "anchor",
    weights: Annotated[
        str, typer.Option("--weights", metavar="FILE", help="trained maps in the layout of the LoLCATs repository")
    ] = "",
    set_: options.Sets = [],
    seed: options.Seed = 0,
    dtype: options.Dtype = "auto",
    device: options.Device = "cpu",
    overwrite: options.Overwrite = False,
    rules: options.Rules = [],
    json: options.Json = False,
) -> None:
    """Give a pretrained model limited attention and memory slots, as a plan says."""
    options.use_rules(rules)
    options.check_output(out, overwrite)
    overrides = options.parse_sets(set_)
    from ..convert import summary
    from ..convert.attach import convert as attach
    from ..convert.bases import load_base
    from ..convert.published import fill, read_published
    from ..convert.save import save
    from ..core import check_apart, pick_dtype, seed_all
    from ..plan import ModelShape
    from ..presets import load_plan

    check_apart(out, base)
    config, _ = summary.source_config(base)
    chosen = load_plan(plan, ModelShape.from_config(config), overrides)
    published = read_published(weights, chosen, ModelShape.from_config(config)) if weights else None
    options.check_device(device)
    found = summary.summary(config, chosen, dtype=pick_dtype(dtype, device))
    seed_all(seed)
    loaded = load_base(base, dtype=dtype, device=device)
    model = attach(loaded, chosen)
    if published is not None:
        fill(model, published)
    some = next(model.backbone.parameters())
    defaults = {"plan": plan, "seed": seed, "dtype": str(some.dtype).removeprefix("torch."), **slot_defaults(chosen)}
    save(model, out, loaded.tokenizer, {"defaults": defaults}, overwrite=overwrite)
    report(found | {"base": base, "weights": loaded.source, "out": out, "defaults": defaults}, json)


def slot_defaults(plan: Any) -> dict[str, Any]:
    """The choices of the slots that tables do not show; those of the first slot, which presets give to all."""
    slot = next(iter(plan.slots.values()), None)
    if slot is None:
        return {}
    shown = {name: getattr(slot, name) for name in ("rope", "act", "norm", "conv", "silent")}
    return {"mix": slot.mix.stored(), **shown, **vars(slot.rule_options)}


def report(found: dict[str, Any], json: bool) -> None:
    if json:
        return show.emit(found)
    plan_tables(found)
    show.line(f"base {found['base']}: weights of {found['weights']}")
    show.line("defaults that change results: " + " ".join(f"{key}={value}" for key, value in found["defaults"].items()))
    show.line(f"wrote {found['out']}; memory is new: train it with  anchorlm train {found['out']} --data TEXT -o DIR2")


def plan_tables(found: dict[str, Any]) -> None:
    """The plan, the parameters and the state of one sequence."""
    show.table(found["layers"], "plan")
    show.table(found["slots"], "slots, bytes of the fast weights in float32", right=["chunk", "lag", "writer", "bytes"])
    show.table([{"parameters": kind, "count": count} for kind, count in found["parameters"].items()], right=["count"])
    title = f"state of one sequence, keys and values in {found['dtype']}, the rest in float32"
    show.table(show.sizes(found["state_bytes"]), title, right=["bytes"])
    for note in found["notes"]:
        show.line(note)
