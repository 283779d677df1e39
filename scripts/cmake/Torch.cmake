# outerloop::torch from a folder of libtorch: the `torch` folder of a pip wheel, or an unpacked libtorch zip. Made by hand,
# because find_package(Torch) insists on a CUDA toolkit beside a CUDA build and links libraries that a CPU program lacks.

set(OUTERLOOP_TORCH "$ENV{OUTERLOOP_TORCH}" CACHE PATH "Folder of libtorch; empty: the one in .venv")
set(torch_folder "${OUTERLOOP_TORCH}")
if(torch_folder)
  get_filename_component(torch_folder "${torch_folder}" ABSOLUTE BASE_DIR "$ENV{PWD}")
else()
  file(GLOB torch_folder ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
endif()
if(NOT torch_folder OR NOT EXISTS "${torch_folder}/include/torch/csrc/api/include/torch/optim/optimizer.h")
  message(FATAL_ERROR "No libtorch in '${torch_folder}' (looked for include/torch/csrc/api/include/torch/optim/optimizer.h). "
                      "Run scripts/setup.sh, which puts one into .venv, or set OUTERLOOP_TORCH to a folder that has one: "
                      "the 'torch' folder of a pip wheel, or an unpacked libtorch zip.")
endif()
foreach(name torch_cpu c10)
  if(NOT EXISTS "${torch_folder}/lib/lib${name}.so")
    message(FATAL_ERROR "${torch_folder}/lib/lib${name}.so is missing: this libtorch is incomplete. Delete .venv and run "
                        "scripts/setup.sh again, or point OUTERLOOP_TORCH at another libtorch.")
  endif()
endforeach()
set(OUTERLOOP_TORCH_FOLDER "${torch_folder}")
message(STATUS "libtorch: ${torch_folder}")

add_library(outerloop_torch INTERFACE)
add_library(outerloop::torch ALIAS outerloop_torch)
target_include_directories(outerloop_torch SYSTEM INTERFACE
  ${torch_folder}/include ${torch_folder}/include/torch/csrc/api/include)
target_compile_features(outerloop_torch INTERFACE cxx_std_20)
# Without these the c10d headers are silently empty.
target_compile_definitions(outerloop_torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
target_link_libraries(outerloop_torch INTERFACE ${torch_folder}/lib/libtorch_cpu.so ${torch_folder}/lib/libc10.so)
# The wheel finds its CUDA runtime by itself; a program that links only libtorch_cpu needs no more than these folders.
target_link_options(outerloop_torch INTERFACE "LINKER:-rpath,${torch_folder}/lib")

# For find_package(OpenMP): libtorch brings an OpenMP runtime, which is the one that is loaded.
file(GLOB torch_openmp ${torch_folder}/lib/libgomp*.so*)
if(torch_openmp)
  list(GET torch_openmp 0 torch_openmp)
  set(OpenMP_gomp_LIBRARY ${torch_openmp} CACHE FILEPATH "OpenMP runtime")
endif()

# ProcessGroupGloo.hpp includes five gloo headers that libtorch does not ship. Real ones are used when they are there.
find_path(OUTERLOOP_GLOO_REAL gloo/context.h HINTS ${torch_folder}/include)
if(OUTERLOOP_GLOO_REAL)
  set(OUTERLOOP_GLOO_INCLUDE ${OUTERLOOP_GLOO_REAL})
else()
  set(OUTERLOOP_GLOO_INCLUDE ${PROJECT_SOURCE_DIR}/src/comm/gloo_headers)
endif()
message(STATUS "gloo headers: ${OUTERLOOP_GLOO_INCLUDE}")
