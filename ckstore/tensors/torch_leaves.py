"""Convert tensors to leaves, and leaves to tensors.

This module is imported only if a state or a checkpoint has tensors. A checkpoint keeps only the part of a live storage
that tensors of the state use. For a lone tensor, which shares memory with no other tensor, this part is its elements.
For tensors that share memory, it is the union of their memory (`memory_layout.keep_parts`). Only conjugate and negative
views, tensors on devices other than the CPU and CUDA, and CUDA tensors with gaps are copied.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING

import torch

from ckstore.errors import BadInput, CannotStore
from ckstore.model.manifest.dtypes import TORCH_ITEMSIZE
from ckstore.model.manifest.manifest import LeafRecord
from ckstore.tensors.device import streams
from ckstore.tensors.memory_layout import StorageMemory, keep_parts, part_at, row_major, span_elements
from ckstore.tensors.refusals import check_numbers
from ckstore.tensors.torch_parts import refuse_tensor
from ckstore.tensors.torch_sources import GappedSource, StridedSource, TorchSource, Watched

if TYPE_CHECKING:
    from ckstore.model.manifest.captured import ByteSource

DTYPE_NAMES = {getattr(torch, name): name for name in TORCH_ITEMSIZE if hasattr(torch, name)}
DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}
_HAS_NAMES = getattr(torch.Tensor, "has_names", None)  # removed in torch 2.12
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def address_of(target: torch.Tensor) -> int:
    """Return the address at which the memory of a tensor begins, or 0 if it has no memory of its own."""
    if hasattr(target, "__tensor_flatten__"):
        return 0
    try:
        return target.data_ptr()
    except (NotImplementedError, RuntimeError):
        return 0


class Admitted:
    """A tensor of the state that can be stored."""

    __slots__ = (
        "contiguous", "dtype", "elements", "itemsize", "memory", "name", "shape", "start", "stop", "storage", "tensor",
        "watched",
    )  # fmt: skip

    def __init__(self, name: str, tensor: torch.Tensor, live: torch.Tensor) -> None:
        self.name = name  # its path in the state
        # The tensor of the state, and its version when it was captured. Empty for an inference tensor, whose
        # modifications torch does not count.
        self.watched: tuple[Watched, ...] = () if live.is_inference() else ((live, live._version),)  # noqa: SLF001
        self.dtype = DTYPE_NAMES[tensor.dtype]  # its name in the format
        self.itemsize = TORCH_ITEMSIZE[self.dtype]  # bytes of an element
        try:
            self.storage = tensor.untyped_storage()
            address = self.storage.data_ptr()
        except (NotImplementedError, RuntimeError) as error:
            reason = f"a tensor without memory of its own: {error}"
            hint = "store value.clone(), outside torch.func transformations"
            raise CannotStore(name, reason, hint=hint) from error
        self.memory: Hashable = None  # equal for tensors that share memory; None for a tensor without elements
        self.start = self.stop = 0
        # A state may have thousands of tensors, and each query of torch takes a tenth of a microsecond, so the results
        # are kept.
        self.elements = elements = tensor.numel()
        self.contiguous = contiguous = tensor.is_contiguous()
        self.shape = tuple(tensor.shape)
        # This tensor is strided, on the CPU or a CUDA device, and without pending conjugation or negation. It is
        # detached unless it is contiguous, because its strides are needed later, and a `state_dict()` that is called
        # later in the walk may give the parameter other memory (``p.data = …``).
        self.tensor = tensor if contiguous else tensor.detach()
        # torch allows a stride of 2^60 for a single element, but a manifest may not contain such a number.
        if not (elements and contiguous):  # otherwise, the number of elements is limited by the memory
            check_numbers(name, tensor.shape, tensor.stride())
        if elements:
            # Its elements span the bytes from `start` to `stop` of its storage.
            self.start = int(tensor.storage_offset()) * self.itemsize
            span = elements if contiguous else span_elements(tensor.shape, tensor.stride())
            self.stop = self.start + span * self.itemsize
            # FSDP and offloading free the memory of a tensor, and keep the tensor. Reading such a tensor would read
            # other memory, or crash.
            if self.stop > self.storage.nbytes():
                found = f"a storage of {self.storage.nbytes()} bytes, {self.stop} needed"
                hint = "its memory was freed (FSDP, offloading); gather it before saving"
                raise CannotStore(name, f"a tensor without its memory: {found}", hint=hint)
            device = tensor.get_device()  # the number of a CUDA device, or -1 for the CPU
            self.memory = address if device < 0 else (device, address)


class Admission:
    """Checks the tensors of one state. A tensor that must be copied is copied once."""

    def __init__(self) -> None:
        self._copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def admit(self, tensor: torch.Tensor, path: str) -> Admitted:
        """Return a tensor of the state in the form that `place` needs, or raise if it cannot be stored."""
        kind = type(tensor)
        if (
            (kind is not torch.Tensor and kind is not torch.nn.Parameter)
            or tensor.layout is not torch.strided
            or tensor.dtype not in DTYPE_NAMES
            or tensor.is_nested
            or (_HAS_NAMES is not None and _HAS_NAMES(tensor))
        ):
            refuse_tensor(tensor, path)
        # The bits of conjugate and negative views do not represent their values, so `_copy` resolves such views.
        if (tensor.is_cpu or tensor.is_cuda) and not tensor.is_conj() and not tensor.is_neg():
            return Admitted(path, tensor, tensor)
        if tensor.is_meta:
            refuse_tensor(tensor, path)
        return Admitted(path, self._copy(tensor), tensor)

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        kept = self._copies.get(id(tensor))
        if kept is None:
            plain = _resolve_conj(tensor.detach()).resolve_neg()
            kept = tensor, plain if plain.device.type in ("cpu", "cuda") else plain.cpu()
            self._copies[id(tensor)] = kept  # the tensor is also kept, so that its id is not reused
        return kept[1]


def _resolve_conj(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_conj() or DTYPE_NAMES[tensor.dtype] != "bcomplex32":  # torch 2.15 has no kernel for this dtype
        return tensor.resolve_conj()
    pairs = torch.view_as_real(tensor.conj()).clone()
    pairs[..., 1].neg_()
    return pairs.view(tensor.dtype).squeeze(-1)


def place(members: Sequence[Admitted], storage: int) -> tuple[ByteSource, list[LeafRecord]]:
    """Return the source and the leaves of tensors that share memory, or of a lone tensor.

    Args:
        members: All tensors of the state with the same `memory`.
        storage: The index that the storage will have.
    """
    if len(members) > 1:
        return _place_shared(members, storage)
    lone = members[0]
    # A transposed weight has no gaps, so it is stored in its own layout, without a copy. A slice has gaps, which would
    # also be stored, so it is stored in row-major order.
    if not lone.contiguous and lone.stop - lone.start > lone.elements * lone.itemsize:
        source, leaf = place_row_major(lone, storage)
        return source, [leaf]
    strides = None if lone.contiguous else lone.tensor.stride()
    source = TorchSource(lone.name, lone.storage, lone.start, lone.stop - lone.start, lone.watched)
    return source, [LeafRecord(lone.name, "torch", lone.dtype, lone.shape, storage, 0, strides)]


def place_row_major(lone: Admitted, storage: int) -> tuple[ByteSource, LeafRecord]:
    """Return the source and the leaf of a lone tensor in row-major order, whatever its strides are."""
    leaf = LeafRecord(lone.name, "torch", lone.dtype, lone.shape, storage)
    if not lone.contiguous and lone.tensor.is_cpu:
        return StridedSource(lone.name, as_bits(lone.tensor), lone.stop, lone.watched), leaf
    # On a device, one kernel gathers the elements, because only contiguous bytes can be read from a device.
    tensor = lone.tensor if lone.contiguous else as_bits(lone.tensor).contiguous()
    start = lone.start if lone.contiguous else 0
    nbytes = lone.elements * lone.itemsize
    return TorchSource(lone.name, tensor.untyped_storage(), start, nbytes, lone.watched), leaf


def wait_for(
    members: Iterable[Admitted], after: object = None, waited: Collection[object] = ()
) -> Collection[torch.device]:
    """Wait for queued work that may write to tensors, and return the devices of these tensors.

    The function does not wait for the devices in `waited`. For `after`, see `state_capture.capture`.
    """
    # A process with eight GPUs need not wait for GPUs without saved tensors.
    devices = {member.tensor.device for member in members if not member.tensor.is_cpu}
    if devices:
        streams.wait(devices.difference(waited), after)
    return devices


def wait_for_placing(devices: Iterable[torch.device]) -> None:
    """Wait for the copies that `place` queued on these devices, but not for transfers on other streams."""
    for device in devices:
        streams.system.synchronize_current(device)


def make_tensor(leaf: LeafRecord, flat: torch.Tensor) -> torch.Tensor:
    """Return the tensor of a leaf, in the memory of `flat`, which has the bytes of the leaf's storage."""
    if leaf.dtype not in DTYPES:
        msg = f"{leaf.name}: dtype {leaf.dtype} is not known to torch {torch.__version__}"
        raise BadInput(msg, hint="install a newer torch")
    dtype = DTYPES[leaf.dtype]
    if leaf.dtype in ("complex32", "bcomplex32"):  # new_empty would warn that these dtypes are experimental
        tensor = flat.new_empty(0, dtype=torch.float16).view(dtype)
    else:
        tensor = flat.new_empty(0, dtype=dtype)
    if 0 in leaf.shape:
        return tensor.resize_(leaf.shape)
    offset, rest = divmod(leaf.offset, TORCH_ITEMSIZE[leaf.dtype])
    # torch counts offsets in elements. A wrong offset in a damaged manifest must not be rounded to another element.
    if rest:
        raise BadInput(f"{leaf.name}: begins at byte {leaf.offset}, where {leaf.dtype} cannot begin")
    strides = row_major(leaf.shape) if leaf.strides is None else leaf.strides
    return tensor.set_(flat.untyped_storage(), offset, leaf.shape, strides)


