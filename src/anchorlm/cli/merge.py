"""`anchorlm merge`: one whole folder that plain transformers loads."""

from __future__ import annotations

from pathlib import Path

from . import options, show


def merge(
    source: options.Model,
    out: options.Out,
    dtype: options.Dtype = "auto",
    base: options.BaseOverride = None,
    any_base: options.AnyBase = False,
    overwrite: options.Overwrite = False,
    rules: options.Rules = [],
    json: options.Json = False,
) -> None:
    """Fold LoRA into the weights and write them whole, with the code that loads them without anchorlm."""
    options.use_rules(rules)
    options.check_output(out, overwrite)
    from ..convert.merge import merge as run

    folder = run(source, out, dtype=dtype, base=base, any_base=any_base, overwrite=overwrite)
    size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    if json:
        return show.emit({"out": str(folder), "bytes": size})
    show.line(f"wrote {folder}, {size:,} bytes")
    show.line("load it anywhere:")
    show.line(f'  AutoModelForCausalLM.from_pretrained("{folder}", trust_remote_code=True)')
    if (Path(folder) / "tokenizer_config.json").is_file():  # transformers asks for consent before it reads any of it
        show.line(f'  AutoTokenizer.from_pretrained("{folder}", trust_remote_code=True)')
