"""The bridge to transformers: configuration, model, cache; importing it registers the model type."""

from transformers import AutoConfig, AutoModelForCausalLM

from .cache import StateCache
from .config import AnchorConfig
from .model import AnchorForCausalLM, Captures

AutoConfig.register("anchorlm", AnchorConfig, exist_ok=True)
AutoModelForCausalLM.register(AnchorConfig, AnchorForCausalLM, exist_ok=True)

__all__ = ["AnchorConfig", "AnchorForCausalLM", "Captures", "StateCache"]
