# The two headers under other compilers than the one that the tests are built with, each where it is installed:
#
#   clang                ftcache.h as C99, C11, C17, C++11, C++17; ftcache.hpp as C++17, C++20; both as HIP and as CUDA, for
#                        the host and for the device, by the language alone: no header of either platform is there
#   clang for MSVC       ftcache.h as C99, C11, C17, C++11, C++17, freestanding: clang's own stdint.h and stddef.h
#   MinGW-w64            all of them for Windows, with its C and C++ headers
#   hipcc, nvcc          both, as their users compile them
#
# Not compiled for real: Microsoft's cl.exe and its library, so ftcache.hpp has met MSVC nowhere.

set(HEADER_WARNINGS ${WARNINGS} -Wundef -Wconversion)
set(HEADER_C ${HEADER_WARNINGS} -Wstrict-prototypes)
set(HEADER_CXX ${HEADER_WARNINGS} -Wold-style-cast -Wshadow)

# header_test(name source compiler flag...): compiles, and keeps nothing.
function(header_test name source)
  add_test(NAME header_${name} COMMAND ${ARGN} "-I${ROOT}/include" "${CMAKE_CURRENT_SOURCE_DIR}/${source}")
  set_tests_properties(header_${name} PROPERTIES TIMEOUT 120)
endfunction()

# c_header_tests(name c cxx flag...): ftcache.h in every standard that engines compile with.
function(c_header_tests name c cxx)
  foreach(standard 99 11 17)
    header_test(${name}_c${standard} header.c ${c} -std=c${standard} ${HEADER_C} -fsyntax-only ${ARGN})
  endforeach()
  foreach(standard 11 17)
    header_test(${name}_cxx${standard} header.cpp ${cxx} -std=c++${standard} ${HEADER_CXX} -fsyntax-only ${ARGN})
  endforeach()
endfunction()

# wrapper_tests(name cxx): ftcache.hpp, also for engines without exceptions.
function(wrapper_tests name cxx)
  foreach(standard 17 20)
    header_test(${name}_hpp${standard} header_hpp.cpp ${cxx} -std=c++${standard} ${HEADER_CXX} -fsyntax-only)
    header_test(${name}_hpp${standard}_bare header_hpp.cpp
      ${cxx} -std=c++${standard} ${HEADER_CXX} -fsyntax-only -fno-exceptions -fno-rtti)
  endforeach()
endfunction()

find_program(CLANG clang)
find_program(CLANGXX clang++)
if(CLANG AND CLANGXX)
  c_header_tests(clang ${CLANG} ${CLANGXX})
  wrapper_tests(clang ${CLANGXX})
  c_header_tests(clang_msvc ${CLANG} ${CLANGXX} --target=x86_64-pc-windows-msvc -ffreestanding)
  set(HIP -x hip -nogpuinc -nogpulib)
  set(HIP_DEVICE --cuda-gpu-arch=gfx906)
  set(CUDA -x cuda -nocudainc -nocudalib)
  set(CUDA_DEVICE --cuda-gpu-arch=sm_80)
  foreach(language HIP CUDA)
    string(TOLOWER ${language} name)
    foreach(source header header_hpp)
      set(compiler ${CLANGXX} ${${language}} -std=c++17 ${HEADER_CXX} -fsyntax-only)
      header_test(clang_${name}_host_${source} ${source}.cpp ${compiler} --cuda-host-only)
      header_test(clang_${name}_device_${source} ${source}.cpp ${compiler} --cuda-device-only ${${language}_DEVICE})
    endforeach()
  endforeach()
else()
  message(STATUS "clang is not installed: the headers are not compiled by it, nor for MSVC, nor as HIP and CUDA")
endif()

find_program(MINGW_C x86_64-w64-mingw32-gcc)
find_program(MINGW_CXX x86_64-w64-mingw32-g++)
if(MINGW_C AND MINGW_CXX)
  c_header_tests(mingw ${MINGW_C} ${MINGW_CXX})
  wrapper_tests(mingw ${MINGW_CXX})
else()
  message(STATUS "MinGW-w64 is not installed: the headers are not compiled for Windows")
endif()

find_program(HIPCC hipcc)
if(HIPCC)
  foreach(source header header_hpp)
    header_test(hipcc_${source} ${source}.cpp
      ${HIPCC} -x hip -std=c++17 ${HEADER_CXX} --offload-arch=gfx906 -c -o hipcc_${source}.o)
  endforeach()
else()
  message(STATUS "hipcc is not installed: the headers are not compiled by it")
endif()

find_program(NVCC nvcc)
if(NVCC)
  # What it makes of a source is not pedantic.
  foreach(source header header_hpp)
    header_test(nvcc_${source} ${source}.cpp
      ${NVCC} -x cu -std=c++17 -Xcompiler -Wall,-Wextra -Werror all-warnings -c -o nvcc_${source}.o)
  endforeach()
else()
  message(STATUS "nvcc is not installed: the headers are not compiled by it")
endif()
