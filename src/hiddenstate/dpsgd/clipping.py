"""Sums of clipped per-sample gradients of a torch model, by whichever kernel fits it.

A network of layers that native code knows runs there on a CPU, others by book-keeping. A model with
trainable parameters in layers without a rule falls back to explicit per-sample gradients, and says
so once. Each kernel is compared with a few records' own gradients when it is made (``probe``), and
with autograd's sums over all records (``base.sums_unlike``).
"""

import copy
import math
import threading
import warnings
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from hiddenstate.dpsgd.augmentation import Augmentation
from hiddenstate.dpsgd.given import Given, refuse_hooks, refuse_tokens, whole_numbers_kept
from hiddenstate.dpsgd.kernels.base import (
    Blockwise,
    Problem,
    check_clipping_norm,
    filters_with_channels_last,
    in_single_precision,
    probed,
    single_precision,
    with_channels_last,
)
from hiddenstate.dpsgd.kernels.base import Loss as Loss
from hiddenstate.dpsgd.kernels.base import cross_entropy as cross_entropy
from hiddenstate.dpsgd.kernels.base import flat_parameters as flat_parameters
from hiddenstate.dpsgd.kernels.base import named as named
from hiddenstate.dpsgd.kernels.bookkeeping import BookKeeping, book_keeping
from hiddenstate.dpsgd.kernels.explicit import explicit
from hiddenstate.dpsgd.kernels.linear import Linear, linear
from hiddenstate.dpsgd.kernels.native import Native, native
from hiddenstate.dpsgd.probe import (
    FAILURES,
    Probe,
    copied,
    first_line,
    nothing_shared,
    on_trial,
    refuse_mixing,
)
from hiddenstate.errors import InputError

KernelName = Literal["auto", "native", "linear", "torch", "explicit"]

_COMPARED = 128
"""Records, at most, whose losses together are compared with those of each alone."""
LARGEST = 1e15
"""Largest absolute entry accepted in a record: squared norms of far larger ones overflow."""


