"""Text for quality figures, workloads and question sets: sources, licences and one fixed split."""

from __future__ import annotations

from hasten.data.topics import SPLITS, Document, Split, documents

__all__ = ["SPLITS", "Document", "Split", "documents"]
