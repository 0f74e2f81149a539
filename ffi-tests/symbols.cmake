# The shared library gives out the header's functions, all of them and nothing else. The linker's own marks (_init,
# _edata and the like) are no exception: rustc's version script keeps them in too.
#
#   cmake -DNM=nm -DLIBRARY=libftcache.so -DHEADER=include/ftcache.h -P symbols.cmake

execute_process(COMMAND "${NM}" -D --defined-only "${LIBRARY}" OUTPUT_VARIABLE listed COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[^\n]+" lines "${listed}")
set(given "")
foreach(line IN LISTS lines)
  string(REGEX REPLACE "^.* " "" name "${line}")
  list(APPEND given "${name}")
endforeach()

file(READ "${HEADER}" text)
# Comments hold calls. None of them holds the end of another.
string(REGEX REPLACE "//[^\n]*" "" text "${text}")
string(REGEX REPLACE "/\\*([^*]|\\*+[^*/])*\\*+/" "" text "${text}")
string(REGEX MATCHALL "[a-z_0-9]+\\(" calls "${text}")
string(REPLACE "(" "" declared "${calls}")
list(FILTER declared INCLUDE REGEX "^ftcache_")

list(SORT given)
list(SORT declared)
list(LENGTH declared count)
if(NOT given STREQUAL declared OR count EQUAL 0)
  set(missing ${declared})
  set(more ${given})
  list(REMOVE_ITEM missing ${given})
  list(REMOVE_ITEM more ${declared})
  message(FATAL_ERROR "${LIBRARY} lacks [${missing}] of ${count} functions, and has [${more}] besides")
endif()
message(STATUS "${count} functions")
