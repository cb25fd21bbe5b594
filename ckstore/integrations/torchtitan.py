"""torchtitan: a checkpoint manager that saves to a store and resumes from it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.checkpointer.base import MODEL
from torchtitan.components.checkpointer.dcp import AsyncMode
from torchtitan.tools.utils import GarbageCollection

from ckstore.errors import BadInput, CkstoreError, DoesNotFit
from ckstore.integrations import dcp
from ckstore.integrations.dcp.calls import list_there
from ckstore.model.settings.retention import RetentionPolicy
from ckstore.ops.notices import warn
from ckstore.store import Store
from ckstore.training.processes import failing_together, gather, once_for_all, rank_and_world


class CkstoreCheckpointManager(CheckpointManager):  # type: ignore[misc]
    """The checkpoint manager of torchtitan, with a store instead of a folder of checkpoints.

    Pass its `Config` to a trainer: ``Trainer.Config(checkpoint=CkstoreCheckpointManager.Config(enable=True,
    store="runs.ckstore"))``. All ranks save one checkpoint together, as `ckstore.integrations.dcp.save` does.

    The arguments are those of torchtitan's manager.

    Attributes:
        store: The store.
        run: Name of the run.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(CheckpointManager.Config):  # type: ignore[misc]
        """The configuration of torchtitan's manager, with a store.

        Attributes:
            store: Path of the store, which is created if it does not exist. If the nodes share no filesystem, the path
                of the store of this node, as for `ckstore.integrations.dcp.save`.
            run: Name of the run.
            if_exists: As in `Store.save`, what to do if the run has another checkpoint of the step. The default is
                ``"replace"``, because steps are saved again after a load of an earlier step.
            keep_latest_k: After each save, delete all checkpoints of the run but the newest ones, except those with a
                tag or a pin. If 0, only the policy of the store applies.
        """

        store: str = ""
        run: str = "main"
        if_exists: str = "replace"
        keep_latest_k: int = 0

    def __init__(self, config: Config, **parts: Any) -> None:
        super().__init__(config, **parts)
        if not self.enable:
            return
        if not config.store:
            raise BadInput("the configuration names no store", hint='Config(store="runs.ckstore", …)')
        with failing_together("opening the store"):
            self.store = Store.open_or_init(config.store)
        stores = gather(self.store.settings.uuid)
        rank, _ = rank_and_world()
        # The nodes may have their own stores. One rank prunes each store.
        self._is_apart = len({*stores.values()}) > 1
        self._prunes = stores[rank] not in [stores[other] for other in range(rank)]
        self.run = config.run
        self._if_exists = config.if_exists

    @torch.no_grad()
    def dcp_save(
        self,
        state_dict: dict[str, Any],
        checkpoint_id: str,
        async_mode: AsyncMode,
        enable_garbage_collection: bool = False,
        to_hf: bool = False,
    ) -> Any:
        """Save one step to the store. torchtitan calls this on every rank.

        With `to_hf`, torchtitan exports the weights to its folder, and the store gets no checkpoint.

        Args:
            state_dict: The states of the trainer.
            checkpoint_id: A path that ends with ``step-N``, where N is the step.
            async_mode: Whether to save in the background.
            enable_garbage_collection: Whether to run the garbage collection of Python after the save.
            to_hf: Whether to export the weights as safetensors files.

        Returns:
            As torchtitan's manager: None, a future, or torch's `AsyncSaveResponse`.
        """
        if to_hf:
            return super().dcp_save(state_dict, checkpoint_id, async_mode, enable_garbage_collection, to_hf)
        found = re.search(r"step-(\d+)$", checkpoint_id)
        if found is None:
            raise BadInput(f"{checkpoint_id} names no step", hint="torchtitan 0.3.0 saves to …/step-N")
        step = int(found[1])
        about: dict[str, Any] = {"if_exists": self._if_exists}
        saving: Any = None
        if async_mode == AsyncMode.DISABLED:
            dcp.save(self.store, state_dict, step, self.run, **about)
        elif async_mode == AsyncMode.ASYNC:
            saving = dcp.async_save(self.store, state_dict, step, self.run, process_group=self.pg, about=about)
        else:
            saving = dcp.async_save(
                self.store,
                state_dict,
                step,
                self.run,
                process_group=self.pg,
                about=about,
                async_checkpointer_type=AsyncCheckpointerType.PROCESS,
                async_stager=self.stager,
            )
        if enable_garbage_collection:
            GarbageCollection.collect("GC collection invoked by checkpointer.")
        return saving

    @torch.no_grad()
    def _load(self, step: int = -1) -> bool:
        """Load a step, or the newest valid checkpoint. Without one, do as torchtitan: load from its folder."""
        ref = f"{self.run}@{'latest-valid' if step == -1 else step}"

        def listed() -> set[int]:
            if self._is_apart:  # this node may have been replaced, or absent from the last saves
                list_there(self.store, ref)
            return {info.step for info in self.store.checkpoints(self.run)}

        # All ranks must load from one source, even if other nodes do not list the newest checkpoints yet.
        steps = once_for_all(listed)
        if not steps or (step != -1 and step not in steps):
            loaded: bool = super()._load(step)
            return loaded
        is_seed = (max(steps) if step == -1 else step) == 0  # as in torchtitan, step 0 holds only weights
        states = self._states_to_load(is_seed)
        # For a partial load, torchtitan ignores the other values of the checkpoint, so they must not be an error.
        is_all = not is_seed and not self.exclude_from_loading
        try:
            dcp.load(self.store, states, ref, strict=True if is_all else sorted(states))
        except DoesNotFit as error:
            # The hint of `dcp.load` names an argument that torchtitan does not have.
            error.hint = 'exclude_from_loading=["dataloader"], for example, loads the other parts'
            raise
        self.states[MODEL].load_state_dict(states)
        return True

    def _purge_stale_checkpoints(self) -> None:
        """Delete older checkpoints if the configuration limits their number."""
        if self.keep_latest_k > 0 and self._prunes:
            try:
                self.store.prune(RetentionPolicy(keep_last=self.keep_latest_k), run=self.run)
            except CkstoreError as error:  # like torchtitan, continue the training
                warn(f"older checkpoints of the run {self.run} were not deleted: {error}")
