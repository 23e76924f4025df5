"""`anchorlm generate`: read a file of any length, then answer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from . import options, show


def generate(
    source: options.Model,
    prompt: Annotated[str, typer.Option("--prompt", "-p", help="what to ask; - reads it from stdin")] = "",
    file: Annotated[
        str | None, typer.Option("--file", "-f", metavar="FILE", help="a text to read first, of any length")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=0, help="tokens to write at most")] = 128,
    temperature: Annotated[float, typer.Option(help="0 is greedy")] = 0.0,
    top_p: Annotated[float, typer.Option(help="sample from the likeliest tokens with this much probability")] = 1.0,
    seed: options.Seed = 0,
    stop: Annotated[list[str], typer.Option("--stop", help="end before this text; repeatable")] = [],
    raw: Annotated[bool, typer.Option("--raw", help="leave the chat template out")] = False,
    stream: Annotated[
        bool | None, typer.Option("--stream/--no-stream", help="print text as it comes; on in a terminal")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="read beyond the positions of full attention")] = False,
    block: Annotated[int, typer.Option(min=1, help="tokens read at a time")] = 512,
    limit: Annotated[int | None, typer.Option(min=1, help="read only so many tokens of the file")] = None,
    every: Annotated[
        int, typer.Option("--figures-every", min=0, help="print speed and state each time so many were read")
    ] = 0,
    dtype: options.Dtype = "auto",
    device: options.Device = "cpu",
    base: options.BaseOverride = None,
    any_base: options.AnyBase = False,
    rules: options.Rules = [],
    json: options.Json = False,
) -> None:
    """Read a text and a prompt, then write. The figures go to stderr, the text to stdout."""
    options.use_rules(rules)
    text, prompt = read_text(file) if file else "", sys.stdin.read() if prompt == "-" else prompt
    from ..convert.load import load
    from ..core import UserError
    from ..generate.text import Options, generate_text
    from ..generate.trace import Point

    chosen = Options(max_new_tokens, temperature, top_p, seed, tuple(stop), raw, force, block, limit, every).check()
    if not (text + prompt).strip():
        raise UserError("the input is empty; give --prompt or --file")
    model, tokenizer = load(source, dtype, options.check_device(device), base=base, any_base=any_base)
    streaming = not json and (show.stdout().isatty() if stream is None else stream)
    with show.Progress("reading") as progress:

        def write(piece: str) -> None:
            progress.close()
            print(piece, end="", file=show.stdout(), flush=True)

        def figures(point: Point) -> None:
            progress.close()
            show.note(point_line(point))

        result = generate_text(
            model, tokenizer, prompt, text, chosen, on_text=write if streaming else None,
            progress=progress if text else None, on_point=figures,
        )  # fmt: skip
    if json:
        return show.emit(result.to_dict())
    show.line("" if streaming else result.text)
    _figures(result)


def point_line(point: Any) -> str:
    """One line of what reading costs at this place."""
    decode = "" if point.decode_ms is None else f", {point.decode_ms:,.1f} ms for one more token"
    speed = f"{point.tokens_per_second:,.0f} tokens/s"
    return f"{point.tokens:>9,} tokens read: {speed}, state {point.state_bytes:,} bytes{decode}"


def read_text(name: str) -> str:
    """A UTF-8 file, or what a pipe such as /dev/stdin holds, as text; UserError when missing, empty or not text."""
    from ..core import UserError

    path = Path(name)
    if not path.exists():
        raise UserError(f"{name}: no such file")
    if path.is_dir():
        raise UserError(f"{name} is a folder; name one text file")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{name} is not UTF-8 text (byte {error.start})") from None
    if "\0" in text:
        raise UserError(f"{name} is not text (a zero byte at character {text.index(chr(0))})")
    if not text.strip():
        raise UserError(f"{name} is empty")
    return text


def _figures(result: Any) -> None:
    for warning in result.warnings:
        show.note(f"warning: {warning}")
    show.note(
        f"read {result.tokens_read:,} tokens at {result.read_tokens_per_second:,.0f} a second; "
        f"wrote {result.tokens_written} ({result.finish}) at {result.ms_per_token or 0:.1f} ms a token"
    )
    parts = ", ".join(f"{name} {size:,}" for name, size in result.state_bytes.items() if size)
    show.note(f"state, bytes: {parts}")