class ClippedSum:
    """Sum of clipped gradients of a model's loss over records of one data set.

    x: shape (records, *record shape); integers where the model takes these, otherwise taken to its
    precision. y: shape (records,), integers for cross-entropy. ``kernel`` is "auto"
    (native code where it applies), "native", "linear" (many linear models in two matrix products,
    ``linear_sums``), "torch" (book-keeping) or "explicit" (per-sample gradients by torch.func).
    With an ``augmentation`` a record's gradient is the mean over the views that a call names, by
    "torch" or "explicit". Not for use by several threads at once: give each its own ``copy``.

    Raises InputError for data that are no numbers or do not fit the model, for a model without
    per-sample gradients, for one that loses something when it is copied, and where no kernel agrees
    with the gradients of a few records and the sums over all. Every record's loss alone is
    calculated once, by the model itself on the record as given.
    """

    @torch.inference_mode(False)
    def __init__(
        self,
        model: nn.Module,
        x: NDArray | Tensor,
        y: NDArray | Tensor,
        *,
        loss: Loss = cross_entropy,
        device: str | torch.device = "cpu",
        kernel: KernelName = "auto",
        augmentation: Augmentation | None = None,
    ):
        if kernel not in get_args(KernelName):
            names = ", ".join(get_args(KernelName))
            raise InputError(f"kernel: got {kernel!r}; expected one of {names}")
        x, y = tensor("x", x), tensor("y", y)
        if not callable(loss):
            raise InputError(f"loss: got {loss!r}; expected a function of outputs and labels")
        if augmentation is not None:
            if not isinstance(augmentation, Augmentation):
                raise InputError(f"augmentation: got {augmentation!r}; expected an Augmentation")
            if kernel not in ("auto", "torch", "explicit"):
                raise InputError(
                    f"kernel: got {kernel!r} with an augmentation; expected 'auto', 'torch' or "
                    "'explicit', which support augmentations"
                )
            augmentation.check(tuple(x.shape[1:]))
        held = copied(model)
        _refuse_mixing(model)
        refuse_hooks(model)
        where = usable(device)
        with single_precision(where), nothing_shared(held, loss):
            given = Given(model, x, y, loss)
            records, labels = checked(given.x, given.y, held, loss, whole=given.whole)
            probe = Probe(model, records, labels, loss, relabel=loss is cross_entropy)
        # Copies: whoever writes into what was given changes no sum.
        own_x, own_y = (v.to(where, copy=True) for v in (records, labels))
        problem = Problem(held.to(where), loss, own_x, own_y, augmentation)
        # Before losses of all records: torch ignores the label -100 and fails on other wrong ones.
        if probe.classes is not None and loss is cross_entropy:
            refuse_classes(labels, probe.classes)
        with single_precision(where):
            given.refuse_unlike(records, labels)
            self.kernel = _kernel(kernel, problem, probe)
            if where.type not in ("cpu", "meta"):
                refuse_on_device(self.kernel, probe)
        self._classes = probe.classes if loss is cross_entropy else None
        self.augmentation, self.device, self.dtype = augmentation, where, problem.dtype
        self.parameters, self.kind = problem.parameters, self.kernel.kind
        self.record_bytes, self.widest = self.kernel.record_bytes, max(self.kernel.floats())
        # Measured once, here: copies for other threads take it over.
        self.block = self.kernel.block
        self._local = threading.local()

    @property
    def block(self) -> int:
        return self.kernel.block

    @block.setter
    def block(self, records: int) -> None:
        self.kernel.block = records

    @property
    def records(self) -> int:
        return len(self.kernel.problem.y)

    @property
    def activations(self) -> float:
        return self.kernel.activations

    def own(self) -> "ClippedSum":
        """This thread's copy; torch uses no other thread in it, or sums would round otherwise."""
        if not hasattr(self._local, "copy"):
            torch.set_num_threads(1)
            self._local.copy = self.copy()
        return self._local.copy

    def copy(self) -> "ClippedSum":
        other = copy.copy(self)
        other.kernel, other._local = self.kernel.copy(), threading.local()
        return other

    @in_single_precision
    def __call__(
        self,
        theta: Tensor,
        indices: NDArray[np.int64],
        clipping_norm: float,
        drawn: NDArray[np.int64] | None = None,
    ) -> Tensor:
        """Sum (p,) over the records at ``indices`` of gradients at theta (p,), clipped.

        drawn: the records' views, shape (len(indices), views, 3), as ``Augmentation.draw`` has
        them; None for the records as they are.
        """
        theta = self.taken(theta, clipping_norm)
        indices = checked_indices(indices, self.records)
        if drawn is not None and self.augmentation is None:
            raise InputError("drawn: got views without an augmentation; expected None")
        if isinstance(self.kernel, Native):
            return self.kernel.sum(theta, indices, clipping_norm)
        return self.kernel.sum(theta, indices, clipping_norm, drawn)

    @in_single_precision
    def side_by_side(
        self,
        thetas: Tensor,
        indices: Tensor,
        weights: Tensor | None,
        clipping_norm: float,
        drawn: Tensor | None = None,
    ) -> Tensor:
        """The sums (models, p) of many models at once, thetas (models, p).

        indices: shape (records,) for all models, or (models, records) for one batch each. weights:
        1 for a record that counts and 0 for padding, shape (models, records), or None for all 1.
        drawn: views of each model's own, shape (models, records, views, 3), or None. Nothing but
        the indices is read back from the device.
        """
        thetas = self.taken(thetas, clipping_norm, models=True)
        known = checked_indices(indices, self.records, most=2)
        models, count = len(thetas), known.shape[-1]
        views = self.augmentation.views if self.augmentation else 0
        for name, given, expected in (
            ("indices", known if known.ndim == 2 else None, (models, count)),
            ("weights", weights, (models, count)),
            ("drawn", drawn, (models, count, views, 3)),
        ):
            if given is not None and tuple(given.shape) != expected:
                raise InputError(f"{name}: got shape {tuple(given.shape)}; expected {expected}")
        places = torch.from_numpy(known).to(self.device)
        return self.many.sums(thetas, self.many.blocks(places, weights, drawn), clipping_norm)

    @property
    def many(self) -> Blockwise:
        """The kernel, if it knows models side by side."""
        if isinstance(self.kernel, Native):
            raise InputError(
                "kernel: got 'native' with models side by side; expected 'torch' or 'explicit', "
                "which train several models together"
            )
        return self.kernel

    def linear_sums(
        self, thetas: Tensor, indices: NDArray[np.int64], clipping_norm: float
    ) -> Tensor:
        """The sums (models, p) of many linear models over the same records; kernel "linear"."""
        assert isinstance(self.kernel, Linear)
        thetas = self.taken(thetas, clipping_norm, models=True)
        return self.kernel.many(thetas, checked_indices(indices, self.records), clipping_norm)

    @in_single_precision
    def norms(self, theta: Tensor, indices: NDArray[np.int64]) -> Tensor:
        return self.kernel.norms(self.taken(theta), checked_indices(indices, self.records))

    @in_single_precision
    def losses(self, theta: Tensor, x: NDArray[Any], y: NDArray[Any]) -> Tensor:
        """Losses of the records (x, y), not those of the sum, at theta (p,); shape (len(y),)."""
        problem = self.kernel.problem
        records, labels = self._checked(x, y)
        if self._classes is not None:
            refuse_classes(labels, self._classes)
        if problem.channels_last:
            records = with_channels_last(records)  # as those of the sum
        with torch.no_grad():
            parameters = named(self.taken(theta), problem.model)
            outputs = functional_call(problem.model, parameters, (records.to(self.device),))
            return problem.loss(outputs, labels.to(self.device))

    @in_single_precision
    def accuracy(self, theta: Tensor, x: NDArray[np.float32], y: NDArray[np.int64]) -> float:
        """Share of the records (x, y), not those of the sum, that theta (p,) classifies rightly."""
        right, theta = 0, self.taken(theta)
        if len(x) != len(y):
            raise InputError(f"y: got {len(y)} labels; expected {len(x)}, one a record")
        if not len(y):
            raise InputError("x: got no record; expected at least one")
        if self._classes is not None:
            refuse_classes(whole_labels(tensor("y", y)), self._classes)
        for start in range(0, len(y), 256):
            records, labels = self._checked(x[start : start + 256], y[start : start + 256])
            right += int((self.kernel.guesses(theta, records) == labels.to(self.device)).sum())
        return right / len(y)

    @in_single_precision
    def refuse_tests(self, x: NDArray[np.float32], y: NDArray[np.int64]) -> None:
        """InputError for records (x, y) whose ``accuracy`` cannot be told."""
        problem = self.kernel.problem
        records, labels = self._checked(x, y)
        refuse_tokens(problem.model, records)
        try:
            with torch.no_grad():
                outputs = problem.model(records[:1].to(self.device))
        except RuntimeError as error:
            raise InputError(
                f"x: the model fails on test records of shape {tuple(records.shape[1:])} "
                f"({first_line(error)}); expected {tuple(problem.x.shape[1:])}, as in training"
            ) from error
        if outputs.dim() != 2:
            raise InputError(
                f"model: its outputs have shape {tuple(outputs.shape)}; expected one output "
                "for each class"
            )
        refuse_classes(whole_labels(labels), outputs.shape[1])

    def _checked(self, x: Any, y: Any) -> tuple[Tensor, Tensor]:
        problem = self.kernel.problem
        whole = not problem.x.is_floating_point()
        records, labels = checked(x, y, problem.model, problem.loss, whole=whole)
        # A model that writes into its records must not change those that were given.
        return records.clone(), labels.clone()

    def taken(
        self,
        theta: Any,
        clipping_norm: float = math.inf,
        *,
        models: bool = False,
        name: str = "theta",
    ) -> Tensor:
        """Parameters (p,), or (models, p), without their graph, as kernels take them."""
        # Filters of warnings, which threads share, stay as they are at each step.
        found = theta.detach() if isinstance(theta, Tensor) else tensor(name, theta)
        if found.ndim != 1 + models or found.shape[-1] != self.parameters:
            raise InputError(
                f"{name}: got shape {tuple(found.shape)}; expected {self.parameters} parameters"
                f"{' of each model' if models else ''}"
            )
        if found.is_complex():
            raise InputError(f"{name}: got {found.dtype}; expected real numbers")
        check_clipping_norm(clipping_norm, self.dtype)
        return without_inference(found).to(self.device, self.dtype)


