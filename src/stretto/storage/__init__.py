"""Where experience is kept: one owner writes it, and learners read snapshots of it, in any process."""

from stretto.storage.block import Block, Piece
from stretto.storage.buffer import within_bytes
from stretto.storage.decisions import TransitionRange
from stretto.storage.memory import RingMemory
from stretto.storage.priorities import Priorities
from stretto.storage.ring import Patience
from stretto.storage.segments import (
    SegmentBatch,
    SegmentBuffer,
    SegmentLayout,
    SegmentRange,
    SegmentSnapshot,
)
from stretto.storage.sequence_snapshot import SequenceBatch, SequenceRange, SequenceSnapshot
from stretto.storage.sequences import SequenceBuffer, SequenceLayout
from stretto.storage.transition_snapshot import TransitionBatch, TransitionSnapshot
from stretto.storage.transitions import TransitionBuffer, TransitionLayout

__all__ = [
    "Block",
    "Patience",
    "Piece",
    "Priorities",
    "RingMemory",
    "SegmentBatch",
    "SegmentBuffer",
    "SegmentLayout",
    "SegmentRange",
    "SegmentSnapshot",
    "SequenceBatch",
    "SequenceBuffer",
    "SequenceLayout",
    "SequenceRange",
    "SequenceSnapshot",
    "TransitionBatch",
    "TransitionBuffer",
    "TransitionLayout",
    "TransitionRange",
    "TransitionSnapshot",
    "within_bytes",
]
