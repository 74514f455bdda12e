"""Drafting with an EAGLE head of the make of the release's own block: as ``spec=mtp`` does, from other files."""

from __future__ import annotations

from builder.runtime.drafting.mtp import MTPDrafting

drafter = MTPDrafting
