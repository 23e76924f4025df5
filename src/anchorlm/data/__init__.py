"""Texts to token batches: files to documents, documents to a token store on disk, tokens to resumable batches."""

from anchorlm.data.batches import Batch, Cursor, DocumentSource, Mixture, PackedSource, Row, Source, batches
from anchorlm.data.sources import Document, find_files, read_documents
from anchorlm.data.tokens import TokenStore, leading_bos

__all__ = [
    "Batch",
    "Cursor",
    "Document",
    "DocumentSource",
    "Mixture",
    "PackedSource",
    "Row",
    "Source",
    "TokenStore",
    "batches",
    "find_files",
    "leading_bos",
    "read_documents",
]