def _kernel(name: KernelName, problem: Problem, probe: Probe) -> Blockwise | Native:
    """The kernel of this name for a problem, or that which fits it best; see ``ClippedSum``."""
    if name in ("auto", "native"):
        found = native(problem, probe)
        if isinstance(found, Native):
            found.problem = _with_fast_images(problem)
            return found
        if name == "native":
            reason = found or "it does not support this model, loss or device"
            raise InputError(f"kernel: got 'native', but {reason}; expected 'auto' or 'torch'")
        if found:
            warnings.warn(f"native kernel: {found}; kernel 'torch' is used instead", stacklevel=4)
    if problem.device.type != "cpu":
        _refuse_mixing_on_device(problem)
    fast = _with_fast_images(problem)
    if name == "linear":
        return linear(fast, probe)
    if name in ("auto", "torch"):
        kept = book_keeping(fast, probe, BookKeeping)
        if kept is not None:
            return kept
    # torch.func's convolutions are far slower on images with channels last, and fail on some.
    problem = replace(problem, x=problem.x.contiguous())
    return explicit(problem, probe)


def _with_fast_images(problem: Problem) -> Problem:
    """Put images channels last in memory if the model accepts them; one with a ``view`` may not.

    This order makes max-pooling and the unfolding of patches far faster.
    """
    if problem.x.dim() != 4 or any(map(_sees_padding_alone, problem.model.modules())):
        return problem
    filters = filters_with_channels_last(dict(problem.model.named_parameters()))
    try:
        with torch.no_grad():
            # With one channel both orders are one, and these would be the problem's own records.
            images = with_channels_last(problem.x[:2]).clone()
            functional_call(problem.model, filters, (images,))
    except FAILURES:
        return problem
    return replace(problem, x=with_channels_last(problem.x), channels_last=True)


