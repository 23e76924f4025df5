"""The layers that join attention and memory."""
