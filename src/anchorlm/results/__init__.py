"""Tables behind the claims: rows are models, each trained and measured once, and kept so that a stopped run goes on."""

from .core_table import Core, core, keep_retention, markdown, trained_parameters
from .run import Job, run_table
from .table import Table, load_table, table_names

__all__ = [
    "Core",
    "Job",
    "Table",
    "core",
    "keep_retention",
    "load_table",
    "markdown",
    "run_table",
    "table_names",
    "trained_parameters",
]
