# Whether and how the kernels for GPUs are built. Nothing here needs a GPU, cuDNN or cuBLAS on the machine that builds.

set(OUTERLOOP_CUDA AUTO CACHE STRING "Build outerloop_cuda beside the CPU library: AUTO (if there is an nvcc), ON or OFF")
set_property(CACHE OUTERLOOP_CUDA PROPERTY STRINGS AUTO ON OFF)
if(NOT OUTERLOOP_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "OUTERLOOP_CUDA is '${OUTERLOOP_CUDA}'; it must be AUTO, ON or OFF.")
endif()
if(OUTERLOOP_CUDA STREQUAL AUTO)
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER AND EXISTS "${OUTERLOOP_TORCH_FOLDER}/lib/libtorch_cuda.so")
    set(OUTERLOOP_CUDA ON)
  else()
    set(OUTERLOOP_CUDA OFF)
  endif()
endif()
message(STATUS "CUDA: ${OUTERLOOP_CUDA}")
if(NOT OUTERLOOP_CUDA)
  return()
endif()

if(NOT EXISTS "${OUTERLOOP_TORCH_FOLDER}/lib/libtorch_cuda.so")
  message(FATAL_ERROR "OUTERLOOP_CUDA is ON, but ${OUTERLOOP_TORCH_FOLDER}/lib/libtorch_cuda.so is missing: this libtorch is "
                      "a build for CPUs. Set OUTERLOOP_TORCH to one with CUDA, or OUTERLOOP_CUDA to OFF.")
endif()
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 75 80 90 100 CACHE STRING "GPUs to build for; as CMake's CUDA_ARCHITECTURES")
endif()
if(CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc 13 has it
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
endif()
find_package(CUDAToolkit REQUIRED)

# The header of the NCCL that this libtorch loads, which a pip wheel has in a package beside it, before any other version's.
find_path(OUTERLOOP_NCCL_INCLUDE nccl.h HINTS ${OUTERLOOP_TORCH_FOLDER}/../nvidia/nccl/include ${CUDAToolkit_INCLUDE_DIRS}
          DOC "Folder of nccl.h; without one, outerloop_cuda has no connect_nccl")
message(STATUS "NCCL: ${OUTERLOOP_NCCL_INCLUDE}")

# Free of torch. -fmad=false: multiply-adds are spelled out, and others would differ from the CPU's bits.
add_library(outerloop_cuda_kernels STATIC cuda/chunks.cpp cuda/send.cu cuda/apply.cu cuda/stages.cu cuda/workspace.cu)
target_include_directories(outerloop_cuda_kernels PUBLIC include .)
target_link_libraries(outerloop_cuda_kernels PUBLIC CUDA::cudart)
target_compile_options(outerloop_cuda_kernels PRIVATE
  $<$<COMPILE_LANGUAGE:CUDA>:-fmad=false -lineinfo -Xcompiler=-Wall,-Wextra,-Werror>
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Werror>)

# What a program needs that holds CUDA tensors. libtorch registers its CUDA side by being loaded: it must be linked though
# no symbol asks for it, and what it needs in turn (cuDNN, cuBLAS, NCCL) is looked for when the program starts, not now.
add_library(outerloop_torch_cuda INTERFACE)
add_library(outerloop::torch_cuda ALIAS outerloop_torch_cuda)
target_include_directories(outerloop_torch_cuda SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS})
target_link_libraries(outerloop_torch_cuda INTERFACE outerloop::torch
  -Wl,--no-as-needed ${OUTERLOOP_TORCH_FOLDER}/lib/libtorch_cuda.so ${OUTERLOOP_TORCH_FOLDER}/lib/libc10_cuda.so -Wl,--as-needed
  CUDA::cudart)
target_link_options(outerloop_torch_cuda INTERFACE LINKER:--unresolved-symbols=ignore-in-shared-libs)
