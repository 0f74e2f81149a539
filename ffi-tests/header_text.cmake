# What can be seen in the text of the two headers: that the wrapper leaves out no function, that its example is the one
# that is compiled, and that neither includes more than is listed here.
#
#   cmake -D ROOT=. -P ffi-tests/header_text.cmake

# code_of(path variable): a file without its comments, which name functions too.
function(code_of path variable)
  file(READ "${path}" text)
  string(REGEX REPLACE "\n \\*[^\n]*" "" text "${text}")
  string(REGEX REPLACE "/[/*][^\n]*" "" text "${text}")
  set(${variable} "${text}" PARENT_SCOPE)
endfunction()

# includes(name text wanted...): the exact list, so that nothing of POSIX or of CUDA comes in.
function(includes name text)
  string(REGEX MATCHALL "#[ \t]*include[^\n]*" found "${text}")
  list(TRANSFORM found STRIP)
  list(TRANSFORM found REPLACE "#[ \t]*include[ \t]*" "")
  if(NOT found STREQUAL "${ARGN}")
    message(SEND_ERROR "${name} includes ${found}; allowed are ${ARGN}")
  endif()
endfunction()

code_of("${ROOT}/include/ftcache.h" c_header)
code_of("${ROOT}/include/ftcache.hpp" wrapper)

includes(ftcache.h "${c_header}" <stddef.h> <stdint.h>)
includes(ftcache.hpp "${wrapper}" <cstddef> <cstdint> <cstdio> <cstdlib> <optional> <string> <type_traits> <utility>
  <vector> "\"ftcache.h\"")

string(REGEX MATCHALL "ftcache_[a-z0-9_]+\\(" functions "${c_header}")
string(REGEX MATCHALL "::ftcache_[a-z0-9_]+\\(" calls "${wrapper}")
list(TRANSFORM calls REPLACE "^::" "")
list(LENGTH functions function_count)
if(function_count LESS 80)
  message(SEND_ERROR "ftcache.h is read as ${function_count} functions; it has 80 at the least")
endif()
foreach(function ${functions})
  if(NOT function IN_LIST calls)
    message(SEND_ERROR "ftcache.hpp calls ${function}) nowhere")
  endif()
endforeach()

file(READ "${ROOT}/ffi-tests/examples/wrapper.cpp" example)
string(REGEX REPLACE "^.*// example: wrapper\n" "" example "${example}")
string(REGEX REPLACE "// end\n.*$" "" example "${example}")
string(REGEX REPLACE "\n$" "" example "${example}")
string(REPLACE "\n" "\n *     " example "\n${example}")
string(REPLACE " *     \n" " *\n" example "${example}")
file(READ "${ROOT}/include/ftcache.hpp" page)
string(FIND "${page}" "${example}\n" at)
if(at EQUAL -1)
  message(SEND_ERROR "the example of ftcache.hpp is not that of examples/wrapper.cpp")
endif()

message("ftcache.h has ${function_count} functions")
