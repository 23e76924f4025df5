"""A run that is killed with -9 again and again, each time at a later file, and goes on until it is through."""

import json
import os
import signal
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from itertools import count
from pathlib import Path

TIMES = {"cpu_seconds", "tokens_per_s", "training_tokens_per_s", "time"}  # what differs from run to run
LATEST = 200  # files, by which every run here is through


def run_through(run):
    """Run in children until one ends by itself; returns how many were killed.

    The n-th is killed at its n-th finished file: odd ones before it has its name, even ones right after.
    """
    for number in count(1):
        assert number < LATEST, "the run never ends"
        if not _killed(run, number):
            return number - 1


def _killed(run, number):
    pid = os.fork()
    if not pid:
        _child(run, number)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (0, -signal.SIGKILL), f"the run ended with {status}"
    return status != 0


def _child(run, number):
    """Never returns: what a test would do after it is the parent's."""
    try:
        with open(os.devnull, "w") as sink, redirect_stdout(sink), redirect_stderr(sink):
            _die_at(number)
            run()
        os._exit(0)
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    os._exit(1)


def _die_at(number):
    real, finished = os.replace, count(1)

    def replace(*paths):
        dying = next(finished) == number
        if dying and number % 2:
            os.kill(os.getpid(), signal.SIGKILL)
        real(*paths)
        if dying:
            os.kill(os.getpid(), signal.SIGKILL)

    os.replace = replace


def kept(folder):
    """Every JSON file below the folder by its path, to the byte but for times; files that a kill left are hidden."""
    paths = [path for path in Path(folder).rglob("*.json") if not path.name.startswith(".")]
    return {str(path.relative_to(folder)): json.dumps(_timeless(json.loads(path.read_text()))) for path in paths}


def _timeless(value):
    if isinstance(value, dict):
        return {name: _timeless(one) for name, one in value.items() if name not in TIMES}
    return [_timeless(one) for one in value] if isinstance(value, list) else value
