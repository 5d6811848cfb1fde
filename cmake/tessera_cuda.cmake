# SPDX-License-Identifier: Apache-2.0
# The flags of CUDA sources, once: library, tests and benches are compiled alike.
if(NOT TESSERA_CUDA)
  return()
endif()
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "TESSERA_CUDA=ON: no CUDA compiler was found (looked for nvcc in PATH, CUDACXX, CUDA_HOME "
                      "and /usr/local/cuda). Install the CUDA toolkit or configure with -DTESSERA_CUDA=OFF.")
endif()
enable_language(CUDA)
find_package(CUDAToolkit 12.8 REQUIRED)

# sm_90a carries the Hopper kernels; 80-real or 100-real may be added.
set(TESSERA_CUDA_ARCHS "90a-real" CACHE STRING "CUDA architectures of the device code")

# CMake 3.25.1 knows no C++20 for CUDA, so the flag is set by hand. Host code in .cu files gets the
# warnings that nvcc's own stubs pass; it rewrites designated initialisers so that fields seem missing.
set(tessera_cuda_options
  -std=c++20 -O3 -lineinfo --expt-relaxed-constexpr -Xptxas=--warn-on-spills
  -Xcompiler=-Wall,-Wextra,-Werror,-Wno-missing-field-initializers)

function(tessera_cuda_flags target)
  set_target_properties(${target} PROPERTIES
    CUDA_ARCHITECTURES "${TESSERA_CUDA_ARCHS}"
    CUDA_STANDARD_REQUIRED OFF)
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:${tessera_cuda_options}>")
endfunction()
