"""`anchorlm`: the verbs, and what each kind of failure looks like.

Exit codes: 0 done, 2 the user's mistake (one line), 1 ours (one line), 130 interrupted. ANCHORLM_DEBUG=1 shows the
traceback of our mistakes and of those in a memory rule of the user's own. Nothing heavy is imported before a verb runs,
so `--help` stays quick.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from . import (
    analyze,
    compare,
    convert,
    doctor,
    evaluate,
    generate,
    info,
    mad,
    merge,
    place,
    quickstart,
    report,
    reproduce,
    results,
    show,
    train,
)
from .options import SeveralValues, Verb, first_process

OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "you tried to allocate")
QUIET = {"TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_DISABLE_TELEMETRY": "1"}


class Verbs(TyperGroup):
    """Keeps a closed pipe from reaching typer, which would call it an error, and an interrupt, of which it says
    nothing."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise PipeClosed from None
        except KeyboardInterrupt:
            raise typer.Abort from None


class PipeClosed(Exception):
    """The reader of our output has gone away, as in `anchorlm info DIR | head -1`."""


app = typer.Typer(
    cls=Verbs,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Turn a pretrained Transformer into a hybrid that reads without limit.",
)


def _version(asked: bool) -> None:
    if asked:
        from anchorlm import __version__

        show.line(f"anchorlm {__version__}")
        raise typer.Exit


@app.callback()
def _every_verb(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="print it")] = False,
) -> None: ...


app.command("doctor", cls=Verb)(doctor.doctor)
app.command("convert", cls=SeveralValues)(convert.convert)
app.command("info", cls=SeveralValues)(info.info)
app.command("place", cls=SeveralValues)(place.place)
app.command("train", cls=SeveralValues)(train.train)
app.command("eval", cls=SeveralValues)(evaluate.evaluate)
app.command("analyze", cls=SeveralValues)(analyze.analyze)
app.command("report", cls=Verb)(report.report)
app.command("generate", cls=SeveralValues)(generate.generate)
app.command("merge", cls=Verb)(merge.merge)
app.command("results", cls=SeveralValues)(results.results)
app.command("compare", cls=SeveralValues)(compare.compare)
app.command("reproduce", cls=SeveralValues)(reproduce.reproduce)
app.command("mad", cls=SeveralValues)(mad.mad)
app.command("quickstart", cls=Verb)(quickstart.quickstart)


def run(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; never raises for an expected failure."""
    show.log_to_stderr()
    arguments = list(sys.argv[1:] if argv is None else argv)
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        if os.environ.get("ANCHORLM_RULES"):
            _known_rules()
        code = app(args=arguments or ["--help"], prog_name="anchorlm", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except (PipeClosed, BrokenPipeError):
        _silence_stdout()
        return 0
    except (KeyboardInterrupt, typer.Abort):
        return _say("interrupted", 130)
    except BaseException as error:
        if not isinstance(error, Exception) and not _blamed(error):
            raise
        return _explain(error)


def _known_rules() -> None:
    from ..memory.own import load_listed

    load_listed()


def _explain(error: BaseException) -> int:
    code, text = classify(error)
    if (code == 1 or _blamed(error)) and os.environ.get("ANCHORLM_DEBUG") == "1":
        traceback.print_exc()
    if code == 2 and not first_process():
        return code  # the first process says the same
    return _say(f"error: {text}", code)


def classify(error: BaseException) -> tuple[int, str]:
    """(exit code, one line) of a failure."""
    from anchorlm.core import UserError

    if isinstance(error, typer.TyperException):
        return error.exit_code, _usage(error)
    if isinstance(error, UserError):
        return 2, " ".join(str(error).split())
    if text := _blamed(error):
        return 2, " ".join(text.split())
    if isinstance(error, OSError) and error.errno == errno.ENOSPC or "No space left on device" in str(error):
        return 2, f"the disk is full{_file_of(error)}; nothing half-written was left behind"
    if isinstance(error, OSError) and error.errno is not None and error.filename:
        return 2, f"{error.filename}: {(error.strerror or 'cannot be used').lower()}"
    if _is_out_of_memory(error):
        return 1, "out of memory; try --dtype bfloat16, a smaller batch or a shorter context"
    if _is_stopped_training(error):
        return 1, " ".join(str(error).split())
    reason = " ".join(str(error).split()) or type(error).__name__
    return 1, f"{type(error).__name__}: {reason} (ANCHORLM_DEBUG=1 shows the traceback)"


def _blamed(error: BaseException) -> str | None:
    """What is wrong in a memory rule of the user's own, if the error comes from one."""
    own = sys.modules.get("anchorlm.memory.own")
    return own.blamed(error) if own is not None and not _is_out_of_memory(error) else None


def _is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or any(words in str(error).lower() for words in OUT_OF_MEMORY)


def _is_stopped_training(error: BaseException) -> bool:
    """Without importing torch: the class is there only if training was imported."""
    errors = sys.modules.get("anchorlm.train.errors")
    return errors is not None and isinstance(error, errors.TrainingError)


def _usage(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    where = context.command_path if context is not None else "anchorlm"
    text = " ".join(error.format_message().split()).rstrip(".")
    return f"{text}{_given(error)}; see {where} --help"


def _given(error: BaseException) -> str:
    """The value that a flag refuses, which the parser does not name itself."""
    found = getattr(error.__cause__, "errors", list)()
    return f", not {found[0]['input']!r}" if found and "input" in found[0] else ""


def _file_of(error: BaseException) -> str:
    name = getattr(error, "filename", None)
    return f" while writing {name}" if name else ""


def _say(text: str, code: int) -> int:
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        pass
    return code


def _silence_stdout() -> None:
    """Point stdout at nothing, or Python would complain about the closed pipe at exit."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        pass


def main() -> None:
    sys.exit(run())


if __name__ == "__main__":
    main()
