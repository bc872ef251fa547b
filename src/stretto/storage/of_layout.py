"""The buffer and the snapshot that belong to a layout, whichever kind it is."""

from __future__ import annotations

from typing import Any

from stretto.storage.decisions import TransitionRange
from stretto.storage.memory import RingMemory
from stretto.storage.segments import SegmentBuffer, SegmentLayout, SegmentRange, SegmentSnapshot
from stretto.storage.sequence_snapshot import SequenceRange, SequenceSnapshot
from stretto.storage.sequences import SequenceBuffer, SequenceLayout
from stretto.storage.transition_snapshot import TransitionSnapshot
from stretto.storage.transitions import TransitionBuffer, TransitionLayout

AnyLayout = SegmentLayout | SequenceLayout | TransitionLayout
AnyBuffer = SegmentBuffer | SequenceBuffer | TransitionBuffer
AnyRange = SegmentRange | SequenceRange | TransitionRange
AnySnapshot = SegmentSnapshot | SequenceSnapshot | TransitionSnapshot


def buffer_of(layout: AnyLayout, **memory: Any) -> AnyBuffer:
    """Return a new buffer; `memory` is as in `Buffer`."""
    if isinstance(layout, SegmentLayout):
        return SegmentBuffer(layout, **memory)
    if isinstance(layout, SequenceLayout):
        return SequenceBuffer(layout, **memory)
    return TransitionBuffer(layout, **memory)


def snapshot_of(memory: RingMemory, taken: AnyRange) -> AnySnapshot:
    """Return what shows a range that the owner of a buffer took, in whichever process has its memory."""
    if isinstance(taken, SegmentRange):
        return SegmentSnapshot(memory, taken)
    if isinstance(taken, SequenceRange):
        return SequenceSnapshot(memory, taken)
    return TransitionSnapshot(memory, taken)