def _sees_padding_alone(layer: nn.Module) -> bool:
    """True for a convolution with windows beside the image, which ends the process.

    Torch has a fault there, with channels last and strides above 1.
    """
    if not isinstance(layer, nn.Conv2d) or isinstance(layer.padding, str):
        return False
    sizes = zip(layer.padding, layer.dilation, layer.kernel_size, strict=True)
    return any(padding > dilation * (kernel - 1) for padding, dilation, kernel in sizes)


def _refuse_mixing_on_device(problem: Problem) -> None:
    """Raise InputError for a model that fails on the device, or mixes a block of records.

    Each record's loss alone is compared with that among a block of them, the first ones.
    """
    x, y = problem.x[:_COMPARED], problem.y[:_COMPARED]
    # On device meta records have no values: the first stands for all.
    valued = problem.device.type != "meta"

    def losses(part: slice) -> Tensor:
        # Of a copy of the records, into which a model may write.
        return problem.loss(problem.model(x[part].clone()), y[part])

    try:
        with on_trial(), torch.no_grad():
            together = losses(slice(None))
            alone = [losses(slice(i, i + 1)) for i in range(len(x) if valued else 1)]
    except RuntimeError as error:
        raise InputError(
            f"model: fails on device {str(problem.device)!r} ({first_line(error)}); expected "
            "tensors that move with it, by register_buffer, or are made on the records' device"
        ) from error
    if valued:
        refuse_mixing(torch.cat(alone), together, 1e-3)


