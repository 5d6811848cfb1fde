# SPDX-License-Identifier: Apache-2.0
# Whether there is a CUDA compiler that works with the host compiler: the default of TESSERA_CUDA.
include(CheckLanguage)

# Sanitizers and clang build the host parts only.
set(TESSERA_CUDA_FOUND OFF)
if(TESSERA_SANITIZE OR NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  return()
endif()
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED TESSERA_NVCC)
  find_program(TESSERA_NVCC nvcc PATHS ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
endif()
if(TESSERA_NVCC AND NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  set(ENV{CUDACXX} "${TESSERA_NVCC}")
endif()
check_language(CUDA)
if(CMAKE_CUDA_COMPILER)
  set(TESSERA_CUDA_FOUND ON)
elseif(NOT TESSERA_CUDA)
  message(STATUS "No CUDA compiler: the CUDA backend is left out")
endif()
