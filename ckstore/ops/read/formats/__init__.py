"""The other formats of an export: those of torch, and directories of models. `ops/read/export` has safetensors."""
