"""Files of known formats, cut where their tensors and records begin and end; nothing of them is ever run."""