def refuse_on_device(kernel: Blockwise | Native, probe: Probe) -> None:
    """InputError where the kernel's gradients on its device are not those of float64."""
    assert isinstance(kernel, Blockwise)
    device = kernel.problem.device
    for beside in (0, 1):
        if probe.differs(probed(kernel, probe, beside, device=device), 1e-3):
            raise InputError(
                f"device: on {str(device)!r} the gradients of kernel {kernel.kind!r} are "
                "not those of float64 on a CPU, to 1e-3; expected another device or kernel"
            )


def usable(device: str | torch.device, name: str = "device") -> torch.device:
    """A device that torch can use here; InputError, which calls it by a name, for any other."""
    try:
        torch.empty(0, device=device)
        return torch.device(device)
    except (RuntimeError, AssertionError, TypeError) as error:  # torch without CUDA asserts
        raise InputError(
            f"{name}: got {str(device)!r}; expected one that torch can use ({first_line(error)})"
        ) from error


def _precision(model: nn.Module) -> torch.dtype:
    """The type of the parameters that are trained, which have one that DP-SGD can add up in."""
    trained = [(n, p.dtype) for n, p in model.named_parameters() if p.requires_grad]
    for name, dtype in trained:
        if dtype not in (torch.float32, torch.float64) or dtype != trained[0][1]:
            raise InputError(
                f"model: {name} is of {dtype}; expected float32 or float64, all parameters the "
                "same: in less, small steps and squared norms are lost"
            )
    return trained[0][1]


def tensor(name: str, values: Any) -> Tensor:
    """An array as a tensor, of the same memory where that can be; InputError for no numbers."""
    if np.ma.is_masked(values):
        raise InputError(f"{name}: got an array with masked entries; expected numbers in all")
    if hasattr(values, "to_numpy"):  # a table, whose index is not its order
        values = values.to_numpy()
    if isinstance(values, np.ndarray) and min(values.strides, default=0) < 0:
        values = values.copy()  # torch knows no negative strides, such as those of x[:, ::-1]
    try:
        with warnings.catch_warnings():  # of arrays that are not to be written into: none is
            warnings.simplefilter("ignore")
            found = torch.as_tensor(values).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name}: {first_line(error)}; expected an array of numbers") from error
    if found.layout != torch.strided or found.is_nested or found.is_quantized or found.is_meta:
        raise InputError(
            f"{name}: got a tensor that is sparse, nested, quantized or without values; expected "
            "an array of numbers"
        )
    if not found.dim():
        raise InputError(f"{name}: got {values!r}; expected an array of numbers")
    return without_inference(found)


def without_inference(values: Tensor) -> Tensor:
    """The tensor, or a copy that autograd takes of one that was made in inference mode."""
    if not values.is_inference():
        return values
    with torch.inference_mode(False):
        return values.clone()


def checked(
    x: Any, y: Any, model: nn.Module, loss: Loss, *, whole: bool | None = None
) -> tuple[Tensor, Tensor]:
    """Records and labels as tensors of the types that the model and the loss take.

    whole: whether the model takes integer records as such; None to try. InputError names the first
    that is none.
    """
    x, y, dtype = tensor("x", x), tensor("y", y), _precision(model)
    if x.is_complex():
        raise InputError(f"x: got {x.dtype}; expected real numbers")
    if not len(x):
        raise InputError("x: got no record; expected at least one")
    if not x[0].numel():
        raise InputError(f"x: got records of shape {tuple(x.shape[1:])}; expected at least 1 entry")
    if len(x) != len(y):
        raise InputError(f"y: got {len(y)} labels; expected {len(x)}, one a record")
    if whole is None:
        whole = Given(model, x, y, loss).whole
    if whole and x.is_floating_point():
        raise InputError(f"x: got {x.dtype}; expected integers, as the records that it was made of")
    if not whole:
        x = x.to(dtype) if x.is_floating_point() else whole_numbers_kept(x, dtype)
        # The largest entry, in one pass without a copy; NaN is not below the limit either.
        if not float(torch.linalg.vector_norm(x, math.inf)) <= LARGEST:
            i, at = map(int, (~(x.reshape(len(x), -1).abs() <= LARGEST)).nonzero()[0])
            raise InputError(
                f"x: record {i} holds {float(x[i].flatten()[at])} (entry {at}); expected "
                f"finite numbers, {LARGEST:g} at most"
            )
    if loss is cross_entropy:
        y = whole_labels(y)
    elif y.is_floating_point():
        y = y.to(dtype)
    if y.is_floating_point() and not bool(y.isfinite().all()):
        i = int((~y.flatten(1).isfinite().all(1) if y.dim() > 1 else ~y.isfinite()).nonzero()[0])
        raise InputError(f"y: record {i} has the label {y[i].tolist()}; expected finite numbers")
    return x, y


