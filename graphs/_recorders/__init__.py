"""How a capture is taken: CUDA graphs, lists of native kernels, or emulated on any device."""
