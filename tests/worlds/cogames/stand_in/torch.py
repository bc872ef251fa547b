"""Stands in for torch: all that mettagrid's scripted policies ask of it is to compute no gradients."""

from contextlib import AbstractContextManager, nullcontext


def no_grad() -> AbstractContextManager[None]:
    """Do nothing, as there are no gradients here."""
    return nullcontext()
