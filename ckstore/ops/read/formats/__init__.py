"""The formats of torch that a saved state is exported in; `ops/read/export` has safetensors."""
