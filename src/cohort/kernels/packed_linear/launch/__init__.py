"""From tensors to launches: tables on the device, grids, strides, shared memory."""