def checked_indices(indices: Any, records: int, *, most: int = 1) -> NDArray[np.int64]:
    """Indices of records, an array or a tensor of any integers, as an array of int64.

    InputError for what are no whole numbers from 0 to below the number of records, and for more
    than ``most`` dimensions. A tensor on device meta has no values: its indices are taken for 0.
    """
    if isinstance(indices, Tensor):
        floats = indices.is_floating_point()
        on_cpu = torch.zeros_like(indices, device="cpu") if indices.is_meta else indices.cpu()
        indices = (on_cpu.double() if floats else on_cpu).numpy()
    found = np.asarray(indices)
    if not 1 <= found.ndim <= most:
        raise InputError(f"indices: got shape {found.shape}; expected a list of records' indices")
    if found.size and found.dtype.kind not in "iu":
        raise InputError(
            f"indices: got an array of {found.dtype}; expected the records' indices, integers"
        )
    if found.size and (found.min() < 0 or found.max() >= records):
        wrong = found[(found < 0) | (found >= records)][0]
        raise InputError(f"indices: got {wrong}; expected 0 to {records - 1}, of {records} records")
    return np.require(found, np.int64, ["W"])  # as torch wants it


def whole_labels(y: Tensor) -> Tensor:
    """Labels (records,) as int64; InputError names the first that is no whole number."""
    if y.dim() != 1:
        raise InputError(f"y: got shape {tuple(y.shape)}; expected one label a record")
    if y.is_complex():
        raise InputError(f"y: got {y.dtype}; expected integers")
    if y.is_floating_point():
        broken = (y != y.round()) | ~(y.abs() < 2**63)
        if bool(broken.any()):
            i = int(broken.nonzero()[0])
            raise InputError(f"y: record {i} has the label {float(y[i]):g}; expected an integer")
    return y.to(torch.int64)


def refuse_classes(y: Tensor, classes: int) -> None:
    """InputError for labels (records,) that are none of so many classes."""
    outside = ((y < 0) | (y >= classes)).nonzero()
    if len(outside):
        i = int(outside[0])
        raise InputError(
            f"y: record {i} has the label {int(y[i])}; expected 0 to {classes - 1}, the model's "
            "classes"
        )


def _refuse_mixing(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if "forward" in vars(module):
            raise InputError(
                f"model: an attribute forward of {name or 'it'} overrides its class's; a copy "
                "would call it on the original's parameters; expected forward defined in the class"
            )
        if isinstance(module, nn.modules.batchnorm._NormBase):
            mixes = isinstance(module, nn.modules.batchnorm._BatchNorm)
            if mixes and (module.training or module.running_mean is None):
                raise InputError(
                    f"model: {name} is {type(module).__name__} in training mode, which mixes the "
                    "records of a batch; expected eval mode, or GroupNorm instead"
                )
            if module.training and module.track_running_stats:
                raise InputError(
                    f"model: {name} ({type(module).__name__}) changes its running statistics with "
                    "every batch; expected track_running_stats=False or eval mode"
                )
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.training and module.p > 0:
            raise InputError(f"model: {name} applies random dropout; expected p = 0 or eval mode")
    if not any(p.requires_grad for p in model.parameters()):
        raise InputError("model: has no trainable parameter; expected at least one")
