"""An engine for vLLM's weight transfer that loads the changed weights of a ckstore run into a serving model.

Register it in each worker, and start vLLM with the backend `ckstore` (vLLM 0.25 and later):

    WeightTransferEngineFactory.register_engine("ckstore", "vllm_weights", "CkstoreEngine")

The trainer saves each step in a store that the workers can read, or pushes it to a bucket. Then it calls
`update_weights` twice between `start_weight_update` and `finish_weight_update`. The first call, with
`{"ref": "policy@110"}` while the engine generates, reads the changed weights into host memory. The second one, with
`{"ref": "policy@110", "load": true}` in the pause, loads the weights into the model.
"""

from dataclasses import dataclass

from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from ckstore import NoSuchRef, Store


@dataclass
class CkstoreInit(WeightTransferInitInfo):
    store: str  # a directory, or the URL of a remote
    part: str = "model"  # the name of the state dict in the saved state
    # Whether only the changed weights are copied into the model. This needs a model whose weights vLLM does not convert
    # after it has loaded them. It converts quantized weights and those of experts, for example.
    in_place: bool = False


@dataclass
class CkstoreUpdate(WeightTransferUpdateInfo):
    ref: str  # which checkpoint, such as policy@110
    load: bool = False  # whether to copy the weights into the model


class CkstoreEngine(WeightTransferEngine):
    init_info_cls = CkstoreInit
    update_info_cls = CkstoreUpdate
    supports_draft_weight_update = False

    def init_transfer_engine(self, init_info):
        self.store = Store.open(init_info.store)
        self.part, self.in_place = init_info.part, init_info.in_place
        self.host = None  # the weights in host memory
        self.report = None  # the report of the last load into host memory
        self.changed = set()  # the names of the weights that the model does not have yet
        self.staged = None  # the ref whose weights the last call has read into host memory

    def start_weight_update(self):
        """Do nothing, because the model continues to serve until its weights are loaded."""

    def finish_weight_update(self):
        """Do nothing. See `start_weight_update`."""

    def receive_weights(self, update_info):
        # If the previous call has read this ref, only copy the weights, without access to the store.
        if not (update_info.load and update_info.ref == self.staged):
            self._stage(update_info.ref)
        self.staged = None if update_info.load else update_info.ref
        if update_info.load and self.changed:
            weights = self.host[self.part]
            if self.in_place:
                self.model.load_weights((name, weights[name]) for name in weights if name in self.changed)
            else:
                # vLLM can only convert a layer whose weights are all loaded, and it fuses weights into layers.
                initialize_layerwise_reload(self.model)
                self.model.load_weights(weights.items())
                finalize_layerwise_reload(self.model, self.model_config)
            self.changed.clear()

    def _stage(self, ref):
        """Read the changed weights into host memory, while the model continues to serve."""
        self.staged = None
        info = self.store.info(ref)
        if self.report is None:
            self.host = self.store.load(info, select=self.part)
            self.report = self.store.load_into(self.host, info, select=self.part, since=info)
            self.changed.update(self.host[self.part])
        elif self.report.info.id != info.id:
            # If this load fails, host memory has weights of two steps, and the next call reads all of them.
            report, self.report = self.report, None
            self.changed |= self._changed(report.info, info)
            # This reads and verifies only the blobs that differ.
            self.report = self.store.load_into(self.host, info, select=self.part, since=report)

    def _changed(self, before, after):
        """Return the names of the weights whose digests differ between two checkpoints."""
        try:
            names = {leaf.name for leaf in self.store.diff(before, after).changed}
        except NoSuchRef:  # retention has dropped the previous checkpoint, so copy all weights
            return set(self.host[self.part])
        return {name for name in self.host[self.part] if f"{self.part}.{name}" in names}

    def shutdown(self):
        self.store.close()

    @staticmethod
    def trainer_send_weights(iterator, trainer_args):  # until vLLM 0.27
        raise NotImplementedError("the trainer saves its steps in a store, and workers read them there")
