from hybrids import base_folder, hybrid, tied_folder

__all__ = ["base_folder", "hybrid", "tied_folder"]
