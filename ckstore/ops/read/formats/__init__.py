"""Export in the formats of torch, or as a model directory. `ops/read/export` writes safetensors."""
