// The C test, compiled as C++17 against the same library.

#include "smoke.c"
