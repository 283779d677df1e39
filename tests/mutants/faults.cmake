# mutant(NAME FILE TEST OLD NEW), in the order in which data flows: see CMakeLists.txt.

# ---- which elements: chunks, then the head, words and tail of each

mutant(chunk_offset_wrong chunks.cpp On/Fused.EqualsStagesAroundChunksAndBlocks/ShimForwardWithFloat
       "run.offset + begin," "run.offset,")
mutant(last_chunk_unclipped chunks.cpp IndexOfParameters.ReachesBeyondTwoToTheThirtyFirst
       "std::min(chunk_size, run.numel - begin)" "chunk_size")
mutant(last_flat_chunk_unclipped walk.cuh On/Fused.StagesOneByOneEqualTheCpus/ShimForwardWithFloat
       "rest < chunk_size ? rest : chunk_size" "chunk_size")
mutant(later_chunks_forgotten walk.cuh On/Fused.EqualsStagesForFiveThousandTensorsSomeOfThemEmpty/ShimForwardWithFloat
       "index += gridDim.x" "index += chunks.count")
mutant(index_of_32_bits send.cu IndexOfParameters.ReachesBeyondTwoToTheThirtyFirst
       "int64_t flat" "int flat")
mutant(index_of_32_bits_in_a_stage stages.cu IndexOfParameters.ReachesBeyondTwoToTheThirtyFirstInEachStage
       "run(T* params, int64_t flat)" "run(T* params, int flat)")
mutant(flat_chunk_of_32_bits walk.cuh IndexOfFlatVectors.ReachesBeyondTwoToTheThirtyFirstInAStep
       "offset = index * chunk_size, rest" "offset = static_cast<int>(index * chunk_size), rest")
mutant(params_alignment_forgotten walk.cuh On/Fused.EqualsStagesForEveryMisalignment/ShimForwardWithFloat
       "% (sizeof(T) * n) == 0" "% sizeof(T) * n == 0")
mutant(flat_alignment_forgotten walk.cuh On/Fused.StagesOneByOneEqualTheCpus/ShimForwardWithFloat
       "chunks.aligned ? static_cast<int>(-chunk.offset & (width - 1)) : numel"
       "static_cast<int>(-chunk.offset & (width - 1))")
mutant(alignment_of_the_first_flat_alone walk.cuh On/Fused.EqualsStagesWhereverEachFlatVectorBegins/ShimForwardWithFloat
       "nullptr, 0, (is_aligned(flats) && ...)"
       "nullptr, 0, [](bool first, auto...) { return first; }(is_aligned(flats)...)")
mutant(alignment_of_the_anchor_alone walk.cuh On/Fused.StagesOneByOneEqualTheCpus/ShimForwardWithFloat
       "is_aligned(flat) && (is_aligned(others) && ...)" "is_aligned(flat)")
mutant(alignment_of_the_next_velocity_forgotten apply.cu
       On/StepApart.EqualsApplyWhereverEachVectorBegins/ShimForwardWithFloat
       "args.wire, args.next_velocity), stream" "args.wire), stream")
mutant(head_of_wrong_length walk.cuh On/Fused.EqualsStagesForTwoTensors/ShimForwardWithFloat
       "-chunk.offset & (width - 1)" "chunk.offset & (width - 1)")
mutant(tail_off_by_one walk.cuh On/Fused.EqualsStagesForEveryTailAndHead/ShimForwardWithFloat
       "turn < words + edges" "turn < words + edges - 1")
mutant(tail_forgotten walk.cuh On/Fused.EqualsStagesForEveryTailAndHead/ShimForwardWithFloat
       "turn < words + edges" "turn < words + head")

# ---- what is done with them

mutant(weight_missing send.cu On/Fused.EqualsStagesForTwoTensors/ShimForwardWithFloat
       "weight * delta;" "delta;")
mutant(velocity_and_anchor_swapped apply.cu On/Fused.EqualsStagesForEveryMisalignment/ShimForwardWithFloat
       "outer_step<has_velocity>(anchor, velocity, anchor, velocity,"
       "outer_step<has_velocity>(velocity, anchor, velocity, anchor,")
mutant(inverse_weight_missing apply.cu On/StepApart.IsItsFormulaOnExactData/ShimForwardWithFloat
       "inverse_weight * mean_delta.values[i]" "mean_delta.values[i]")
mutant(anchor_stepped_in_place apply.cu On/StepApart.EqualsApplyForEveryTail/ShimForwardWithFloat
       "(anchor, velocity, wire, next_velocity, flat" "(anchor, velocity, const_cast<S*>(anchor), next_velocity, flat")
mutant(velocity_stepped_in_place apply.cu On/StepApart.EqualsApplyForEveryTail/ShimForwardWithFloat
       "(anchor, velocity, wire, next_velocity, flat" "(anchor, velocity, wire, const_cast<S*>(velocity), flat")
mutant(params_read_in_vain apply.cu Traffic.IsTwelveAndTwentyFourBytesForFloat32
       "if constexpr (mixes) local =" "local =")
mutant(words_of_one_element walk.cuh Traffic.MovesSixteenBytesAtATimeButAtTheEndsOfTensors
       "(numel - head) / width" "0 * (numel - head) / width")

# ---- sums

mutant(half_warps_summed sum.cuh On/Fused.EqualsStagesForEveryTailAndHead/ShimForwardWithFloat
       "Sum(value)" "Sum(threadIdx.x % 32 < 16 ? value : Value{})")
mutant(barrier_missing sum.cuh On/Fused.EqualsStagesForEveryTailAndHead/ShimReverseWithFloat
       "__syncthreads();\n  if (!is_last)" "if (!is_last)")
mutant(first_block_taken_for_last sum.cuh On/Fused.EqualsStagesAroundChunksAndBlocks/ShimForwardWithFloat
       "== gridDim.x - 1;" "== 0;")
mutant(parts_beyond_256_lost sum.cuh On/Fused.EqualsStagesForFiveThousandTensorsSomeOfThemEmpty/ShimReverseWithFloat
       "i += block_threads" "i += most_blocks")
mutant(done_never_zero_again sum.cuh On/Fused.EqualsStagesForEveryTailAndHead/ShimForwardWithFloat
       "atomicInc(&workspace.done, gridDim.x - 1)" "atomicInc(&workspace.done, gridDim.x)")
mutant(sum_never_goes_on sum.cuh On/Fused.EqualsStagesForTwoTensors/ShimForwardWithMixed
       "sum.goes_on ? plus(workspace.total, total) : total" "total")
mutant(sum_always_goes_on sum.cuh On/Fused.SumsAreTheSameEveryTime/ShimForwardWithFloat
       "sum.goes_on ? plus(workspace.total, total) : total" "plus(workspace.total, total)")
mutant(sum_made_though_nobody_asks apply.cu On/StepApart.EqualsApplyForEveryTail/ShimForwardWithFloat
       "if (sum.workspace) add_up" "add_up")

# ---- errors

mutant(errors_passed_over check.hpp Launch.ThrowsTheErrorOfAnyCallOfCuda
       "if (error == cudaSuccess) return;" "return;")
