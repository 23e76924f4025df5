"""Every table and figure of the paper (Anchor, arXiv 2611.04327) on a model of one's own, beside what it prints."""

from .items import ITEMS
from .outline import outline
from .run import reproduce
from .scale import Scale, load_scale

__all__ = ["ITEMS", "Scale", "load_scale", "outline", "reproduce"]