def flat_tensor(memory: StorageMemory) -> torch.Tensor:
    """Return the bytes of a storage as a tensor without a copy, even if they were not allocated for tensors."""
    owner = memory.owner
    return owner if isinstance(owner, torch.Tensor) else bytes_in(memory.view)


def as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of `tensor` as integers of the size of its elements, without gradient.

    `tensor` must not be a conjugate view.
    """
    # Copying integers works for every dtype, without a warning, and changes no bits, not even those of an invalid bool.
    bits = _BITS.get(tensor.element_size())
    return tensor.detach() if bits is None else tensor.detach().view(bits)


def empty_bytes(nbytes: int) -> torch.Tensor:
    """Return a flat CPU tensor of `nbytes` undefined bytes, aligned to 64 bytes."""
    return torch.empty(nbytes, dtype=torch.uint8, device="cpu")


def bytes_in(view: memoryview) -> torch.Tensor:
    """Return a flat tensor over `view`, which must not be empty.

    The buffer of `view` remains exported while the tensor exists.
    """
    return torch.frombuffer(view, dtype=torch.uint8)


def _place_shared(members: Sequence[Admitted], storage: int) -> tuple[ByteSource, list[LeafRecord]]:
    align_bytes = max(member.itemsize for member in members)
    # Views keep their distances from one another, so that they share memory again after a load.
    parts, size = keep_parts(((m.start, m.stop) for m in members), align_bytes)
    # Two storages at one address may have different lengths, for example after torch.from_numpy of two slices.
    live = max((member.storage for member in members), key=lambda s: s.nbytes())
    # A view uses the modification counter of its base, and bases may differ. So a write through one view may not change
    # the counter of another view.
    watched = [one for member in members for one in member.watched]
    leaves = []
    for member in members:
        part = part_at(parts, member.start)
        offset = part.place + member.start - part.start
        strides = None if member.contiguous else member.tensor.stride()
        leaves.append(LeafRecord(member.name, "torch", member.dtype, member.shape, storage, offset, strides))
    name = members[0].name
    sources = [TorchSource(name, live, part.start, part.stop - part.start, ()) for part in parts]
    if len(parts) == 1 and parts[0].place == 0:
        sources[0].watched = tuple(watched)
        return sources[0], leaves
    places = [part.place for part in parts]
    return GappedSource(name, size, places, sources, tuple(watched)), leaves
