"""The user's own network: built, split into body and head, and tried on one batch."""

from __future__ import annotations

import torch
from torch import nn

from fedrc_flwr.errors import ConfigError
from fedrc_flwr.models.split import SplitModel
from fedrc_flwr.plugins import load_function

#: Samples of the batch that a network is tried on.
TRIED = 4
HOW = (
    "return fedrc_flwr.models.SplitModel(body, head), where head is the last layer, one number per "
    "class, and body is everything before it"
)


def own_network(reference: str, input_shape: tuple[int, ...], classes: int) -> SplitModel:
    """The network that the user's function makes of ``input_shape`` and ``classes``.

    A module with the modules ``body`` and ``head`` is taken as these two; of any other one, the
    last module must be a linear layer, which becomes the head.
    """
    build = load_function("model.network", reference)
    named = f"model.network = {reference!r}"
    try:
        model = build(input_shape=input_shape, classes=classes)
    except Exception as error:
        raise ConfigError(f"{named}: the function failed with {_told(error)}") from error
    if isinstance(model, SplitModel):
        return model
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"{named}: the function returned {type(model).__name__}, expected a torch.nn.Module"
        )
    body, head = getattr(model, "body", None), getattr(model, "head", None)
    if isinstance(body, nn.Module) and isinstance(head, nn.Module):
        return SplitModel(body, head)
    return _split(model, input_shape, named)


def try_network(
    reference: str, model: SplitModel, input_shape: tuple[int, ...], classes: int
) -> None:
    """Refuse a network that cannot learn from a batch of such samples."""
    named = f"model.network = {reference!r}"
    model.train()
    try:
        logits = model(torch.rand(TRIED, *input_shape))
        found = tuple(logits.shape)
        if found == (TRIED, classes):
            nn.functional.cross_entropy(logits, torch.zeros(TRIED, dtype=torch.long)).backward()  # type: ignore[no-untyped-call]
    except Exception as error:  # whatever the user's code raises
        raise ConfigError(
            f"{named}: failed on a batch of {TRIED} samples of shape {input_shape} with "
            f"{_told(error)}"
        ) from None
    if found != (TRIED, classes):
        raise ConfigError(
            f"{named}: answered a batch of {TRIED} samples with {found}, expected "
            f"{(TRIED, classes)}, one number for each of {classes} classes"
        )
    if not any(parameter.grad is not None for parameter in model.parameters()):
        raise ConfigError(f"{named}: has no parameters that can be trained")


def _split(model: nn.Module, input_shape: tuple[int, ...], named: str) -> SplitModel:
    """A module whose last module is linear, as everything before it and that layer."""
    name, last = list(model.named_modules())[-1]
    if not name or not isinstance(last, nn.Linear):
        raise ConfigError(
            f"{named}: the last module of {type(model).__name__} is {type(last).__name__}, not "
            f"Linear, so where its head begins is unclear: {HOW}"
        )
    model.eval()
    sample = torch.rand(TRIED, *input_shape)
    try:
        with torch.no_grad():
            whole = model(sample)
            model.set_submodule(name, nn.Identity())
            parts = last(model(sample))
    except Exception as error:  # whatever the user's code raises
        raise ConfigError(
            f"{named}: failed on a batch of {TRIED} samples of shape {input_shape} with "
            f"{_told(error)}"
        ) from None
    if parts.shape != whole.shape or not torch.allclose(parts, whole, atol=1e-5):
        raise ConfigError(
            f"{named}: {type(model).__name__} does something after its last layer, {name}: {HOW}"
        )
    return SplitModel(model.train(), last)


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
