"""Turn a pretrained Transformer into a hybrid of a short window and a constant-size memory.

    import anchorlm
    model, tokenizer = anchorlm.load("smollm2-135m")
    plan = anchorlm.load_plan("anchor", anchorlm.ModelShape.from_config(model.config.backbone))
    hybrid = anchorlm.convert(anchorlm.load_base("smollm2-135m"), plan)

Names are imported when first used. `anchorlm.convert` and `anchorlm.train` are packages and, called, the functions
of the same name.
"""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .analyze.place import place as place
    from .convert.attach import convert as convert
    from .convert.bases import load_base as load_base
    from .convert.load import load as load
    from .convert.merge import merge as merge
    from .convert.save import save as save
    from .core import UserError as UserError
    from .hf.config import AnchorConfig as AnchorConfig
    from .hf.model import AnchorForCausalLM as AnchorForCausalLM
    from .plan import ModelShape as ModelShape
    from .plan import Plan as Plan
    from .presets import load_plan as load_plan
    from .settings import Recipe as Recipe
    from .settings import load_recipe as load_recipe
    from .train.run import train as train

_HOME = {
    "AnchorConfig": ".hf.config",
    "AnchorForCausalLM": ".hf.model",
    "ModelShape": ".plan",
    "Plan": ".plan",
    "Recipe": ".settings",
    "UserError": ".core",
    "load": ".convert.load",
    "load_base": ".convert.bases",
    "load_plan": ".presets",
    "load_recipe": ".settings",
    "merge": ".convert.merge",
    "place": ".analyze.place",
    "save": ".convert.save",
}
_CALLED = {"convert": ".convert.attach", "train": ".train.run"}

__all__ = [*sorted([*_HOME, *_CALLED]), "__version__"]


class _CalledPackage(ModuleType):
    """A package that, called, is its function of the same name: the import system binds both to one name."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = self.__name__.rpartition(".")[2]
        return getattr(importlib.import_module(_CALLED[name], __name__), name)(*args, **kwargs)


class _Root(ModuleType):
    def __setattr__(self, name: str, value: Any) -> None:
        if name in _CALLED and type(value) is ModuleType:
            value.__class__ = _CalledPackage
        super().__setattr__(name, value)


def __getattr__(name: str) -> Any:
    if name in _CALLED:
        return importlib.import_module(f".{name}", __name__)
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name], __name__), name)
    raise AttributeError(f"module 'anchorlm' has no attribute {name!r}")


def _load_adapter(folder: Any, **options: Any) -> Any:
    """`from_pretrained` of an adapter folder; convert/ knows how to find the base."""
    return importlib.import_module(".convert.load", __name__).load_for_transformers(folder, **options)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


sys.modules[__name__].__class__ = _Root

# transformers' Auto classes know the model type from here on. The program itself leaves that to the verbs that load a
# model, so that `anchorlm --help` answers at once.
if os.path.basename(sys.argv[0]) != "anchorlm":
    importlib.import_module(".hf", __name__).AnchorForCausalLM.adapter_loader = _load_adapter
