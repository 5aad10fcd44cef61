# CUDA where there is nvcc: AUTO (the default) leaves it out without, ON insists, OFF never asks. Builds with sanitizers
# leave it out; they run the kernels' bodies on the host (tests/gpu/).
set(CGX_CUDA AUTO CACHE STRING "CUDA kernels: AUTO, ON or OFF")
set(CGX_CUDA_FOUND FALSE)
set(CGX_CUDA_VERSION 0)  # of the toolkit: 13000 is 13.0; 0: there is none
if(CGX_CUDA AND NOT CGX_SANITIZE AND NOT CGX_FUZZ)
  find_program(NVCC_PROGRAM nvcc HINTS ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
  if(NVCC_PROGRAM)
    set(CGX_CUDA_FOUND TRUE)
    execute_process(COMMAND ${NVCC_PROGRAM} --version OUTPUT_VARIABLE nvcc_says)
    if(nvcc_says MATCHES "release ([0-9]+)\\.([0-9]+)")
      math(EXPR CGX_CUDA_VERSION "${CMAKE_MATCH_1} * 1000 + ${CMAKE_MATCH_2} * 10")
    endif()
  elseif(CGX_CUDA STREQUAL "AUTO")
    message(STATUS "CUDA is left out: no nvcc (PATH, CUDA_HOME, /usr/local/cuda)")
  else()
    message(FATAL_ERROR "CGX_CUDA=${CGX_CUDA}, but no nvcc in PATH, CUDA_HOME or /usr/local/cuda")
  endif()
endif()
