#pragma once

/// What train_gpt and train_gpt_cuda differ in: how many GPUs this machine lends to the program, at least one. Throws
/// BadInput, which says what to do, if there is none or if the program was built without CUDA.
int count_gpus();
