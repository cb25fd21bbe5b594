"""Write a directory for `from_pretrained`: weights as safetensors, with the configuration and the tokenizer.

The weights are tensors of a saved state, or committed files of a trainer. Files of weights are copied unchanged, except
in two cases: the weights are converted to another dtype, or are in a single file that is a pickle or must be split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from ckstore.containers.safetensors_write import INDEX_NAME, shard_name
from ckstore.errors import BadInput
from ckstore.model.manifest.manifest import FileRecord
from ckstore.model.names import plain
from ckstore.model.reports.export_report import ExportedFile, ExportReport
from ckstore.model.reports.progress import Progress
from ckstore.model.sizes import exact_size
from ckstore.objects.checkpoints import CheckpointDirectory
from ckstore.ops.read.export import (
    MAX_SHARD_BYTES,
    ShardFile,
    TensorWork,
    check_shard,
    index_of,
    shards_of,
    versions_left_out,
)
from ckstore.ops.read.export_cast import CastTally, WeightDtype, cast_plan
from ckstore.ops.read.export_files import MARGIN_BYTES, Meter, Work, building
from ckstore.ops.read.export_plan import ExportPlan, is_one_key, plan_export
from ckstore.ops.read.export_sums import RECORD_NAME, STATEMENT_NAME, SUMS_NAME, ExportSums, FileRegion, Sums
from ckstore.ops.read.file_state import state_of
from ckstore.ops.read.formats.model_files import (
    PEFT,
    PRETRAINED,
    ModelForm,
    UserFile,
    added_files,
    choose,
    user_file_parts,
)
from ckstore.ops.read.load import Select
from ckstore.ops.read.regions import RangeReader
from ckstore.ops.read.storage_read import names_of

_FORMS = {"pretrained": (PRETRAINED, PEFT), "peft": (PEFT, PRETRAINED)}
ABOUT = (RECORD_NAME, SUMS_NAME, STATEMENT_NAME)


@dataclass(frozen=True, slots=True)
class _WeightSource:
    """The tensors of one source, and the files to which they are written."""

    directory: CheckpointDirectory  # the checkpoint, or the view of a file in it
    shards: tuple[ShardFile, ...]
    tied: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Plan:
    """The content of an export."""

    copied: tuple[FileRecord, ...]  # committed files that are copied
    added: tuple[UserFile, ...]  # files of the user
    left_out: tuple[str, ...]  # a sentence for each file that is not written
    weights: tuple[_WeightSource, ...]  # empty if weights are copied as files

    @property
    def shards(self) -> list[ShardFile]:
        """The files of tensors."""
        return [shard for source in self.weights for shard in source.shards]

    @property
    def tied(self) -> dict[str, str]:
        """Name of a tensor that is not written -> name of the tensor that it is tied to."""
        return {name: kept for source in self.weights for name, kept in source.tied.items()}


def export_pretrained(
    directory: CheckpointDirectory,
    path: Path,
    *,
    form: str,
    chunk_bytes: int,
    max_shard_bytes: int | str = MAX_SHARD_BYTES,
    select: Select = None,
    add: object = (),
    sums: Sums = False,
    progress: Progress | None = None,
    casts: CastTally | None = None,
    last: Mapping[str, Callable[[], bytes]] = MappingProxyType({}),
) -> ExportReport:
    """Export an open checkpoint as the directory `path`; see `ckstore.Store.export`.

    `casts` has the dtype of the weights, and counts the values that are out of range of that dtype. `last` has further
    files: name -> function that returns the content. The function is called after the weights were written.
    """
    casts = CastTally(None) if casts is None else casts
    manifest = directory.manifest
    most_bytes = check_shard(max_shard_bytes)
    with ExitStack() as opened:
        if manifest.files:
            plan = _of_files(
                directory,
                _FORMS[form],
                select=select,
                added=added_files(add),
                most_bytes=most_bytes,
                chunk_bytes=chunk_bytes,
                dtype=casts.dtype,
                opened=opened,
            )
        else:
            plan = _of_state(directory, _FORMS[form][0], select, added_files(add), most_bytes, casts.dtype)
        _check_beside(plan, _FORMS[form][0], manifest.name, sums=sums, last=last)
        written = _write(directory, path, plan, ExportSums.asked_for(sums), progress, casts, last)
    return ExportReport(
        name=manifest.name,
        checkpoint_id=directory.manifest_id,
        destination=path,
        files=tuple(written),
        tied=plan.tied,
        left_out=plan.left_out,
    )


def _of_state(  # noqa: PLR0917
    directory: CheckpointDirectory,
    form: ModelForm,
    select: Select,
    added: tuple[UserFile, ...],
    most_bytes: int,
    dtype: WeightDtype | None,
) -> _Plan:
    strips = select is not None and not callable(select)
    plan = plan_export(directory.manifest, select=select, strip_prefix=strips, ties=form.is_cut)
    check_state_dict(plan, form)
    return _Plan((), added, versions_left_out(plan), _weight_sources([(directory, plan)], form, most_bytes, dtype))


def _weight_sources(
    plans: Sequence[tuple[CheckpointDirectory, ExportPlan]],
    form: ModelForm,
    most_bytes: int,
    dtype: WeightDtype | None,
) -> tuple[_WeightSource, ...]:
    """Return the files to write for the tensors of one state, or of several committed files, numbered consecutively."""
    cut = [shards_of(cast_plan(plan, dtype), most_bytes if form.is_cut else None, form.stem) for _, plan in plans]
    count, number = sum(map(len, cut)), 0
    sources = []
    for (directory, plan), shards in zip(plans, cut, strict=True):
        numbered = (replace(one, name=shard_name(i, count, form.stem)) for i, one in enumerate(shards, number + 1))
        sources.append(_WeightSource(directory, tuple(numbered), plan.tied))
        number += len(shards)
    return tuple(sources)


def _of_files(
    directory: CheckpointDirectory,
    forms: tuple[ModelForm, ModelForm],
    *,
    select: Select,
    added: tuple[UserFile, ...],
    most_bytes: int,
    chunk_bytes: int,
    dtype: WeightDtype | None,
    opened: ExitStack,
) -> _Plan:
    form, other = forms
    if select is not None:
        msg = f"{directory.manifest.name} was committed from files, so select names no part of it"
        raise BadInput(msg, hint="leave select= out")
    chosen = choose(directory.manifest, form, other)
    left_out = tuple(f"{path}: not part of the model" for path in chosen.left_out)
    # If the files are those of an earlier export, its sums do not apply to this export.
    left_out += tuple(f"{file.path}: about an earlier export" for file in chosen.beside if file.path in ABOUT)
    beside = tuple(file for file in chosen.beside if file.path not in ABOUT)
    (first, *more) = chosen.weights
    nbytes = _bytes_of(directory, first)
    if dtype is None and (more or (first.path.endswith(".safetensors") and (nbytes <= most_bytes or not form.is_cut))):
        large = [file.path for file in chosen.weights if _bytes_of(directory, file) > most_bytes]
        if most_bytes != MAX_SHARD_BYTES and large:
            found = f"{large[0]} has more than {exact_size(most_bytes)}"
            msg = f"{found}, and weights that were committed in several files are not split again"
            raise BadInput(msg, hint="leave max_shard_bytes= out")
        return _Plan((*chosen.weights, *beside), added, left_out, ())
    plans = []
    for file in chosen.weights:
        if file.path.endswith(".index.json"):
            continue
        view = opened.enter_context(state_of(directory, file.path, chunk_bytes=chunk_bytes, can_select=False))
        plan = plan_export(view.manifest, ties=form.is_cut)
        check_state_dict(plan, form)
        plans.append((view, plan))
        left_out += versions_left_out(plan)
    return _Plan(beside, added, left_out, _weight_sources(plans, form, most_bytes, dtype))


def check_state_dict(plan: ExportPlan, form: ModelForm) -> None:
    """Raise unless the tensors are a state dict, since `from_pretrained` fills missing weights with random values."""
    if plan.metadata:
        msg = f"{form.call} reads quantized tensors only from a directory that the library itself has written"
        raise BadInput(msg, hint="export as safetensors, which torchao's own loader reads, or as torch")
    others = [leaf.name for leaf in plan.unheld] + [name for name, _ in plan.values.values + plan.values.attributes]
    deep = (
        leaf.name for leaf, tensor in zip(plan.leaves, plan.tensors, strict=True) if not is_one_key(leaf, tensor.name)
    )
    path = others[0] if others else next(deep, None)
    if path is None and plan.tensors:
        # `from_pretrained` of both formats ignores the names of a model that contains adapters.
        inside = (".base_layer.", ".lora_A.default.", ".modules_to_save.default.")
        found = next((tensor.name for tensor in plan.tensors if any(part in tensor.name for part in inside)), None)
        if found is not None:
            msg = f"{form.call} does not know the name {found}, which belongs to a model with adapters in it"
            raise BadInput(
                msg, hint="save peft.get_peft_model_state_dict(model), or the state dict of the merged model"
            )
        return
    msg = f"{form.call} reads the state dict of a model"
    msg += ", but there is no tensor" if path is None else f", but {plain(path) or 'the state'} is not a tensor of one"
    raise BadInput(msg, hint="select the state dict, such as select='model'")


def _check_beside(plan: _Plan, form: ModelForm, name: str, *, sums: Sums, last: Iterable[str]) -> None:
    """Raise if two files would have the same name, or if the configuration is missing."""
    paths = [name for file in plan.copied for name in {file.path, file.path.partition("/")[0]}]
    made = [*last, *(shard.name for shard in plan.shards), *([INDEX_NAME] if len(plan.shards) > 1 else [])]
    taken = next((one for one in made if one in paths), None)
    if taken is not None:
        msg = f"{name} has its own {taken}, and another file would be written under that name"
        raise BadInput(msg, hint="ckstore checkout REF DEST writes the committed files unchanged")
    paths += made
    for one in plan.added:
        if one.name in last:
            msg = f"{one.path} cannot be added, since another {one.name} is written"
            raise BadInput(msg, hint="leave it out of add=", command_hint="leave its --add out")
        if sums and one.name in ABOUT:
            msg = f"{one.path} cannot be added, since the export writes its own {one.name}"
            raise BadInput(
                msg,
                hint="leave it out of add=, or leave sums= out",
                command_hint="leave its --add out, or leave --sums out",
            )
        if one.name in paths:
            raise BadInput(f"{one.path} cannot be added: {name} already has {one.name}", hint="leave it out of add=")
    if form.config not in (*(file.path for file in plan.copied), *(one.name for one in plan.added)):
        msg = f"{form.call} needs {form.config}, but {name} has none"
        raise BadInput(
            msg, hint=f"add=[path] copies it to the export: the path of {form.config}, or a directory with it"
        )


def _write(  # noqa: PLR0917
    directory: CheckpointDirectory,
    path: Path,
    plan: _Plan,
    sums: ExportSums | None,
    progress: Progress | None,
    casts: CastTally,
    last: Mapping[str, Callable[[], bytes]],
) -> list[ExportedFile]:
    sizes = [_bytes_of(directory, file) for file in plan.copied] + [one.entry.nbytes for one in plan.added]
    shards = plan.shards
    sizes += [shard.layout.nbytes for shard in shards]
    index = index_of(shards, plan.tied) if len(shards) > 1 else b""
    written = []
    with building(directory, path, sum(sizes) + len(index) + MARGIN_BYTES) as (tree, reader):
        meter = Meter(sum(sizes), progress)
        for source in plan.weights:
            with RangeReader(source.directory) as own, source.directory.reporting_damage():
                work = TensorWork(source.directory, tree, own, meter, sums, casts)
                written += [work.shard(shard) for shard in source.shards]
        if index:
            written.append(Work(directory, tree, reader, meter, sums).small(INDEX_NAME, [index]))
        beside = _FileCopier(directory, tree, reader, meter, sums)
        written += [beside.committed(file) for file in plan.copied]
        written += [beside.added(one) for one in plan.added]
        written += [beside.small(name, [content()]) for name, content in last.items()]
        written += beside.write_sums()
        tree.publish()
    return written


def _bytes_of(directory: CheckpointDirectory, file: FileRecord) -> int:
    return sum(directory.manifest.storages[storage].nbytes for storage in file.storages)


@dataclass
class _FileCopier(Work):
    """Copies files in turn."""

    made: set[str] = field(default_factory=lambda: {""})  # directories of the export that exist

    def committed(self, file: FileRecord) -> ExportedFile:
        """Copy a committed file, checking every byte."""
        self._make_parents(file.path)
        written = self.small(file.path, self.metered(self._committed(file)), list(self._regions(file)))
        leaves = self.directory.manifest.leaves
        return replace(written, tensor_count=sum(leaf.storage in file.storages for leaf in leaves))

    def added(self, one: UserFile) -> ExportedFile:
        """Copy a file of the user."""
        return self.small(one.name, self.metered(user_file_parts(one)))

    def _committed(self, file: FileRecord) -> Iterator[memoryview]:
        for storage in file.storages:
            nbytes = self.directory.manifest.storages[storage].nbytes
            self.reader.begin(storage)
            yield from self.reader.parts(0, nbytes, file.path)

    def _regions(self, file: FileRecord) -> Iterator[FileRegion]:
        """Yield the parts of a committed file that belong to a tensor."""
        names, at = names_of(self.directory), 0
        for storage in file.storages:
            stop = at + self.directory.manifest.storages[storage].nbytes
            if names.name(storage) != file.path:
                yield FileRegion(names.name(storage), at, stop)
            at = stop

    def _make_parents(self, path: str) -> None:
        parent = path.rpartition("/")[0]
        if parent not in self.made:
            self._make_parents(parent)
            self.tree.make_directory(parent)
            self.made.add(parent)
