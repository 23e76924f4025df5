"""What every memory must keep, whatever its rule: checks on tiny random models, for rules of one's own as for ours."""

from .checks import CHECKS, Broken
from .run import check_rules

__all__ = ["CHECKS", "Broken", "check_rules"]
